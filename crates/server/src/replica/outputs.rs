//! Owns how far the output of each execution was sent to one replica. Knows no store: it answers what to read next, and
//! is told what was sent.
//!
//! Output is written before the result that ends it, with one exception: a message that was on its way when somebody
//! else ended the execution. So what has ended is looked at once more, `AGAIN_AFTER` later.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::ExecutionId;
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::OutputChunk;
use tokio::time::Instant;

/// Longer than a message of output is on its way from the check of its lease into the store.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Signs of growth that are kept of executions not heard of yet. Beyond it all are looked at.
const EARLY: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    /// Executions that a node has or had of late, and where what was sent of each ends.
    sent: HashMap<ExecutionId, u64>,
    /// Those that have ended, and when each is looked at again.
    ended: VecDeque<(Instant, ExecutionId)>,
    /// Those that may have more.
    grown: BTreeSet<ExecutionId>,
    /// Output of executions whose event was not sent yet, or that ended long ago.
    early: HashSet<ExecutionId>,
}

/// The execution that a change ends, if it is one that a node had.
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
    /// What is to be read before these events may be sent: all that they end, from where it was sent.
    pub(super) fn ending(&self, events: &[Event]) -> Vec<(ExecutionId, u64)> {
        let ended: BTreeSet<ExecutionId> = events.iter().filter_map(|event| ended(&event.change)).collect();
        ended.into_iter().map(|id| (id, self.from(id))).collect()
    }

    /// These events were sent, and the replica knows their executions.
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

    /// An execution of the snapshot that was sent, or one that was open when a replica came back.
    pub(super) fn begin(&mut self, execution: &Execution, wall: Timestamp, now: Instant) {
        if is_held(execution) {
            self.track(execution.id);
        } else if let Some(at) = ended_at(&execution.state)
            && wall.duration_since(at).unsigned_abs() < AGAIN_AFTER * 6
        {
            self.look_again(execution.id, now);
        }
    }

    /// It has ended, or may have by now: it is looked at once more, later.
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

    /// The store has more of it. False: so much came at once that all have to be looked at.
    pub(super) fn grew(&mut self, id: ExecutionId) -> bool {
        if self.sent.contains_key(&id) {
            self.grown.insert(id);
        } else {
            self.early.insert(id);
        }
        self.early.len() <= EARLY
    }

    pub(super) fn all_may_have_grown(&mut self) {
        self.early.clear();
        self.grown.extend(self.sent.keys());
    }

    /// What is to be read; nothing when nothing grew.
    pub(super) fn take_grown(&mut self) -> Vec<(ExecutionId, u64)> {
        let grown = std::mem::take(&mut self.grown);
        grown.into_iter().map(|id| (id, self.from(id))).collect()
    }

    /// To be called when all events up to now were sent: what is due to be looked at once more, and late output of
    /// executions that nobody follows any more, whole.
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
