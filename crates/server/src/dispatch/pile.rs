//! Owns piles. A pile is a set of interchangeable pending executions: same job, same eligible nodes, same limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::ids::{ExecutionId, NodeId};
use jiff::SignedDuration;

use super::line::Gate;
use super::uses::Bound;

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

/// Which nodes come into question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// Those that fit a class.
    Placed(u32),
    /// One. Its work is nobody's share: a node asks one server.
    Pinned(NodeId),
}

impl Where {
    /// Where it waits for a node.
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
    /// Nothing of it waits.
    #[default]
    Nowhere,
    In {
        gate: Gate,
        /// The oldest of it, as the line has it.
        since: ExecutionId,
    },
    /// Left to other servers until then.
    Deferred(Timestamp),
}

/// What to claim of a pile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Now(ExecutionId),
    /// Not before this time: it is others' share.
    Later(Timestamp),
}

#[derive(Debug)]
pub(super) struct Pile {
    pub lane: u32,
    pub at: Where,
    pub bounds: Arc<[Bound]>,
    pub stands: Stand,
    /// This server's share.
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

    pub(super) fn others(&self) -> usize {
        self.others.len()
    }

    pub(super) fn oldest(&self) -> Option<ExecutionId> {
        self.own.first().into_iter().chain(self.others.first()).min().copied()
    }

    /// What to claim now; `few` others are not worth leaving. Of the others' share it is the newest: they take the
    /// oldest, and both seldom meet.
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
        // A time that far ahead of now is a clock that was set back.
        let is_left = at <= now || at > now + LEFT_TO_ITS_OWN;
        Some(if is_left { Next::Now(last) } else { Next::Later(at) })
    }
}

/// When work counts as left by the server whose share it is. Ids begin with the time of creation.
fn left_at(execution: ExecutionId) -> Timestamp {
    let millis = i64::try_from(execution.0.as_u64_pair().0 >> 16).unwrap_or(0);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MIN) + LEFT_TO_ITS_OWN
}
