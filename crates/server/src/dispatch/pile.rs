//! Owns piles. A pile is a set of interchangeable pending executions: same job, same eligible nodes, same limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::ids::{ExecutionId, NodeId};
use jiff::SignedDuration;

use super::line::Gate;
use super::uses::Bound;

/// How long work is left to the server that owns its share before others claim it: longer than a commit and
/// its event take.
const LEFT_TO_ITS_OWN: SignedDuration = SignedDuration::from_millis(100);
/// Work of another share that is older than this server's own by this much is claimed first: its server has
/// no node for it.
const TOO_LONG: SignedDuration = SignedDuration::from_secs(2);

/// A share is the part of the placed work that a server claims first. All servers see all pending work;
/// without shares all of them would claim the same, and all but one would be refused. After a short time
/// they also claim what others left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// This server's position among the live servers.
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
        // The low half of an id is random.
        execution.0.as_u64_pair().1 % self.servers.max(1) == self.index
    }
}

/// The nodes that can run a pile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Placed(u32),
    /// One node. Its work belongs to no share: a node polls only one server.
    Pinned(NodeId),
}

impl Where {
    /// Returns the gate of the line in which the pile waits for a node.
    pub(super) fn gate(self) -> Gate {
        match self {
            Where::Placed(class) => Gate::Class(class),
            Where::Pinned(node) => Gate::Node(node),
        }
    }
}

/// Where a pile waits.
#[derive(Debug, Default)]
pub(super) enum Stand {
    /// The pile is empty.
    #[default]
    Nowhere,
    In {
        gate: Gate,
        /// The pile's oldest execution, as the line knows it.
        since: ExecutionId,
    },
    /// Left to other servers until this time.
    Deferred(Timestamp),
}

/// Which execution of a pile to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Now(ExecutionId),
    /// Not before this time: it belongs to another share.
    Later(Timestamp),
}

#[derive(Debug)]
pub(super) struct Pile {
    pub lane: u32,
    pub at: Where,
    pub bounds: Arc<[Bound]>,
    pub stands: Stand,
    /// Executions of this server's share.
    own: BTreeSet<ExecutionId>,
    others: BTreeSet<ExecutionId>,
}

impl Pile {
    pub(super) fn new(lane: u32, at: Where, bounds: Arc<[Bound]>) -> Self {
        Self { lane, at, bounds, stands: Stand::Nowhere, own: BTreeSet::new(), others: BTreeSet::new() }
    }

    pub(super) fn is_own(&self, execution: ExecutionId, share: Share) -> bool {
        matches!(self.at, Where::Pinned(_)) || share.holds(execution)
    }

    fn part(&mut self, execution: ExecutionId, share: Share) -> &mut BTreeSet<ExecutionId> {
        if self.is_own(execution, share) { &mut self.own } else { &mut self.others }
    }

    pub(super) fn insert(&mut self, execution: ExecutionId, share: Share) -> bool {
        self.part(execution, share).insert(execution)
    }

    pub(super) fn remove(&mut self, execution: ExecutionId, share: Share) -> bool {
        self.part(execution, share).remove(&execution)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = ExecutionId> + use<> {
        std::mem::take(&mut self.own).into_iter().chain(std::mem::take(&mut self.others))
    }

    pub(super) fn len(&self) -> usize {
        self.own.len() + self.others.len()
    }

    /// Returns the executions in no particular order.
    pub(super) fn executions(&self) -> impl Iterator<Item = ExecutionId> {
        self.own.iter().chain(&self.others).copied()
    }

    pub(super) fn others(&self) -> usize {
        self.others.len()
    }

    pub(super) fn oldest(&self) -> Option<ExecutionId> {
        self.own.first().into_iter().chain(self.others.first()).min().copied()
    }

    /// Returns what to claim now. If `few`, the others' share is not left to them. From the others' share
    /// it takes the newest: the other servers take the oldest, so they seldom collide.
    pub(super) fn next(&self, few: bool, now: Timestamp) -> Option<Next> {
        let front = self.others.first().copied();
        if let Some(own) = self.own.first().copied() {
            let is_behind = |front: &ExecutionId| left_at(*front) + TOO_LONG <= left_at(own);
            return front.filter(is_behind).or(Some(own)).map(Next::Now);
        }
        let (front, last) = (front?, self.others.last().copied()?);
        if few {
            return Some(Next::Now(front));
        }
        let at = left_at(front);
        // A time this far in the future means that the clock was set back.
        let is_left = at <= now || at > now + LEFT_TO_ITS_OWN;
        Some(if is_left { Next::Now(last) } else { Next::Later(at) })
    }
}

/// Returns when work counts as left by the server that owns its share. An id starts with its creation time.
fn left_at(execution: ExecutionId) -> Timestamp {
    let millis = i64::try_from(execution.0.as_u64_pair().0 >> 16).unwrap_or(0);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MIN) + LEFT_TO_ITS_OWN
}
