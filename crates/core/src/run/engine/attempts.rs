//! Owns the attempts that have not ended, and those that ended and were not followed up yet.

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::outbox::Decided;
use super::passes::At;
use super::progress::{Progress, Turn};
use crate::execution::{Lease, Status};
use crate::ids::{ExecutionId, LeaseToken, NodeId};
use crate::limits;
use crate::span::Span;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Succeeded,
    Failed,
    /// Created as failed: it cannot be sent.
    Unsent,
    /// Failed after it had waited to be sent.
    GivenUp,
    /// Cancelled by its agent.
    Cancelled,
    Lost,
    /// Skipped or cancelled before it was sent.
    Withdrawn,
}

impl End {
    /// Returns the status of an attempt that ended like this.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Succeeded => Status::Succeeded,
            Self::Failed | Self::Unsent | Self::GivenUp => Status::Failed,
            Self::Cancelled => Status::Cancelled,
            Self::Lost => Status::Lost,
            Self::Withdrawn => Status::Skipped,
        }
    }
}

/// An attempt that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// The attempt that shows how its instance ended. For a withdrawn retry it is the attempt before.
    pub execution: ExecutionId,
    pub at: At,
    pub end: End,
}

/// An attempt that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub at: At,
    pub node: Option<NodeId>,
    /// Set if the attempt is leased.
    pub lease: Option<LeaseToken>,
    /// Set if the attempt is leased: when it has to have ended. Its report may take longer.
    pub due: Option<Timestamp>,
    /// Set if the attempt was sent again after a loss, or is a debug command: it waits until then for its node, offline
    /// or not, unless the node is deleted. Set for an approval: it waits until then for a person.
    pub patience: Option<Timestamp>,
    /// Set for a retry that is delayed until then.
    pub not_before: Option<Timestamp>,
    /// Set for a placed attempt: no node has fitted it since then.
    pub unfit_since: Option<Timestamp>,
    /// The attempt that this one retries.
    pub former: Option<ExecutionId>,
}

/// What a retry has in addition to a first attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Again {
    /// The attempt that it retries, which has ended.
    pub former: Option<Ended>,
    pub not_before: Option<Timestamp>,
    pub patience: Option<Timestamp>,
}

/// An attempt that is given up.
#[derive(Clone, Debug)]
pub(super) struct Over {
    pub at: At,
    pub execution: ExecutionId,
    pub error: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    active: HashMap<ExecutionId, Active>,
    /// Whether any attempt was ever sent again and waits for its node. If not, there is no deadline to search for.
    is_patient: bool,
    /// The leased attempts, by the time when they have to have ended.
    due: BTreeSet<(Timestamp, ExecutionId)>,
    /// Since when agents have been able to report.
    serving_since: Timestamp,
    /// Attempts whose end is known and whose consequences are not decided yet.
    ended: Vec<Ended>,
}

impl Attempts {
    pub(super) fn add(&mut self, execution: ExecutionId, active: Active) {
        self.is_patient |= active.patience.is_some();
        self.active.insert(execution, active);
    }

    pub(super) fn count(&self) -> usize {
        self.active.len()
    }

    pub(super) fn get(&self, execution: ExecutionId) -> Option<&Active> {
        self.active.get(&execution)
    }

    /// Returns the attempts that are not leased yet.
    pub(super) fn pending(&self) -> impl Iterator<Item = (ExecutionId, &Active)> {
        self.active.iter().filter(|(_, active)| active.lease.is_none()).map(|(id, active)| (*id, active))
    }

    /// Returns the placed attempts that are not leased yet. Approvals are not among them: they need no node.
    pub(super) fn unplaced_mut(&mut self) -> impl Iterator<Item = (ExecutionId, &mut Active)> {
        let unplaced =
            |active: &Active| active.lease.is_none() && active.node.is_none() && active.patience.is_none();
        self.active.iter_mut().filter(move |(_, active)| unplaced(active)).map(|(id, active)| (*id, active))
    }

    /// Returns all active attempts, in the order of their ids.
    pub(super) fn in_order(&self) -> Vec<(ExecutionId, At)> {
        let mut executions: Vec<(ExecutionId, At)> =
            self.active.iter().map(|(execution, active)| (*execution, active.at)).collect();
        executions.sort_unstable();
        executions
    }

    /// Returns when an attempt is overdue that has to have ended at `due`. Reports take a while, and they cannot arrive
    /// while no server takes them.
    fn overdue_at(&self, due: Timestamp) -> Timestamp {
        let grace = SignedDuration::from_secs(i64::try_from(limits::REPORT_GRACE_S).unwrap_or(i64::MAX));
        due.max(self.serving_since).saturating_add(grace).unwrap_or(Timestamp::MAX)
    }

    /// Removes and returns the leased attempts whose end should have been reported by now.
    fn take_overdue(&mut self, now: Timestamp) -> Vec<ExecutionId> {
        let mut overdue = Vec::new();
        while let Some((_, execution)) =
            self.due.first().copied().filter(|(due, _)| self.overdue_at(*due) <= now)
        {
            self.due.pop_first();
            overdue.push(execution);
        }
        overdue
    }

    /// Ends an attempt; returns whether it was active.
    pub(super) fn end(&mut self, execution: ExecutionId, end: End) -> bool {
        let Some(Active { at, former, due, .. }) = self.active.remove(&execution) else { return false };
        if let Some(due) = due {
            self.due.remove(&(due, execution));
        }
        let counts = former.filter(|_| end == End::Withdrawn).unwrap_or(execution);
        self.ended.push(Ended { execution: counts, at, end });
        true
    }

    pub(super) fn add_ended(&mut self, ended: Vec<Ended>) {
        self.ended.extend(ended);
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Returns when the first attempt will have waited too long for its node, or will be overdue.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let pending = self.is_patient.then(|| self.pending());
        let patience = pending.into_iter().flatten().filter_map(|(_, active)| active.patience);
        patience.chain(self.due.first().map(|(due, _)| self.overdue_at(*due))).min()
    }
}

impl Progress {
    /// Records that an attempt is leased. Agents lease only what they start, so its timeout counts from then.
    pub(super) fn note_lease(&mut self, execution: ExecutionId, lease: &Lease) {
        let Some(step) = self.attempts.get(execution).map(|active| active.at.step) else { return };
        let due = lease.granted_at.saturating_add(self.patience(step)).unwrap_or(Timestamp::MAX);
        let attempts = &mut self.attempts;
        if let Some(active) = attempts.active.get_mut(&execution) {
            (active.lease, active.due) = (Some(lease.token), Some(due));
            attempts.due.insert((due, execution));
        }
    }

    /// Records since when agents have been able to report.
    pub(super) fn note_serving(&mut self, turn: &Turn<'_>) {
        self.attempts.serving_since = turn.serving_since;
    }

    /// Ends the leases of attempts that take longer than they may: the agent is alive, but the start, the work or its
    /// report hangs. A later report is refused.
    pub(super) fn end_overdue(&mut self, turn: &Turn<'_>) {
        self.note_serving(turn);
        let overdue = self.attempts.take_overdue(turn.now).into_iter();
        let overdue = overdue.filter_map(|execution| Some((self.attempts.get(execution)?.at, execution)));
        let mut overdue: Vec<(At, ExecutionId)> = overdue.collect();
        // In the order in which simultaneous failures count.
        overdue.sort_unstable_by_key(|(at, _)| (at.step, at.pass, at.walk));
        for (_, execution) in overdue {
            let Some(active) = self.attempts.get(execution) else { continue };
            let Some(token) = active.lease else { continue };
            let timeout = self.plan.task(active.at.step).timeout_or_default();
            let grace = Span::from_secs(limits::REPORT_GRACE_S);
            let reason =
                format!("its agent did not report the end within {grace} after the timeout of {timeout}");
            self.emit(Decided::Lost { execution, token, reason }, turn);
        }
    }

    /// Records that an attempt ended.
    pub(super) fn ended(&mut self, execution: ExecutionId, end: End, turn: &Turn<'_>) {
        if self.attempts.end(execution, end) {
            self.waves.note_end(turn.now);
        }
    }

    /// Returns the attempts to give up: those that are not leased yet and for which `why` returns a reason.
    pub(super) fn pending_over(&self, why: impl Fn(&Active) -> Option<&'static str>) -> Vec<Over> {
        let over = self.attempts.pending().filter_map(|(execution, active)| {
            let why = why(active)?;
            let node = self.hostname(active.at).unwrap_or_default();
            Some(Over { at: active.at, execution, error: format!("node {node} {why}") })
        });
        over.collect()
    }

    /// Gives attempts up in the order in which simultaneous failures count: the order of their steps. The records
    /// do not show which one was first, and a server that takes over must decide the same.
    pub(super) fn give_up(&mut self, mut over: Vec<Over>, turn: &Turn<'_>) {
        over.sort_unstable_by_key(|Over { at, .. }| (at.step, at.pass, at.walk));
        for Over { execution, error, .. } in over {
            self.emit(Decided::GivenUp { execution, error }, turn);
        }
    }
}
