//! Owns how servers and the whole system are shown.

use std::collections::BTreeMap;

use downbeat_core::Span;
use downbeat_core::execution::Status as ExecutionStatus;
use downbeat_core::ids::ServerId;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunStatus;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The whole system at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    pub version: String,
    /// The name of the server that responded.
    pub server: String,
    /// `replica` if the server that responded is a read replica.
    #[serde(default)]
    pub role: Role,
    /// The lag of a read replica; absent on a primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
    /// `sqlite`, `postgres` or `memory`.
    pub store: String,
    /// Why the store refuses writes, or may lose them: a full, read-only or damaged disk, a missing file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_problem: Option<String>,
    /// The uptime of the server that responded.
    #[schema(value_type = String, example = "3h12m")]
    pub uptime: Span,
    pub servers: Vec<Server>,
    /// Runs by status; every status is present.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub runs: BTreeMap<RunStatus, u64>,
    /// Executions by status; every status is present.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub executions: BTreeMap<ExecutionStatus, u64>,
    /// Nodes by status; every status is present.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub nodes: BTreeMap<NodeStatus, u64>,
    /// Nodes whose agents report problems of their hosts.
    #[serde(default)]
    pub nodes_with_problems: u64,
    /// How much the store holds. Absent on servers of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
}

/// How much the store of the server that responded holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// All runs, with debug commands and without those of standing tasks.
    pub runs: u64,
    pub executions: u64,
    pub events: u64,
    /// The output of all executions.
    pub output_bytes: u64,
    /// The size of the file or the database, with room for new rows. Absent in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// How fast it grows. Absent until the server has measured for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// By how much a store grows in a day, if it goes on as in the measured time: at most the last day, and not before the start of
/// the server. Negative if it shrinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Growth {
    /// How long it was measured.
    #[schema(value_type = String, example = "3h12m")]
    pub over: Span,
    pub runs: i64,
    pub executions: i64,
    pub events: i64,
    pub output_bytes: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<i64>,
}

/// The role of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads and writes.
    #[default]
    Primary,
    /// Has a copy of the store and only reads it.
    Replica,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
        }
    }
}

/// The lag of a read replica behind its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The server for writes and agents.
    pub primary: String,
    /// Whether it follows the primary now.
    pub connected: bool,
    /// The last event in the copy.
    pub seq: u64,
    /// Events that the copy lacks, as last reported; null before the first report.
    pub lag_events: Option<u64>,
    /// The age of the copy; null if it is not known yet.
    #[schema(value_type = Option<String>, example = "120ms")]
    pub lag: Option<Span>,
    /// How often the whole copy was fetched again since the start.
    pub copies: u64,
    /// Why the primary is not followed.
    pub error: Option<String>,
}

/// One instance of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    #[schema(value_type = Uuid)]
    pub id: ServerId,
    pub name: String,
    #[serde(default)]
    pub role: Role,
    pub http: String,
    pub grpc: String,
    pub version: String,
    pub started_at: Timestamp,
    /// Its last heartbeat.
    pub seen_at: Timestamp,
    /// Whether its heartbeats are recent. If not, other servers take over its runs.
    pub alive: bool,
    /// Runs that it owns and that have not ended.
    pub runs: u64,
}
