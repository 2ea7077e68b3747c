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
    /// The name of the server that answers.
    pub server: String,
    /// `replica` when the server that answers is a read replica.
    #[serde(default)]
    pub role: Role,
    /// How far a read replica is behind; absent on a primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Replica>,
    /// `sqlite`, `postgres` or `memory`.
    pub store: String,
    /// Why the store takes no writes, or may not keep them: a full, read-only or damaged disk, a file that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_problem: Option<String>,
    /// How long the server that answers has been up.
    #[schema(value_type = String, example = "3h12m")]
    pub uptime: Span,
    pub servers: Vec<Server>,
    /// Runs by status; every status is there.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub runs: BTreeMap<RunStatus, u64>,
    /// Executions by status; every status is there.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub executions: BTreeMap<ExecutionStatus, u64>,
    /// Nodes by status; every status is there.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub nodes: BTreeMap<NodeStatus, u64>,
    /// Nodes whose agents say that something is wrong on their hosts.
    #[serde(default)]
    pub nodes_with_problems: u64,
}

/// What a server is to its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It reads and writes.
    #[default]
    Primary,
    /// It has a copy, and only shows it.
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

/// How far a read replica is behind its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// Where writes and agents belong.
    pub primary: String,
    /// Whether it follows at the moment.
    pub connected: bool,
    /// The last event in the copy.
    pub seq: u64,
    /// Events that the copy lacks, as last heard; null when nothing was heard yet.
    pub lag_events: Option<u64>,
    /// How old the copy is; null when that is not known yet.
    #[schema(value_type = Option<String>, example = "120ms")]
    pub lag: Option<Span>,
    /// How often the copy was made anew since the start.
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
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Its last sign of life.
    #[schema(value_type = String, format = DateTime)]
    pub seen_at: Timestamp,
    /// Whether it gave signs of life lately. The runs of one that did not go on elsewhere.
    pub alive: bool,
    /// Runs that it owns and that have not ended.
    pub runs: u64,
}
