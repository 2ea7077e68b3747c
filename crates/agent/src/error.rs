//! Owns the reasons for which an agent ends by itself. Everything that may pass is waited for instead.

use std::io;
use std::path::PathBuf;

use downbeat_backends::LedgerError;
use downbeat_core::ids::NodeId;
use downbeat_core::node::BadDescription;
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
    #[error("there is no backend `{name}` to {setting}; {advice}")]
    UnknownBackend { setting: &'static str, name: String, advice: String },
    #[error("what this node says of itself is not allowed: {0}")]
    Description(#[from] BadDescription),
    #[error("`only` leaves no backend: {names} may run anything at all; add --allow {names}")]
    NothingToOffer { names: String },
    #[error("its node was deleted: {0}; start the agent again if the node is to be there")]
    NotFound(String),
    #[error("a newer agent of this installation has its node: {0}")]
    Superseded(String),
    #[error(
        "cluster `{cluster}` is another one now: this node was {node} and would be {there}; start the agent again to \
         register there"
    )]
    OtherCluster { cluster: String, node: NodeId, there: NodeId },
    #[error("a part of the agent broke down: {0}")]
    Bug(String),
}

impl Error {
    /// What ends an agent, when it is the answer to a registration; of a heartbeat only `not found` does, since it makes the
    /// agent register again for the other. Whatever else a server says, the agent goes on trying.
    pub(crate) fn from_session(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::NotFound(text) => Some(Self::NotFound(text.clone())),
            Fault::Superseded(text) => Some(Self::Superseded(text.clone())),
            Fault::Unknown(_)
            | Fault::Occupied(_)
            | Fault::Rejected(_)
            | Fault::Unavailable(_)
            | Fault::TimedOut(_) => None,
        }
    }
}
