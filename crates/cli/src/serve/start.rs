//! Maps errors of a component that does not start, or that ends by itself, to failures.

use std::io::ErrorKind;

use downbeat_agent::Error as AgentError;
use downbeat_server::{Server, Settings, StartError, VitalTaskEnded};
use downbeat_store::Error as StoreError;

use crate::exit::{Code, Failure, Result};

pub(super) async fn started(settings: Settings) -> Result<Server> {
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
            StartError::Hooks(_) => Code::BadInput,
        };
        Failure::new(code, format!("cannot start the server: {error}"))
    })
}

/// Returns the failure of a server without one of its vital tasks. It is not stopped gracefully: it could wait forever.
pub(super) fn server_ended(ended: &VitalTaskEnded) -> Failure {
    Failure::new(Code::Bug, format!("the server exits, and other servers take over its runs: {ended}"))
}

/// Returns the failure of an agent that ended by itself.
pub(super) fn agent_ended(error: &AgentError) -> Failure {
    const NOT_STARTED: &str = "cannot start the agent";
    const ENDED: &str = "the agent has ended";
    let (what, code) = match error {
        AgentError::NoServer
        | AgentError::UnknownBackend { .. }
        | AgentError::NothingToOffer { .. }
        | AgentError::Description(_) => (NOT_STARTED, Code::BadInput),
        AgentError::Data { .. } | AgentError::DataInUse(_) | AgentError::Ledger(_) => {
            (NOT_STARTED, Code::TemporaryFailure)
        }
        AgentError::OtherCluster { .. } => (ENDED, Code::TemporaryFailure),
        AgentError::NotFound(_) | AgentError::NoCluster(_) => (ENDED, Code::NotFound),
        AgentError::Superseded(_) => (ENDED, Code::Refused),
        AgentError::Bug(_) => (ENDED, Code::Bug),
    };
    Failure::new(code, format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use downbeat_core::ids::NodeId;

    use super::*;

    /// The systemd unit restarts the agent unless it exits with 2, 4 or 5.
    #[test]
    fn an_agent_that_starting_again_may_help_does_not_end_with_a_code_that_prevents_it() {
        let data = || "/data".into();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for (error, code) in [
            (AgentError::Data { path: data(), error: full() }, 75),
            (AgentError::NoCluster("cluster `east` does not exist".to_owned()), 4),
            (AgentError::DataInUse(data()), 75),
            (
                AgentError::OtherCluster {
                    cluster: "east".to_owned(),
                    node: NodeId(uuid::Uuid::nil()),
                    there: NodeId(uuid::Uuid::nil()),
                },
                75,
            ),
            (AgentError::NoServer, 2),
            (AgentError::NotFound("deleted".to_owned()), 4),
            (AgentError::Superseded("newer".to_owned()), 5),
            (AgentError::Bug("a bug".to_owned()), 70),
        ] {
            assert_eq!(agent_ended(&error).code as u8, code, "{error}");
        }
    }
}
