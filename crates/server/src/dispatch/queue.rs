//! Owns the pending executions: fleet work per node, retries by time, everything else in piles that stand
//! in lines. A pile stands in the line of what it lacked when it was last checked, a node or a slot of a
//! limit, so that a round of claims checks only piles that may start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::collections::HashMap;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::work::{self, Work};

use super::class::Class;
use super::interned::Interned;
use super::line::{Gate, Head, Lane, Line};
use super::pile::{Next, Pile, Share, Stand, Where};
use super::stuck::Stuck;
use super::uses::{Bound, Key};

/// With this few, shares are ignored: a failed claim costs less than waiting.
const FEW: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Fleet work without limits.
    pinned: HashMap<NodeId, BTreeSet<(Reverse<i32>, ExecutionId)>>,
    /// Debug commands.
    debug: HashMap<NodeId, BTreeSet<ExecutionId>>,
    delayed: BTreeSet<(Timestamp, ExecutionId)>,
    piles: Interned<Pile>,
    classes: Interned<Shared>,
    lanes: Interned<Lane>,
    /// The last ticket that a lane got.
    ticket: u64,
    lines: BTreeMap<Gate, Line>,
    /// Piles that are left to other servers for a while.
    deferred: BTreeSet<(Timestamp, u32)>,
    /// `limited`: the lines of each limit. `awake`: those that may have room. `alarms`: when a limit may
    /// have room again.
    limited: BTreeMap<Key, BTreeSet<Gate>>,
    awake: BTreeSet<Gate>,
    alarms: BTreeSet<(Timestamp, Key)>,
    /// Classes that no node can take. Their lines are not looked at.
    stuck: BTreeMap<u32, Stuck>,
    length: usize,
    share: Share,
    /// A reused buffer, so that finding a pile allocates nothing.
    text: String,
}

/// A class, and how many pending executions of other servers' shares it has.
#[derive(Debug)]
struct Shared {
    class: Arc<Class>,
    others: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueSlot {
    /// With the fleet work of a node: by priority, then by age.
    Pinned(NodeId, i32),
    /// With the debug commands of a node, by age.
    Debug(NodeId),
    Pile(u32),
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.length + self.delayed.len()
    }

    pub(super) fn slot(&mut self, work: &Work, execution: &Execution) -> QueueSlot {
        match (execution.pinned, &execution.limits) {
            (Some(node), _) if work.is_debug => QueueSlot::Debug(node),
            (Some(node), None) => QueueSlot::Pinned(node, work.priority),
            _ => QueueSlot::Pile(self.pile(work, execution)),
        }
    }

    /// Finds or creates the pile of an execution. This runs for every execution, so one text identifies the
    /// pile, and its parts are built only for a new one.
    fn pile(&mut self, work: &Work, execution: &Execution) -> u32 {
        let Execution { of, pinned, limits, .. } = execution;
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text.push_str(work.cluster.0.simple().encode_lower(&mut [0; 32]));
        match pinned {
            None => Class::write_text(&mut text, work, of),
            Some(node) => text.push_str(node.0.simple().encode_lower(&mut [0; 32])),
        }
        let class_end = text.len();
        write_lane(&mut text, work);
        let lane_end = text.len();
        for (key, limit) in limits.iter().flat_map(|limits| limits.iter()) {
            write!(text, "\0{} {key} {limit}", key.len()).expect("a text takes what is written");
        }
        let pile = self.piles.find(&text).unwrap_or_else(|| {
            let at = match pinned {
                Some(node) => Where::Pinned(*node),
                None => Where::Placed(self.class_named(&text[..class_end], || Class::new(work, of))),
            };
            let lane = format!("{}{}", work.cluster, &text[class_end..lane_end]);
            let lane = self.lane_named(&lane, work.priority);
            let bounds =
                limits.as_ref().map_or_else(|| Arc::from([]), |limits| Bound::all(work.cluster, limits));
            self.piles.add(&text, Pile::new(lane, at, bounds))
        });
        self.text = text;
        pile
    }

    fn class_named(&mut self, text: &str, make: impl FnOnce() -> Class) -> u32 {
        let class = self
            .classes
            .find(text)
            .unwrap_or_else(|| self.classes.add(text, Shared { class: Arc::new(make()), others: 0 }));
        self.classes.retain(class);
        class
    }

    fn lane_named(&mut self, text: &str, priority: i32) -> u32 {
        let lane = self.lanes.find(text).unwrap_or_else(|| {
            self.ticket += 1;
            self.lanes.add(text, Lane { priority, ticket: self.ticket })
        });
        self.lanes.retain(lane);
        lane
    }

    pub(super) fn class(&self, class: u32) -> &Arc<Class> {
        &self.classes.get(class).class
    }

    /// Returns the classes that no node can take.
    pub(super) fn stuck(&self) -> impl Iterator<Item = (u32, Stuck)> {
        self.stuck.iter().map(|(class, stuck)| (*class, *stuck))
    }

    pub(super) fn is_stuck(&self, class: u32) -> bool {
        self.stuck.contains_key(&class)
    }

    pub(super) fn set_stuck(&mut self, class: u32, stuck: Option<Stuck>) {
        match stuck {
            Some(stuck) => self.stuck.insert(class, stuck),
            None => self.stuck.remove(&class),
        };
    }

    pub(super) fn pile_at(&self, pile: u32) -> Where {
        self.piles.get(pile).at
    }

    /// Returns the limits that an execution in this slot counts against.
    pub(super) fn bounds(&self, slot: QueueSlot) -> Option<Arc<[Bound]>> {
        let QueueSlot::Pile(pile) = slot else { return None };
        let bounds = &self.piles.get(pile).bounds;
        (!bounds.is_empty()).then(|| Arc::clone(bounds))
    }

    pub(super) fn piles(&self) -> impl Iterator<Item = &Pile> {
        self.piles.values()
    }

    /// Returns the node that the executions of this slot are pinned to.
    pub(super) fn pinned_to(&self, slot: QueueSlot) -> Option<NodeId> {
        match slot {
            QueueSlot::Pinned(node, _) | QueueSlot::Debug(node) => Some(node),
            QueueSlot::Pile(pile) => match self.pile_at(pile) {
                Where::Pinned(node) => Some(node),
                Where::Placed(_) => None,
            },
        }
    }

    /// Counts an open execution of this slot: the pile exists while there is one.
    pub(super) fn retain(&mut self, slot: QueueSlot) {
        if let QueueSlot::Pile(pile) = slot {
            self.piles.retain(pile);
        }
    }

    pub(super) fn release(&mut self, slot: QueueSlot) {
        if let QueueSlot::Pile(pile) = slot
            && let Some(pile) = self.piles.release(pile)
        {
            self.drop_pile(&pile);
        }
    }

    /// Removes piles that were created for commits that did not happen. Indexes of unused piles and classes
    /// are invalid after this.
    pub(super) fn tidy(&mut self) {
        for pile in self.piles.take_unused() {
            self.drop_pile(&pile);
        }
    }

    fn drop_pile(&mut self, pile: &Pile) {
        self.lanes.release(pile.lane);
        if let Where::Placed(class) = pile.at
            && self.classes.release(class).is_some()
        {
            self.stuck.remove(&class);
        }
    }

    pub(super) fn push(&mut self, slot: QueueSlot, execution: ExecutionId) {
        let new = match slot {
            QueueSlot::Pinned(node, priority) => {
                self.pinned.entry(node).or_default().insert((Reverse(priority), execution))
            }
            QueueSlot::Debug(node) => self.debug.entry(node).or_default().insert(execution),
            QueueSlot::Pile(pile) => self.push_piled(pile, execution),
        };
        self.length += usize::from(new);
    }

    fn push_piled(&mut self, index: u32, execution: ExecutionId) -> bool {
        let pile = self.piles.get_mut(index);
        let is_own = pile.is_own(execution, self.share);
        if !pile.insert(execution, self.share) {
            return false;
        }
        match pile.stands {
            Stand::In { .. } => self.renew(index),
            Stand::Deferred(_) if !is_own => {}
            Stand::Nowhere | Stand::Deferred(_) => self.wait_for_node(index),
        }
        if !is_own {
            self.count_others(index, |others| others + 1);
        }
        true
    }

    pub(super) fn delay(&mut self, until: Timestamp, execution: ExecutionId) {
        self.delayed.insert((until, execution));
    }

    pub(super) fn remove(&mut self, slot: QueueSlot, until: Option<Timestamp>, execution: ExecutionId) {
        if let Some(until) = until
            && self.delayed.remove(&(until, execution))
        {
            return;
        }
        let gone = match slot {
            QueueSlot::Pinned(node, priority) => {
                let Some(set) = self.pinned.get_mut(&node) else { return };
                let gone = set.remove(&(Reverse(priority), execution));
                if set.is_empty() {
                    self.pinned.remove(&node);
                }
                gone
            }
            QueueSlot::Debug(node) => {
                let Some(set) = self.debug.get_mut(&node) else { return };
                let gone = set.remove(&execution);
                if set.is_empty() {
                    self.debug.remove(&node);
                }
                gone
            }
            QueueSlot::Pile(pile) => self.remove_piled(pile, execution),
        };
        self.length -= usize::from(gone);
    }

    fn remove_piled(&mut self, index: u32, execution: ExecutionId) -> bool {
        let pile = self.piles.get_mut(index);
        if !pile.remove(execution, self.share) {
            return false;
        }
        let is_own = pile.is_own(execution, self.share);
        if pile.oldest().is_none() {
            self.step_out(index);
        } else {
            self.renew(index);
        }
        if !is_own {
            self.count_others(index, |others| others - 1);
        }
        true
    }

    fn count_others(&mut self, pile: u32, count: impl FnOnce(usize) -> usize) {
        if let Where::Placed(class) = self.piles.get(pile).at {
            let shared = self.classes.get_mut(class);
            shared.others = count(shared.others);
        }
    }

    /// Updates the line if the oldest execution of the pile has changed.
    fn renew(&mut self, index: u32) {
        let pile = self.piles.get_mut(index);
        let (Some(oldest), lane) = (pile.oldest(), pile.lane) else { return };
        if let Stand::In { gate, since } = &mut pile.stands
            && *since != oldest
        {
            let from = std::mem::replace(since, oldest);
            if let Some(line) = self.lines.get_mut(gate) {
                line.renew(lane, from, oldest, index);
            }
        }
    }

    /// Removes the pile from its line until it waits for a node again.
    pub(super) fn step_out(&mut self, index: u32) {
        let pile = self.piles.get_mut(index);
        match std::mem::take(&mut pile.stands) {
            Stand::Nowhere => {}
            Stand::Deferred(until) => {
                self.deferred.remove(&(until, index));
            }
            Stand::In { gate, since } => {
                let Some(line) = self.lines.get_mut(&gate) else { return };
                line.remove(pile.lane, since, index);
                if line.is_empty() {
                    self.lines.remove(&gate);
                    self.forget_gate(&gate);
                }
            }
        }
    }

    fn forget_gate(&mut self, gate: &Gate) {
        let Gate::Limit { bound, .. } = gate else { return };
        self.awake.remove(gate);
        if let Some(gates) = self.limited.get_mut(&bound.key) {
            gates.remove(gate);
            if gates.is_empty() {
                self.limited.remove(&bound.key);
            }
        }
    }

    fn stand_in(&mut self, index: u32, gate: Gate) {
        self.step_out(index);
        let pile = self.piles.get_mut(index);
        let Some(oldest) = pile.oldest() else { return };
        let lane = self.lanes.get(pile.lane);
        self.lines.entry(gate.clone()).or_default().add(pile.lane, lane, oldest, index);
        if let Gate::Limit { bound, .. } = &gate {
            self.limited.entry(bound.key.clone()).or_default().insert(gate.clone());
        }
        pile.stands = Stand::In { gate, since: oldest };
    }

    /// Moves the pile to the line of its class or of its node.
    pub(super) fn wait_for_node(&mut self, pile: u32) {
        self.stand_in(pile, self.piles.get(pile).at.gate());
    }

    /// Moves the pile to the line of a full limit. The end of an execution wakes the line; otherwise the
    /// line is checked again at `until`.
    pub(super) fn sleep(&mut self, pile: u32, bound: &Bound, until: Option<Timestamp>) {
        let pinned = matches!(self.piles.get(pile).at, Where::Pinned(_));
        let gate = Gate::Limit { bound: bound.clone(), pinned };
        self.close(&gate, until);
        self.stand_in(pile, gate);
    }

    /// Closes a line that seemed to have room and has none.
    pub(super) fn close(&mut self, gate: &Gate, until: Option<Timestamp>) {
        self.awake.remove(gate);
        if let Gate::Limit { bound, .. } = gate {
            self.alarms.extend(until.map(|until| (until, bound.key.clone())));
        }
    }

    /// Leaves the pile to the servers that own its share, until `until`.
    pub(super) fn defer(&mut self, pile: u32, until: Timestamp) {
        self.step_out(pile);
        self.piles.get_mut(pile).stands = Stand::Deferred(until);
        self.deferred.insert((until, pile));
    }

    /// Wakes the lines of a limit that may have room.
    pub(super) fn wake(&mut self, key: &Key) {
        self.awake.extend(self.limited.get(key).into_iter().flatten().cloned());
    }

    /// Moves deferred piles and limits that are due back into play. Returns the retries that are due.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<ExecutionId> {
        while let Some(pile) = pop_due(&mut self.deferred, now) {
            self.wait_for_node(pile);
        }
        while let Some(key) = pop_due(&mut self.alarms, now) {
            self.wake(&key);
        }
        std::iter::from_fn(|| pop_due(&mut self.delayed, now)).collect()
    }

    /// Returns when `due` next has something to do.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let delayed = self.delayed.first().map(|(until, _)| *until);
        let deferred = self.deferred.first().map(|(until, _)| *until);
        let alarm = self.alarms.first().map(|(until, _)| *until);
        [delayed, deferred, alarm].into_iter().flatten().min()
    }

    /// Returns fleet work without limits that waits for a node, in order.
    pub(super) fn pinned(&self, node: NodeId) -> impl Iterator<Item = (Reverse<i32>, ExecutionId)> {
        self.pinned.get(&node).into_iter().flatten().copied()
    }

    /// Returns the nodes with such work.
    pub(super) fn pinned_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.pinned.keys().copied()
    }

    /// Returns the debug command that waits first for a node.
    pub(super) fn next_debug(&self, node: NodeId) -> Option<ExecutionId> {
        self.debug.get(&node)?.first().copied()
    }

    /// Returns the nodes that debug commands wait for.
    pub(super) fn debug_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.debug.keys().copied()
    }

    /// Returns the head of each line that may have something to claim.
    pub(super) fn heads(&mut self, is_open: impl Fn(&Gate) -> bool) -> Vec<Head> {
        let for_nodes = self.lines.iter_mut().take_while(|(gate, _)| !matches!(gate, Gate::Limit { .. }));
        let open = for_nodes.filter(|(gate, _)| is_open(gate) && !is_stuck(gate, &self.stuck));
        let mut heads: Vec<Head> = open.filter_map(|(_, line)| line.head(&self.lanes)).collect();
        for gate in &self.awake {
            heads.extend(self.lines.get_mut(gate).and_then(|line| line.head(&self.lanes)));
        }
        heads
    }

    pub(super) fn head(&mut self, gate: &Gate) -> Option<Head> {
        self.lines.get_mut(gate)?.head(&self.lanes)
    }

    /// Returns the gate of the line in which a pile stands.
    pub(super) fn gate(&self, pile: u32) -> Option<&Gate> {
        match &self.piles.get(pile).stands {
            Stand::In { gate, .. } => Some(gate),
            Stand::Nowhere | Stand::Deferred(_) => None,
        }
    }

    /// Returns whether at most `most` lines may have something to claim.
    pub(super) fn has_few_lines(&self, most: usize) -> bool {
        let for_nodes = self.lines.keys().take_while(|gate| !matches!(gate, Gate::Limit { .. }));
        let for_nodes = for_nodes.filter(|gate| !is_stuck(gate, &self.stuck));
        for_nodes.take(most + 1).count() + self.awake.len() <= most
    }

    /// Returns the priority of the first pending work with limits for a node.
    pub(super) fn first_limited(&mut self, node: NodeId) -> Option<i32> {
        self.head(&Gate::Node(node)).map(|head| head.priority.0)
    }

    pub(super) fn next(&self, pile: u32, now: Timestamp) -> Option<Next> {
        let pile = self.piles.get(pile);
        let few = match pile.at {
            Where::Placed(class) => self.classes.get(class).others <= FEW,
            Where::Pinned(_) => true,
        };
        pile.next(few, now)
    }

    /// Returns whether the pile is the only one in the line of its class.
    pub(super) fn is_alone(&self, pile: u32) -> bool {
        let gate = self.gate(pile).filter(|gate| matches!(gate, Gate::Class(_)));
        gate.and_then(|gate| self.lines.get(gate)).is_some_and(Line::has_one)
    }

    /// Moves the pile's lane to the end of the order of turns.
    pub(super) fn served(&mut self, pile: u32) {
        self.ticket += 1;
        let lane = self.piles.get(pile).lane;
        self.lanes.get_mut(lane).ticket = self.ticket;
    }

    pub(super) fn share(&mut self, share: Share) {
        if self.share == share {
            return;
        }
        self.share = share;
        for index in self.piles.indexes() {
            let pile = self.piles.get_mut(index);
            let before = pile.others();
            for execution in pile.take_all() {
                pile.insert(execution, share);
            }
            let after = pile.others();
            let is_deferred = matches!(pile.stands, Stand::Deferred(_));
            self.count_others(index, |others| others + after - before);
            if is_deferred {
                self.wait_for_node(index);
            }
        }
    }
}

fn is_stuck(gate: &Gate, stuck: &BTreeMap<u32, Stuck>) -> bool {
    matches!(gate, Gate::Class(class) if stuck.contains_key(class))
}

/// Removes and returns the first entry whose time has come.
pub(super) fn pop_due<T: Ord>(entries: &mut BTreeSet<(Timestamp, T)>, now: Timestamp) -> Option<T> {
    entries.first().filter(|(at, _)| *at <= now)?;
    entries.pop_first().map(|(_, due)| due)
}

/// Writes a text that identifies the lane. It holds the length of the job's name, because users choose the name.
fn write_lane(text: &mut String, work: &Work) {
    let (kind, name) = match &work.lane {
        work::Lane::Job(name) => ("job", name.as_str()),
        work::Lane::Run(run) => ("run", run.as_str()),
    };
    write!(text, "\0{} {kind} {} ", work.priority, name.len()).expect("a text takes what is written");
    text.push_str(name);
}
