//! Owns how debug commands are requested and shown.

use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::run::{RunRecord, RunStatus};
use downbeat_core::{Span, debug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{List, Names, schema};

/// A debug command to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DebugRequest {
    /// A line or a script for the shell of the node.
    pub command: String,
    /// How long it may run, in seconds: 1 to 86,400; default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// The same as text, instead of `timeout_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub timeout: Option<Span>,
}

/// A debug command to start on all nodes of a cluster that a selector matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterDebugRequest {
    /// A selector as in a job's `target`: `group:web and not node:web-09`.
    pub selector: String,
    /// A line or a script for the shell of each node.
    pub command: String,
    /// How long it may run on a node, in seconds: 1 to 86,400; default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// The same as text, instead of `timeout_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub timeout: Option<Span>,
}

/// A debug command on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DebugResult {
    /// The id of the debug command: the same on all its nodes.
    #[schema(value_type = String)]
    pub id: RunId,
    #[schema(value_type = Uuid)]
    pub node_id: NodeId,
    /// The node's hostname.
    pub node: String,
    pub command: String,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    pub created_at: Timestamp,
    /// When it started.
    pub executed_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// What it has written to standard output and standard error so far; the tail is kept.
    pub output: String,
    /// Earlier output was dropped.
    pub truncated: bool,
    /// The exit code of the command, if it exited by itself.
    pub exit_code: Option<i32>,
    /// Why it failed, was lost or was cancelled.
    pub error: Option<String>,
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
}

impl DebugResult {
    /// Returns the result without its output.
    pub fn of(execution: &Execution, run: &RunRecord, names: &Names) -> Option<Self> {
        let node_id = execution.node()?;
        let outcome = match &execution.state {
            State::Succeeded { outcome, .. } => Some(outcome),
            State::Failed { outcome, .. } | State::Cancelled { outcome, .. } => outcome.as_ref(),
            State::Pending { .. }
            | State::Leased { .. }
            | State::Running { .. }
            | State::Skipped { .. }
            | State::Lost { .. } => None,
        };
        let shown = crate::Execution::of(execution, String::new(), names);
        Some(Self {
            id: run.id.clone(),
            node_id,
            node: names.get(node_id),
            command: debug::command_of(&run.definition),
            status: shown.status,
            created_at: run.created_at,
            executed_at: shown.started_at,
            finished_at: shown.finished_at,
            output: String::new(),
            truncated: false,
            exit_code: outcome.and_then(|outcome| outcome.exit_code),
            error: shown.error.or(shown.reason),
            execution: execution.id,
        })
    }
}

/// A debug command with one result for each of its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DebugCommand {
    #[schema(value_type = String)]
    pub id: RunId,
    pub command: String,
    /// The selector whose nodes it runs on.
    pub selector: String,
    #[schema(value_type = String, example = "5m")]
    pub timeout: Span,
    #[schema(schema_with = schema::run_status)]
    pub status: RunStatus,
    /// Who sent it.
    pub by: String,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// The number of its nodes.
    pub nodes: u32,
    /// One page of results, by the order of the nodes' names.
    #[serde(flatten)]
    pub results: List<DebugResult>,
}

impl DebugCommand {
    pub fn of(run: &RunRecord, results: List<DebugResult>) -> Self {
        let task = run.definition.steps().next();
        Self {
            id: run.id.clone(),
            command: debug::command_of(&run.definition),
            selector: run.definition.target.as_ref().map(ToString::to_string).unwrap_or_default(),
            timeout: task.map(|task| task.timeout_or_default()).unwrap_or_default(),
            status: run.state().status(),
            by: run.by.clone(),
            created_at: run.created_at,
            finished_at: run.live.finished_at(),
            nodes: run.resolved.node_count(),
            results,
        }
    }
}
