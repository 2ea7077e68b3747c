//! Owns the shape of an execution and of its output. `machine` decides how an execution moves.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::backend::{Params, params_bytes};
use crate::ids::{ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use crate::spec::Limits;
use crate::words::words;
use crate::work::{Attempt, Origin};

/// A node's time-limited right to an execution. It expires when its node was silent for a full term: a heartbeat
/// renews all leases of a session at once, so no expiry is written per execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub token: LeaseToken,
    pub node: NodeId,
    pub session: SessionId,
    pub granted_at: Timestamp,
}

impl Lease {
    /// Returns whether a full term has passed since the lease was granted and since its node was last heard. A node may have
    /// been silent for long when it got the lease: its heartbeat took long to be recorded.
    pub fn is_over(&self, heard: Timestamp, term: SignedDuration, now: Timestamp) -> bool {
        now.duration_since(self.granted_at.max(heard)) >= term
    }
}

/// How an attempt ended, according to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Succeeded,
    Failed,
    /// The attempt ended because it was asked to stop.
    Cancelled,
}

impl Verdict {
    /// Returns the status of an execution that ended in this way.
    pub fn status(self) -> Status {
        match self {
            Verdict::Succeeded => Status::Succeeded,
            Verdict::Failed => Status::Failed,
            Verdict::Cancelled => Status::Cancelled,
        }
    }
}

/// An agent's report about an attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The values of the outputs that the task declares.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub outputs: Params,
    /// By the agent's clock: for display. In a stored outcome both are moved into the span that the server knows; see
    /// [`times`](super::times).
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// When a server received the report, by the servers' clock. Decisions use this time. Absent while the report is on
    /// its way, and in outcomes that older releases stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_at: Option<Timestamp>,
}

impl Outcome {
    /// Returns when the attempt ended, by the servers' clock if that is known.
    pub fn ended_at(&self) -> Timestamp {
        self.received_at.unwrap_or(self.finished_at)
    }
}

/// The state of an execution. Each state contains only the data that exists in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum State {
    /// Waits for its node, or for a node that fits. A retry waits at least until `not_before`.
    Pending { not_before: Option<Timestamp> },
    /// A node has the lease and has not reported a start. `stop` asks the agent to end the work.
    Leased { lease: Lease, stop: bool },
    /// The agent has started it.
    Running { lease: Lease, started_at: Timestamp, stop: bool },
    /// The agent reported success, an earlier result is reused, or a person approved: only then there is no lease.
    Succeeded {
        #[serde(default)]
        lease: Option<Lease>,
        outcome: Outcome,
    },
    /// The agent reported a failure, or the execution was never sent (`error` contains the reason).
    Failed { lease: Option<Lease>, outcome: Option<Outcome>, error: Option<String>, at: Timestamp },
    /// Not needed.
    Skipped { reason: String, at: Timestamp },
    /// Cancelled before it was sent, or by its agent.
    Cancelled { lease: Option<Lease>, outcome: Option<Outcome>, reason: String, at: Timestamp },
    /// The lease ended without a report.
    Lost { lease: Lease, started_at: Option<Timestamp>, reason: String, at: Timestamp },
}

words! {
    /// The name of a state, which is stored, shown and used in filters.
    pub enum Status {
        Pending = "pending",
        Leased = "leased",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Skipped = "skipped",
        Cancelled = "cancelled",
        Lost = "lost",
    }
}

impl Status {
    /// Returns true if the execution is pending, leased or running.
    pub fn is_open(self) -> bool {
        matches!(self, Status::Pending | Status::Leased | Status::Running)
    }
}

impl State {
    pub fn status(&self) -> Status {
        match self {
            State::Pending { .. } => Status::Pending,
            State::Leased { .. } => Status::Leased,
            State::Running { .. } => Status::Running,
            State::Succeeded { .. } => Status::Succeeded,
            State::Failed { .. } => Status::Failed,
            State::Skipped { .. } => Status::Skipped,
            State::Cancelled { .. } => Status::Cancelled,
            State::Lost { .. } => Status::Lost,
        }
    }

    /// Returns the current lease, or the last one.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            State::Leased { lease, .. } | State::Running { lease, .. } | State::Lost { lease, .. } => {
                Some(lease)
            }
            State::Succeeded { lease, .. } | State::Failed { lease, .. } | State::Cancelled { lease, .. } => {
                lease.as_ref()
            }
            State::Pending { .. } | State::Skipped { .. } => None,
        }
    }

    /// Returns the same lease, mutable.
    pub fn lease_mut(&mut self) -> Option<&mut Lease> {
        match self {
            State::Leased { lease, .. } | State::Running { lease, .. } | State::Lost { lease, .. } => {
                Some(lease)
            }
            State::Succeeded { lease, .. } | State::Failed { lease, .. } | State::Cancelled { lease, .. } => {
                lease.as_mut()
            }
            State::Pending { .. } | State::Skipped { .. } => None,
        }
    }

    /// Returns the agent's report about the end.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            State::Succeeded { outcome, .. } => Some(outcome),
            State::Failed { outcome, .. } | State::Cancelled { outcome, .. } => outcome.as_ref(),
            State::Pending { .. }
            | State::Leased { .. }
            | State::Running { .. }
            | State::Skipped { .. }
            | State::Lost { .. } => None,
        }
    }
}

/// A stored execution: one attempt of one piece of work on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    #[serde(flatten)]
    pub of: Origin,
    /// The node that the execution is pinned to. A placed execution has none: its lease names the node.
    pub pinned: Option<NodeId>,
    /// The round of its run, from 1. The results of a run are those of its last round.
    #[serde(default = "Execution::first_round", skip_serializing_if = "Execution::is_first_round")]
    pub round: u32,
    /// From 1 in each round. Lost attempts count too, so that the name `execution.attempt` is never used twice.
    pub attempt: u32,
    /// The status of the attempt that this one replaces as the result of the instance; absent for a first attempt. It
    /// lets a store count results without reading other attempts. Older programs do not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Status>,
    /// The evaluated params of this attempt, if the task's params contain expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Arc<Params>>,
    /// The execution whose result this one reuses: this one is created as succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<ExecutionId>,
    /// The limits in which the execution uses one slot from its lease to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Arc<Limits>>,
    /// A hash of the inputs, if the task is cached: equal keys mean equal results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<Arc<str>>,
    /// Why its instance failed for good; absent if that is not recorded. Only the last attempt that counts has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_for_good: Option<Arc<str>>,
    pub created_at: Timestamp,
    #[serde(flatten)]
    pub state: State,
}

impl Execution {
    fn first_round() -> u32 {
        1
    }

    fn is_first_round(round: &u32) -> bool {
        *round == 1
    }

    pub fn run(&self) -> &RunId {
        self.of.run()
    }

    /// Returns the number of its step in the plan of the run.
    pub fn step(&self) -> u32 {
        self.of.step()
    }

    /// Returns the index of its item in the task's `for_each`, from 0.
    pub fn item(&self) -> Option<u32> {
        self.of.item()
    }

    /// Returns true if it was carried over from the run that its own run retries. False for results from the cache.
    pub fn is_carried(&self) -> bool {
        self.reused.is_some() && self.cache_key.is_none()
    }

    /// Returns true if an earlier result with equal inputs was used.
    pub fn is_cached(&self) -> bool {
        self.reused.is_some() && self.cache_key.is_some()
    }

    /// Returns true if it was a retry that ended before it was sent. It does not count: the attempt before it shows how
    /// the instance ended.
    pub fn is_withdrawn(&self) -> bool {
        let is_unsent = matches!(self.state, State::Skipped { .. } | State::Cancelled { lease: None, .. });
        is_unsent && self.attempt > 1
    }

    /// Returns true if it is an attempt of a standing task on this node.
    pub fn is_step_of(&self, node: NodeId) -> bool {
        self.pinned == Some(node) && self.run().is_standing()
    }

    /// Returns the instance that this is an attempt of, within its run: its step, and its node or item if it has one.
    pub fn instance(&self) -> (u32, Option<NodeId>, Option<u32>) {
        (self.step(), self.pinned, self.item())
    }

    /// Returns the size of its values: params, and the outputs of a result that is reused.
    pub fn values_bytes(&self) -> usize {
        let outputs = self.state.outcome().map_or(0, |outcome| params_bytes(&outcome.outputs));
        self.params.as_deref().map_or(0, params_bytes) + outputs
    }

    /// Returns the node that has, had or will have the execution, if it is known.
    pub fn node(&self) -> Option<NodeId> {
        self.pinned.or_else(|| self.state.lease().map(|lease| lease.node))
    }
}

impl From<&Execution> for Attempt {
    fn from(execution: &Execution) -> Self {
        Self {
            execution: execution.id,
            of: execution.of.clone(),
            number: execution.attempt,
            params: execution.params.clone(),
        }
    }
}

/// Which of its streams a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of an execution's output: valid UTF-8, at most `limits::OUTPUT_CHUNK_BYTES`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    pub execution: ExecutionId,
    /// The offset of its first byte in the execution's whole output. A chunk with an offset below the stored end was
    /// sent before, and is dropped.
    pub offset: u64,
    pub stream: Stream,
    pub text: String,
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_lease_is_over_a_full_term_after_its_grant_and_after_its_node_was_heard() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let term = SignedDuration::from_secs(30);
        for (granted, heard, now, is_over) in
            [(100, 100, 129, false), (100, 100, 130, true), (100, 110, 130, false), (100, 10, 129, false)]
        {
            let lease = Lease {
                token: LeaseToken(Uuid::nil()),
                node: NodeId(Uuid::nil()),
                session: SessionId(Uuid::nil()),
                granted_at: at(granted),
            };
            assert_eq!(lease.is_over(at(heard), term, at(now)), is_over, "{granted} {heard} {now}");
        }
    }
}
