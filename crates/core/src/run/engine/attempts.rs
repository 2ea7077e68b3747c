//! Owns the attempts that have not ended, and those that ended and were not followed up yet.

use std::collections::HashMap;

use jiff::Timestamp;

use super::passes::At;
use super::progress::{Progress, Turn};
use crate::change::Change;
use crate::ids::{ExecutionId, NodeId};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed,
    /// Failed without having been sent.
    GivenUp,
    /// Cancelled by its agent.
    Cancelled,
    Lost,
    /// Skipped or cancelled before it was sent.
    Withdrawn,
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
    pub leased: bool,
    /// Set if the attempt was sent again after a loss: it waits until then for its node, offline or not, unless the
    /// node is deleted.
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
    /// The attempt that it retries.
    pub former: Option<ExecutionId>,
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
        self.active.iter().filter(|(_, active)| !active.leased).map(|(id, active)| (*id, active))
    }

    /// Returns the placed attempts that are not leased yet.
    pub(super) fn unplaced_mut(&mut self) -> impl Iterator<Item = (ExecutionId, &mut Active)> {
        let unplaced = |active: &Active| !active.leased && active.node.is_none();
        self.active.iter_mut().filter(move |(_, active)| unplaced(active)).map(|(id, active)| (*id, active))
    }

    /// Returns all active attempts, in the order of their ids.
    pub(super) fn in_order(&self) -> Vec<ExecutionId> {
        let mut executions: Vec<ExecutionId> = self.active.keys().copied().collect();
        executions.sort_unstable();
        executions
    }

    pub(super) fn note_lease(&mut self, execution: ExecutionId) {
        if let Some(active) = self.active.get_mut(&execution) {
            active.leased = true;
        }
    }

    /// Ends an attempt; returns whether it was active.
    pub(super) fn end(&mut self, execution: ExecutionId, end: End) -> bool {
        let Some(Active { at, former, .. }) = self.active.remove(&execution) else { return false };
        let counts = former.filter(|_| end == End::Withdrawn).unwrap_or(execution);
        self.ended.push(Ended { execution: counts, at, end });
        true
    }

    pub(super) fn add_ended(&mut self, ended: Vec<Ended>) {
        self.ended.extend(ended);
    }

    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Returns when the first attempt will have waited too long for its node.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let pending = self.is_patient.then(|| self.pending());
        pending.into_iter().flatten().filter_map(|(_, active)| active.patience).min()
    }
}

impl Progress {
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
            let run = self.run.clone();
            self.emit(Change::ExecutionGivenUp { run, execution, epoch: self.epoch, error, at: turn.now });
        }
    }
}
