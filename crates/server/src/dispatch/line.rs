//! Owns lines. A line holds the piles that wait for the same gate, in the order of their turns: higher
//! priorities first; lanes of the same priority take turns; within a lane the oldest pile first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ExecutionId, NodeId};

use super::interned::Interned;
use super::uses::Bound;

/// A gate is what a line waits for. Lines of limits are sorted last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gate {
    Class(u32),
    /// The node's slot for fleet work.
    Node(NodeId),
    /// A slot of a limit. Pinned work has its own line: it uses other node slots and must not block placed work.
    Limit {
        bound: Bound,
        pinned: bool,
    },
}

/// A lane is a job, or a run without a job name, at one priority in one cluster.
#[derive(Debug)]
pub(super) struct Lane {
    pub priority: i32,
    /// Its turn. A lane gets a new ticket when it is created and whenever it was served; the lowest ticket is next. So
    /// no lane is served twice before all others that can be served, and an idle lane saves up at most one turn.
    pub ticket: u64,
}

/// The first pile of a line. Of several heads, the least one is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub priority: Reverse<i32>,
    ticket: u64,
    oldest: ExecutionId,
    pub pile: u32,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    lanes: HashMap<u32, LanePiles>,
    /// The order by tickets as of the last check: lanes get new tickets, and one lane stands in many lines.
    order: BTreeSet<(Reverse<i32>, u64, u32)>,
}

#[derive(Debug)]
struct LanePiles {
    key: (Reverse<i32>, u64, u32),
    piles: BTreeSet<(ExecutionId, u32)>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns whether the line holds exactly one pile.
    pub(super) fn has_one(&self) -> bool {
        self.lanes.len() == 1 && self.lanes.values().all(|entry| entry.piles.len() == 1)
    }

    pub(super) fn add(&mut self, index: u32, lane: &Lane, oldest: ExecutionId, pile: u32) {
        let entry = self.lanes.entry(index).or_insert_with(|| {
            let key = (Reverse(lane.priority), lane.ticket, index);
            self.order.insert(key);
            LanePiles { key, piles: BTreeSet::new() }
        });
        entry.piles.insert((oldest, pile));
    }

    pub(super) fn remove(&mut self, index: u32, oldest: ExecutionId, pile: u32) {
        let Some(entry) = self.lanes.get_mut(&index) else { return };
        entry.piles.remove(&(oldest, pile));
        if entry.piles.is_empty() {
            self.order.remove(&entry.key);
            self.lanes.remove(&index);
        }
    }

    /// Notes that the oldest execution of a pile has changed.
    pub(super) fn renew(&mut self, index: u32, from: ExecutionId, to: ExecutionId, pile: u32) {
        if let Some(entry) = self.lanes.get_mut(&index)
            && entry.piles.remove(&(from, pile))
        {
            entry.piles.insert((to, pile));
        }
    }

    pub(super) fn head(&mut self, lanes: &Interned<Lane>) -> Option<Head> {
        loop {
            let key = *self.order.first()?;
            let (priority, ticket, index) = key;
            let now = lanes.get(index).ticket;
            let entry = self.lanes.get_mut(&index)?;
            if now == ticket {
                let (oldest, pile) = *entry.piles.first()?;
                return Some(Head { priority, ticket, oldest, pile });
            }
            self.order.remove(&key);
            entry.key = (priority, now, index);
            self.order.insert(entry.key);
        }
    }
}
