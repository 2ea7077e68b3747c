//! Owns how a component that does not start, or ends by itself, becomes a failure.

use std::io::ErrorKind;

use downbeat_agent::Error as AgentError;
use downbeat_server::{Server, Settings, StartError};
use downbeat_store::Error as StoreError;

use crate::exit::{Code, Failure};

/// Starts a server.
pub(super) async fn started(settings: Settings) -> Result<Server, Failure> {
    downbeat_server::start(settings).await.map_err(|error| {
        let code = match &error {
            StartError::Listen { error, .. } if error.kind() == ErrorKind::AddrInUse => Code::Refused,
            StartError::Listen { .. }
            | StartError::Store(StoreError::BadLocation(_) | StoreError::BadOption(_)) => Code::BadInput,
            StartError::Store(StoreError::Unavailable(_)) => Code::Unreachable,
            StartError::Store(
                StoreError::InUse(_)
                | StoreError::NewerSchema { .. }
                | StoreError::AlteredMigration { .. }
                | StoreError::Misused(_)
                | StoreError::Damaged(_),
            ) => Code::Refused,
            StartError::Store(StoreError::Corrupt(_)) => Code::Bug,
        };
        Failure::new(code, format!("cannot start the server: {error}"))
    })
}

/// Why an agent ended by itself.
pub(super) fn agent_ended(error: &AgentError) -> Failure {
    let code = match error {
        AgentError::Data { .. }
        | AgentError::Ledger(_)
        | AgentError::NoServer
        | AgentError::UnknownBackend { .. } => Code::BadInput,
        AgentError::NotFound(_) => Code::NotFound,
        AgentError::DataInUse(_) | AgentError::Superseded(_) | AgentError::Refused(_) => Code::Refused,
        AgentError::Bug(_) => Code::Bug,
    };
    let what = match error {
        AgentError::Data { .. }
        | AgentError::DataInUse(_)
        | AgentError::Ledger(_)
        | AgentError::NoServer
        | AgentError::UnknownBackend { .. } => "cannot start the agent",
        AgentError::NotFound(_) | AgentError::Superseded(_) | AgentError::Refused(_) | AgentError::Bug(_) => {
            "the agent has ended"
        }
    };
    Failure::new(code, format!("{what}: {error}"))
}
