//! Owns the nodes of a run, as they are resolved and stored.

use serde::{Deserialize, Serialize};

use super::index::{EntryIx, NodeIx, SetIx, StepIx};
use crate::ids::NodeId;
use crate::node::NodeStatus;
use crate::spec::Rollout;

/// A node of a run, with its hostname for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRef {
    pub id: NodeId,
    pub hostname: String,
}

/// Which part of the first run a retry repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryScope {
    AllNodes,
    /// Only nodes on which something failed.
    FailedNodes,
    /// Also this entry and all that follow it, however they ended.
    From(EntryIx),
}

/// The nodes that a run's targets resolve to. They are resolved once, when the run is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Every node that any entry targets, by hostname.
    pub nodes: Vec<NodeRef>,
    /// Distinct sets of nodes, as indexes into `nodes`. Entries share them: 10,000 entries over one group have one set.
    pub sets: Vec<Vec<NodeIx>>,
    /// The set of each entry; `None` for an entry that is placed.
    pub entries: Vec<Option<SetIx>>,
    /// Steps whose action is declared idempotent by every node that the step targets.
    #[serde(default)]
    pub idempotent: Vec<StepIx>,
    /// With a roll-out: where each wave ends, as a count of nodes in the (only) set. The last wave ends after all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<u32>,
    /// Nodes that the targets match and that were left out because they were drained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<NodeRef>,
    /// With a retry: what it repeats. An owner that takes the run over derives from it which results are left to carry
    /// over. Older programs committed all of them together with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryScope>,
}

impl Resolved {
    pub fn node_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many nodes may fail before a roll-out stops.
    pub fn budget(&self, rollout: &Rollout) -> u32 {
        rollout.max_failures.of(self.waves.last().copied().unwrap_or(0))
    }

    /// Returns the nodes that are stale, offline or deleted (no status), by hostname, each with the consequence for its
    /// steps.
    pub fn silent_nodes(&self, status: impl Fn(NodeId) -> Option<NodeStatus>) -> Vec<(String, &'static str)> {
        let reason = |id| match status(id) {
            None => Some("was deleted: its steps fail"),
            Some(NodeStatus::Online) => None,
            Some(NodeStatus::Stale) => Some("is stale: its steps wait for it, and fail when it goes offline"),
            Some(NodeStatus::Offline) => {
                Some("is offline: its steps fail unless it is online when they start")
            }
        };
        self.nodes.iter().filter_map(|node| reason(node.id).map(|why| (node.hostname.clone(), why))).collect()
    }
}
