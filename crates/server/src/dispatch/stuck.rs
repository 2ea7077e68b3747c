//! Remembers the classes that no node can take, so that a round of claims does not check all nodes for each of them
//! again. Such a class is checked again when a node has changed in a way that may let it take the class.

use downbeat_core::collections::HashSet;
use downbeat_core::ids::NodeId;
use downbeat_core::place;

use super::board::Board;

/// Why no node can take a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// No node is suitable by what it declares. Only a registration can change that.
    NoneSuits,
    /// Suitable nodes have no free slot, are not available, or hold enough of its run.
    NoneFree,
}

/// Nodes that have changed since the stuck classes were last checked.
#[derive(Debug, Default)]
pub(super) struct Improved {
    /// Nodes that may take more: they have more free slots, hold less, or are no longer kept for a run.
    freer: HashSet<NodeId>,
    registered: HashSet<NodeId>,
}

impl Improved {
    pub(super) fn is_freer(&mut self, node: NodeId) {
        self.freer.insert(node);
    }

    pub(super) fn has_registered(&mut self, node: NodeId) {
        self.freer.insert(node);
        self.registered.insert(node);
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.freer.remove(&node);
        self.registered.remove(&node);
    }
}

impl Board {
    /// Releases the stuck classes that one of the improved nodes may take.
    pub(super) fn check_stuck(&mut self) {
        let improved = std::mem::take(&mut self.improved);
        if improved.freer.is_empty() {
            return;
        }
        let may_fit = |&(class, stuck): &(u32, Stuck)| match stuck {
            Stuck::NoneSuits => improved.registered.iter().any(|node| self.suits(class, *node)),
            Stuck::NoneFree => improved.freer.iter().any(|node| self.candidate(class, *node).is_some()),
        };
        let classes: Vec<u32> = self.queue.stuck().filter(may_fit).map(|(class, _)| class).collect();
        for class in classes {
            self.queue.set_stuck(class, None);
        }
    }

    /// Notes that no node can take a class.
    pub(super) fn note_stuck(&mut self, class: u32) {
        let suits = self.posts.keys().any(|node| self.suits(class, *node));
        self.queue.set_stuck(class, Some(if suits { Stuck::NoneFree } else { Stuck::NoneSuits }));
    }

    fn suits(&self, class: u32, node: NodeId) -> bool {
        #[cfg(test)]
        self.checks.set(self.checks.get() + 1);
        let rules = self.queue.class(class);
        let record = self.node(node).filter(|record| record.cluster == rules.cluster);
        record.is_some_and(|record| {
            place::suits(&rules.placement, &rules.backend, &rules.action, record).is_ok()
        })
    }
}
