//! Decides which node gets what waits: executions that are about to be created, and those that are in the queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId};
use downbeat_core::work::Parent;
use downbeat_core::{Change, Dice, Timestamp};

use super::board::{Board, Stage};
use super::candidates::Candidates;
use super::line::{Gate, Head};
use super::pile::{Next, Where};
use super::post::Holding;
use super::queue::QueueSlot;
use super::stray::Stray;
use super::uses::Bound;
use crate::works::Works;

/// With more lines than this the queue decides, and nothing is born leased: looking at all of them costs more than a write.
const LINES_LOOKED_AT: usize = 64;

/// The outcome of a turn: what the first pile of a line gets.
enum ClaimTurn {
    Claim {
        execution: ExecutionId,
        node: NodeId,
    },
    /// Left to other servers until then.
    Deferred(Timestamp),
    /// This limit is full.
    LimitFull {
        bound: Bound,
        until: Option<Timestamp>,
    },
    NoNode,
}

impl Board {
    /// Gives executions of one run that are about to be created to nodes that wait for work, so that they are born
    /// leased. Whatever becomes of the commit, `release` or the feed settles it. Where others wait that come first,
    /// these go into the queue; as do those with limits, whose places the store gives.
    pub(crate) fn reserve(
        &mut self,
        executions: &mut [Execution],
        works: &Works,
        now: Timestamp,
        dice: &mut Dice,
    ) {
        self.queue.tidy();
        let mut candidates: Option<Candidates> = None;
        for execution in executions {
            // On the board already: an earlier try of this commit took effect after all.
            if execution.state != (State::Pending { not_before: None })
                || self.open.contains_key(&execution.id)
                || execution.limits.is_some()
                || self.is_paused(&execution.of)
            {
                continue;
            }
            let Some(work) = works.get(&execution.of) else { continue };
            let (slot, parent) = (self.queue.slot(&work, execution), execution.of.parent());
            let node = match slot {
                QueueSlot::Pinned(node, priority) => {
                    Some(node).filter(|_| self.is_free_for(node, priority, &parent))
                }
                QueueSlot::Pile(pile) => {
                    let candidates = candidates.get_or_insert_with(|| self.uncontested(work.priority));
                    match self.queue.pile_at(pile) {
                        Where::Placed(class) => candidates.best(class, self),
                        Where::Pinned(_) => None,
                    }
                }
            };
            let Some(node) = node else { continue };
            let placed = execution.pinned.is_none();
            let lease = self.grant(execution.id, parent.clone(), node, placed, now, dice);
            execution.state = State::Leased { lease, stop: false };
            if let Some(candidates) = &mut candidates {
                candidates.granted(&parent, node, placed, self);
            }
        }
    }

    /// Whether fleet work of this priority may go to a node at once: those that wait longer come first.
    fn is_free_for(&mut self, node: NodeId, priority: i32, parent: &Parent) -> bool {
        let waits = self.next_pinned(node).is_some_and(|(first, _)| first <= Reverse(priority))
            || self.queue.first_limited(node).is_some_and(|first| first >= priority);
        !waits
            && self.may_take(node, Some(parent))
            && self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
    }

    /// Nodes with a free slot that nothing of this priority or higher waits for.
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

    /// The commit that was to lease these did not happen.
    pub(crate) fn release<'a>(&mut self, executions: impl Iterator<Item = &'a Execution>) {
        for execution in executions {
            if let State::Leased { lease, .. } = execution.state {
                self.take_back(execution.id, &lease);
            }
        }
    }

    /// Claims for every waiting node at once: the leases to commit.
    pub(crate) fn claim(&mut self, now: Timestamp, dice: &mut Dice) -> Vec<Change> {
        self.queue.tidy();
        self.uses.prune(now);
        for execution in self.queue.due(now) {
            if let Some(open) = self.open.get_mut(&execution) {
                open.stage = Stage::Waiting { until: None };
                let slot = open.slot;
                self.queue.push(slot, execution);
            }
        }
        let mut claims = Vec::new();
        self.claim_in_turn(now, dice, &mut claims);
        let nodes: Vec<NodeId> = self.queue.pinned_nodes().collect();
        for node in nodes {
            while self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
                && let Some((_, execution)) = self.next_pinned(node)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
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

    /// Placed work, and fleet work with limits. The heads of all lines compete. Within a turn slots and places are only
    /// taken, so a line whose head found none is done with.
    fn claim_in_turn(&mut self, now: Timestamp, dice: &mut Dice, claims: &mut Vec<Change>) {
        let mut candidates = Candidates::new(self, self.nodes_with_slots());
        let posts = &self.posts;
        let has_fleet_slot = |node: &NodeId| posts.get(node).is_some_and(|post| post.free().fleet > 0);
        let heads = self.queue.heads(|gate| match gate {
            Gate::Class(_) => !candidates.is_empty(),
            Gate::Node(node) => has_fleet_slot(node),
            Gate::Limit { .. } => true,
        });
        let mut aside: Vec<u32> = Vec::new();
        let mut heads: BinaryHeap<Reverse<Head>> = heads.into_iter().map(Reverse).collect();
        while let Some(Reverse(head)) = heads.pop() {
            let Some(gate) = self.queue.gate(head.pile).cloned() else { continue };
            if matches!(gate, Gate::Class(_)) && candidates.is_empty() {
                continue;
            }
            // Its lane may have had a turn in another line.
            let first = self.queue.head(&gate);
            if first != Some(head) {
                heads.extend(first.map(Reverse));
                continue;
            }
            match self.turn_of(head.pile, &mut candidates, now) {
                ClaimTurn::Claim { execution, node } => {
                    claims.push(self.claim_for(execution, node, &mut candidates, now, dice));
                    if heads.is_empty() && self.queue.is_alone(head.pile) {
                        self.claim_pile(head.pile, &mut candidates, now, dice, claims);
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
                    // Others of its line may come before what it has to wait for.
                    Gate::Node(_) => {
                        self.queue.step_out(head.pile);
                        aside.push(head.pile);
                    }
                    // Nothing else of this line finds a slot either.
                    Gate::Limit { pinned: false, .. } if candidates.is_empty() => continue,
                    Gate::Limit { .. } => self.queue.wait_for_node(head.pile),
                },
            }
            heads.extend(self.queue.head(&gate).map(Reverse));
        }
        for pile in aside {
            self.queue.wait_for_node(pile);
        }
    }

    /// Nobody else is there to take turns with: as much of a pile as can go, without asking each time whose turn it is.
    fn claim_pile(
        &mut self,
        pile: u32,
        candidates: &mut Candidates,
        now: Timestamp,
        dice: &mut Dice,
        claims: &mut Vec<Change>,
    ) {
        self.queue.step_out(pile);
        while let ClaimTurn::Claim { execution, node } = self.turn_of(pile, candidates, now) {
            claims.push(self.claim_for(execution, node, candidates, now, dice));
        }
        self.queue.wait_for_node(pile);
    }

    fn turn_of(&mut self, pile: u32, candidates: &mut Candidates, now: Timestamp) -> ClaimTurn {
        let execution = match self.queue.next(pile, now) {
            Some(Next::Now(execution)) => execution,
            Some(Next::Later(until)) => return ClaimTurn::Deferred(until),
            // A pile in a line has something.
            None => return ClaimTurn::NoNode,
        };
        for bound in self.queue.bounds(QueueSlot::Pile(pile)).iter().flat_map(|bounds| bounds.iter()) {
            if let Some(full) = self.uses.full(bound, now) {
                return ClaimTurn::LimitFull { bound: bound.clone(), until: full.until() };
            }
        }
        let node = match self.queue.pile_at(pile) {
            Where::Placed(class) => candidates.best(class, self),
            Where::Pinned(node) => Some(node).filter(|_| self.is_next_on(node, execution)),
        };
        node.map_or(ClaimTurn::NoNode, |node| ClaimTurn::Claim { execution, node })
    }

    /// Whether fleet work with limits may go to its node before what waits there without.
    fn is_next_on(&self, node: NodeId, execution: ExecutionId) -> bool {
        let Some(open) = self.open.get(&execution) else { return false };
        let own = (Reverse(open.work.priority), execution);
        let comes_first = |first: (Reverse<i32>, ExecutionId)| first < own;
        self.may_take(node, Some(&open.parent))
            && self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
            && !self.next_pinned(node).is_some_and(comes_first)
    }

    fn claim_for(
        &mut self,
        execution: ExecutionId,
        node: NodeId,
        candidates: &mut Candidates,
        now: Timestamp,
        dice: &mut Dice,
    ) -> Change {
        let claim = self.claim_one(execution, node, now, dice);
        if let (Change::ExecutionLeased { of, .. }, Some(open)) = (&claim, self.open.get(&execution)) {
            candidates.granted(of, node, open.is_placed, self);
        }
        claim
    }

    fn claim_one(&mut self, execution: ExecutionId, node: NodeId, now: Timestamp, dice: &mut Dice) -> Change {
        let open = self.open.get_mut(&execution).expect("what waits in the queue is open");
        let (slot, placed, of) = (open.slot, open.is_placed, open.parent.clone());
        open.stage = Stage::Claimed { node, at: now };
        self.queue.remove(slot, None, execution);
        self.take_places_at(slot, execution, now);
        let lease = self.grant(execution, of.clone(), node, placed, now, dice);
        Change::ExecutionLeased { of, execution, lease }
    }

    /// A lease was refused: back into the queue, unless the feed has settled it meanwhile.
    pub(crate) fn unclaim(&mut self, change: &Change) {
        let Change::ExecutionLeased { execution, lease, .. } = change else { return };
        let is_paused = self.open.get(execution).is_some_and(|open| self.is_paused(&open.attempt.of));
        if let Some(open) = self.open.get_mut(execution)
            && let Stage::Claimed { node, at } = open.stage
            && node == lease.node
        {
            let slot = open.slot;
            if is_paused {
                open.stage = Stage::Paused { until: None };
            } else {
                open.stage = Stage::Waiting { until: None };
                self.queue.push(slot, *execution);
            }
            self.give_places_back(slot, *execution, at);
        }
        // Also when another server was faster: the slot is free again.
        self.take_back(*execution, lease);
    }

    /// The commit of claims failed: all of it has to be claimed again.
    pub(crate) fn claims_failed(&mut self, claims: Vec<Change>) {
        for claim in claims {
            match claim {
                Change::ExecutionLost { of, execution, token, reason, .. } => {
                    self.stray.push(Stray { of, execution, token, reason, may_run: false });
                }
                other => self.unclaim(&other),
            }
        }
    }

    /// The slot is taken and the holding counted at once: the commit takes its time, and more is given out meanwhile.
    fn grant(
        &mut self,
        execution: ExecutionId,
        of: Parent,
        node: NodeId,
        placed: bool,
        now: Timestamp,
        dice: &mut Dice,
    ) -> Lease {
        let post = self.posts.get_mut(&node).expect("a node that was chosen is on the board");
        post.take(placed);
        let lease =
            Lease { token: LeaseToken(dice.uuid()), node, session: post.record.session, granted_at: now };
        let Lease { token, session, .. } = lease;
        let holding = Holding { token, session, of, since: now, missing_since: None, placed, stop: false };
        post.held.insert(execution, holding);
        lease
    }

    fn take_back(&mut self, execution: ExecutionId, lease: &Lease) {
        self.with_post(lease.node, |post| {
            if let Some(held) = post.held.get(&execution)
                && held.token == lease.token
            {
                let placed = held.placed;
                post.held.remove(&execution);
                post.give_back(placed);
            }
        });
    }
}
