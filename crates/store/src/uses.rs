//! Owns who has a place of a limit: what a lease takes, what its end gives back, and when there is no room. Places are
//! counted by cluster and key; a number at once and a rate count apart, also under one key.

use std::collections::BTreeMap;

use downbeat_core::change::{Applied, Refusal};
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::spec::{Limit, Limits};
use jiff::Timestamp;

use crate::port::LimitUse;

/// What is counted for one limit of one lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    pub(crate) cluster: ClusterId,
    pub(crate) key: String,
    pub(crate) counted: Counted,
}

/// Which uses of a key count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counted {
    /// Those whose lease has not ended.
    AtOnce,
    /// Those of rates that were granted after `since`, and whose own time is not over at `at`.
    Within { since: Timestamp, at: Timestamp },
}

impl Counted {
    pub(crate) fn of(limit: Limit, at: Timestamp) -> Self {
        match limit {
            Limit::AtOnce(_) => Counted::AtOnce,
            Limit::Rate(_, per) => {
                Counted::Within { since: at.checked_sub(per.0).unwrap_or(Timestamp::MIN), at }
            }
        }
    }
}

fn most(limit: Limit) -> u32 {
    match limit {
        Limit::AtOnce(most) | Limit::Rate(most, _) => most,
    }
}

/// When a use counts no more, in whole microseconds as it is stored; nothing: with its lease.
fn until(limit: Limit, granted_at: Timestamp) -> Option<Timestamp> {
    let Limit::Rate(_, per) = limit else { return None };
    let end = granted_at.checked_add(per.0).unwrap_or(Timestamp::MAX);
    Some(Timestamp::from_microsecond(end.as_microsecond()).unwrap_or(Timestamp::MAX))
}

/// The uses of one key, by when they were granted, each with its end.
type Taken = BTreeMap<(Timestamp, ExecutionId), Option<Timestamp>>;

/// All uses, or those that one batch took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Uses {
    /// By cluster and key.
    taken: BTreeMap<(ClusterId, String), Taken>,
    /// What the uses that are not here come to. Nothing where all are here.
    pub(crate) elsewhere: BTreeMap<Question, u32>,
    /// The last moment at which the batch took a place of a rate: what was over by then goes.
    pub(crate) latest: Option<Timestamp>,
}

impl Uses {
    /// Takes one of each limit, or says which has none left and takes nothing.
    pub(crate) fn take(
        &mut self,
        cluster: ClusterId,
        execution: ExecutionId,
        limits: &Limits,
        at: Timestamp,
    ) -> Applied {
        for (key, limit) in limits {
            let question = Question { cluster, key: key.clone(), counted: Counted::of(*limit, at) };
            if self.count(&question) >= most(*limit) {
                return Err(Refusal::LimitReached(key.clone()));
            }
        }
        for (key, limit) in limits {
            let end = until(*limit, at);
            self.taken.entry((cluster, key.clone())).or_default().insert((at, execution), end);
            if end.is_some() {
                self.latest = self.latest.max(Some(at));
            }
        }
        Ok(())
    }

    fn count(&self, question: &Question) -> u32 {
        let elsewhere = self.elsewhere.get(question).copied().unwrap_or(0);
        let Some(taken) = self.taken.get(&(question.cluster, question.key.clone())) else { return elsewhere };
        let here = match question.counted {
            Counted::AtOnce => taken.values().filter(|end| end.is_none()).count(),
            Counted::Within { since, at } => {
                let within = taken.iter().rev().take_while(|((granted_at, _), _)| *granted_at > since);
                within.filter(|(_, end)| end.is_some_and(|end| end > at)).count()
            }
        };
        elsewhere.saturating_add(u32::try_from(here).unwrap_or(u32::MAX))
    }

    /// The lease has ended: places of numbers at once are free.
    pub(crate) fn give_back(
        &mut self,
        cluster: ClusterId,
        execution: ExecutionId,
        limits: &Limits,
        granted_at: Timestamp,
    ) {
        let at_once = limits.iter().filter(|(_, limit)| matches!(limit, Limit::AtOnce(_)));
        for key in at_once.map(|(key, _)| (cluster, key.clone())) {
            let Some(taken) = self.taken.get_mut(&key) else { continue };
            taken.remove(&(granted_at, execution));
            if taken.is_empty() {
                self.taken.remove(&key);
            }
        }
    }

    /// Forgets uses that do not count any more, or never did.
    pub(crate) fn retain(&mut self, counts: impl Fn(ExecutionId, Option<Timestamp>) -> bool) {
        self.taken.retain(|_, taken| {
            taken.retain(|(_, execution), end| counts(*execution, *end));
            !taken.is_empty()
        });
    }

    /// Forgets uses of rates whose time is over.
    pub(crate) fn forget(&mut self, at: Timestamp) {
        self.retain(|_, end| end.is_none_or(|end| end > at));
    }

    /// By cluster and key, then as they were granted.
    pub(crate) fn list(&self) -> Vec<LimitUse> {
        let list = |(key, taken): (&(ClusterId, String), &Taken)| {
            let (cluster, key) = key.clone();
            let all = taken.iter().map(move |(&(granted_at, execution), &until)| LimitUse {
                cluster,
                key: key.clone(),
                execution,
                granted_at,
                until,
            });
            all.collect::<Vec<_>>()
        };
        self.taken.iter().flat_map(list).collect()
    }
}
