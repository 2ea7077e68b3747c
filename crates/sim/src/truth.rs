//! Owns the truth, independent of servers and agents: which processes ran where and when, and what was promised.

use std::collections::BTreeMap;

use downbeat_backends::Identity;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ExecutionId, NodeId, RunId, SessionId};
use downbeat_core::{Event, Timestamp};
use downbeat_proto::message::LeaseRef;

use crate::world::HostId;

/// All facts, in order of time.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) processes: Vec<Process>,
    /// Results that were acknowledged to an agent.
    pub(crate) receipts: Vec<Recorded>,
    /// Renewals that the store accepted.
    pub(crate) renewals: Vec<Renewal>,
    /// Results that were on an agent's disk when it crashed.
    pub(crate) kept: Vec<LeaseRef>,
    /// Runs that were confirmed to a client.
    pub(crate) accepted: Vec<RunId>,
    /// Every event as it was committed, whatever the store keeps of it.
    pub(crate) commits: Vec<Commit>,
    /// When a server first got a registration of each session.
    pub(crate) arrivals: BTreeMap<SessionId, Timestamp>,
    /// Runs that ended before this time, and events from before it, may have been removed.
    pub(crate) pruned_before: Option<Timestamp>,
    /// The servers that asked for what the store never accepts.
    pub(crate) rejected: Vec<HostId>,
    /// The calls of hooks.
    pub(crate) hooks: Vec<HookCall>,
    /// When the faults ended.
    pub(crate) healed: Option<Timestamp>,
    pub(crate) counts: Counts,
}

/// A call of a hook that arrived.
#[derive(Clone, Debug)]
pub(crate) struct HookCall {
    pub(crate) run: RunId,
    /// The constraint.
    pub(crate) hook: String,
    /// Absent if it does not answer.
    pub(crate) status: Option<u16>,
}

/// One event of a commit.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// All events of one commit have the same number.
    pub(crate) number: u64,
    pub(crate) event: Event,
    /// The true time.
    pub(crate) at: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) agent: usize,
    pub(crate) incarnation: u64,
    pub(crate) begun: Timestamp,
    pub(crate) ended: Option<Timestamp>,
    /// True if its agent crashed and the process continued without supervision.
    pub(crate) orphaned: bool,
    /// How it ended, if its agent saw that.
    pub(crate) verdict: Option<Verdict>,
}

#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) held: LeaseRef,
    pub(crate) outcome: Outcome,
    pub(crate) at: Timestamp,
}

/// A recorded heartbeat, in true time: all leases of the node last until one lease term after `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub(crate) node: NodeId,
    pub(crate) at: Timestamp,
    pub(crate) applied: Timestamp,
}

/// Event counts, so that a test can detect an idle simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    pub calls_lost: u64,
    pub calls_doubled: u64,
    pub commits: u64,
    pub commits_failed: u64,
    pub server_crashes: u64,
    pub agent_crashes: u64,
    pub partitions: u64,
    pub clock_jumps: u64,
    pub outages: u64,
    pub cancels: u64,
    pub orphans: u64,
    pub events: u64,
    pub runs: u64,
    pub executions: u64,
    pub lost: u64,
    pub takeovers: u64,
    pub deletions: u64,
    /// Runs that were retried, and runs that were removed by pruning.
    pub retries: u64,
    pub pruned: u64,
    /// Submissions that the store will never accept.
    pub rejected: u64,
    /// Attempts that were ended because their agent did not report them.
    pub unreported: u64,
    /// Times at which a server of an earlier release was in the cluster.
    pub older_servers: u64,
    /// Standing executions, and edits of clusters.
    pub steps: u64,
    pub edits: u64,
    pub clusters_deleted: u64,
    /// Runs that schedules started, and times that were skipped or refused.
    pub firings: u64,
    pub not_fired: u64,
    /// Registrations by strangers: refused, and accepted because the node was silent.
    pub strangers_refused: u64,
    pub strangers_taken: u64,
}

impl Truth {
    pub(crate) fn of(&self, execution: ExecutionId) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.identity.execution == execution)
    }
}
