//! Decides which node runs which pending execution: those about to be created, and those in the queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId};
use downbeat_core::work::Parent;
use downbeat_core::{Change, Dice, Timestamp};
use downbeat_proto::message::WorkKind;

use super::board::{Board, DispatchState, kind_of};
use super::candidates::Candidates;
use super::line::{Gate, Head};
use super::pile::{Next, Where};
use super::post::Holding;
use super::queue::QueueSlot;
use super::stray::Stray;
use super::uses::Bound;
use crate::works::Works;

/// With more lines than this, new executions go to the queue: checking all lines costs more than a second write.
const LINES_LOOKED_AT: usize = 64;

/// The result for the first pile of a line.
enum ClaimTurn {
    Claim { execution: ExecutionId, node: NodeId },
    Deferred(Timestamp),
    LimitFull { bound: Bound, until: Option<Timestamp> },
    NoNode,
}

struct Round<'a> {
    candidates: Candidates,
    now: Timestamp,
    dice: &'a mut Dice,
    claims: Vec<Change>,
}

impl Board {
    /// Leases executions that are about to be created to nodes that wait for work, which saves one commit.
    /// `release` or the feed follows, whether the commit succeeds or not. Executions go to the queue
    /// instead if others come first, or if they have limits: only the store grants slots of limits.
    pub(crate) fn reserve(
        &mut self,
        executions: &mut [Execution],
        works: &Works,
        now: Timestamp,
        dice: &mut Dice,
    ) {
        self.queue.tidy();
        self.check_stuck();
        let mut candidates: Option<Candidates> = None;
        for execution in executions {
            // An execution that is on the board already: an earlier try of this commit succeeded after all.
            if execution.state != (State::Pending { not_before: None })
                || self.open.contains_key(&execution.id)
                || execution.limits.is_some()
                || self.is_paused(&execution.of)
            {
                continue;
            }
            let Some(work) = works.get(&execution.of) else { continue };
            let (slot, parent) = (self.queue.slot(&work, execution), execution.of.parent());
            let mut kind = kind_of(execution, &work);
            let node = match slot {
                QueueSlot::Pinned(node, priority) => {
                    Some(node).filter(|_| self.is_free_for(node, priority, &parent))
                }
                QueueSlot::Debug(node) => {
                    let first = self.queue.next_debug(node).is_none();
                    let free = self.free_for_debug(node).filter(|_| first);
                    kind = free.unwrap_or(kind);
                    free.map(|_| node)
                }
                QueueSlot::Pile(pile) => {
                    let candidates = candidates.get_or_insert_with(|| self.uncontested(work.priority));
                    match self.queue.pile_at(pile) {
                        Where::Placed(class) if self.queue.is_stuck(class) => None,
                        Where::Placed(class) => candidates.best(class, self),
                        Where::Pinned(_) => None,
                    }
                }
            };
            let Some(node) = node else { continue };
            let lease = self.grant(execution.id, parent.clone(), node, kind, now, dice);
            execution.state = State::Leased { lease, stop: false };
            if let Some(candidates) = &mut candidates {
                candidates.granted(&parent, node, kind, self);
            }
        }
    }

    /// Returns whether fleet work of this priority can start on a node at once: older pending work comes first.
    fn is_free_for(&mut self, node: NodeId, priority: i32, parent: &Parent) -> bool {
        let waits = self.next_pinned(node).is_some_and(|(first, _)| first <= Reverse(priority))
            || self.queue.first_limited(node).is_some_and(|first| first >= priority);
        !waits
            && self.may_take(node, Some(parent))
            && self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
    }

    fn free_for_debug(&self, node: NodeId) -> Option<WorkKind> {
        self.posts.get(&node)?.free_for_debug()
    }

    /// Claims the debug commands that their nodes can start. They wait neither for other work nor for exclusive runs.
    fn claim_debug(&mut self, round: &mut Round<'_>) {
        let nodes: Vec<NodeId> = self.queue.debug_nodes().collect();
        for node in nodes {
            while let Some(execution) = self.queue.next_debug(node)
                && let Some(kind) = self.free_for_debug(node)
            {
                self.claim_in(execution, node, kind, round);
            }
        }
    }

    /// Returns nodes with a free slot for which no work of this priority or a higher one waits.
    fn uncontested(&mut self, priority: i32) -> Candidates {
        if !self.queue.has_few_lines(LINES_LOOKED_AT) {
            return Candidates::new(self, Vec::new());
        }
        let ahead = self.queue.heads(|gate| matches!(gate, Gate::Class(_)));
        let ahead = ahead.into_iter().filter(|head| head.priority <= Reverse(priority));
        let classes: Vec<u32> = ahead
            .filter_map(|head| match self.queue.pile_at(head.pile) {
                Where::Placed(class) => Some(class),
                Where::Pinned(_) => None,
            })
            .collect();
        let mut nodes = self.nodes_with_slots();
        nodes.retain(|node| !classes.iter().any(|class| self.candidate(*class, *node).is_some()));
        Candidates::new(self, nodes)
    }

    /// Takes back the leases of executions whose commit did not happen.
    pub(crate) fn release(&mut self, executions: &mut [Execution]) {
        for execution in executions {
            if let State::Leased { lease, .. } = execution.state {
                self.take_back(execution.id, &lease);
                execution.state = State::Pending { not_before: None };
            }
        }
    }

    /// Claims work for every waiting node. Returns the leases to commit.
    pub(crate) fn claim(&mut self, now: Timestamp, dice: &mut Dice) -> Vec<Change> {
        self.queue.tidy();
        self.check_stuck();
        self.uses.prune(now);
        for execution in self.queue.due(now) {
            if let Some(open) = self.open.get_mut(&execution) {
                open.stage = DispatchState::Waiting { until: None };
                let slot = open.slot;
                self.queue.push(slot, execution);
            }
        }
        let candidates = Candidates::new(self, self.nodes_with_slots());
        let mut round = Round { candidates, now, dice, claims: Vec::new() };
        self.claim_debug(&mut round);
        self.claim_in_turn(&mut round);
        let nodes: Vec<NodeId> = self.queue.pinned_nodes().collect();
        for node in nodes {
            while self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
                && let Some((_, execution)) = self.next_pinned(node)
            {
                self.claim_one(execution, node, &mut round);
            }
        }
        let mut claims = round.claims;
        let open = &self.open;
        let overlaps_never =
            |execution: ExecutionId| open.get(&execution).is_some_and(|open| open.work.stop_on_disconnect);
        claims.extend(self.stray.take_due(now, overlaps_never).into_iter().map(|stray| {
            Change::ExecutionLost {
                of: stray.of,
                execution: stray.execution,
                token: stray.token,
                silence: None,
                reason: stray.reason,
                at: now,
            }
        }));
        claims
    }

    /// Claims placed work, and fleet work with limits. The heads of all lines compete. Within a round slots
    /// are only used up, so a line whose head finds none is finished.
    fn claim_in_turn(&mut self, round: &mut Round<'_>) {
        let posts = &self.posts;
        let has_fleet_slot = |node: &NodeId| posts.get(node).is_some_and(|post| post.free().fleet > 0);
        let heads = self.queue.heads(|gate| match gate {
            Gate::Class(_) => !round.candidates.is_empty(),
            Gate::Node(node) => has_fleet_slot(node),
            Gate::Limit { .. } => true,
        });
        let mut aside: Vec<u32> = Vec::new();
        let mut heads: BinaryHeap<Reverse<Head>> = heads.into_iter().map(Reverse).collect();
        while let Some(Reverse(head)) = heads.pop() {
            let Some(gate) = self.queue.gate(head.pile).cloned() else { continue };
            if matches!(gate, Gate::Class(_)) && round.candidates.is_empty() {
                continue;
            }
            // Its lane may have had a turn in another line.
            let first = self.queue.head(&gate);
            if first != Some(head) {
                heads.extend(first.map(Reverse));
                continue;
            }
            match self.turn_of(head.pile, round) {
                ClaimTurn::Claim { execution, node } => {
                    self.claim_one(execution, node, round);
                    if heads.is_empty() && self.queue.is_alone(head.pile) {
                        self.claim_pile(head.pile, round);
                    }
                    self.queue.served(head.pile);
                }
                ClaimTurn::Deferred(until) => self.queue.defer(head.pile, until),
                ClaimTurn::LimitFull { bound, until } => match &gate {
                    Gate::Limit { bound: waits_for, .. } if *waits_for == bound => {
                        self.queue.close(&gate, until);
                        continue;
                    }
                    _ => self.queue.sleep(head.pile, &bound, until),
                },
                ClaimTurn::NoNode => match &gate {
                    Gate::Class(_) => continue,
                    // Other piles of this line may come before the work that this one waits for.
                    Gate::Node(_) => {
                        self.queue.step_out(head.pile);
                        aside.push(head.pile);
                    }
                    // Nothing else in this line finds a slot either.
                    Gate::Limit { pinned: false, .. } if round.candidates.is_empty() => continue,
                    Gate::Limit { .. } => self.queue.wait_for_node(head.pile),
                },
            }
            heads.extend(self.queue.head(&gate).map(Reverse));
        }
        for pile in aside {
            self.queue.wait_for_node(pile);
        }
    }

    /// Claims as much of a pile as possible. No other pile competes, so turns need no check.
    fn claim_pile(&mut self, pile: u32, round: &mut Round<'_>) {
        self.queue.step_out(pile);
        while let ClaimTurn::Claim { execution, node } = self.turn_of(pile, round) {
            self.claim_one(execution, node, round);
        }
        self.queue.wait_for_node(pile);
    }

    fn turn_of(&mut self, pile: u32, round: &mut Round<'_>) -> ClaimTurn {
        let now = round.now;
        let execution = match self.queue.next(pile, now) {
            Some(Next::Now(execution)) => execution,
            Some(Next::Later(until)) => return ClaimTurn::Deferred(until),
            // A pile that stands in a line is never empty.
            None => return ClaimTurn::NoNode,
        };
        for bound in self.queue.bounds(QueueSlot::Pile(pile)).iter().flat_map(|bounds| bounds.iter()) {
            if let Some(full) = self.uses.full(bound, now) {
                return ClaimTurn::LimitFull { bound: bound.clone(), until: full.until() };
            }
        }
        let node = match self.queue.pile_at(pile) {
            Where::Placed(class) if self.queue.is_stuck(class) => None,
            Where::Placed(class) => {
                let best = round.candidates.best(class, self);
                if best.is_none() {
                    self.note_stuck(class);
                }
                best
            }
            Where::Pinned(node) => Some(node).filter(|_| self.is_next_on(node, execution)),
        };
        node.map_or(ClaimTurn::NoNode, |node| ClaimTurn::Claim { execution, node })
    }

    /// Returns whether fleet work with limits may start on its node before the work without limits that waits there.
    fn is_next_on(&self, node: NodeId, execution: ExecutionId) -> bool {
        let Some(open) = self.open.get(&execution) else { return false };
        let own = (Reverse(open.work.priority), execution);
        let comes_first = |first: (Reverse<i32>, ExecutionId)| first < own;
        self.may_take(node, Some(&open.parent))
            && self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
            && !self.next_pinned(node).is_some_and(comes_first)
    }

    fn claim_one(&mut self, execution: ExecutionId, node: NodeId, round: &mut Round<'_>) {
        let kind = self.open.get(&execution).expect("what waits in the queue is open").kind;
        self.claim_in(execution, node, kind, round);
    }

    /// Claims a slot of this kind for an execution.
    fn claim_in(&mut self, execution: ExecutionId, node: NodeId, kind: WorkKind, round: &mut Round<'_>) {
        let open = self.open.get_mut(&execution).expect("what waits in the queue is open");
        let (slot, of) = (open.slot, open.parent.clone());
        open.stage = DispatchState::Claimed { node, at: round.now };
        self.queue.remove(slot, None, execution);
        self.use_limits_at(slot, execution, round.now);
        let lease = self.grant(execution, of.clone(), node, kind, round.now, round.dice);
        round.candidates.granted(&of, node, kind, self);
        round.claims.push(Change::ExecutionLeased { of, execution, lease });
    }

    /// Puts a refused claim back into the queue, unless the feed has already resolved the execution.
    pub(crate) fn unclaim(&mut self, change: &Change) {
        let Change::ExecutionLeased { execution, lease, .. } = change else { return };
        let is_paused = self.open.get(execution).is_some_and(|open| self.is_paused(&open.attempt.of));
        if let Some(open) = self.open.get_mut(execution)
            && let DispatchState::Claimed { node, at } = open.stage
            && node == lease.node
        {
            let slot = open.slot;
            if is_paused {
                open.stage = DispatchState::Paused { until: None };
            } else {
                open.stage = DispatchState::Waiting { until: None };
                self.queue.push(slot, *execution);
            }
            self.release_slots(slot, *execution, at);
        }
        // Also if another server was faster: the slot is free again.
        self.take_back(*execution, lease);
    }

    pub(crate) fn claims_failed(&mut self, claims: Vec<Change>) {
        for claim in claims {
            match claim {
                Change::ExecutionLost { of, execution, token, reason, .. } => {
                    self.stray.found.push(Stray { of, execution, token, reason, may_run: false });
                }
                other => self.unclaim(&other),
            }
        }
    }

    /// Uses up the slot and counts the lease at once: the next claims must not wait for the commit.
    fn grant(
        &mut self,
        execution: ExecutionId,
        of: Parent,
        node: NodeId,
        kind: WorkKind,
        now: Timestamp,
        dice: &mut Dice,
    ) -> Lease {
        let post = self.posts.get_mut(&node).expect("a node that was chosen is on the board");
        let (token, session) = (LeaseToken(dice.uuid()), post.record.session);
        let lease = Lease { token, node, session, granted_at: now };
        post.claim(execution, Holding::new(&lease, of, kind, false));
        lease
    }

    fn take_back(&mut self, execution: ExecutionId, lease: &Lease) {
        self.with_post(lease.node, |post| {
            if post.held.get(&execution).is_some_and(|held| held.token == lease.token) {
                post.unclaim(execution);
            }
        });
    }
}
