//! Owns how a node's executions are shown: those that it has leased, and the totals of finished ones.

use std::collections::BTreeMap;
use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::run::RunRecord;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// The executions that a node has leased, and the totals of finished ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeWork {
    #[schema(value_type = Uuid)]
    pub id: NodeId,
    pub hostname: String,
    #[schema(schema_with = schema::node_status)]
    pub status: NodeStatus,
    /// Drained by a person: running executions finish, no new ones start.
    pub draining: bool,
    /// Slots for placed executions. Executions that target the node itself do not need one.
    pub slots: Slots,
    /// The executions that it has leased, the oldest first.
    pub held: Vec<HeldWork>,
    /// Its last 10,000 executions by status, as far as they are kept; every status is present. Reused results are not
    /// counted.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub totals: BTreeMap<Status, u64>,
    /// Lost attempts: their lease was not renewed in time, or their agent restarted without their result.
    pub expired_leases: u64,
    /// The latest of the three below.
    pub active_at: Timestamp,
    pub heartbeat_at: Timestamp,
    /// When it last leased an execution.
    pub claimed_at: Option<Timestamp>,
    /// When an execution last ended, by the node's own clock.
    pub finished_at: Option<Timestamp>,
}

/// How many placed executions fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Slots {
    pub total: u32,
    pub free: u32,
}

/// An execution that a node has leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldWork {
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    /// Null for an execution of a standing task.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    pub job: Option<String>,
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// Its index among the items of its task's `for_each`, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// From 1.
    pub attempt: u32,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    /// It was asked to stop.
    pub stopping: bool,
    /// It uses a slot; otherwise it targets the node itself.
    pub placed: bool,
    /// The name of the process or container on the node.
    pub name: String,
    pub leased_at: Timestamp,
    /// How long it has been leased.
    #[schema(value_type = String, example = "12s")]
    pub lease_age: Span,
    /// When the lease expires unless a heartbeat renews it.
    pub expires_at: Timestamp,
    /// The time until then; zero if it is overdue.
    #[schema(value_type = String, example = "18s")]
    pub expires_in: Span,
    pub started_at: Option<Timestamp>,
}

impl HeldWork {
    /// Returns the leased execution; nothing if it has no lease.
    pub fn of(
        execution: &Execution,
        run: Option<&RunRecord>,
        node: &NodeRecord,
        lease_ttl: Duration,
        now: Timestamp,
    ) -> Option<Self> {
        let (lease, stopping, started_at) = match &execution.state {
            State::Leased { lease, stop } => (lease, *stop, None),
            State::Running { lease, started_at, stop } => (lease, *stop, Some(*started_at)),
            _ => return None,
        };
        let task = run.and_then(|run| run.definition.steps().nth(execution.step() as usize));
        let ttl = SignedDuration::try_from(lease_ttl).unwrap_or(SignedDuration::MAX);
        // As in the sweep: every heartbeat renews all leases of a node.
        let expires_at = lease.granted_at.max(node.seen_at).checked_add(ttl).unwrap_or(Timestamp::MAX);
        Some(Self {
            execution: execution.id,
            run: Some(execution.run()).filter(|run| !run.is_standing()).cloned(),
            job: run.and_then(|run| run.job.clone()),
            step: execution.step(),
            task: task.map_or_else(|| format!("step {}", execution.step()), |task| task.label()),
            item: execution.item(),
            attempt: execution.attempt,
            status: execution.state.status(),
            stopping,
            placed: execution.pinned.is_none(),
            name: name(execution, task.map(|task| task.backend.as_str())),
            leased_at: lease.granted_at,
            lease_age: between(lease.granted_at, now),
            expires_at,
            expires_in: between(now, expires_at),
            started_at,
        })
    }
}

/// Returns the name that the agent uses: no two attempts share one.
fn name(execution: &Execution, backend: Option<&str>) -> String {
    let (id, attempt) = (execution.id, execution.attempt);
    match backend {
        // Container names contain no dots, so that every engine accepts them.
        Some("docker") => format!("downbeat-{id}-{attempt}"),
        _ => format!("{id}.{attempt}"),
    }
}

/// Rounds down to milliseconds, for readability.
fn between(from: Timestamp, to: Timestamp) -> Span {
    let length = Duration::try_from(to.duration_since(from)).unwrap_or_default();
    Span(Duration::from_millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
}
