//! Decides which node gets what waits: executions that are about to be created, and those that are in the queue.

use std::collections::HashSet;

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId};
use downbeat_core::place;
use downbeat_core::{Change, Dice, Timestamp};

use super::board::{Board, Stage};
use super::queue::Place;

impl Board {
    /// Gives executions that are about to be created to nodes that wait for work, so that they are born leased.
    /// Whatever becomes of the commit, `release` or the feed settles it.
    pub(crate) fn reserve(&mut self, executions: &mut [Execution], now: Timestamp, dice: &mut Dice) {
        let mut full: HashSet<u32> = HashSet::new();
        for execution in executions {
            if execution.state != (State::Pending { not_before: None }) {
                continue;
            }
            let Some(plan) = self.plans.get(&execution.run).cloned() else { continue };
            let place = self.queue.place(&plan, &execution.run, execution.step, execution.pinned);
            let node = match place {
                // Those that wait longer come first.
                Place::Pinned(node) if self.queue.first_pinned(node).is_some() => None,
                Place::Pinned(node) => {
                    self.posts.get(&node).filter(|post| post.free().fleet > 0).map(|_| node)
                }
                Place::Placed(class) if full.contains(&class) || self.queue.first_placed(class).is_some() => {
                    None
                }
                Place::Placed(class) => {
                    let node = self.best_fit(class);
                    if node.is_none() {
                        full.insert(class);
                    }
                    node
                }
            };
            if let Some(node) = node {
                let lease = self.grant(node, place, now, dice);
                execution.state = State::Leased { lease, stop: false };
            }
        }
    }

    /// The commit that was to lease these did not happen.
    pub(crate) fn release<'a>(&mut self, executions: impl Iterator<Item = &'a Execution>) {
        for execution in executions {
            if let State::Leased { lease, .. } = execution.state {
                let placed = execution.pinned.is_none();
                self.with_post(lease.node, |post| post.give_back(placed));
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
        let mut claims = Vec::new();
        let nodes: Vec<NodeId> = self.queue.pinned_nodes().collect();
        for node in nodes {
            while self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
                && let Some(execution) = self.queue.first_pinned(node)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
        for class in self.queue.waiting_classes() {
            while let Some(execution) = self.queue.first_placed(class)
                && let Some(node) = self.best_fit(class)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
        claims.extend(self.stray.drain(..).map(|(run, execution, token)| Change::ExecutionLost {
            run,
            execution,
            token,
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
        let lease = self.grant(node, place, now, dice);
        Change::ExecutionLeased { run, execution, lease }
    }

    /// A claim was refused, or its commit failed: back into the queue, unless the feed has settled it meanwhile.
    pub(crate) fn unclaim(&mut self, change: &Change) {
        let Change::ExecutionLeased { execution, lease, .. } = change else { return };
        let Some(open) = self.open.get_mut(execution) else { return };
        if let Stage::Claimed { node } = open.stage
            && node == lease.node
        {
            open.stage = Stage::Waiting { until: None };
            let place = open.place;
            self.queue.push(place, *execution);
            let placed = matches!(place, Place::Placed(_));
            self.with_post(lease.node, |post| post.give_back(placed));
        }
    }

    fn grant(&mut self, node: NodeId, place: Place, now: Timestamp, dice: &mut Dice) -> Lease {
        let post = self.posts.get_mut(&node).expect("a node that was chosen is on the board");
        post.take(matches!(place, Place::Placed(_)));
        Lease { token: LeaseToken(dice.uuid()), node, session: post.record.session, granted_at: now }
    }

    /// The fitting node with the most free slots: work spreads.
    fn best_fit(&self, class: u32) -> Option<NodeId> {
        let class = self.queue.class(class);
        self.posts
            .values()
            .map(|post| (post.free().placed, post))
            .filter(|(free, post)| {
                let held = class.run.as_ref().map_or(0, |run| post.held_of(run));
                *free > 0
                    && place::fits(&class.placement, &class.backend, &class.action, &post.record, held)
                        .is_ok()
            })
            .max_by_key(|(free, post)| (*free, post.record.id))
            .map(|(_, post)| post.record.id)
    }
}
