//! Owns what waits for a node: pinned work per node, placed work by class, retries by their time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::plan::Plan;
use jiff::SignedDuration;

use super::class::{Class, Classes};

/// What waits, in order of creation (ids are time-ordered).
#[derive(Debug, Default)]
pub(super) struct Queue {
    pinned: HashMap<NodeId, BTreeSet<ExecutionId>>,
    placed: BTreeMap<u32, Waiting>,
    delayed: BTreeSet<(Timestamp, ExecutionId)>,
    classes: Classes,
    length: usize,
    share: Share,
}

/// So many are not worth dividing: whoever has room takes them, and a few claims in vain cost less than waiting.
const FEW: usize = 4;
/// How long work is left to the server whose share it is, before others take it: longer than a commit and its news take.
const LEFT_TO_ITS_OWN: SignedDuration = SignedDuration::from_millis(100);
/// Work of another share that has waited for so much longer than this server's own is taken first: its server has no
/// node for it.
const TOO_LONG: SignedDuration = SignedDuration::from_secs(2);

/// Which of the placed work this server takes first: all servers see all that waits, and would all claim the same, and
/// all but one in vain. What others leave is taken as well, a moment later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// This server's place among those that live.
    pub index: u64,
    pub servers: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self { index: 0, servers: 1 }
    }
}

impl Share {
    fn holds(self, execution: ExecutionId) -> bool {
        // The low half of an id is chance.
        execution.0.as_u64_pair().1 % self.servers.max(1) == self.index
    }
}

/// Where in the queue an execution waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pinned(NodeId),
    Placed(u32),
}

/// Placed work of one class that waits.
#[derive(Debug, Default)]
struct Waiting {
    /// This server's share.
    own: BTreeSet<ExecutionId>,
    others: BTreeSet<ExecutionId>,
}

impl Waiting {
    fn of(&mut self, execution: ExecutionId, share: Share) -> &mut BTreeSet<ExecutionId> {
        if share.holds(execution) { &mut self.own } else { &mut self.others }
    }

    fn into_all(self) -> impl Iterator<Item = ExecutionId> {
        self.own.into_iter().chain(self.others)
    }

    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.others.is_empty()
    }

    fn oldest(&self) -> Option<ExecutionId> {
        self.own.first().into_iter().chain(self.others.first()).min().copied()
    }

    /// What to claim now. Of the others' share it is the newest: they take the oldest, and both seldom meet.
    fn next(&self, now: Timestamp) -> Option<ExecutionId> {
        let front = self.others.first().copied();
        if let Some(own) = self.own.first().copied() {
            let is_behind = |front: &ExecutionId| left_at(*front) + TOO_LONG <= left_at(own);
            return front.filter(is_behind).or(Some(own));
        }
        if self.others.len() <= FEW {
            return front;
        }
        // A time ahead of now is a clock that was set back.
        let is_left = |front: &ExecutionId| left_at(*front) <= now || left_at(*front) > now + LEFT_TO_ITS_OWN;
        front.filter(is_left).and(self.others.last().copied())
    }
}

/// When work counts as left by the server whose share it is. Ids begin with the time of creation.
fn left_at(execution: ExecutionId) -> Timestamp {
    let millis = i64::try_from(execution.0.as_u64_pair().0 >> 16).unwrap_or(0);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MIN) + LEFT_TO_ITS_OWN
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.length + self.delayed.len()
    }

    /// Where an execution of this step belongs.
    pub(super) fn place(
        &mut self,
        plan: &Plan,
        cluster: ClusterId,
        run: &RunId,
        step: u32,
        pinned: Option<NodeId>,
    ) -> Place {
        match pinned {
            Some(node) => Place::Pinned(node),
            None => Place::Placed(self.classes.of(plan, cluster, run, step)),
        }
    }

    pub(super) fn class(&self, class: u32) -> &Arc<Class> {
        self.classes.get(class)
    }

    /// Something open is of this place: its class stays.
    pub(super) fn hold(&mut self, place: Place) {
        if let Place::Placed(class) = place {
            self.classes.hold(class);
        }
    }

    pub(super) fn let_go(&mut self, place: Place) {
        if let Place::Placed(class) = place {
            self.classes.let_go(class);
        }
    }

    pub(super) fn push(&mut self, place: Place, execution: ExecutionId) {
        let new = match place {
            Place::Pinned(node) => self.pinned.entry(node).or_default().insert(execution),
            Place::Placed(class) => {
                self.placed.entry(class).or_default().of(execution, self.share).insert(execution)
            }
        };
        self.length += usize::from(new);
    }

    pub(super) fn delay(&mut self, until: Timestamp, execution: ExecutionId) {
        self.delayed.insert((until, execution));
    }

    pub(super) fn remove(&mut self, place: Place, until: Option<Timestamp>, execution: ExecutionId) {
        if let Some(until) = until
            && self.delayed.remove(&(until, execution))
        {
            return;
        }
        let gone = match place {
            Place::Pinned(node) => {
                let Some(set) = self.pinned.get_mut(&node) else { return };
                let gone = set.remove(&execution);
                if set.is_empty() {
                    self.pinned.remove(&node);
                }
                gone
            }
            Place::Placed(class) => {
                let Some(waiting) = self.placed.get_mut(&class) else { return };
                let gone = waiting.of(execution, self.share).remove(&execution);
                if waiting.is_empty() {
                    self.placed.remove(&class);
                }
                gone
            }
        };
        self.length -= usize::from(gone);
    }

    /// Takes the retries whose time has come.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<ExecutionId> {
        let mut due = Vec::new();
        while let Some(&(until, execution)) = self.delayed.first() {
            if until > now {
                break;
            }
            self.delayed.pop_first();
            due.push(execution);
        }
        due
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// What waits for a node, the oldest first.
    pub(super) fn pinned(&self, node: NodeId) -> impl Iterator<Item = ExecutionId> {
        self.pinned.get(&node).into_iter().flatten().copied()
    }

    /// Nodes that pinned work waits for.
    pub(super) fn pinned_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.pinned.keys().copied()
    }

    /// Classes that wait, the one with the oldest execution first.
    pub(super) fn waiting_classes(&self) -> Vec<u32> {
        let mut classes: Vec<(ExecutionId, u32)> =
            self.placed.iter().filter_map(|(class, set)| Some((set.oldest()?, *class))).collect();
        classes.sort_unstable();
        classes.into_iter().map(|(_, class)| class).collect()
    }

    /// The oldest of this server's share; without one, what others have left.
    pub(super) fn first_placed(&self, class: u32, now: Timestamp) -> Option<ExecutionId> {
        self.placed.get(&class)?.next(now)
    }

    /// When what others have not taken of a class may be taken by any server.
    pub(super) fn left_at(&self, class: u32) -> Option<Timestamp> {
        self.placed.get(&class)?.others.first().map(|first| left_at(*first))
    }

    pub(super) fn share(&mut self, share: Share) {
        if self.share == share {
            return;
        }
        self.share = share;
        for waiting in self.placed.values_mut() {
            for execution in std::mem::take(waiting).into_all() {
                waiting.of(execution, share).insert(execution);
            }
        }
    }
}
