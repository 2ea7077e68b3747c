//! Owns the board's count of limit uses: which executions use a slot, and which leases count for a rate.
//! The store decides; this count avoids claims that the store would refuse.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::collections::HashSet;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::span::Span;
use downbeat_core::spec::{Limit, Limits};
use jiff::SignedDuration;

use super::queue::pop_due;

/// How long a limit rests after the store refused a claim for it, how often that time doubles, and how long
/// refusals count.
const REST: SignedDuration = SignedDuration::from_millis(20);
const REST_DOUBLED: u32 = 6;
const REST_KEPT: SignedDuration = SignedDuration::from_secs(10);

/// Limits of the same name but different kinds are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LimitKind {
    AtOnce,
    Rate,
}

/// Uses with the same key are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub cluster: ClusterId,
    pub kind: LimitKind,
    pub name: Arc<str>,
}

/// The limit of one execution. Another execution may have a different maximum for the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bound {
    pub key: Key,
    most: u32,
    /// Zero for a limit of executions at once.
    pub per: Span,
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

    pub(super) fn most(&self) -> u32 {
        self.most
    }

    fn window(&self) -> SignedDuration {
        SignedDuration::try_from(self.per.0).unwrap_or(SignedDuration::MAX)
    }
}

/// Why an execution cannot start now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("limit {name}: {taken} of {most} in use")]
    Taken { name: Arc<str>, taken: usize, most: u32 },
    #[error("limit {name}: {most} started within {per}; next at {next:.0}")]
    Spent { name: Arc<str>, most: u32, per: Span, next: Timestamp },
    /// The store refused a claim a moment ago.
    #[error("limit {name}: another server used the last slot")]
    Rests { name: Arc<str>, until: Timestamp },
}

impl Full {
    /// Returns when to check again, if no end of an execution triggers a check.
    pub(super) fn until(&self) -> Option<Timestamp> {
        match self {
            Full::Taken { .. } => None,
            Full::Spent { next, .. } => Some(*next),
            Full::Rests { until, .. } => Some(*until),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct UsesOfLimits {
    keys: BTreeMap<Key, Count>,
    /// When entries of a key expire.
    expiring: BTreeSet<(Timestamp, Key)>,
}

#[derive(Debug, Default)]
struct Count {
    holders: HashSet<ExecutionId>,
    /// Sorted by time.
    begun: VecDeque<Begun>,
    rest: Option<Rest>,
}

/// A lease that counts for a rate: within the window of the limit that is checked, and not longer than its own window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Begun {
    at: Timestamp,
    execution: ExecutionId,
    until: Timestamp,
}

/// A pause after the store refused a claim for a key that seemed to have room.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Timestamp,
    /// Refusals since the last committed change of the key.
    refusals: u32,
}

impl Count {
    fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.begun.is_empty() && self.rest.is_none()
    }

    fn find(&self, at: Timestamp, execution: ExecutionId) -> Result<usize, usize> {
        self.begun.binary_search_by_key(&(at, execution), |begun| (begun.at, begun.execution))
    }

    /// Returns when one more may start, if not now.
    fn next(&self, most: usize, window: SignedDuration, now: Timestamp) -> Option<Timestamp> {
        let before = self.begun.partition_point(|begun| begun.at <= now - window);
        if self.begun.len() - before < most {
            return None;
        }
        let ends = self.begun.range(before..).map(|begun| begun.until.min(begun.at + window));
        let mut ends: Vec<Timestamp> = ends.filter(|end| *end > now).collect();
        let surplus = ends.len().checked_sub(most)?;
        // When this many have expired, there is room.
        Some(*ends.select_nth_unstable(surplus).1)
    }
}

impl UsesOfLimits {
    /// Returns why the limit has no room, or `None` if it has room.
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

    /// Returns how many executions count against a key.
    pub(super) fn count(&self, key: &Key, now: Timestamp) -> usize {
        let Some(count) = self.keys.get(key) else { return 0 };
        match key.kind {
            LimitKind::AtOnce => count.holders.len(),
            LimitKind::Rate => count.begun.iter().filter(|begun| begun.until > now).count(),
        }
    }

    /// Returns the executions that count against a key.
    pub(super) fn users(&self, key: &Key) -> impl Iterator<Item = ExecutionId> {
        let count = self.keys.get(key).into_iter();
        count.flat_map(|count| {
            let begun = count.begun.iter().map(|begun| begun.execution);
            count.holders.iter().copied().chain(begun)
        })
    }

    /// Counts a lease that is granted or about to be. Idempotent.
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

    /// Ends the use of an execution. Returns whether that makes room.
    pub(super) fn end(&mut self, bound: &Bound, execution: ExecutionId) -> bool {
        let Some(count) = self.keys.get_mut(&bound.key) else { return false };
        let freed = count.holders.remove(&execution);
        self.tidy(&bound.key);
        freed
    }

    /// Removes a lease that was not granted after all. Returns whether that makes room.
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

    /// Removes only this start: the execution was leased at another time.
    pub(super) fn forget_begin(&mut self, bound: &Bound, execution: ExecutionId, at: Timestamp) {
        if bound.key.kind == LimitKind::Rate {
            self.give_back(bound, execution, at);
        }
    }

    /// Lets a key rest after a refusal by the store: the feed will soon deliver the reason. Until it does,
    /// each rest is longer.
    pub(super) fn rest(&mut self, key: &Key, now: Timestamp) {
        let count = self.keys.entry(key.clone()).or_default();
        let refusals = count.rest.map_or(0, |rest| rest.refusals) + 1;
        let until = now + REST * (1 << (refusals - 1).min(REST_DOUBLED));
        count.rest = Some(Rest { until, refusals });
        self.expiring.insert((until + REST_KEPT, key.clone()));
    }

    /// Ends the rest of a key, because a change of it was committed.
    pub(super) fn end_rest(&mut self, key: &Key) {
        if let Some(count) = self.keys.get_mut(key) {
            count.rest = None;
            self.tidy(key);
        }
    }

    pub(super) fn prune(&mut self, now: Timestamp) {
        while let Some(key) = pop_due(&mut self.expiring, now) {
            let Some(count) = self.keys.get_mut(&key) else { continue };
            // Nearly all entries of a key have the same window and expire in order. One that expires before
            // an older entry is removed after it; until then `next` ignores it.
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
