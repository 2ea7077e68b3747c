//! Owns everything that an agent holds: its leases, and the slots in which their work runs. Synchronous, without
//! effects except setting `Stop`s; the caller performs the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::limits::{DEBUG_PER_NODE, UNSENT_BYTES, UNSENT_RESULTS};
use downbeat_proto::message::{Assignment, Free, LeaseRef, WorkKind};
use tokio::time::Instant;

use crate::stop::{Reason, Stop};

#[derive(Debug)]
pub(crate) struct Holdings {
    items: HashMap<LeaseRef, Item>,
    /// Pinned work: one at a time, in order, so that two changes never run on a host at the same time.
    fleet: Slots,
    /// Placed work: one per slot.
    placed: Slots,
    /// Debug commands: a few, besides all other work, so that a busy host can be examined.
    debug: Slots,
    /// Set when the agent is asked to stop: it offers no slots any more.
    pub(crate) draining: bool,
    /// While draining: a server has sent everything that was on its way here.
    pub(crate) is_complete: bool,
    /// The leases that were removed last. A late response may contain them again.
    former: Former,
    /// The number of the current poll.
    poll: u64,
    /// Unacknowledged results: their number and the size of their output.
    unsent: usize,
    unsent_bytes: usize,
}

#[derive(Debug)]
struct Item {
    kind: WorkKind,
    /// Must never overlap with another attempt: runs only while the lease is certainly valid.
    stop_on_disconnect: bool,
    /// Set only for work with `stop_on_disconnect`.
    begun: bool,
    /// The lease was valid at this time or later: no server ends it within a term of it.
    assured: Instant,
    /// Output of its result that is still to be sent.
    unsent_bytes: usize,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Queued,
    Running(Arc<Stop>),
    /// The lease is lost and the work is being ended. It still occupies its slot.
    Fenced,
    /// Has a result that no server has acknowledged yet.
    Finished,
}

#[derive(Debug)]
struct Slots {
    limit: u32,
    running: u32,
    queue: VecDeque<Assignment>,
}

/// The last leases that were removed: so many that no older one can still be on its way.
#[derive(Debug, Default)]
struct Former {
    order: VecDeque<LeaseRef>,
    known: HashSet<LeaseRef>,
}

impl Former {
    const MOST: usize = 16 * 1024;

    fn push(&mut self, held: LeaseRef) {
        if self.known.insert(held) {
            self.order.push_back(held);
        }
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn contains(&self, held: LeaseRef) -> bool {
        self.known.contains(&held)
    }
}

/// Work that can start now.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) assignment: Assignment,
    pub(crate) stop: Arc<Stop>,
}

/// Whether a result is reported or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Report,
    /// The lease was lost while the work ran.
    Drop,
}

impl Item {
    fn new(kind: WorkKind, stop_on_disconnect: bool, assured: Instant, phase: Phase) -> Self {
        Self { kind, stop_on_disconnect, begun: false, assured, unsent_bytes: 0, phase }
    }
}

impl Slots {
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

impl Holdings {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            items: HashMap::default(),
            fleet: Slots::new(1),
            placed: Slots::new(slots),
            debug: Slots::new(DEBUG_PER_NODE),
            draining: false,
            is_complete: false,
            former: Former::default(),
            poll: 0,
            unsent: 0,
            unsent_bytes: 0,
        }
    }

    /// Adds assignments and returns those that can start now. Known leases are ignored: they were sent twice. A server
    /// renewed this node at `heard`, so none of its leases ends within a term of it.
    pub(crate) fn assign(&mut self, assignments: Vec<Assignment>, heard: Instant) -> Vec<Ready> {
        for assignment in assignments {
            let held = assignment.lease();
            if self.former.contains(held) || self.items.contains_key(&held) {
                continue;
            }
            let (kind, stop_on_disconnect) = (assignment.kind, assignment.stop_on_disconnect);
            self.items.insert(held, Item::new(kind, stop_on_disconnect, heard, Phase::Queued));
            self.slots(kind).queue.push_back(assignment);
        }
        let mut ready = Vec::new();
        for kind in [WorkKind::Fleet, WorkKind::Placed, WorkKind::Debug] {
            while let Some(next) = self.next(kind) {
                ready.push(next);
            }
        }
        ready
    }

    fn slots(&mut self, kind: WorkKind) -> &mut Slots {
        match kind {
            WorkKind::Fleet => &mut self.fleet,
            WorkKind::Placed => &mut self.placed,
            WorkKind::Debug => &mut self.debug,
        }
    }

    fn next(&mut self, kind: WorkKind) -> Option<Ready> {
        let assignment = self.slots(kind).next()?;
        let stop = Arc::new(Stop::default());
        if let Some(item) = self.items.get_mut(&assignment.lease()) {
            item.phase = Phase::Running(stop.clone());
        }
        Some(Ready { assignment, stop })
    }

    /// Ends work. Returns what happens to its result, and the next work for its slot.
    pub(crate) fn ended(&mut self, held: LeaseRef) -> (Fate, Option<Ready>) {
        let Some(item) = self.items.get_mut(&held) else { return (Fate::Drop, None) };
        let kind = item.kind;
        let fate = match item.phase {
            Phase::Running(_) => {
                item.phase = Phase::Finished;
                self.unsent += 1;
                Fate::Report
            }
            Phase::Fenced => {
                self.remove(held);
                Fate::Drop
            }
            // Neither occupies a slot.
            Phase::Queued | Phase::Finished => return (Fate::Drop, None),
        };
        let slots = self.slots(kind);
        slots.running = slots.running.saturating_sub(1);
        (fate, self.next(kind))
    }

    /// Removes work that ended because the agent stops. Its slot starts nothing else.
    pub(crate) fn abandoned(&mut self, held: LeaseRef) {
        let Some(item) = self.items.get(&held) else { return };
        let kind = item.kind;
        if matches!(item.phase, Phase::Running(_) | Phase::Fenced) {
            let slots = self.slots(kind);
            slots.running = slots.running.saturating_sub(1);
        }
        self.remove(held);
    }

    /// Removes a result that a server has.
    pub(crate) fn acknowledged(&mut self, held: LeaseRef) {
        if self.items.get(&held).is_some_and(|item| matches!(item.phase, Phase::Finished)) {
            self.remove(held);
        }
    }

    /// Holds a result of an earlier run of the agent, as if it had ended now.
    pub(crate) fn hold_former(&mut self, held: LeaseRef, unsent_bytes: usize, now: Instant) {
        self.items.insert(held, Item::new(WorkKind::Placed, false, now, Phase::Finished));
        self.unsent += 1;
        self.wait_to_send(held, unsent_bytes);
    }

    /// Notes that the result of this work has this much output to send.
    pub(crate) fn wait_to_send(&mut self, held: LeaseRef, unsent_bytes: usize) {
        if let Some(item) = self.items.get_mut(&held) {
            item.unsent_bytes += unsent_bytes;
            self.unsent_bytes += unsent_bytes;
        }
    }

    /// Notes that this much output of a result was sent or dropped.
    pub(crate) fn sent(&mut self, held: LeaseRef, bytes: usize) {
        if let Some(item) = self.items.get_mut(&held) {
            let bytes = bytes.min(item.unsent_bytes);
            item.unsent_bytes -= bytes;
            self.unsent_bytes -= bytes;
        }
    }

    /// Returns whether so many results, or so much output, are pending that the agent refuses work: a slow connection
    /// must not fill the memory, and all held leases have to fit into one message.
    pub(crate) fn is_clogged(&self) -> bool {
        self.unsent_bytes >= UNSENT_BYTES || self.unsent >= UNSENT_RESULTS
    }

    fn remove(&mut self, held: LeaseRef) {
        if let Some(item) = self.items.remove(&held) {
            self.unsent_bytes = self.unsent_bytes.saturating_sub(item.unsent_bytes);
            self.unsent -= usize::from(matches!(item.phase, Phase::Finished));
        }
        self.former.push(held);
    }

    /// Ends work whose lease is no longer valid, and drops its result.
    pub(crate) fn refused(&mut self, held: LeaseRef) {
        let Some(item) = self.items.get_mut(&held) else { return };
        match &item.phase {
            Phase::Fenced => {}
            Phase::Running(stop) => {
                stop.request(Reason::Fenced);
                item.phase = Phase::Fenced;
            }
            Phase::Queued => {
                let kind = item.kind;
                self.remove(held);
                self.unqueue(kind, held);
            }
            Phase::Finished => self.remove(held),
        }
    }

    /// Stops work that a server cancelled. Returns work that had not started, to be reported as cancelled.
    pub(crate) fn stop(&mut self, held: LeaseRef) -> Option<Assignment> {
        let item = self.items.get_mut(&held)?;
        match &item.phase {
            Phase::Queued => {
                item.phase = Phase::Finished;
                self.unsent += 1;
                let kind = item.kind;
                self.unqueue(kind, held)
            }
            Phase::Running(stop) => {
                stop.request(Reason::Cancelled);
                None
            }
            Phase::Fenced | Phase::Finished => None,
        }
    }

    fn unqueue(&mut self, kind: WorkKind, wanted: LeaseRef) -> Option<Assignment> {
        let queue = &mut self.slots(kind).queue;
        let at = queue.iter().position(|assignment| assignment.lease() == wanted)?;
        queue.remove(at)
    }

    /// Notes that a server granted a renewal of these leases requested at `asked`.
    pub(crate) fn renewed(&mut self, renewed: &[LeaseRef], asked: Instant) {
        for held in renewed {
            if let Some(item) = self.items.get_mut(held) {
                item.assured = item.assured.max(asked);
            }
        }
    }

    /// Returns a time at which the lease was certainly valid.
    pub(crate) fn assured(&self, held: LeaseRef) -> Option<Instant> {
        self.items.get(&held).map(|item| item.assured)
    }

    /// Starts work that must never overlap. Returns false if its lease may have ended and has to be renewed first.
    pub(crate) fn begin(&mut self, held: LeaseRef, term: Duration, now: Instant) -> bool {
        let Some(item) = self.items.get_mut(&held) else { return false };
        item.begun = now < item.assured + term;
        item.begun
    }

    /// Ends work that must never overlap and was not renewed for a term. Returns when the next one is due.
    pub(crate) fn cut_off(&self, term: Duration, now: Instant, reason: Reason) -> Option<Instant> {
        let begun = self.items.values().filter(|item| item.stop_on_disconnect && item.begun);
        let mut next = None;
        for item in begun {
            if let Phase::Running(stop) = &item.phase {
                let due = item.assured + term;
                if due <= now {
                    stop.request(reason);
                } else {
                    next = Some(next.map_or(due, |next: Instant| next.min(due)));
                }
            }
        }
        next
    }

    /// Stops all running work. Work that had not started is dropped unreported: it counts as lost and is retried.
    pub(crate) fn stop_all(&mut self, reason: Reason) {
        self.draining = true;
        self.fleet.queue.clear();
        self.placed.queue.clear();
        self.debug.queue.clear();
        let unbegun = self.items.extract_if(|_, item| matches!(item.phase, Phase::Queued));
        unbegun.for_each(|(held, _)| self.former.push(held));
        for item in self.items.values() {
            if let Phase::Running(stop) = &item.phase {
                stop.request(reason);
            }
        }
    }

    /// Returns every lease that the agent still claims, including those of unacknowledged results.
    pub(crate) fn held(&self) -> Vec<LeaseRef> {
        let claimed = self.items.iter().filter(|(_, item)| !matches!(item.phase, Phase::Fenced));
        claimed.map(|(held, _)| *held).collect()
    }

    pub(crate) fn holds(&self, held: LeaseRef) -> bool {
        self.items.get(&held).is_some_and(|item| !matches!(item.phase, Phase::Fenced))
    }

    pub(crate) fn runs(&self, held: LeaseRef) -> bool {
        self.items.get(&held).is_some_and(|item| matches!(item.phase, Phase::Running(_)))
    }

    /// Starts the next poll. Number and free slots belong together: a report that names this poll cannot offer slots
    /// that its response has already filled.
    pub(crate) fn begin_poll(&mut self) -> (u64, Free) {
        self.poll += 1;
        (self.poll, self.free())
    }

    /// Makes sure that no report offers slots of the pending poll any more: they may be filled by assignments that did not
    /// arrive.
    pub(crate) fn disown_poll(&mut self) {
        self.poll += 1;
    }

    pub(crate) fn offer(&self) -> (u64, Free) {
        (self.poll, self.free())
    }

    fn free(&self) -> Free {
        if self.draining || self.is_clogged() {
            return Free { debug: Some(0), ..Free::default() };
        }
        let debug = Some(self.debug.free());
        Free { fleet: self.fleet.free(), placed: self.placed.free(), debug }
    }

    /// Returns whether nothing runs or is queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.items.values().all(|item| matches!(item.phase, Phase::Finished))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests;
