//! Owns what is known of the uses of limits: who has a place, and what was given out within a window. The store decides;
//! this is what the board thinks, so that it asks for little in vain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::collections::HashSet;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::span::Span;
use downbeat_core::spec::{Limit, Limits};
use jiff::SignedDuration;

/// How long a key rests that the store refused for, how often that is doubled, and how long refusals are remembered.
const REST: SignedDuration = SignedDuration::from_millis(20);
const REST_DOUBLED: u32 = 6;
const REST_KEPT: SignedDuration = SignedDuration::from_secs(10);

/// Which of the two things a limit counts. Equal names of different kinds have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LimitKind {
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
pub(super) struct LimitUses {
    keys: BTreeMap<Key, Count>,
    /// When there is something to forget of a key.
    expiring: BTreeSet<(Timestamp, Key)>,
}

#[derive(Debug, Default)]
struct Count {
    holders: HashSet<ExecutionId>,
    /// In the order of their times.
    begun: VecDeque<Begun>,
    rest: Option<Rest>,
}

/// A lease that counts for a rate: within the window of whoever asks, and not longer than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Begun {
    at: Timestamp,
    execution: ExecutionId,
    until: Timestamp,
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

    fn find(&self, at: Timestamp, execution: ExecutionId) -> Result<usize, usize> {
        self.begun.binary_search_by_key(&(at, execution), |begun| (begun.at, begun.execution))
    }

    /// When one more may begin, if not now.
    fn next(&self, most: usize, window: SignedDuration, now: Timestamp) -> Option<Timestamp> {
        let before = self.begun.partition_point(|begun| begun.at <= now - window);
        if self.begun.len() - before < most {
            return None;
        }
        let ends = self.begun.range(before..).map(|begun| begun.until.min(begun.at + window));
        let mut ends: Vec<Timestamp> = ends.filter(|end| *end > now).collect();
        let surplus = ends.len().checked_sub(most)?;
        // When so many have left, there is a place.
        Some(*ends.select_nth_unstable(surplus).1)
    }
}

impl LimitUses {
    /// Why there is no place, if there is none.
    pub(super) fn full(&self, bound: &Bound, now: Timestamp) -> Option<Full> {
        let count = self.keys.get(&bound.key)?;
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
                let next = count.next(most as usize, bound.window(), now)?;
                Some(Full::Spent { name, most, per: bound.per, next })
            }
        }
    }

    /// A lease was given, or is about to be. Saying it twice changes nothing.
    pub(super) fn take(&mut self, bound: &Bound, execution: ExecutionId, at: Timestamp) {
        self.prune(at);
        match bound.key.kind {
            LimitKind::AtOnce => self.occupy(bound.key.clone(), execution),
            LimitKind::Rate => self.begin(bound.key.clone(), execution, at, at + bound.window()),
        }
    }

    pub(super) fn occupy(&mut self, key: Key, execution: ExecutionId) {
        self.keys.entry(key).or_default().holders.insert(execution);
    }

    pub(super) fn begin(&mut self, key: Key, execution: ExecutionId, at: Timestamp, until: Timestamp) {
        let count = self.keys.entry(key.clone()).or_default();
        if let Err(place) = count.find(at, execution) {
            count.begun.insert(place, Begun { at, execution, until });
            self.expiring.insert((until, key));
        }
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
        if let Ok(place) = count.find(at, execution) {
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

    /// Forgets what counts no more.
    pub(super) fn prune(&mut self, now: Timestamp) {
        while self.expiring.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.expiring.pop_first() else { return };
            let Some(count) = self.keys.get_mut(&key) else { continue };
            // Nearly all of a key have the same window, and end in the order of their times. One that ends before an
            // older one goes after it; until then it is passed over when places are counted.
            while count.begun.front().is_some_and(|begun| begun.until <= now) {
                count.begun.pop_front();
            }
            count.rest = count.rest.filter(|rest| rest.until + REST_KEPT > now);
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
