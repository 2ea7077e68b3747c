//! Owns the records of a node: its description, registration and tombstone.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{ActionSchema, BackendSchema};
use crate::ids::{ClusterId, ExecutionId, NodeId, SessionId, sha256_hex};
use crate::node::NodeStatus;

/// The properties that a node reports when it registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub hostname: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// cpu, memory, gpu, …: each a string or a number.
    #[serde(default)]
    pub capabilities: BTreeMap<String, Value>,
    #[serde(default)]
    /// Shared, because thousands of nodes have the same.
    pub backends: Vec<Arc<BackendSchema>>,
    /// How many placed executions it runs at once. Fleet work has its own lane of one.
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

/// An accepted registration of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    pub node: NodeId,
    pub cluster: ClusterId,
    pub session: SessionId,
    pub description: Description,
    /// `None` for an agent without an installation id (an older release).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<Installation>,
    /// Executions of former sessions whose results the agent still has to deliver. They are not lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<ExecutionId>,
    /// Since when successes of standing tasks count, if that is longer than this session: see
    /// [`OnRegister`](crate::cluster::OnRegister).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_since: Option<Timestamp>,
    /// The number of each standing task and of its last attempt, if the node was deleted before: the attempts go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<(u32, u32)>,
    /// The stored state that the decision relied on.
    #[serde(default, skip_serializing_if = "Former::is_any")]
    pub former: Former,
    pub at: Timestamp,
}

/// The guard of a registration: the stored node at the time of the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "snake_case")]
pub enum Former {
    /// No guard: the newest session wins. Written by older releases.
    #[default]
    Any,
    /// The node did not exist.
    Nobody,
    /// This session had the node. If it is replaced because it was silent, it must still be silent at the commit.
    Session {
        session: SessionId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_since: Option<Timestamp>,
    },
}

impl Former {
    /// Returns the session that is replaced because it was silent.
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

/// An installation of an agent: one data directory on one boot of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// SHA-256 of the agent's id, in hexadecimal. The id itself is never stored: a reader of events or nodes could
    /// register with it.
    pub digest: String,
    /// A counter that rises with each start of the agent.
    pub life: u64,
}

impl Installation {
    pub fn new(id: &[u8], life: u64) -> Self {
        Self { digest: sha256_hex(id), life }
    }

    /// Returns enough of the digest to tell installations apart.
    pub fn short(&self) -> &str {
        self.digest.get(..8).unwrap_or(&self.digest)
    }
}

/// A deleted node, with its last session. The agent of that session exits; a new session may register again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub node: NodeId,
    pub session: SessionId,
    pub cluster: ClusterId,
    /// Its former work is still shown with this name.
    pub hostname: String,
    pub at: Timestamp,
}

/// A stored node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub cluster: ClusterId,
    pub session: SessionId,
    pub description: Description,
    pub status: NodeStatus,
    /// Drained by a person: it finishes its work and takes no new work.
    pub draining: bool,
    pub registered_at: Timestamp,
    /// The last heartbeat, which renews every lease of the session.
    pub seen_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<Installation>,
    /// See [`Registration::undelivered`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<ExecutionId>,
    /// See [`Registration::kept_since`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_since: Option<Timestamp>,
    /// The session of another installation that this one replaced because it was silent. If it comes back, it has to
    /// wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displaced: Option<SessionId>,
    /// Problems on the host that its agent reports, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
