//! Owns the nodes with a free slot for placed work, ranked for each class, during one round of claims. Within a round
//! slots are only used up, so the rank of a node only falls: the top entry is checked when it is used.

use std::collections::{BTreeMap, BinaryHeap};

use downbeat_core::ids::NodeId;
use downbeat_core::place::{self, Rank};
use downbeat_core::spec::Spread;
use downbeat_core::work::Parent;
use downbeat_proto::message::WorkKind;

use super::board::Board;
use super::class::Class;

/// How many executions of a run nodes hold, by the value of a label; `None` counts nodes without the label.
type HeldCounts = BTreeMap<Option<String>, u32>;
/// The counts of each run and label.
type RunCounts = BTreeMap<Parent, BTreeMap<String, HeldCounts>>;

/// The candidates are the nodes that can run one more placed execution.
#[derive(Debug)]
pub(super) struct Candidates {
    nodes: Vec<NodeId>,
    /// How many of the nodes still have a free slot.
    free: usize,
    classes: BTreeMap<u32, Ranked>,
    /// For runs that spread over a label.
    held: RunCounts,
}

/// The nodes of one class, in groups. The nodes of a group have the same weight, and the run's executions
/// are counted for the group as a whole.
#[derive(Debug, Default)]
struct Ranked {
    groups: Vec<Group>,
    /// The best node of each group, with its rank when it was last checked.
    tops: BinaryHeap<(Rank, NodeId, usize)>,
}

#[derive(Debug)]
struct Group {
    weight: u64,
    over: Over,
    /// Nodes with their free slots when they were last checked. The node with most free slots is on top.
    nodes: BinaryHeap<(u32, NodeId)>,
}

/// The value that the nodes of a group share when the class spreads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    Nothing,
    Node(NodeId),
    Label(Option<String>),
}

impl Candidates {
    pub(super) fn new(board: &Board, nodes: Vec<NodeId>) -> Self {
        let free = nodes.iter().filter(|node| board.free_slots(**node) > 0).count();
        Self { nodes, free, classes: BTreeMap::new(), held: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free == 0
    }

    /// Returns the best node that can run one more execution of this class.
    pub(super) fn best(&mut self, class: u32, board: &Board) -> Option<NodeId> {
        if self.is_empty() {
            return None;
        }
        let rules = board.queue.class(class);
        if !self.classes.contains_key(&class) {
            self.count_groups(rules, board);
            let ranked = self.rank_all(class, rules, board);
            self.classes.insert(class, ranked);
        }
        let ranked = self.classes.get_mut(&class)?;
        loop {
            let &(rank, node, index) = ranked.tops.peek()?;
            let group = &mut ranked.groups[index];
            let free = board.takes(rules, node);
            let now = free.map(|free| group.rank(rules, free, &self.held, board));
            if now == Some(rank) {
                return Some(node);
            }
            ranked.tops.pop();
            group.nodes.pop();
            group.nodes.extend(free.map(|free| (free, node)));
            ranked.tops.extend(group.top(index, rules, &self.held, board));
        }
    }

    pub(super) fn granted(&mut self, of: &Parent, node: NodeId, kind: WorkKind, board: &Board) {
        if kind == WorkKind::Placed && board.free_slots(node) == 0 {
            self.free = self.free.saturating_sub(1);
        }
        if self.held.is_empty() {
            return;
        }
        for (label, held) in self.held.get_mut(of).into_iter().flatten() {
            *held.entry(board.label(node, label)).or_default() += 1;
        }
    }

    fn rank_all(&self, class: u32, rules: &Class, board: &Board) -> Ranked {
        let mut groups: BTreeMap<(u64, Over), BinaryHeap<(u32, NodeId)>> = BTreeMap::new();
        for node in &self.nodes {
            let Some(free) = board.candidate(class, *node) else { continue };
            let Some(record) = board.node(*node) else { continue };
            let over = match &rules.placement.spread {
                None => Over::Nothing,
                Some(Spread::Node) => Over::Node(*node),
                Some(Spread::Label(label)) => Over::Label(board.label(*node, label)),
            };
            let weight = place::weight(&rules.placement, record);
            groups.entry((weight, over)).or_default().push((free, *node));
        }
        let group = |((weight, over), nodes)| Group { weight, over, nodes };
        let groups: Vec<Group> = groups.into_iter().map(group).collect();
        let top = |(index, group): (usize, &Group)| group.top(index, rules, &self.held, board);
        let tops = groups.iter().enumerate().filter_map(top).collect();
        Ranked { groups, tops }
    }

    /// Counts the executions of a run that spreads over a label, on all nodes, including those without a free slot.
    fn count_groups(&mut self, rules: &Class, board: &Board) {
        let (Some(Spread::Label(label)), Some(parent)) = (&rules.placement.spread, &rules.parent) else {
            return;
        };
        let of_parent = self.held.entry(parent.clone()).or_default();
        of_parent.entry(label.clone()).or_insert_with(|| {
            let mut counts = HeldCounts::new();
            for post in board.posts.values().filter(|post| post.record.cluster == rules.cluster) {
                let value = post.record.description.labels.get(label).cloned();
                *counts.entry(value).or_default() += post.held_of(parent);
            }
            counts
        });
    }
}

impl Group {
    fn top(
        &self,
        index: usize,
        rules: &Class,
        held: &RunCounts,
        board: &Board,
    ) -> Option<(Rank, NodeId, usize)> {
        let &(free, node) = self.nodes.peek()?;
        Some((self.rank(rules, free, held, board), node, index))
    }

    fn rank(&self, rules: &Class, free: u32, held: &RunCounts, board: &Board) -> Rank {
        let held = match (&self.over, &rules.parent, &rules.placement.spread) {
            (Over::Node(node), Some(parent), _) => {
                board.posts.get(node).map_or(0, |post| post.held_of(parent))
            }
            (Over::Label(value), Some(parent), Some(Spread::Label(label))) => {
                let counts = held.get(parent).and_then(|labels| labels.get(label));
                counts.and_then(|counts| counts.get(value)).copied().unwrap_or(0)
            }
            _ => 0,
        };
        Rank::new(self.weight, held, free)
    }
}

impl Board {
    /// Returns the nodes with a free slot for placed work.
    pub(super) fn nodes_with_slots(&self) -> Vec<NodeId> {
        let free = self.posts.iter().filter(|(_, post)| post.free().placed > 0);
        free.map(|(node, _)| *node).collect()
    }

    fn free_slots(&self, node: NodeId) -> u32 {
        self.posts.get(&node).map_or(0, |post| post.free().placed)
    }

    fn label(&self, node: NodeId, label: &str) -> Option<String> {
        self.node(node)?.description.labels.get(label).cloned()
    }

    /// Returns the node's free slots if it can run one more. Checks only what changes within a round.
    fn takes(&self, rules: &Class, node: NodeId) -> Option<u32> {
        let post = self.posts.get(&node)?;
        let free = post.free().placed;
        let is_full = match (rules.placement.max_per_node, &rules.parent) {
            (Some(most), Some(parent)) => post.held_of(parent) >= most,
            _ => false,
        };
        (free > 0 && !is_full).then_some(free)
    }

    /// Returns the free slots of a node that can run one more execution of this class now.
    pub(super) fn candidate(&self, class: u32, node: NodeId) -> Option<u32> {
        #[cfg(test)]
        self.checks.set(self.checks.get() + 1);
        let rules = self.queue.class(class);
        let free = self.takes(rules, node)?;
        let record = self.node(node).filter(|record| record.cluster == rules.cluster)?;
        if !self.may_take(node, rules.parent.as_ref()) {
            return None;
        }
        let fits = place::fits(&rules.placement, &rules.backend, &rules.action, record, 0);
        fits.is_ok().then_some(free)
    }
}
