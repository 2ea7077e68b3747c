//! Owns what is known of the uses of limits: who has a place, and what was given out within a window. The store decides;
//! this is what the board thinks, so that it asks for little in vain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::collections::HashSet;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::limits;
use downbeat_core::span::Span;
use downbeat_core::spec::{Limit, Limits};
use jiff::SignedDuration;

/// How long a key rests that the store refused for, how often that is doubled, and how long refusals are remembered.
const REST: SignedDuration = SignedDuration::from_millis(20);
const REST_DOUBLED: u32 = 6;
const REST_KEPT: SignedDuration = SignedDuration::from_secs(10);

/// Which of the two things a limit counts. Equal names of different kinds have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitKind {
    AtOnce,
    Rate,
}

/// What is counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub cluster: ClusterId,
    pub kind: LimitKind,
    pub name: Arc<str>,
}

/// What one execution is held to: others may say another number for the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bound {
    pub key: Key,
    most: u32,
    /// Zero when it counts those at once.
    per: Span,
}

impl Bound {
    pub(super) fn all(cluster: ClusterId, limits: &Limits) -> Arc<[Bound]> {
        let bound = |(name, limit): (&String, &Limit)| {
            let (kind, most, per) = match limit {
                Limit::AtOnce(most) => (LimitKind::AtOnce, *most, Span::default()),
                Limit::Rate(most, per) => (LimitKind::Rate, *most, *per),
            };
            Bound { key: Key { cluster, kind, name: name.as_str().into() }, most, per }
        };
        limits.iter().map(bound).collect()
    }

    fn window(&self) -> SignedDuration {
        SignedDuration::try_from(self.per.0).unwrap_or(SignedDuration::MAX)
    }
}

/// Why an execution may not go now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("limit {name}: {taken} of {most} are taken")]
    Taken { name: Arc<str>, taken: usize, most: u32 },
    #[error("limit {name}: {most} within {per} were given out; next at {next:.0}")]
    Spent { name: Arc<str>, most: u32, per: Span, next: Timestamp },
    /// The store knew better a moment ago.
    #[error("limit {name}: another server took the last place")]
    Rests { name: Arc<str>, until: Timestamp },
}

impl Full {
    /// When it is worth another look, if the end of no execution tells.
    pub(super) fn until(&self) -> Option<Timestamp> {
        match self {
            Full::Taken { .. } => None,
            Full::Spent { next, .. } => Some(*next),
            Full::Rests { until, .. } => Some(*until),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Uses {
    keys: BTreeMap<Key, Count>,
    /// When begins of a key leave every window.
    expiring: BTreeSet<(Timestamp, Key)>,
}

#[derive(Debug, Default)]
struct Count {
    holders: HashSet<ExecutionId>,
    /// In the order of their times.
    begun: VecDeque<(Timestamp, ExecutionId)>,
    /// The longest window that anybody looked through.
    longest: SignedDuration,
    rest: Option<Rest>,
}

/// The store refused for a key that seemed to have room.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Timestamp,
    /// How often, without any news of the key in between.
    refusals: u32,
}

impl Count {
    fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.begun.is_empty() && self.rest.is_none()
    }

    fn begin(&mut self, at: Timestamp, execution: ExecutionId) {
        if let Err(place) = self.begun.binary_search(&(at, execution)) {
            self.begun.insert(place, (at, execution));
        }
    }
}

impl Uses {
    /// Why there is no place, if there is none.
    pub(super) fn full(&mut self, bound: &Bound, now: Timestamp) -> Option<Full> {
        let count = self.keys.get_mut(&bound.key)?;
        count.longest = count.longest.max(bound.window());
        let (name, most) = (Arc::clone(&bound.key.name), bound.most);
        if let Some(rest) = count.rest.filter(|rest| rest.until > now) {
            return Some(Full::Rests { name, until: rest.until });
        }
        match bound.key.kind {
            LimitKind::AtOnce => {
                let taken = count.holders.len();
                (taken >= most as usize).then_some(Full::Taken { name, taken, most })
            }
            LimitKind::Rate => {
                let past = now - bound.window();
                let before = count.begun.partition_point(|(at, _)| *at <= past);
                let within = count.begun.len() - before;
                // When this one leaves the window, there is a place.
                let first = within.checked_sub(most as usize)? + before;
                let next = count.begun.get(first)?.0 + bound.window();
                Some(Full::Spent { name, most, per: bound.per, next })
            }
        }
    }

    /// A lease was given, or is about to be. Saying it twice changes nothing.
    pub(super) fn take(&mut self, bound: &Bound, execution: ExecutionId, at: Timestamp) {
        self.prune(at);
        let count = self.keys.entry(bound.key.clone()).or_default();
        match bound.key.kind {
            LimitKind::AtOnce => {
                count.holders.insert(execution);
            }
            LimitKind::Rate => {
                count.longest = count.longest.max(bound.window());
                count.begin(at, execution);
                self.expiring.insert((at + count.longest, bound.key.clone()));
            }
        }
    }

    /// What the store remembers of leases that were given before this server knew of them.
    pub(super) fn load(&mut self, key: Key, execution: ExecutionId, at: Timestamp, released: bool) {
        let count = self.keys.entry(key.clone()).or_default();
        match key.kind {
            LimitKind::AtOnce if released => {}
            LimitKind::AtOnce => {
                count.holders.insert(execution);
            }
            LimitKind::Rate => {
                count.begin(at, execution);
                // How far anybody looks back is not known here.
                let longest = SignedDuration::from_secs(limits::RATE_MOST_S.cast_signed());
                self.expiring.insert((at + longest, key.clone()));
            }
        }
        self.tidy(&key);
    }

    /// It has ended. Answers whether that makes room.
    pub(super) fn end(&mut self, bound: &Bound, execution: ExecutionId) -> bool {
        let Some(count) = self.keys.get_mut(&bound.key) else { return false };
        let freed = count.holders.remove(&execution);
        self.tidy(&bound.key);
        freed
    }

    /// The lease of this time was not given after all. Answers whether that makes room.
    pub(super) fn give_back(&mut self, bound: &Bound, execution: ExecutionId, at: Timestamp) -> bool {
        let Some(count) = self.keys.get_mut(&bound.key) else { return false };
        let mut freed = count.holders.remove(&execution);
        if let Ok(place) = count.begun.binary_search(&(at, execution)) {
            count.begun.remove(place);
            freed = true;
        }
        self.tidy(&bound.key);
        freed
    }

    /// Only the begin of this time did not happen: the execution was leased at another.
    pub(super) fn forget_begin(&mut self, bound: &Bound, execution: ExecutionId, at: Timestamp) {
        if bound.key.kind == LimitKind::Rate {
            self.give_back(bound, execution, at);
        }
    }

    /// The store refused for a key that seemed to have room: what this server has not heard of yet comes soon. If it
    /// does not, the pauses get longer.
    pub(super) fn rest(&mut self, key: &Key, now: Timestamp) {
        let count = self.keys.entry(key.clone()).or_default();
        let refusals = count.rest.map_or(0, |rest| rest.refusals) + 1;
        let until = now + REST * (1 << (refusals - 1).min(REST_DOUBLED));
        count.rest = Some(Rest { until, refusals });
        self.expiring.insert((until + REST_KEPT, key.clone()));
    }

    /// Something was committed of a key: what the board thinks is worth asking for again.
    pub(super) fn hear(&mut self, key: &Key) {
        if let Some(count) = self.keys.get_mut(key) {
            count.rest = None;
            self.tidy(key);
        }
    }

    /// Forgets what is in no window any more.
    pub(super) fn prune(&mut self, now: Timestamp) {
        while self.expiring.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.expiring.pop_first() else { return };
            let Some(count) = self.keys.get_mut(&key) else { continue };
            let past = now - count.longest;
            count.begun.drain(..count.begun.partition_point(|(at, _)| *at <= past));
            count.rest = count.rest.filter(|rest| rest.until + REST_KEPT > now);
            if let Some((at, _)) = count.begun.front() {
                self.expiring.insert((*at + count.longest, key.clone()));
            }
            self.tidy(&key);
        }
    }

    fn tidy(&mut self, key: &Key) {
        if self.keys.get(key).is_some_and(Count::is_empty) {
            self.keys.remove(key);
        }
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keys.len() + self.expiring.len()
    }
}
