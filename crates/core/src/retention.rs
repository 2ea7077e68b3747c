//! Owns what the store keeps, how it is cleaned, and how fast it grows: pure decisions about retention.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterRecord;
use crate::ids::RunId;
use crate::limits;
use crate::portion::Portion;
use crate::standing::StandingTask;

/// What one transaction of cleaning removes at most: other commits wait for it on SQLite. Output has a bound of its own,
/// `limits::OUTPUT_PRUNED_CHUNKS`.
pub const BATCH: Portion = Portion::new(limits::PRUNED_ROWS, limits::PRUNED_BYTES);

/// Returns how long to pause after a transaction of cleaning that took this long, so that cleaning has a small share of
/// the writer, however slow the disk is.
pub fn pause_after(took: Duration) -> Duration {
    let most = Duration::from_secs(limits::PRUNING_PAUSE_MOST_S);
    took.saturating_mul(100 / limits::PRUNING_PERCENT - 1).min(most)
}

/// The settings of retention. `None` means any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How many days ended runs and events are kept.
    pub days: Option<u32>,
    /// How many ended runs are kept.
    pub runs: Option<u64>,
    pub events: Option<u64>,
    /// How much output is kept, of all executions together.
    pub output_bytes: Option<u64>,
}

/// How much the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub runs: u64,
    /// Those of `runs` that have ended.
    pub ended_runs: u64,
    pub executions: u64,
    pub events: u64,
    /// The first event, or the next one if there is none.
    pub first_seq: u64,
    pub output_bytes: u64,
    /// None if nothing is on a disk.
    pub disk_bytes: Option<u64>,
}

/// What goes although it is not old: of each kind the oldest, and nothing that is younger than `before`. Open runs always
/// stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub before: Timestamp,
    /// So many ended runs.
    pub runs: u64,
    /// The events up to this number; 0 if none.
    pub events_upto: u64,
    /// At least so much output of ended runs, whole runs at a time. The runs stay.
    pub output_bytes: u64,
}

impl Excess {
    pub fn is_nothing(&self) -> bool {
        (self.runs, self.events_upto, self.output_bytes) == (0, 0, 0)
    }
}

impl Rules {
    /// Returns whether anything is kept by number or bytes.
    pub fn is_limited(&self) -> bool {
        self.runs.is_some() || self.events.is_some() || self.output_bytes.is_some()
    }

    /// Returns the time before which ended runs and events are too old; the first time that exists if none are.
    pub fn old_before(&self, now: Timestamp) -> Timestamp {
        let kept = self.days.map(|days| SignedDuration::from_hours(24 * i64::from(days)));
        kept.and_then(|kept| now.checked_sub(kept).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns what goes now because the store holds more than it may. The last hour stays, whatever the settings: servers
    /// read each other's events, replicas copy them, and people look at runs that have just ended. Output goes with its runs:
    /// while there are too many of these, no other output goes.
    pub fn excess(&self, held: &Held, now: Timestamp) -> Excess {
        let over = |held: u64, most: Option<u64>| most.map_or(0, |most| held.saturating_sub(most));
        let settled = SignedDuration::from_secs(limits::RETENTION_LEAST_S);
        let (runs, events) = (over(held.ended_runs, self.runs), over(held.events, self.events));
        Excess {
            before: now.checked_sub(settled).unwrap_or(Timestamp::UNIX_EPOCH),
            runs,
            events_upto: if events == 0 { 0 } else { held.first_seq + events - 1 },
            output_bytes: if runs == 0 { over(held.output_bytes, self.output_bytes) } else { 0 },
        }
    }
}

/// How long ended executions of standing tasks are kept, as a primary tells its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingRule {
    /// How many attempts of each task on each node; one at least.
    pub attempts: u32,
    /// Those of tasks and nodes that were deleted before this time go.
    pub before: Timestamp,
}

/// Which ended executions of standing tasks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingKept {
    /// The tasks of each cluster that has any. Executions of other clusters are kept.
    pub lists: Vec<KeptList>,
    /// How many attempts of each task on each node; one at least.
    pub attempts: u32,
    /// Those on deleted nodes are kept if the node was deleted at this time or later.
    pub nodes_since: Timestamp,
}

/// The tasks of one cluster whose executions are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptList {
    /// The standing run of the cluster.
    pub run: RunId,
    /// Those in its list, and those that were deleted lately.
    pub numbers: Vec<u32>,
    /// A server with an old version of the list keeps the tasks that were added since: their numbers begin here.
    pub newer: u32,
}

impl StandingKept {
    /// Applies a rule to the lists of all clusters.
    pub fn of<'a>(rule: StandingRule, clusters: impl IntoIterator<Item = &'a ClusterRecord>) -> Self {
        let StandingRule { attempts, before } = rule;
        let lists = clusters.into_iter().map(|cluster| Self::list(cluster, before)).collect();
        Self { lists, attempts, nodes_since: before }
    }

    /// Returns the tasks of a cluster's list that are kept, if those go that were deleted before `before`.
    fn list(cluster: &ClusterRecord, before: Timestamp) -> KeptList {
        let list = &*cluster.list;
        let is_kept = |task: &&StandingTask| task.deleted_at.is_none_or(|at| at >= before);
        let numbers = list.tasks.iter().chain(&list.deleted).filter(is_kept).map(|task| task.number);
        KeptList { run: RunId::standing(cluster.id), numbers: numbers.collect(), newer: list.next_number }
    }

    /// Returns up to which attempt those of a task on a node go, if any go. `has_node` says whether the node exists or was
    /// deleted lately.
    pub fn gone_upto(&self, run: &RunId, number: u32, has_node: bool, last: u32) -> Option<u32> {
        let list = self.lists.iter().find(|list| list.run == *run)?;
        let has_task = number >= list.newer || list.numbers.contains(&number);
        if has_node && has_task { last.checked_sub(self.attempts.max(1)) } else { Some(last) }
    }
}

/// By how much the store grows in a day, as measured over a time. Negative if it shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    pub over: Duration,
    pub runs: i64,
    pub executions: i64,
    pub events: i64,
    pub output_bytes: i64,
    pub disk_bytes: Option<i64>,
}

/// Measurements of the store in the last day, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<(Timestamp, Held)>);

impl History {
    /// Adds a measurement, and forgets those from more than a day before it.
    pub fn add(&mut self, at: Timestamp, held: Held) {
        // A clock that was set back makes the former ones useless.
        if self.0.back().is_some_and(|(last, _)| *last >= at) {
            self.0.clear();
        }
        self.0.push_back((at, held));
        let oldest = at.checked_sub(SignedDuration::from_hours(24)).unwrap_or(Timestamp::MIN);
        while self.0.front().is_some_and(|(first, _)| *first < oldest) {
            self.0.pop_front();
        }
    }

    pub fn last(&self) -> Option<&Held> {
        self.0.back().map(|(_, held)| held)
    }

    /// Returns the growth between the first and the last measurement; none if they are closer than
    /// `limits::GROWTH_LEAST_S`.
    pub fn growth(&self) -> Option<Growth> {
        let ((from, first), (to, last)) = (self.0.front()?, self.0.back()?);
        let over = Duration::try_from(to.duration_since(*from)).ok()?;
        if over < Duration::from_secs(limits::GROWTH_LEAST_S) {
            return None;
        }
        let days = over.as_secs_f64() / (24.0 * 3_600.0);
        let per_day = |first: u64, last: u64| ((last as f64 - first as f64) / days).round() as i64;
        Some(Growth {
            over,
            runs: per_day(first.runs, last.runs),
            executions: per_day(first.executions, last.executions),
            events: per_day(first.events, last.events),
            output_bytes: per_day(first.output_bytes, last.output_bytes),
            disk_bytes: first.disk_bytes.zip(last.disk_bytes).map(|(first, last)| per_day(first, last)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn cleaning_takes_a_twentieth_of_the_time_and_never_stops_for_long() {
        let ms = Duration::from_millis;
        for (took, pause) in [
            (ms(0), ms(0)),
            (ms(1), ms(19)),
            (ms(20), ms(380)),
            (ms(1_000), ms(19_000)),
            (ms(10_000), ms(60_000)),
            (Duration::MAX, ms(60_000)),
        ] {
            assert_eq!(pause_after(took), pause, "{took:?}");
        }
    }

    #[test]
    fn the_last_attempts_of_a_task_stay_while_task_and_node_exist_or_were_deleted_lately() {
        let run = RunId::standing(crate::ids::ClusterId::DEFAULT);
        let kept = |attempts| StandingKept {
            lists: vec![KeptList { run: run.clone(), numbers: vec![1, 3], newer: 5 }],
            attempts,
            nodes_since: at(0),
        };
        let other = RunId::from("standing:other".to_owned());
        for (attempts, of, number, has_node, last, gone) in [
            (3, &run, 1, true, 2, None),
            (3, &run, 1, true, 3, Some(0)),
            (3, &run, 3, true, 9, Some(6)),
            (0, &run, 1, true, 9, Some(8)),
            // No such task, or no such node.
            (3, &run, 2, true, 2, Some(2)),
            (3, &run, 1, false, 2, Some(2)),
            // Added after this version of the list.
            (3, &run, 5, true, 2, None),
            (3, &other, 1, false, 9, None),
        ] {
            let found = kept(attempts).gone_upto(of, number, has_node, last);
            assert_eq!(found, gone, "{attempts} attempts of {number} on {has_node} up to {last}");
        }
    }

    #[test]
    fn runs_and_events_are_old_after_so_many_days() {
        let day = 24 * 3_600;
        for (days, before) in [
            (None, Timestamp::UNIX_EPOCH),
            (Some(1), at(-day)),
            (Some(30), at(-30 * day)),
            (Some(u32::MAX), Timestamp::UNIX_EPOCH),
        ] {
            assert_eq!(Rules { days, ..Rules::default() }.old_before(at(0)), before, "{days:?}");
        }
    }

    #[test]
    fn the_oldest_of_each_kind_go_when_the_store_holds_more_than_it_may() {
        let held = Held {
            runs: 15,
            ended_runs: 10,
            executions: 99,
            events: 100,
            first_seq: 51,
            output_bytes: 1_000,
            disk_bytes: Some(5_000),
        };
        let rules = |runs, events, output_bytes| Rules { days: Some(7), runs, events, output_bytes };
        for (rules, runs, events_upto, output_bytes) in [
            (rules(None, None, None), 0, 0, 0),
            // Open runs do not count.
            (rules(Some(10), None, None), 0, 0, 0),
            (rules(Some(9), None, None), 1, 0, 0),
            (rules(Some(0), None, None), 10, 0, 0),
            (rules(None, Some(100), None), 0, 0, 0),
            (rules(None, Some(99), None), 0, 51, 0),
            (rules(None, Some(0), None), 0, 150, 0),
            (rules(None, None, Some(1_000)), 0, 0, 0),
            (rules(None, None, Some(999)), 0, 0, 1),
            (rules(Some(10), Some(90), Some(400)), 0, 60, 600),
            (rules(Some(5), Some(90), Some(400)), 5, 60, 0),
            (rules(Some(u64::MAX), Some(u64::MAX), Some(u64::MAX)), 0, 0, 0),
        ] {
            let expected = Excess { before: at(-3_600), runs, events_upto, output_bytes };
            let excess = rules.excess(&held, at(0));
            assert_eq!(excess, expected, "{rules:?}");
            assert_eq!(excess.is_nothing(), (runs, events_upto, output_bytes) == (0, 0, 0));
        }
        assert!(rules(Some(0), Some(0), Some(0)).excess(&Held::default(), at(0)).is_nothing());
    }

    #[test]
    fn growth_is_that_of_the_last_day() {
        let held = |runs, disk_bytes| Held { runs, disk_bytes, ..Held::default() };
        let growth = |samples: &[(i64, Held)]| {
            let mut history = History::default();
            samples.iter().for_each(|(second, held)| history.add(at(*second), *held));
            history.growth().map(|growth| (growth.over.as_secs(), growth.runs, growth.disk_bytes))
        };
        let hour = 3_600;
        for (samples, expected) in [
            (&[][..], None),
            (&[(0, held(1, None))], None),
            (&[(0, held(1, None)), (30, held(2, None))], None),
            (&[(0, held(1, Some(10))), (hour, held(3, Some(5)))], Some((3_600, 48, Some(-120)))),
            (&[(0, held(1, None)), (hour, held(3, Some(5)))], Some((3_600, 48, None))),
            // The first one is too old.
            (
                &[(0, held(0, None)), (hour, held(5, None)), (25 * hour, held(8, None))],
                Some((24 * 3_600, 3, None)),
            ),
            // The clock was set back.
            (
                &[(5 * hour, held(9, None)), (0, held(1, None)), (2 * hour, held(2, None))],
                Some((2 * 3_600, 12, None)),
            ),
        ] {
            assert_eq!(growth(samples), expected, "{samples:?}");
        }
    }
}
