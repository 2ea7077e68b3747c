//! Owns what the board knows of one node: its parked poll, what it could take, what it holds.

use std::sync::Arc;

use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::ids::{ExecutionId, LeaseToken, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::work::Parent;
use downbeat_core::{Timestamp, limits};
use downbeat_proto::message::{Assignment, Free, LeaseRef, PollAnswer};
use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::stray::Stray;

/// No answer to a poll is on its way for longer than this: agents give up before.
const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(90);

/// A node as the dispatcher sees it.
#[derive(Debug)]
pub(super) struct Post {
    pub record: Arc<NodeRecord>,
    parked: Option<Parked>,
    /// Slots that a report said are free now, ahead of the poll that it names.
    offer: Option<(u64, Free)>,
    /// It has asked this server for work in this session. What is leased to one that has not is told to it by the server
    /// that it asks, or by the store when it comes here.
    asks_here: bool,
    /// Leases that were committed for this session and not yet handed over.
    ready: Vec<Assignment>,
    stops: Vec<LeaseRef>,
    pub held: HashMap<ExecutionId, Holding>,
}

/// An execution that a node holds.
#[derive(Debug)]
pub(super) struct Holding {
    pub token: LeaseToken,
    /// Not the node's current one: its agent still has the result, and nothing runs there any more.
    pub session: SessionId,
    pub of: Parent,
    /// When it was leased, or last handed over.
    pub since: Timestamp,
    /// The result of a former session: since when the agent does not list it any more.
    pub missing_since: Option<Timestamp>,
    pub placed: bool,
    pub stop: bool,
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
            held: HashMap::default(),
        }
    }

    /// A new session: what waited for the old one is not for the new one.
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
        self.parked = Some(Parked { poll, free, answer });
        self.asks_here = true;
        self.flush();
    }

    /// The poll's wait is over, or its caller went away.
    pub(super) fn unpark(&mut self, poll: u64) {
        if self.parked.as_ref().is_some_and(|parked| parked.poll == poll) {
            self.parked = None;
        }
    }

    /// A new poll is on its way.
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

    /// Slots freed up while a poll was parked.
    pub(super) fn refresh(&mut self, poll: u64, free: Free) -> bool {
        match &mut self.parked {
            Some(parked) if parked.poll == poll => {
                parked.free = free;
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

    /// What could be leased to it right now.
    pub(super) fn free(&self) -> Free {
        if self.record.status != NodeStatus::Online || self.record.draining {
            return Free::default();
        }
        self.parked.as_ref().map_or(Free::default(), |parked| parked.free)
    }

    pub(super) fn take(&mut self, placed: bool) {
        if let Some(parked) = &mut self.parked {
            let slots = if placed { &mut parked.free.placed } else { &mut parked.free.fleet };
            *slots = slots.saturating_sub(1);
        }
    }

    pub(super) fn give_back(&mut self, placed: bool) {
        if let Some(parked) = &mut self.parked {
            let slots = if placed { &mut parked.free.placed } else { &mut parked.free.fleet };
            *slots = slots.saturating_add(1);
        }
    }

    /// How many executions of this parent the node holds.
    pub(super) fn held_of(&self, parent: &Parent) -> u32 {
        u32::try_from(self.held.values().filter(|held| held.of == *parent).count()).unwrap_or(u32::MAX)
    }

    /// Whether it could hold more placed work than it does, whether it asks for some in this moment or not.
    pub(super) fn has_slots(&self) -> bool {
        let own = |held: &&Holding| held.placed && held.session == self.record.session;
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

    /// After a resync: these need not be handed over.
    pub(super) fn forget_ready(&mut self, known: &HashSet<ExecutionId>) {
        self.ready.retain(|assignment| !known.contains(&assignment.execution));
    }

    /// For the next poll, unless they are there already.
    pub(super) fn keep_for_later(&mut self, assignments: Vec<Assignment>) {
        for assignment in assignments {
            if !self.ready.iter().any(|known| known.execution == assignment.execution) {
                self.ready.push(assignment);
            }
        }
    }

    /// It ended: nothing of it is to reach the agent any more.
    pub(super) fn forget(&mut self, execution: ExecutionId) {
        self.held.remove(&execution);
        self.ready.retain(|assignment| assignment.execution != execution);
        self.stops.retain(|held| held.execution != execution);
    }

    /// What this session should have received long ago.
    pub(super) fn undelivered(&self, now: Timestamp) -> impl Iterator<Item = ExecutionId> {
        let own = self.held.iter().filter(|(_, held)| held.session == self.record.session);
        let old = own.filter(move |(_, held)| now.duration_since(held.since) > ON_ITS_WAY);
        old.map(|(execution, _)| *execution)
    }

    /// Results of former sessions that the agent has not listed for a while, so that it does not have them any more. One
    /// that was delivered is missing, too, until this server hears of its end: so it is waited for.
    pub(super) fn no_longer_had(&mut self, listed: &[LeaseRef], now: Timestamp) -> Vec<Stray> {
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
            // If its end is not committed it is looked at again.
            holding.missing_since = Some(now);
            let (of, reason) = (holding.of.clone(), "its agent no longer has its result".to_owned());
            Some(Stray { of, execution, token, reason, may_run: false })
        });
        gone.collect()
    }

    /// Answers the parked poll when there is something to say.
    pub(super) fn flush(&mut self) {
        if self.ready.is_empty() && self.stops.is_empty() {
            return;
        }
        if let Some(parked) = self.parked.take() {
            let later = self.ready.split_off(fitting(&self.ready));
            let ready = std::mem::replace(&mut self.ready, later);
            let answer = PollAnswer { assignments: ready, stop: std::mem::take(&mut self.stops) };
            if let Err(answer) = parked.answer.send(answer) {
                // The poll ended in this moment: the next one gets it.
                self.ready.splice(..0, answer.assignments);
                self.stops = answer.stop;
            }
        }
    }
}

/// How many of these one answer may carry: as many as fit, and at least one.
pub(super) fn fitting(assignments: &[Assignment]) -> usize {
    let mut bytes = 0;
    let within = |assignment: &&Assignment| {
        bytes += assignment.wire_bytes();
        bytes <= limits::POLL_ANSWER_BYTES
    };
    assignments.iter().take_while(within).count().max(1).min(assignments.len())
}
