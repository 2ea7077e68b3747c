//! Owns the frames of the live stream: what changed since the last frame, without the steps in between.

use std::collections::BTreeMap;

use downbeat_core::execution::Status;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// The net change of all events after the last frame, up to `seq`. Only topics that the client asked for are present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Frame {
    /// The number of the last event.
    pub seq: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunChange>,
    /// The executions of the requested run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Cell>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeChange>,
    /// All servers, if one of them changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerState>,
}

impl Frame {
    /// The name of the event in a stream.
    pub const NAME: &'static str = "frame";
}

/// How a run changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunChange {
    #[schema(value_type = String)]
    pub run: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Its new state, if it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::run_state)]
    pub state: Option<RunState>,
    /// Whether it is paused, if that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Its cancellation was requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// By how much the number of its executions with a status changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, i64>)]
    pub counts: BTreeMap<Status, i64>,
    /// How many of its new executions are further attempts. They replace earlier ones in counts of instances.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u64,
}

/// The status of an execution of the requested run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cell {
    pub step: u32,
    /// Absent while no node is bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub node: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    pub attempt: u32,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
}

/// How a node changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeChange {
    #[schema(value_type = Uuid)]
    pub node: NodeId,
    /// Its hostname, if it registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its new status, if it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::node_status)]
    pub status: Option<NodeStatus>,
    /// Whether it is drained, if that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// The number of its problems, if its agent reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problems: Option<u64>,
    /// It was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// A server that shares the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerState {
    pub name: String,
    pub alive: bool,
}

// The attribute of serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
