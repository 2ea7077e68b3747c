//! Owns the reasons for which an agent ends by itself. Everything that may pass is waited for instead.

use std::io;
use std::path::PathBuf;

use downbeat_backends::LedgerError;
use downbeat_proto::message::Fault;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use data directory `{path}`: {error}")]
    Data { path: PathBuf, error: io::Error },
    #[error("data directory `{0}` is in use by another agent; give each its own")]
    DataInUse(PathBuf),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("no server to dial: name at least one")]
    NoServer,
    #[error("there is no backend `{name}` to {setting}; there are: {known}")]
    UnknownBackend { setting: &'static str, name: String, known: String },
    #[error("the server does not know this node or its cluster: {0}")]
    NotFound(String),
    #[error("another agent has registered as this node: {0}")]
    Superseded(String),
    #[error("the server refuses this agent: {0}")]
    Refused(String),
    #[error("a part of the agent broke down: {0}")]
    Bug(String),
}

impl Error {
    /// What ends a session that is under way, when it is the answer to a heartbeat. Whatever else a server says, the
    /// agent goes on trying.
    pub(crate) fn from_session(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::NotFound(text) => Some(Self::NotFound(text.clone())),
            Fault::Superseded(text) => Some(Self::Superseded(text.clone())),
            Fault::Unknown(_) | Fault::Occupied(_) | Fault::Rejected(_) | Fault::Unavailable(_) => None,
        }
    }

    /// At the start a refusal ends it too: the same words would be refused again.
    pub(crate) fn from_opening(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::Rejected(text) => Some(Self::Refused(text.clone())),
            Fault::NotFound(_)
            | Fault::Superseded(_)
            | Fault::Unknown(_)
            | Fault::Occupied(_)
            | Fault::Unavailable(_) => Self::from_session(fault),
        }
    }
}
