//! Owns what the board knows of turns: nodes that are held or kept free, and runs that are paused.

use std::cmp::Reverse;

use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::work::{Origin, Parent};

use super::board::{Board, Stage};
use super::post::Holding;

impl Board {
    /// The run that has a node for itself.
    pub(crate) fn holder(&self, node: NodeId) -> Option<&RunId> {
        self.holds.get(&node)
    }

    /// How many nodes are held.
    pub(crate) fn held_nodes(&self) -> usize {
        self.holds.len()
    }

    /// A run other than this one that has something on a node.
    pub(crate) fn at_work(&self, node: NodeId, but: &RunId) -> Option<&RunId> {
        let held = self.posts.get(&node)?.held.values();
        held.map(|Holding { of: Parent::Run(run), .. }| run).find(|run| *run != but)
    }

    pub(crate) fn hold_node(&mut self, node: NodeId, run: RunId) {
        self.holds.insert(node, run);
    }

    /// A run has ended.
    pub(super) fn give_back(&mut self, run: &RunId) {
        self.holds.retain(|_, holder| holder != run);
        self.paused.remove(run);
    }

    /// These are kept free, and no others. Answers whether that is new.
    pub(crate) fn keep_free(&mut self, wanted: HashMap<NodeId, RunId>) -> bool {
        let is_new = self.wanted != wanted;
        self.wanted = wanted;
        is_new
    }

    /// Whether the execution's run is paused.
    pub(super) fn is_paused(&self, of: &Origin) -> bool {
        match of {
            Origin::Step { run, .. } => self.paused.contains(run),
        }
    }

    /// Whether work may go to a node: work of this parent, or any work when there is none.
    pub(super) fn may_take(&self, node: NodeId, of: Option<&Parent>) -> bool {
        let run = of.map(|Parent::Run(run)| run);
        let is_for = |holder: Option<&RunId>| holder.is_none_or(|holder| Some(holder) == run);
        is_for(self.holds.get(&node)) && is_for(self.wanted.get(&node))
    }

    /// Why it may not.
    pub(super) fn why_not(&self, node: NodeId) -> String {
        match (self.holds.get(&node), self.wanted.get(&node)) {
            (Some(run), _) => format!("the node is held by run {run} (exclusive)"),
            (None, Some(run)) => format!("the node is kept free for run {run} (exclusive), which is next"),
            (None, None) => "the node is free".to_owned(),
        }
    }

    /// The first execution without limits that waits for a node and may go to it.
    pub(super) fn next_pinned(&self, node: NodeId) -> Option<(Reverse<i32>, ExecutionId)> {
        self.queue.pinned(node).find(|(_, execution)| {
            self.open.get(execution).is_some_and(|open| self.may_take(node, Some(&open.parent)))
        })
    }

    /// What waits of a paused run leaves the queue, and comes back when it goes on.
    pub(crate) fn pause(&mut self, run: &RunId, paused: bool) {
        if paused {
            self.paused.insert(run.clone());
        } else {
            self.paused.remove(run);
        }
        let of_run =
            self.open.iter_mut().filter(|(_, open)| matches!(&open.parent, Parent::Run(of) if of == run));
        for (execution, open) in of_run {
            match open.stage {
                Stage::Waiting { until } if paused => {
                    self.queue.remove(open.slot, until, *execution);
                    open.stage = Stage::Paused { until };
                }
                Stage::Paused { until } if !paused => {
                    open.stage = Stage::Waiting { until };
                    match until {
                        None => self.queue.push(open.slot, *execution),
                        Some(until) => self.queue.delay(until, *execution),
                    }
                }
                _ => {}
            }
        }
    }
}
