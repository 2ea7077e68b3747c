//! Owns the shape of an execution. How it moves is `machine`'s.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::Params;
use crate::ids::{ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use crate::spec::Limits;
use crate::work::Origin;

/// A node's time-limited right to an execution. It expires when its node was not heard of for a full term: the
/// heartbeat renews all leases of a session at once, so no expiry is written per execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub token: LeaseToken,
    pub node: NodeId,
    pub session: SessionId,
    pub granted_at: Timestamp,
}

/// How an attempt ended, as its agent says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Succeeded,
    Failed,
    /// Ended because it was told to.
    Cancelled,
}

/// What an agent reports of an attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The values of the outputs that its task declares.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub outputs: Params,
    /// By the agent's clock: for display. A stored outcome has them within the span that the server knows of; see
    /// [`times`](super::times).
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// When a server received the report, by the servers' clock. Decisions go by it. Absent while the report is on its
    /// way, and in what releases without it stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_at: Option<Timestamp>,
}

impl Outcome {
    /// When it was over, by the servers' clock as far as that is known.
    pub fn ended_at(&self) -> Timestamp {
        self.received_at.unwrap_or(self.finished_at)
    }
}

/// Where an execution stands. Each state holds what exists in it and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum State {
    /// Waits for its node, or for one that fits; not before `not_before` when it is a retry.
    Pending {
        not_before: Option<Timestamp>,
    },
    Leased {
        lease: Lease,
        stop: bool,
    },
    Running {
        lease: Lease,
        started_at: Timestamp,
        stop: bool,
    },
    Succeeded {
        lease: Lease,
        outcome: Outcome,
    },
    /// The agent said so (`Reported`), or it was never sent (`error` says why).
    Failed {
        lease: Option<Lease>,
        outcome: Option<Outcome>,
        error: Option<String>,
        at: Timestamp,
    },
    Skipped {
        reason: String,
        at: Timestamp,
    },
    Cancelled {
        lease: Option<Lease>,
        outcome: Option<Outcome>,
        reason: String,
        at: Timestamp,
    },
    Lost {
        lease: Lease,
        started_at: Option<Timestamp>,
        reason: String,
        at: Timestamp,
    },
}

/// The name of a state: what is stored, filtered by and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Leased,
    Running,
    Succeeded,
    Failed,
    Skipped,
    Cancelled,
    Lost,
}

impl Status {
    pub const ALL: [Status; 8] = [
        Status::Pending,
        Status::Leased,
        Status::Running,
        Status::Succeeded,
        Status::Failed,
        Status::Skipped,
        Status::Cancelled,
        Status::Lost,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Leased => "leased",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
            Status::Cancelled => "cancelled",
            Status::Lost => "lost",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Pending, leased or running: something is still to come.
    pub fn is_open(self) -> bool {
        matches!(self, Status::Pending | Status::Leased | Status::Running)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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

    /// The lease that is or was the last one.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            State::Leased { lease, .. }
            | State::Running { lease, .. }
            | State::Succeeded { lease, .. }
            | State::Lost { lease, .. } => Some(lease),
            State::Failed { lease, .. } | State::Cancelled { lease, .. } => lease.as_ref(),
            State::Pending { .. } | State::Skipped { .. } => None,
        }
    }

    /// Returns the same lease, to be altered.
    pub fn lease_mut(&mut self) -> Option<&mut Lease> {
        match self {
            State::Leased { lease, .. }
            | State::Running { lease, .. }
            | State::Succeeded { lease, .. }
            | State::Lost { lease, .. } => Some(lease),
            State::Failed { lease, .. } | State::Cancelled { lease, .. } => lease.as_mut(),
            State::Pending { .. } | State::Skipped { .. } => None,
        }
    }

    /// What its agent reported of its end.
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

/// One attempt of one piece of work on one node, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    #[serde(flatten)]
    pub of: Origin,
    /// The node that the execution is pinned to. A placed one has none: its lease names the node that took it.
    pub pinned: Option<NodeId>,
    /// From 1. Lost attempts count, so that the name `execution.attempt` is never used twice.
    pub attempt: u32,
    /// The task's params as they came out for this attempt, when they hold expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Arc<Params>>,
    /// The execution whose result this one takes over: it is born succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<ExecutionId>,
    /// What it takes one of from its lease to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Arc<Limits>>,
    /// Names what went into it, when its task is cached: equal keys, equal results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<Arc<str>>,
    pub created_at: Timestamp,
    #[serde(flatten)]
    pub state: State,
}

impl Execution {
    /// The run that it belongs to.
    pub fn run(&self) -> &RunId {
        self.of.run()
    }

    /// The number of its step in the plan of its run.
    pub fn step(&self) -> u32 {
        self.of.step()
    }

    /// The index of its item in its task's `for_each`, from 0.
    pub fn item(&self) -> Option<u32> {
        self.of.item()
    }

    /// Whether it was taken over from the run that its own tries again, and not from the cache.
    pub fn is_carried(&self) -> bool {
        self.reused.is_some() && self.cache_key.is_none()
    }

    /// Whether an earlier result with equal inputs was used.
    pub fn is_cached(&self) -> bool {
        self.reused.is_some() && self.cache_key.is_some()
    }

    /// The node that has, had or will have it, if that is known.
    pub fn node(&self) -> Option<NodeId> {
        self.pinned.or_else(|| self.state.lease().map(|lease| lease.node))
    }
}
