//! Owns the list of a cluster's standing tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::Params;
use crate::ids::{NodeId, TaskId};
use crate::select::Selector;
use crate::span::Span;

/// A standing task: every node of the cluster that its selector matches carries it out once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingTask {
    pub id: TaskId,
    /// The step of its executions in the standing run of the cluster. Unique within the cluster, and never used again.
    pub number: u32,
    /// Unique among the tasks that are not deleted.
    pub name: String,
    /// Whether its failure keeps a node from the tasks after it.
    pub blocking: bool,
    pub backend: String,
    pub action: String,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Arc<Params>,
    pub timeout: Span,
    /// The nodes that it applies to; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When it was deleted. Executions of deleted tasks are kept for a while, and their names are shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// The requests to do it again. A request whose time has come for every node does no harm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reruns: Vec<Rerun>,
}

/// A request to do a task again: results from before it do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    pub at: Timestamp,
    #[serde(flatten)]
    pub scope: RerunScope,
}

/// Which results do not count any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "snake_case")]
pub enum RerunScope {
    All,
    /// Those that are not a success.
    Failed,
    Node {
        node: NodeId,
    },
}

/// The standing tasks of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StandingList {
    /// In the order in which nodes carry them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<StandingTask>,
    /// Deleted tasks of which executions may be left, the last deleted first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<StandingTask>,
    /// The number of the next task.
    #[serde(default)]
    pub next_number: u32,
    /// Nodes that a person reset, and when: results from before do not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resets: BTreeMap<NodeId, Timestamp>,
}

impl StandingList {
    /// Returns a task, deleted or not, by the number of its step.
    pub fn by_number(&self, number: u32) -> Option<&StandingTask> {
        self.tasks.iter().chain(&self.deleted).find(|task| task.number == number)
    }

    /// Returns a task that is not deleted, with its position from 0.
    pub fn by_id(&self, id: TaskId) -> Option<(usize, &StandingTask)> {
        self.tasks.iter().enumerate().find(|(_, task)| task.id == id)
    }

    pub fn by_name(&self, name: &str) -> Option<(usize, &StandingTask)> {
        self.tasks.iter().enumerate().find(|(_, task)| task.name == name)
    }
}
