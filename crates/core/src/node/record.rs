//! Owns what is known of a node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::backend::{ActionSchema, BackendSchema};
use crate::ids::{ClusterId, ExecutionId, NodeId, SessionId};
use crate::node::NodeStatus;

/// What a node says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub hostname: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// cpu, memory, gpu, …: a text or a number each.
    #[serde(default)]
    pub capabilities: BTreeMap<String, Value>,
    #[serde(default)]
    /// Shared: thousands of nodes say the same.
    pub backends: Vec<Arc<BackendSchema>>,
    /// How many placed executions it carries out at once. Fleet work has its own lane of one.
    pub slots: u32,
    /// The agent's version.
    #[serde(default)]
    pub version: String,
}

impl Description {
    pub fn backend(&self, name: &str) -> Option<&BackendSchema> {
        self.backends.iter().map(Arc::as_ref).find(|backend| backend.name == name)
    }

    pub fn action(&self, backend: &str, action: &str) -> Option<&ActionSchema> {
        self.backend(backend)?.action(action)
    }
}

/// A node that announced itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    pub node: NodeId,
    pub cluster: ClusterId,
    pub session: SessionId,
    pub description: Description,
    /// Nothing: an agent from before there were installations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<Installation>,
    /// Executions that former sessions were given and whose results the agent still has to deliver: they are not lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<ExecutionId>,
    /// What the one who accepted it saw, and relied on.
    #[serde(default, skip_serializing_if = "Former::is_any")]
    pub former: Former,
    pub at: Timestamp,
}

/// The guard of a registration: what was stored of the node when it was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "snake_case")]
pub enum Former {
    /// Whatever it was: the newest session wins. Written by programs from before there was this guard.
    #[default]
    Any,
    /// There was no such node.
    Nobody,
    /// This session had the node. When it is replaced for its silence, it must not have been heard of since.
    Session {
        session: SessionId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_since: Option<Timestamp>,
    },
}

impl Former {
    /// The session that is replaced for its silence.
    pub fn displaced(&self) -> Option<SessionId> {
        match self {
            Former::Session { session, silent_since: Some(_) } => Some(*session),
            Former::Any | Former::Nobody | Former::Session { .. } => None,
        }
    }

    fn is_any(&self) -> bool {
        *self == Former::Any
    }
}

/// Which installation of an agent speaks: one data directory on one boot of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// SHA-256 of the id that the agent shows, in hexadecimal. The id itself is never stored: whoever reads events or
    /// nodes could register with it.
    pub digest: String,
    /// Rises with each start of the agent.
    pub life: u64,
}

impl Installation {
    pub fn new(id: &[u8], life: u64) -> Self {
        let digest = Sha256::digest(id).iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Self { digest, life }
    }

    /// Enough of the digest to tell installations apart.
    pub fn short(&self) -> &str {
        self.digest.get(..8).unwrap_or(&self.digest)
    }
}

/// A node that was deleted, with the session that it had. That session is told so; a new one registers anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub node: NodeId,
    pub session: SessionId,
    pub cluster: ClusterId,
    /// What was done there is still shown by this name.
    pub hostname: String,
    pub at: Timestamp,
}

/// A node as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub cluster: ClusterId,
    pub session: SessionId,
    pub description: Description,
    pub status: NodeStatus,
    /// Drained by a person: finishes what it has, takes no new work.
    pub draining: bool,
    pub registered_at: Timestamp,
    /// Last heartbeat. It renews every lease of the session.
    pub seen_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<Installation>,
    /// See [`Registration::undelivered`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<ExecutionId>,
    /// The session of another installation that this one replaced for its silence. It may come back, and has to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displaced: Option<SessionId>,
    /// What is wrong on the host, as its agent says, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
