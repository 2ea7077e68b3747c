//! Owns the board's knowledge of one node: its parked poll, its free slots, its leases.

use std::sync::Arc;

use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::execution::Lease;
use downbeat_core::ids::{ExecutionId, LeaseToken, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::work::Parent;
use downbeat_core::{Portion, Timestamp, limits};
use downbeat_proto::message::{Assignment, Free, LeaseRef, PollAnswer, WorkKind};
use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::stray::Stray;

/// A response to a poll takes at most this long: agents give up earlier.
const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(90);

/// A post is a node as the dispatcher sees it.
#[derive(Debug)]
pub(super) struct Post {
    pub record: Arc<NodeRecord>,
    parked: Option<Parked>,
    /// Free slots from a report that arrived before the poll that it names.
    offer: Option<(u64, Free)>,
    /// Whether the agent has polled this server in this session. If not, the server that it polls assigns
    /// its leases, or it reads them from the store when it comes here.
    asks_here: bool,
    /// Committed leases of this session that are not yet assigned.
    ready: Vec<Assignment>,
    stops: Vec<LeaseRef>,
    /// Reports whose responses can have assignments, and whose commits are pending.
    reports: u32,
    /// Slots of claims whose commit is pending: the agent does not know of them when it reports its free slots.
    claimed: Free,
    pub held: HashMap<ExecutionId, Holding>,
}

#[derive(Debug)]
pub(super) struct Holding {
    pub token: LeaseToken,
    /// If this is not the node's current session, the agent only has the result, and nothing runs any more.
    pub session: SessionId,
    pub of: Parent,
    /// When it was leased or last assigned.
    pub since: Timestamp,
    /// Since when the agent no longer lists the result of a former session.
    pub missing_since: Option<Timestamp>,
    /// Which slot of the node it uses.
    pub kind: WorkKind,
    pub stop: bool,
    /// Its commit is pending.
    is_claimed: bool,
}

impl Holding {
    pub(super) fn new(lease: &Lease, of: Parent, kind: WorkKind, stop: bool) -> Self {
        let Lease { token, session, granted_at, .. } = *lease;
        let is_claimed = false;
        Self { token, session, of, since: granted_at, missing_since: None, kind, stop, is_claimed }
    }
}

#[derive(Debug)]
struct Parked {
    poll: u64,
    free: Free,
    answer: oneshot::Sender<PollAnswer>,
}

impl Post {
    pub(super) fn new(record: Arc<NodeRecord>) -> Self {
        Self {
            record,
            parked: None,
            offer: None,
            asks_here: false,
            ready: Vec::new(),
            stops: Vec::new(),
            reports: 0,
            claimed: Free::default(),
            held: HashMap::default(),
        }
    }

    /// Replaces the record. A new session discards everything that waited for the old one.
    pub(super) fn replace(&mut self, record: Arc<NodeRecord>) {
        if self.record.session != record.session {
            self.parked = None;
            self.offer = None;
            self.asks_here = false;
            self.ready.clear();
            self.stops.clear();
        }
        self.record = record;
    }

    pub(super) fn park(&mut self, poll: u64, free: Free, answer: oneshot::Sender<PollAnswer>) {
        let free = self.offer.take().filter(|(named, _)| *named == poll).map_or(free, |(_, newer)| newer);
        let free = self.unclaimed(free);
        self.parked = Some(Parked { poll, free, answer });
        self.asks_here = true;
        self.flush();
    }

    /// Ends a poll that timed out or whose caller has disconnected.
    pub(super) fn unpark(&mut self, poll: u64) {
        if self.parked.as_ref().is_some_and(|parked| parked.poll == poll) {
            self.parked = None;
        }
    }

    /// Ends the poll of a node that went offline. The node may be back at another server, while nobody waits for this
    /// poll any more: it must not get work here and there. If somebody does wait, the next poll follows at once.
    pub(super) fn end_poll(&mut self) {
        if let Some(parked) = self.parked.take() {
            // The caller may be gone.
            let _ = parked.answer.send(PollAnswer::default());
        }
    }

    pub(super) fn unpark_any(&mut self) {
        self.parked = None;
        self.asks_here = true;
    }

    pub(super) fn asks_here(&self) -> bool {
        self.asks_here
    }

    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Notes slots that became free while a poll was parked. Returns whether the poll is parked.
    pub(super) fn refresh(&mut self, poll: u64, free: Free) -> bool {
        let unclaimed = self.unclaimed(free);
        match &mut self.parked {
            Some(parked) if parked.poll == poll => {
                parked.free = unclaimed;
                true
            }
            Some(_) => false,
            // The report overtook its poll.
            None => {
                self.offer = Some((poll, free));
                false
            }
        }
    }

    /// Returns the slots that can be leased now.
    pub(super) fn free(&self) -> Free {
        if self.record.status != NodeStatus::Online || self.record.draining {
            return Free::default();
        }
        self.parked.as_ref().map_or(Free::default(), |parked| parked.free)
    }

    /// Returns the slot that a debug command can use now. A drained node runs it as well. An agent of an older release has
    /// only its slot for fleet work.
    pub(super) fn free_for_debug(&self) -> Option<WorkKind> {
        let parked = self.parked.as_ref().filter(|_| self.record.status == NodeStatus::Online)?;
        match parked.free {
            Free { debug: Some(1..), .. } => Some(WorkKind::Debug),
            Free { debug: None, fleet: 1.., .. } => Some(WorkKind::Fleet),
            Free { .. } => None,
        }
    }

    /// Returns which of the slots that the agent reports as free are not claimed.
    fn unclaimed(&self, free: Free) -> Free {
        let claimed = self.claimed.debug.unwrap_or(0);
        Free {
            placed: free.placed.saturating_sub(self.claimed.placed),
            fleet: free.fleet.saturating_sub(self.claimed.fleet),
            debug: free.debug.map(|debug| debug.saturating_sub(claimed)),
        }
    }

    /// Claims a slot for a lease whose commit follows.
    pub(super) fn claim(&mut self, execution: ExecutionId, holding: Holding) {
        let kind = holding.kind;
        self.held.insert(execution, Holding { is_claimed: true, ..holding });
        *slots(&mut self.claimed, kind) += 1;
        if let Some(parked) = &mut self.parked {
            let free = slots(&mut parked.free, kind);
            *free = free.saturating_sub(1);
        }
    }

    /// Removes a claim whose commit did not happen; its slot is free again.
    pub(super) fn unclaim(&mut self, execution: ExecutionId) {
        if let Some(kind) = self.settle(execution) {
            self.forget(execution);
            if let Some(parked) = &mut self.parked {
                *slots(&mut parked.free, kind) += 1;
            }
        }
    }

    /// Notes that the commit of a claim is over. Returns the slot that it uses, if it was claimed.
    pub(super) fn settle(&mut self, execution: ExecutionId) -> Option<WorkKind> {
        let held = self.held.get_mut(&execution).filter(|held| held.is_claimed)?;
        held.is_claimed = false;
        *slots(&mut self.claimed, held.kind) -= 1;
        Some(held.kind)
    }

    /// Returns how many executions of this parent the node holds.
    pub(super) fn held_of(&self, parent: &Parent) -> u32 {
        u32::try_from(self.held.values().filter(|held| held.of == *parent).count()).unwrap_or(u32::MAX)
    }

    /// Returns whether a slot for placed work is free, even if the node does not poll now.
    pub(super) fn has_slots(&self) -> bool {
        let own = |held: &&Holding| held.kind == WorkKind::Placed && held.session == self.record.session;
        let placed = self.held.values().filter(own).count();
        placed < self.record.description.slots as usize
    }

    pub(super) fn assign(&mut self, assignment: Assignment) {
        self.ready.push(assignment);
    }

    pub(super) fn stop(&mut self, execution: ExecutionId) {
        if let Some(held) = self.held.get_mut(&execution) {
            held.stop = true;
            if self.asks_here {
                self.stops.push(LeaseRef { execution, token: held.token });
            }
        }
    }

    /// Drops assignments that the agent has, after a resync.
    pub(super) fn forget_ready(&mut self, known: &HashSet<ExecutionId>) {
        self.ready.retain(|assignment| !known.contains(&assignment.execution));
    }

    /// Keeps assignments for the next poll. Skips those that are already kept.
    pub(super) fn keep_for_later(&mut self, assignments: Vec<Assignment>) {
        for assignment in assignments {
            if !self.ready.iter().any(|known| known.execution == assignment.execution) {
                self.ready.push(assignment);
            }
        }
    }

    /// Removes an ended execution, so that the agent receives nothing about it any more.
    pub(super) fn forget(&mut self, execution: ExecutionId) {
        self.held.remove(&execution);
        self.ready.retain(|assignment| assignment.execution != execution);
        self.stops.retain(|held| held.execution != execution);
    }

    /// Returns executions that this session should have received long ago.
    pub(super) fn undelivered(&self, now: Timestamp) -> impl Iterator<Item = ExecutionId> {
        let own = self.held.iter().filter(|(_, held)| held.session == self.record.session);
        let old = own.filter(move |(_, held)| now.duration_since(held.since) > ON_ITS_WAY);
        old.map(|(execution, _)| *execution)
    }

    /// Returns the results of former sessions that the agent has not listed for a while, so it no longer has them. A
    /// delivered result is also missing until this server sees its end in the feed, hence the wait.
    pub(super) fn lost_results(&mut self, listed: &[LeaseRef], now: Timestamp) -> Vec<Stray> {
        let session = self.record.session;
        let mut former = self.held.iter_mut().filter(|(_, held)| held.session != session).peekable();
        if former.peek().is_none() {
            return Vec::new();
        }
        let listed: HashSet<&LeaseRef> = listed.iter().collect();
        let gone = former.filter_map(|(&execution, holding)| {
            let token = holding.token;
            if listed.contains(&LeaseRef { execution, token }) {
                holding.missing_since = None;
                return None;
            }
            let since = *holding.missing_since.get_or_insert(now);
            if now.duration_since(since) <= ON_ITS_WAY {
                return None;
            }
            // If its end is not committed, it is checked again.
            holding.missing_since = Some(now);
            let (of, reason) = (holding.of.clone(), "the agent no longer has its result".to_owned());
            Some(Stray { of, execution, token, reason, may_run: false })
        });
        gone.collect()
    }

    pub(super) fn begin_report(&mut self) {
        self.reports += 1;
    }

    /// Takes the assignments that the response to a report can have.
    pub(super) fn take_for_report(&mut self) -> Vec<Assignment> {
        let is_small = |one: &Assignment| one.wire_bytes() <= limits::REPORT_RESPONSE_BYTES;
        let count = match self.ready.first() {
            Some(first) if is_small(first) => fitting(&self.ready, limits::REPORT_RESPONSE_BYTES),
            _ => 0,
        };
        let later = self.ready.split_off(count);
        std::mem::replace(&mut self.ready, later)
    }

    /// What the response to a report did not take goes to the parked poll.
    pub(super) fn end_report(&mut self) {
        // A node that was deleted meanwhile has a new post.
        self.reports = self.reports.saturating_sub(1);
        self.flush();
    }

    /// Responds to the parked poll if there is something to send.
    pub(super) fn flush(&mut self) {
        let waits_for_report = self.reports > 0;
        if (self.ready.is_empty() || waits_for_report) && self.stops.is_empty() {
            return;
        }
        if let Some(parked) = self.parked.take() {
            let count = if waits_for_report { 0 } else { fitting(&self.ready, limits::POLL_RESPONSE_BYTES) };
            let later = self.ready.split_off(count);
            let ready = std::mem::replace(&mut self.ready, later);
            let answer = PollAnswer { assignments: ready, stop: std::mem::take(&mut self.stops) };
            if let Err(answer) = parked.answer.send(answer) {
                // The poll ended just now: the next one gets it.
                self.ready.splice(..0, answer.assignments);
                self.stops = answer.stop;
            }
        }
    }
}

fn slots(free: &mut Free, kind: WorkKind) -> &mut u32 {
    match kind {
        WorkKind::Placed => &mut free.placed,
        WorkKind::Fleet => &mut free.fleet,
        WorkKind::Debug => free.debug.get_or_insert_default(),
    }
}

/// Returns how many assignments a response of so many bytes can hold: as many as fit, and at least one.
pub(super) fn fitting(assignments: &[Assignment], bytes: usize) -> usize {
    let response = Portion::new(usize::MAX, bytes);
    response.fitting(assignments.iter().map(Assignment::wire_bytes))
}
