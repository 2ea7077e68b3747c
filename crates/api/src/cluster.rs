//! Owns how a cluster and its status are shown.

use std::collections::BTreeMap;

use downbeat_core::cluster::{ClusterRecord, OnRegister};
use downbeat_core::ids::{ClusterId, TaskId};
use downbeat_core::standing::{Cell, ClusterStatus as Counted};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// A cluster: a named set of nodes with its own standing tasks, jobs, runs and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    #[schema(value_type = Uuid)]
    pub id: ClusterId,
    /// Unique.
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// What a node does with the standing tasks when its agent starts again: `reset` starts over, `resume` keeps what
    /// succeeded.
    #[schema(schema_with = schema::on_register)]
    pub on_register: OnRegister,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// How many nodes it has.
    pub nodes: u64,
    /// How many standing tasks it has.
    pub tasks: u64,
}

impl Cluster {
    /// Returns what is shown as the name of a cluster whose record is not at hand: its id.
    pub fn name_of(id: ClusterId) -> String {
        if id == ClusterId::DEFAULT { ClusterRecord::default_cluster().name } else { id.to_string() }
    }

    pub fn of(record: &ClusterRecord, nodes: u64) -> Self {
        Self {
            id: record.id,
            name: record.name.clone(),
            description: record.description.clone(),
            on_register: record.on_register,
            created_at: record.created_at,
            updated_at: record.updated_at,
            nodes,
            tasks: record.list.tasks.len() as u64,
        }
    }
}

/// How far the nodes of a cluster are with its standing tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    #[schema(value_type = Uuid)]
    pub cluster_id: ClusterId,
    pub total_nodes: u64,
    /// Nodes that are online.
    pub active_nodes: u64,
    pub inactive_nodes: u64,
    pub total_tasks: u64,
    /// Nodes on which every task that applies to them succeeded.
    pub nodes_with_all_tasks_complete: u64,
    /// Nodes with tasks that are pending or running.
    pub nodes_with_pending_tasks: u64,
    /// Nodes with a task that failed or was lost.
    pub nodes_with_failed_tasks: u64,
    /// The share of nodes with everything done; 100 if there is nothing to do.
    pub completion_percentage: f64,
    /// In the order of the list.
    pub tasks: Vec<TaskCounts>,
}

/// How many nodes are at each point of a standing task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskCounts {
    #[schema(value_type = Uuid)]
    pub id: TaskId,
    pub name: String,
    /// From 1.
    pub order: u32,
    pub blocking: bool,
    /// succeeded, failed, lost, running, pending, skipped and not_selected, each with its number of nodes.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub counts: BTreeMap<Cell, u64>,
}

impl ClusterStatus {
    /// The counts have to be of the same version of the cluster as the record.
    pub fn of(record: &ClusterRecord, counted: &Counted) -> Self {
        let tasks = record.list.tasks.iter().zip(&counted.cells).zip(1..);
        Self {
            cluster_id: record.id,
            total_nodes: counted.nodes,
            active_nodes: counted.active,
            inactive_nodes: counted.nodes.saturating_sub(counted.active),
            total_tasks: counted.tasks,
            nodes_with_all_tasks_complete: counted.complete,
            nodes_with_pending_tasks: counted.pending,
            nodes_with_failed_tasks: counted.failed,
            completion_percentage: counted.completion_percentage(),
            tasks: tasks
                .map(|((task, cells), order)| TaskCounts {
                    id: task.id,
                    name: task.name.clone(),
                    order,
                    blocking: task.blocking,
                    counts: Cell::ALL
                        .into_iter()
                        .map(|cell| (cell, cells.get(&cell).copied().unwrap_or_default()))
                        .collect(),
                })
                .collect(),
        }
    }
}
