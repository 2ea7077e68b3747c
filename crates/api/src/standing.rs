//! Owns how standing tasks are shown, and the walks of nodes through them.

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, TaskId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::standing::{
    Cell, ChangeKind, ListChange as Difference, StandingTask as Record, TaskFields, WalkState, WalkView,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema;

/// A standing task of a cluster: every node that its selector matches carries it out once, in the order of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandingTask {
    #[schema(value_type = Uuid)]
    pub id: TaskId,
    #[schema(value_type = Uuid)]
    pub cluster_id: ClusterId,
    pub name: String,
    /// The backend.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its place in the list, from 1.
    pub order: u32,
    /// Whether its failure keeps a node from the tasks after it.
    pub blocking: bool,
    pub backend: String,
    pub action: String,
    #[schema(value_type = Object)]
    pub params: Params,
    /// The command, if the task runs one in a shell (`exec shell`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<TaskConfig>,
    /// 10s to 24h.
    #[schema(value_type = String, example = "30m")]
    pub timeout: Span,
    pub timeout_seconds: u64,
    /// The nodes that it applies to; null means all.
    pub selector: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A command in a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskConfig {
    /// A line or a script for `bash -c`.
    pub command: String,
    pub timeout_seconds: u64,
    /// An absolute path; empty means the agent's own directory.
    pub working_dir: String,
}

impl StandingTask {
    /// `order` counts from 1.
    pub fn of(cluster: ClusterId, task: &Record, order: usize) -> Self {
        let timeout_seconds = whole_seconds(task.timeout);
        let text = |name: &str| task.params.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let config = TaskFields::of(task).is_shell().then(|| TaskConfig {
            command: text("command"),
            timeout_seconds,
            working_dir: text("working_dir"),
        });
        Self {
            id: task.id,
            cluster_id: cluster,
            name: task.name.clone(),
            kind: task.backend.clone(),
            order: u32::try_from(order).unwrap_or(u32::MAX),
            blocking: task.blocking,
            backend: task.backend.clone(),
            action: task.action.clone(),
            params: (*task.params).clone(),
            config,
            timeout: task.timeout,
            timeout_seconds,
            selector: task.selector.as_ref().map(|selector| selector.as_str().to_owned()),
            created_at: task.created_at,
            updated_at: task.updated_at,
        }
    }

    /// Returns the whole list of a cluster.
    pub fn list(cluster: &ClusterRecord) -> Vec<Self> {
        let tasks = cluster.list.tasks.iter().zip(1..);
        tasks.map(|(task, order)| Self::of(cluster.id, task, order)).collect()
    }

    /// Returns a task of a cluster.
    pub fn find(cluster: &ClusterRecord, id: TaskId) -> Option<Self> {
        let (place, task) = cluster.list.by_id(id)?;
        Some(Self::of(cluster.id, task, place + 1))
    }
}

/// Returns the seconds of a duration; a part of a second counts as one.
fn whole_seconds(span: Span) -> u64 {
    span.0.as_secs() + u64::from(span.0.subsec_nanos() > 0)
}

/// The differences between a list and the one of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListChanges {
    /// The tasks of the file in their order, then the deleted ones.
    pub changes: Vec<ListChange>,
}

/// What happens to one task of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListChange {
    #[schema(schema_with = schema::change_kind)]
    pub change: ChangeKind,
    pub name: String,
    /// Its place before, from 1.
    pub from: Option<u32>,
    /// Its place afterwards, from 1.
    pub to: Option<u32>,
    /// The fields that change: `command`, `timeout`, `params.env`.
    pub fields: Vec<String>,
}

impl ListChanges {
    pub fn of(changes: Vec<Difference>) -> Self {
        let place = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
        let change = |change: Difference| ListChange {
            change: change.kind,
            name: change.name,
            from: change.from.map(place),
            to: change.to.map(place),
            fields: change.fields,
        };
        Self { changes: changes.into_iter().map(change).collect() }
    }
}

/// A request to do a standing task again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rerun {
    /// How many nodes do it again, as far as they had done it.
    pub nodes: u64,
}

/// The walk of a node through the standing tasks of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Walk {
    #[schema(value_type = Uuid)]
    pub node_id: NodeId,
    pub hostname: String,
    /// The status of the node.
    #[schema(schema_with = schema::node_status)]
    pub status: NodeStatus,
    #[schema(schema_with = schema::walk_state)]
    pub state: WalkState,
    /// Since when its results count: it started over then.
    pub reset_at: Timestamp,
    /// One for each task, in the order of the list: succeeded, failed, lost, running, pending, skipped or not_selected.
    #[schema(value_type = Vec<String>)]
    pub cells: Vec<Cell>,
    /// The failed task that keeps the node from the rest.
    pub stuck: Option<Stuck>,
}

/// The blocking task that failed on a node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stuck {
    #[schema(value_type = Uuid)]
    pub task_id: TaskId,
    /// Its name.
    pub task: String,
    pub why: String,
    #[schema(value_type = Option<Uuid>)]
    pub execution: Option<ExecutionId>,
}

impl Walk {
    /// `why` returns why an execution failed.
    pub fn of(
        cluster: &ClusterRecord,
        walk: &WalkView,
        why: impl FnOnce(ExecutionId) -> Option<String>,
    ) -> Self {
        let stuck = walk.stuck.and_then(|(place, execution)| {
            let task = cluster.list.tasks.get(place)?;
            let why = execution.and_then(why).unwrap_or_else(|| "it failed".to_owned());
            Some(Stuck { task_id: task.id, task: task.name.clone(), why, execution })
        });
        Self {
            node_id: walk.node.id,
            hostname: walk.node.description.hostname.clone(),
            status: walk.node.status,
            state: walk.state,
            reset_at: Self::reset_at(cluster, &walk.node),
            cells: walk.cells.clone(),
            stuck,
        }
    }

    /// Returns since when the results of a node count.
    pub fn reset_at(cluster: &ClusterRecord, node: &NodeRecord) -> Timestamp {
        let since = node.kept_since.unwrap_or(node.registered_at);
        cluster.list.resets.get(&node.id).map_or(since, |reset| since.max(*reset))
    }
}
