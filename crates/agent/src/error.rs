//! Owns the reasons for which an agent ends by itself. The agent retries everything else.

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
    #[error("data directory `{0}` is in use by another agent; give each agent its own directory")]
    DataInUse(PathBuf),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("no server is configured; name at least one")]
    NoServer,
    #[error("cannot {setting} backend `{name}`: no such backend; {advice}")]
    UnknownBackend { setting: &'static str, name: String, advice: String },
    #[error("the description of this node is not valid: {0}")]
    Description(#[from] BadDescription),
    #[error("`only` leaves no backend: {names} can run any command and must be allowed; add --allow {names}")]
    NothingToOffer { names: String },
    #[error("the node was deleted: {0}; restart the agent to register it again")]
    NotFound(String),
    #[error("{0}; create it, or correct `cluster` in the agent's settings, and start the agent again")]
    NoCluster(String),
    #[error("a newer agent of this installation owns the node: {0}")]
    Superseded(String),
    #[error(
        "cluster `{cluster}` was replaced: this node was {node} and would become {there}; restart the agent to \
         register there"
    )]
    OtherCluster { cluster: String, node: NodeId, there: NodeId },
    #[error("a part of the agent failed: {0}")]
    Bug(String),
}

impl Error {
    /// Returns the error that ends the agent if a registration fails with `fault`; `None` if the agent
    /// retries. After a heartbeat only `NotFound` ends it: `Superseded` makes it register again, and `NoCluster` ends it
    /// when its leases have expired.
    pub(crate) fn from_session(fault: &Fault) -> Option<Self> {
        match fault {
            Fault::NotFound(text) => Some(Self::NotFound(text.clone())),
            Fault::NoCluster(text) => Some(Self::NoCluster(text.clone())),
            Fault::Superseded(text) => Some(Self::Superseded(text.clone())),
            _ => None,
        }
    }
}
