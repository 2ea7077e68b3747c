//! Owns lines: piles that wait for the same thing, in the order of their turns. Higher priorities first; the lanes of one
//! priority take turns; of a lane the oldest first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ExecutionId, NodeId};

use super::interned::Interned;
use super::uses::Bound;

/// What a line waits for. Lines of limits come last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gate {
    /// A node that fits.
    Class(u32),
    /// A node's fleet slot.
    Node(NodeId),
    /// A place of a limit. What is pinned stands apart: it takes other slots, and must not stand in the way.
    Limit { bound: Bound, pinned: bool },
}

/// A job, or a run without a name, at one priority in one cluster.
#[derive(Debug)]
pub(super) struct Lane {
    pub priority: i32,
    /// Its turn: drawn when it comes into being, and anew whenever it got something. The lowest is next, so that nobody
    /// is served twice before all others that could be served were. Who had nothing waiting keeps no more than one turn.
    pub ticket: u64,
}

/// Who is first in a line. The least of several is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub priority: Reverse<i32>,
    ticket: u64,
    oldest: ExecutionId,
    pub pile: u32,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    lanes: HashMap<u32, Stretch>,
    /// Tickets as they were when this was last looked at: lanes get new ones, and stand in many lines.
    order: BTreeSet<(Reverse<i32>, u64, u32)>,
}

/// The piles of one lane.
#[derive(Debug)]
struct Stretch {
    place: (Reverse<i32>, u64, u32),
    piles: BTreeSet<(ExecutionId, u32)>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether one pile is all there is.
    pub(super) fn has_one(&self) -> bool {
        self.lanes.len() == 1 && self.lanes.values().all(|stretch| stretch.piles.len() == 1)
    }

    pub(super) fn add(&mut self, index: u32, lane: &Lane, oldest: ExecutionId, pile: u32) {
        let stretch = self.lanes.entry(index).or_insert_with(|| {
            let place = (Reverse(lane.priority), lane.ticket, index);
            self.order.insert(place);
            Stretch { place, piles: BTreeSet::new() }
        });
        stretch.piles.insert((oldest, pile));
    }

    pub(super) fn remove(&mut self, index: u32, oldest: ExecutionId, pile: u32) {
        let Some(stretch) = self.lanes.get_mut(&index) else { return };
        stretch.piles.remove(&(oldest, pile));
        if stretch.piles.is_empty() {
            self.order.remove(&stretch.place);
            self.lanes.remove(&index);
        }
    }

    /// A pile's oldest is another one now.
    pub(super) fn renew(&mut self, index: u32, from: ExecutionId, to: ExecutionId, pile: u32) {
        if let Some(stretch) = self.lanes.get_mut(&index)
            && stretch.piles.remove(&(from, pile))
        {
            stretch.piles.insert((to, pile));
        }
    }

    pub(super) fn head(&mut self, lanes: &Interned<Lane>) -> Option<Head> {
        loop {
            let place = *self.order.first()?;
            let (priority, ticket, index) = place;
            let now = lanes.get(index).ticket;
            let stretch = self.lanes.get_mut(&index)?;
            if now == ticket {
                let (oldest, pile) = *stretch.piles.first()?;
                return Some(Head { priority, ticket, oldest, pile });
            }
            self.order.remove(&place);
            stretch.place = (priority, now, index);
            self.order.insert(stretch.place);
        }
    }
}
