//! Decides which node gets what waits: executions that are about to be created, and those that are in the queue.

use std::collections::BinaryHeap;

use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId, RunId};
use downbeat_core::place;
use downbeat_core::{Change, Dice, Timestamp};

use super::board::{Board, Stage};
use super::post::{Holding, Post};
use super::queue::Place;

/// Nodes that fit a class, the one with the most free slots on top: work spreads.
type Candidates = BinaryHeap<(u32, NodeId)>;

impl Board {
    /// Gives executions that are about to be created to nodes that wait for work, so that they are born leased.
    /// Whatever becomes of the commit, `release` or the feed settles it.
    pub(crate) fn reserve(&mut self, executions: &mut [Execution], now: Timestamp, dice: &mut Dice) {
        let mut candidates: HashMap<u32, Candidates> = HashMap::default();
        for execution in executions {
            // On the board already: an earlier try of this commit took effect after all.
            if execution.state != (State::Pending { not_before: None })
                || self.open.contains_key(&execution.id)
            {
                continue;
            }
            if self.paused.contains(&execution.run) {
                continue;
            }
            let Some(planned) = self.plans.get(&execution.run) else { continue };
            let (plan, cluster) = (planned.plan.clone(), planned.cluster);
            let place = self.queue.place(&plan, cluster, &execution.run, execution.step, execution.pinned);
            let node = match place {
                // Those that wait longer come first.
                Place::Pinned(node) if self.next_pinned(node).is_some() => None,
                Place::Pinned(node) if !self.may_take(node, Some(&execution.run)) => None,
                Place::Pinned(node) => {
                    self.posts.get(&node).filter(|post| post.free().fleet > 0).map(|_| node)
                }
                Place::Placed(class) if self.queue.first_placed(class, now).is_some() => None,
                Place::Placed(class) => {
                    let found = candidates.entry(class).or_insert_with(|| self.candidates(class));
                    // Others of these may have been given to it since: its slots, and what it holds of the run.
                    std::iter::from_fn(|| found.pop())
                        .map(|(_, node)| node)
                        .find(|node| self.candidate(class, *node).is_some())
                }
            };
            let Some(node) = node else { continue };
            let lease = self.grant(execution.id, &execution.run, node, place, now, dice);
            execution.state = State::Leased { lease, stop: false };
            if let Place::Placed(class) = place
                && let Some(again) = self.candidate(class, node)
            {
                candidates.entry(class).or_default().push(again);
            }
        }
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
        for execution in self.queue.due(now) {
            if let Some(open) = self.open.get_mut(&execution) {
                open.stage = Stage::Waiting { until: None };
                let place = open.place;
                self.queue.push(place, execution);
            }
        }
        self.look_again = None;
        let mut claims = Vec::new();
        let nodes: Vec<NodeId> = self.queue.pinned_nodes().collect();
        for node in nodes {
            while self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
                && let Some(execution) = self.next_pinned(node)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
        for class in self.queue.waiting_classes() {
            let mut candidates = self.candidates(class);
            while let Some(execution) = self.queue.first_placed(class, now)
                && let Some((_, node)) = candidates.pop()
            {
                claims.push(self.claim_one(execution, node, now, dice));
                candidates.extend(self.candidate(class, node));
            }
            if !candidates.is_empty() {
                // What is left is others' share, for now.
                let left_at = self.queue.left_at(class);
                self.look_again = [self.look_again, left_at].into_iter().flatten().min();
            }
        }
        claims.extend(self.stray.drain(..).map(|(run, execution, token)| Change::ExecutionLost {
            run,
            execution,
            token,
            silence: None,
            reason: "its agent's session had ended".to_owned(),
            at: now,
        }));
        claims
    }

    fn claim_one(&mut self, execution: ExecutionId, node: NodeId, now: Timestamp, dice: &mut Dice) -> Change {
        let open = self.open.get_mut(&execution).expect("what waits in the queue is open");
        let place = open.place;
        open.stage = Stage::Claimed { node };
        let run = open.run.clone();
        self.queue.remove(place, None, execution);
        let lease = self.grant(execution, &run, node, place, now, dice);
        Change::ExecutionLeased { run, execution, lease }
    }

    /// A lease was refused: back into the queue, unless the feed has settled it meanwhile.
    pub(crate) fn unclaim(&mut self, change: &Change) {
        let Change::ExecutionLeased { execution, lease, .. } = change else { return };
        if let Some(open) = self.open.get_mut(execution)
            && open.stage == (Stage::Claimed { node: lease.node })
        {
            let place = open.place;
            if self.paused.contains(&open.run) {
                open.stage = Stage::Paused { until: None };
            } else {
                open.stage = Stage::Waiting { until: None };
                self.queue.push(place, *execution);
            }
        }
        // Also when another server was faster: the slot is free again.
        self.take_back(*execution, lease);
    }

    /// The commit of claims failed: all of it has to be claimed again.
    pub(crate) fn claims_failed(&mut self, claims: Vec<Change>) {
        for claim in claims {
            match claim {
                Change::ExecutionLost { run, execution, token, .. } => {
                    self.stray.push((run, execution, token));
                }
                other => self.unclaim(&other),
            }
        }
    }

    /// The slot is taken and the holding counted at once: the commit takes its time, and more is given out meanwhile.
    fn grant(
        &mut self,
        execution: ExecutionId,
        run: &RunId,
        node: NodeId,
        place: Place,
        now: Timestamp,
        dice: &mut Dice,
    ) -> Lease {
        let post = self.posts.get_mut(&node).expect("a node that was chosen is on the board");
        let placed = matches!(place, Place::Placed(_));
        post.take(placed);
        let lease =
            Lease { token: LeaseToken(dice.uuid()), node, session: post.record.session, granted_at: now };
        let holding = Holding { token: lease.token, run: run.clone(), since: now, placed, stop: false };
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

    fn candidates(&self, class: u32) -> Candidates {
        self.posts.keys().filter_map(|node| self.candidate(class, *node)).collect()
    }

    /// A node that could take one more of this class now, with its free slots.
    fn candidate(&self, class: u32, node: NodeId) -> Option<(u32, NodeId)> {
        let class = self.queue.class(class);
        if !self.may_take(node, class.run.as_ref()) {
            return None;
        }
        let post: &Post = self.posts.get(&node)?;
        let free = post.free().placed;
        if free == 0 || post.record.cluster != class.cluster {
            return None;
        }
        let held = class.run.as_ref().map_or(0, |run| post.held_of(run));
        let fits = place::fits(&class.placement, &class.backend, &class.action, &post.record, held);
        fits.is_ok().then_some((free, node))
    }
}
