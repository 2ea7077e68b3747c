//! Tracks how much output of each execution was sent to one replica. It does not read the store: it returns
//! what to read next, and the caller reports what was sent.
//!
//! Output is written before the result that ends it, with one exception: a message that was on its way when
//! another server ended the execution. So ended executions are checked once more, `AGAIN_AFTER` later.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::ExecutionId;
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::OutputChunk;
use tokio::time::Instant;

/// Longer than a message of output takes from the check of its lease to the store.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How many unknown executions with output are remembered. Beyond this, all executions are checked.
const EARLY: usize = 10_000;

/// The position in the output of each execution.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    /// Executions that a node holds or held recently, with the end of the output that was sent.
    sent: HashMap<ExecutionId, u64>,
    /// Ended executions, with the time to check each again.
    ended: VecDeque<(Instant, ExecutionId)>,
    grown: BTreeSet<ExecutionId>,
    /// Executions with output whose event was not sent yet, or that ended long ago.
    early: HashSet<ExecutionId>,
}

/// Which executions to check for new output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Check {
    Noted,
    /// All of them: too many were unknown.
    All,
}

/// Returns the execution that a change ends, if a node held it.
fn ended(change: &Change) -> Option<ExecutionId> {
    match change {
        Change::ExecutionFinished { execution, .. } | Change::ExecutionLost { execution, .. } => {
            Some(*execution)
        }
        _ => None,
    }
}

fn ended_at(state: &State) -> Option<Timestamp> {
    match state {
        State::Succeeded { outcome, .. } => Some(outcome.ended_at()),
        State::Failed { at, .. } | State::Cancelled { at, .. } | State::Lost { at, .. } => Some(*at),
        State::Pending { .. } | State::Leased { .. } | State::Running { .. } | State::Skipped { .. } => None,
    }
}

impl Cursors {
    /// Returns what to read before these events are sent: the rest of the output of the executions that they end.
    pub(super) fn ending(&self, events: &[Event]) -> Vec<(ExecutionId, u64)> {
        let ended: BTreeSet<ExecutionId> = events.iter().filter_map(|event| ended(&event.change)).collect();
        ended.into_iter().map(|id| (id, self.from(id))).collect()
    }

    /// Notes events that were sent.
    pub(super) fn follow(&mut self, events: &[Event], now: Instant) {
        for event in events {
            match &event.change {
                Change::ExecutionsAdded { executions, .. } => {
                    executions.iter().filter(|one| is_held(one)).for_each(|one| self.track(one.id));
                }
                Change::ExecutionLeased { execution, .. } => self.track(*execution),
                change => {
                    if let Some(id) = ended(change) {
                        self.look_again(id, now);
                    }
                }
            }
        }
    }

    /// Notes an execution of the snapshot, or one that was open when a replica reconnected.
    pub(super) fn begin(&mut self, execution: &Execution, wall: Timestamp, now: Instant) {
        if is_held(execution) {
            self.track(execution.id);
        } else if let Some(at) = ended_at(&execution.state)
            && wall.duration_since(at).unsigned_abs() < AGAIN_AFTER * 6
        {
            self.look_again(execution.id, now);
        }
    }

    /// Schedules a later check of an execution that has ended or may have ended.
    pub(super) fn look_again(&mut self, id: ExecutionId, now: Instant) {
        self.sent.entry(id).or_insert(0);
        self.ended.push_back((now + AGAIN_AFTER, id));
    }

    fn track(&mut self, id: ExecutionId) {
        self.sent.entry(id).or_insert(0);
        if self.early.remove(&id) {
            self.grown.insert(id);
        }
    }

    fn from(&self, id: ExecutionId) -> u64 {
        self.sent.get(&id).copied().unwrap_or(0)
    }

    pub(super) fn sent(&mut self, chunks: &[OutputChunk]) {
        for chunk in chunks {
            if let Some(end) = self.sent.get_mut(&chunk.execution) {
                *end = (*end).max(chunk.offset + chunk.text.len() as u64);
            }
        }
    }

    /// Notes that the store has more output of an execution. Returns what to check.
    pub(super) fn grew(&mut self, id: ExecutionId) -> Check {
        if self.sent.contains_key(&id) {
            self.grown.insert(id);
        } else {
            self.early.insert(id);
        }
        if self.early.len() <= EARLY { Check::Noted } else { Check::All }
    }

    pub(super) fn all_may_have_grown(&mut self) {
        self.early.clear();
        self.grown.extend(self.sent.keys());
    }

    /// Returns what to read of the executions that grew.
    pub(super) fn take_grown(&mut self) -> Vec<(ExecutionId, u64)> {
        let grown = std::mem::take(&mut self.grown);
        grown.into_iter().map(|id| (id, self.from(id))).collect()
    }

    /// Returns late output to read, once all events up to now were sent: ended executions that are due for
    /// another check, and executions that are no longer tracked, from the start.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<(ExecutionId, u64)> {
        let mut late: BTreeSet<(ExecutionId, u64)> = self.early.drain().map(|id| (id, 0)).collect();
        while let Some((_, id)) = self.ended.pop_front_if(|(due, _)| *due <= now) {
            late.insert((id, self.from(id)));
            self.sent.remove(&id);
        }
        late.into_iter().collect()
    }
}

fn is_held(execution: &Execution) -> bool {
    matches!(execution.state, State::Leased { .. } | State::Running { .. })
}
