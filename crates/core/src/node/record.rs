//! Owns what is known of a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{ActionSchema, BackendSchema};
use crate::ids::{ClusterId, NodeId, SessionId};
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
}
