//! Decides whether a limit has room: a lease takes slots, and its end frees them. Uses are counted by cluster and key.
//! A number at once and a rate are counted separately, also under the same key.

use std::collections::BTreeMap;

use crate::Timestamp;
use crate::change::{Applied, Refusal};
use crate::ids::{ClusterId, ExecutionId};
use crate::spec::{Limit, Limits};

/// The use of one slot of a limit by an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitUse {
    pub cluster: ClusterId,
    pub key: String,
    pub execution: ExecutionId,
    pub granted_at: Timestamp,
    /// When a use of a rate ends, however its execution ends. `None` for a number at once: that use ends with its
    /// lease.
    pub until: Option<Timestamp>,
}

/// A question how many slots of a limit are in use, asked for one lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    pub cluster: ClusterId,
    pub key: String,
    pub counted: Counted,
}

/// Which uses of a key count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// The uses whose lease has not ended.
    AtOnce,
    /// The uses of rates that were granted after `since` and have not ended at `at`.
    Within { since: Timestamp, at: Timestamp },
}

impl Counted {
    pub fn of(limit: Limit, at: Timestamp) -> Self {
        match limit {
            Limit::AtOnce(_) => Counted::AtOnce,
            Limit::Rate(_, per) => {
                Counted::Within { since: at.checked_sub(per.0).unwrap_or(Timestamp::MIN), at }
            }
        }
    }
}

/// Returns when a use of a rate ends, in whole microseconds as it is stored.
fn until(limit: Limit, granted_at: Timestamp) -> Option<Timestamp> {
    let Limit::Rate(_, per) = limit else { return None };
    let end = granted_at.checked_add(per.0).unwrap_or(Timestamp::MAX);
    Some(Timestamp::from_microsecond(end.as_microsecond()).unwrap_or(Timestamp::MAX))
}

/// The uses of one key, ordered by when they were granted, each with its end.
type KeyUses = BTreeMap<(Timestamp, ExecutionId), Option<Timestamp>>;

/// All uses, or the uses that one batch took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitUses {
    by_key: BTreeMap<(ClusterId, String), KeyUses>,
    /// Counts of the uses that were not loaded; empty if all uses are loaded.
    pub elsewhere: BTreeMap<Question, u32>,
    /// When the batch last took a slot of a rate. Uses that had ended by then are removed.
    pub latest: Option<Timestamp>,
}

impl LimitUses {
    /// Takes one slot of each limit. If a limit has no room, takes nothing and refuses.
    pub fn take(&mut self, cluster: ClusterId, id: ExecutionId, limits: &Limits, at: Timestamp) -> Applied {
        for (key, limit) in limits {
            let question = Question { cluster, key: key.clone(), counted: Counted::of(*limit, at) };
            if self.count(&question) >= limit.most() {
                return Err(Refusal::LimitReached(key.clone()));
            }
        }
        for (key, limit) in limits {
            let end = until(*limit, at);
            self.by_key.entry((cluster, key.clone())).or_default().insert((at, id), end);
            if end.is_some() {
                self.latest = self.latest.max(Some(at));
            }
        }
        Ok(())
    }

    fn count(&self, question: &Question) -> u32 {
        let elsewhere = self.elsewhere.get(question).copied().unwrap_or(0);
        let Some(uses) = self.by_key.get(&(question.cluster, question.key.clone())) else { return elsewhere };
        let here = match question.counted {
            Counted::AtOnce => uses.values().filter(|end| end.is_none()).count(),
            Counted::Within { since, at } => {
                let within = uses.iter().rev().take_while(|((granted_at, _), _)| *granted_at > since);
                within.filter(|(_, end)| end.is_some_and(|end| end > at)).count()
            }
        };
        elsewhere.saturating_add(u32::try_from(here).unwrap_or(u32::MAX))
    }

    /// Frees the slots of `AtOnce` limits when the lease ends. Slots of rates stay taken until their time is over.
    pub fn give_back(&mut self, cluster: ClusterId, id: ExecutionId, limits: &Limits, granted_at: Timestamp) {
        let at_once = limits.iter().filter(|(_, limit)| matches!(limit, Limit::AtOnce(_)));
        for key in at_once.map(|(key, _)| (cluster, key.clone())) {
            let Some(uses) = self.by_key.get_mut(&key) else { continue };
            uses.remove(&(granted_at, id));
            if uses.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    /// Keeps only the uses that count.
    pub fn retain(&mut self, counts: impl Fn(ExecutionId, Option<Timestamp>) -> bool) {
        self.by_key.retain(|_, uses| {
            uses.retain(|(_, execution), end| counts(*execution, *end));
            !uses.is_empty()
        });
    }

    /// Removes uses of rates that had ended at this time.
    pub fn forget(&mut self, at: Timestamp) {
        self.retain(|_, end| end.is_none_or(|end| end > at));
    }

    /// Returns all uses by cluster and key, then by when they were granted.
    pub fn list(&self) -> Vec<LimitUse> {
        let mut all = Vec::new();
        for ((cluster, key), uses) in &self.by_key {
            for (&(granted_at, execution), &until) in uses {
                all.push(LimitUse { cluster: *cluster, key: key.clone(), execution, granted_at, until });
            }
        }
        all
    }
}
