//! Owns the board's knowledge of nodes that are held or kept free, and of paused runs.

use std::cmp::Reverse;

use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::work::{Origin, Parent};

use super::board::{Board, DispatchState, OpenExecution};
use super::post::Holding;

impl Board {
    pub(crate) fn holder(&self, node: NodeId) -> Option<&RunId> {
        self.holds.get(&node)
    }

    pub(crate) fn held_nodes(&self) -> usize {
        self.holds.len()
    }

    /// Returns another run that has an execution on the node. Debug commands keep nobody from a node.
    pub(crate) fn other_run_on(&self, node: NodeId, but: &RunId) -> Option<&RunId> {
        let held = self.posts.get(&node)?.held.values();
        held.map(|Holding { of: Parent::Run(run), .. }| run).find(|run| *run != but && !run.is_debug())
    }

    pub(crate) fn hold_node(&mut self, node: NodeId, run: RunId) {
        self.holds.insert(node, run);
        self.improved.is_freer(node);
    }

    /// Frees the nodes of a run.
    pub(super) fn give_back(&mut self, run: &RunId) {
        for (node, _) in self.holds.extract_if(|_, holder| holder == run) {
            self.improved.is_freer(node);
        }
    }

    /// Sets which nodes are kept free. Returns whether the set has changed.
    pub(crate) fn keep_free(&mut self, wanted: HashMap<NodeId, RunId>) -> bool {
        let is_new = self.wanted != wanted;
        for (node, run) in std::mem::replace(&mut self.wanted, wanted) {
            if self.wanted.get(&node) != Some(&run) {
                self.improved.is_freer(node);
            }
        }
        is_new
    }

    pub(super) fn is_paused(&self, of: &Origin) -> bool {
        match of {
            Origin::Step { run, .. } => self.paused.contains(run),
        }
    }

    /// Returns whether a node may run work of this parent; without a parent, whether it may run any work.
    pub(super) fn may_take(&self, node: NodeId, of: Option<&Parent>) -> bool {
        let run = of.map(|Parent::Run(run)| run);
        if run.is_some_and(RunId::is_debug) {
            return true;
        }
        let is_for = |holder: Option<&RunId>| holder.is_none_or(|holder| Some(holder) == run);
        is_for(self.holds.get(&node)) && is_for(self.wanted.get(&node))
    }

    /// Returns why `may_take` is false.
    pub(super) fn why_not(&self, node: NodeId) -> String {
        match (self.holds.get(&node), self.wanted.get(&node)) {
            (Some(run), _) => format!("the node is held by run {run} (exclusive)"),
            (None, Some(run)) => {
                format!("the node is kept free for run {run} (exclusive), which starts next")
            }
            (None, None) => "the node is free".to_owned(),
        }
    }

    /// Returns the first execution without limits that waits for this node and may run there.
    pub(super) fn next_pinned(&self, node: NodeId) -> Option<(Reverse<i32>, ExecutionId)> {
        self.queue.pinned(node).find(|(_, execution)| {
            self.open
                .get(execution)
                .is_some_and(|open| self.may_take(node, Some(&open.parent)) && !self.is_outdated(node, open))
        })
    }

    /// Returns whether this is a standing task that was decided before the node registered. Its owner withdraws it and
    /// decides again: with a new session the node may have to start with another task.
    fn is_outdated(&self, node: NodeId, open: &OpenExecution) -> bool {
        let Parent::Run(run) = &open.parent;
        run.as_str().starts_with(RunId::STANDING)
            && self.node(node).is_some_and(|record| open.created_at < record.registered_at)
    }

    /// Removes the pending executions of a paused run from the queue, and puts them back when the run continues.
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
                DispatchState::Waiting { until } if paused => {
                    self.queue.remove(open.slot, until, *execution);
                    open.stage = DispatchState::Paused { until };
                }
                DispatchState::Paused { until } if !paused => {
                    open.stage = DispatchState::Waiting { until };
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
