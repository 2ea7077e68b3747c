//! Owns what an agent holds: every lease that it has not been relieved of, and the two lanes that the work runs in.
//! Sync and without effects of its own but setting `Stop`s; who calls it performs the rest.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use downbeat_proto::message::{Assignment, Free, Held};

use crate::stop::{Reason, Stop};

/// Leases whose results were recorded that are remembered. A server that is behind may hand one out again for as long as
/// it is behind, which is seconds.
const REMEMBERED: usize = 4_096;

/// All that an agent has taken on.
#[derive(Debug)]
pub(crate) struct Holdings {
    items: HashMap<Held, Item>,
    done: Done,
    /// Pinned work: one at a time, in order, so that two changes never happen at once on a host.
    fleet: Lane,
    /// Placed work: as many as there are slots.
    placed: Lane,
    draining: bool,
    /// The number of the poll that is under way.
    poll: u64,
}

/// The last leases whose results a server has recorded: what is done is done, whoever hands it out again.
#[derive(Debug, Default)]
struct Done {
    set: HashSet<Held>,
    order: VecDeque<Held>,
}

impl Done {
    fn add(&mut self, held: Held) {
        if self.set.insert(held) {
            self.order.push_back(held);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

#[derive(Debug)]
struct Item {
    placed: bool,
    stop_on_disconnect: bool,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Waits for its lane.
    Queued,
    Running(Arc<Stop>),
    /// The lease is gone, the work is being ended. It still occupies its lane.
    Fenced,
    /// Has a result that no server acknowledged yet.
    Finished,
}

#[derive(Debug)]
struct Lane {
    limit: u32,
    running: u32,
    queue: VecDeque<Assignment>,
}

/// Work whose turn it is.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) assignment: Assignment,
    pub(crate) stop: Arc<Stop>,
}

/// What is to become of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Report,
    /// Its lease was lost while it ran.
    Drop,
}

impl Lane {
    fn new(limit: u32) -> Self {
        Self { limit, running: 0, queue: VecDeque::new() }
    }

    fn next(&mut self) -> Option<Assignment> {
        if self.running >= self.limit {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.running += 1;
        Some(next)
    }

    fn free(&self) -> u32 {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        self.limit.saturating_sub(self.running).saturating_sub(queued)
    }
}

fn held(assignment: &Assignment) -> Held {
    Held { execution: assignment.execution, token: assignment.token }
}

impl Holdings {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            items: HashMap::new(),
            done: Done::default(),
            fleet: Lane::new(1),
            placed: Lane::new(slots),
            draining: false,
            poll: 0,
        }
    }

    /// Takes on work; what is known already was sent twice. Answers what can begin now.
    pub(crate) fn assign(&mut self, assignments: Vec<Assignment>) -> Vec<Ready> {
        for assignment in assignments {
            if self.done.set.contains(&held(&assignment)) {
                continue;
            }
            let std::collections::hash_map::Entry::Vacant(entry) = self.items.entry(held(&assignment)) else {
                continue;
            };
            let (placed, stop_on_disconnect) = (assignment.placed, assignment.stop_on_disconnect);
            entry.insert(Item { placed, stop_on_disconnect, phase: Phase::Queued });
            self.lane(placed).queue.push_back(assignment);
        }
        let mut ready = Vec::new();
        for placed in [false, true] {
            while let Some(next) = self.next(placed) {
                ready.push(next);
            }
        }
        ready
    }

    fn lane(&mut self, placed: bool) -> &mut Lane {
        if placed { &mut self.placed } else { &mut self.fleet }
    }

    fn next(&mut self, placed: bool) -> Option<Ready> {
        let assignment = self.lane(placed).next()?;
        let stop = Arc::new(Stop::default());
        if let Some(item) = self.items.get_mut(&held(&assignment)) {
            item.phase = Phase::Running(stop.clone());
        }
        Some(Ready { assignment, stop })
    }

    /// Work ended. Says what becomes of its result, and what runs in its place.
    pub(crate) fn ended(&mut self, held: Held) -> (Fate, Option<Ready>) {
        let Some(item) = self.items.get_mut(&held) else { return (Fate::Drop, None) };
        let placed = item.placed;
        let fate = match item.phase {
            Phase::Running(_) => {
                item.phase = Phase::Finished;
                Fate::Report
            }
            Phase::Fenced => {
                self.items.remove(&held);
                Fate::Drop
            }
            // Neither occupies the lane.
            Phase::Queued | Phase::Finished => return (Fate::Drop, None),
        };
        let lane = self.lane(placed);
        lane.running = lane.running.saturating_sub(1);
        (fate, self.next(placed))
    }

    /// A server has the result.
    pub(crate) fn acknowledged(&mut self, held: Held) {
        if self.items.get(&held).is_some_and(|item| matches!(item.phase, Phase::Finished)) {
            self.items.remove(&held);
            self.done.add(held);
        }
    }

    /// The lease is not the current one: the work is killed, its result dropped.
    pub(crate) fn refused(&mut self, held: Held) {
        let Some(item) = self.items.get_mut(&held) else { return };
        match &item.phase {
            Phase::Fenced => {}
            Phase::Running(stop) => {
                stop.request(Reason::Fenced);
                item.phase = Phase::Fenced;
            }
            Phase::Queued => {
                let placed = item.placed;
                self.items.remove(&held);
                self.unqueue(placed, held);
            }
            Phase::Finished => {
                self.items.remove(&held);
            }
        }
    }

    /// The server wants it stopped. What had not begun is answered, to be reported as cancelled.
    pub(crate) fn stop(&mut self, held: Held) -> Option<Assignment> {
        let item = self.items.get_mut(&held)?;
        match &item.phase {
            Phase::Queued => {
                item.phase = Phase::Finished;
                let placed = item.placed;
                self.unqueue(placed, held)
            }
            Phase::Running(stop) => {
                stop.request(Reason::Told);
                None
            }
            Phase::Fenced | Phase::Finished => None,
        }
    }

    fn unqueue(&mut self, placed: bool, wanted: Held) -> Option<Assignment> {
        let queue = &mut self.lane(placed).queue;
        let at = queue.iter().position(|assignment| held(assignment) == wanted)?;
        queue.remove(at)
    }

    /// Ends what must never overlap with another attempt.
    pub(crate) fn cut_off(&self, reason: Reason) {
        for item in self.items.values().filter(|item| item.stop_on_disconnect) {
            if let Phase::Running(stop) = &item.phase {
                stop.request(reason);
            }
        }
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Ends all that runs. What had not begun is let go of unreported: it is lost, and sent again.
    pub(crate) fn stop_all(&mut self, reason: Reason) {
        self.draining = true;
        self.fleet.queue.clear();
        self.placed.queue.clear();
        self.items.retain(|_, item| !matches!(item.phase, Phase::Queued));
        for item in self.items.values() {
            if let Phase::Running(stop) = &item.phase {
                stop.request(reason);
            }
        }
    }

    /// Every lease that the agent still claims, results that wait for their receipt among them.
    pub(crate) fn held(&self) -> Vec<Held> {
        let claimed = self.items.iter().filter(|(_, item)| !matches!(item.phase, Phase::Fenced));
        claimed.map(|(held, _)| *held).collect()
    }

    pub(crate) fn holds(&self, held: Held) -> bool {
        self.items.get(&held).is_some_and(|item| !matches!(item.phase, Phase::Fenced))
    }

    pub(crate) fn runs(&self, held: Held) -> bool {
        self.items.get(&held).is_some_and(|item| matches!(item.phase, Phase::Running(_)))
    }

    /// Begins the next poll. Number and free slots belong together, so that a report that names this poll cannot
    /// offer slots that its answer has already filled.
    pub(crate) fn begin_poll(&mut self) -> (u64, Free) {
        self.poll += 1;
        (self.poll, self.free())
    }

    pub(crate) fn offer(&self) -> (u64, Free) {
        (self.poll, self.free())
    }

    fn free(&self) -> Free {
        if self.draining {
            return Free::default();
        }
        Free { fleet: self.fleet.free(), placed: self.placed.free() }
    }

    /// Nothing runs, nothing waits to run.
    pub(crate) fn is_idle(&self) -> bool {
        self.items.values().all(|item| matches!(item.phase, Phase::Finished))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests;
