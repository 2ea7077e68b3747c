//! Decides which times of a job's schedules start a run now, which missed ones are caught up, and which are skipped.
//!
//! One timestamp is the whole memory of a job: everything that was due up to it is decided. A time is due at one moment
//! only, so that it is decided once, however the clock jumps between two decisions.

use std::collections::BinaryHeap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{BadCron, Rule, Times, UnknownZone, Zone};
use crate::dice::Dice;
use crate::span::Span;
use crate::spec::{CatchUp, CatchUpPolicy, Schedule, When};
use crate::words::words;

/// A start that is at most this late is on time: it is not caught up, and never skipped.
const ON_TIME: SignedDuration = SignedDuration::from_secs(10);
/// Times of one schedule in one decision: those that may start a run, and those that are too late. After a long outage
/// there are several decisions.
const STARTS_AT_ONCE: usize = 1_000;
const SKIPPED_AT_ONCE: usize = 20_000;
/// A clock that was set back by more than this was wrong before: the times that were decided with it count no longer.
/// The ids of runs prevent that one starts twice.
const AHEAD_MOST: SignedDuration = SignedDuration::from_hours(24);

/// The cluster of a job that names none.
const DEFAULT_CLUSTER: &str = "default";

/// All schedules of one job.
#[derive(Clone, Debug)]
pub struct Timetable {
    /// Names the job, so that jobs with the same schedule have different delays.
    key: String,
    schedules: Vec<Planned>,
}

#[derive(Clone, Debug)]
struct Planned {
    index: usize,
    times: Times,
    jitter: Span,
    catch_up: CatchUp,
}

/// Why a schedule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedule {
    #[error(transparent)]
    Cron(#[from] BadCron),
    #[error(transparent)]
    Zone(#[from] UnknownZone),
}

/// A time of a schedule, and when its run starts: later by the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Firing {
    pub due: Timestamp,
    pub at: Timestamp,
    /// The index of the schedule.
    pub schedule: usize,
}

words! {
    /// Why a time does not start a run.
    pub enum SkipReason {
        Paused = "paused",
        /// Later than the window of `catch_up`.
        TooLate = "too_late",
        /// A later time was missed too, and only the latest is caught up.
        Superseded = "superseded",
    }
}

/// Times that were skipped for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    pub reason: SkipReason,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: usize,
}

/// Whether the job may start by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Active,
    Paused,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The times that start a run, in the order of their start.
    pub firings: Vec<Firing>,
    pub skipped: Vec<Skipped>,
    /// Everything due up to here is decided. To be stored with the runs, and passed to the next decision.
    pub decided: Timestamp,
    /// When the next decision is needed. In the past if one decision was not enough.
    pub next: Option<Timestamp>,
    /// All times of the decision, those that are skipped too.
    found: Vec<(Firing, Option<SkipReason>)>,
}

impl Decision {
    /// Returns the decision about a job without schedules.
    pub fn nothing(decided: Timestamp, now: Timestamp) -> Self {
        let decided = now.max(reached(decided, now));
        Self { firings: Vec::new(), skipped: Vec::new(), decided, next: None, found: Vec::new() }
    }

    /// Returns whether no time was due.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the part of the decision about the times that are due before `due`: the run of that one could not be
    /// started yet.
    #[must_use]
    pub fn before(mut self, due: Timestamp) -> Self {
        self.found.retain(|(firing, _)| firing.due < due);
        self.firings.retain(|firing| firing.due < due);
        let decided = before(due, Duration::from_nanos(1)).min(self.decided);
        Self { skipped: skipped(&self.found), decided, next: Some(due), ..self }
    }
}

/// Returns the key of a job, from which its delays follow.
pub fn key(cluster: Option<&str>, job: &str) -> String {
    format!("{}:{job}", cluster.unwrap_or(DEFAULT_CLUSTER))
}

impl Timetable {
    pub fn new(key: impl Into<String>, schedules: &[Schedule]) -> Result<Self, BadSchedule> {
        let schedules = schedules.iter().enumerate().map(|(index, one)| Planned::of(index, one));
        Ok(Self { key: key.into(), schedules: schedules.collect::<Result<_, _>>()? })
    }

    /// Returns the time zone of a schedule.
    pub fn zone(&self, schedule: usize) -> &Zone {
        self.schedules[schedule].times.zone()
    }

    /// Returns the next starts, at most `count`, in their order.
    pub fn upcoming(&self, after: Timestamp, count: usize) -> Vec<Firing> {
        let mut found: Vec<Firing> =
            self.schedules.iter().flat_map(|one| one.upcoming(&self.key, after, count)).collect();
        found.sort_by_key(|firing| firing.at);
        found.dedup_by_key(|firing| firing.at);
        found.sort();
        found.truncate(count);
        found
    }

    /// Returns the first time of all schedules at or after `from`, without delays.
    pub fn first_time(&self, from: Timestamp) -> Option<Timestamp> {
        let before = before(from, Duration::from_nanos(1));
        self.schedules.iter().filter_map(|one| one.times.next(before)).min()
    }

    /// Returns the times of all schedules in a range, without its end, in order and without delays: at most `most`.
    pub fn times(&self, from: Timestamp, to: Timestamp, most: usize) -> Vec<Timestamp> {
        let next = |last: &Timestamp| self.first_time(last.checked_add(SignedDuration::from_nanos(1)).ok()?);
        let times = std::iter::successors(self.first_time(from), next);
        times.take_while(|at| *at < to).take(most).collect()
    }

    /// Returns when the first decision after `decided` is needed.
    pub fn next(&self, decided: Timestamp, now: Timestamp) -> Option<Timestamp> {
        self.upcoming(reached(decided, now), 1).first().map(|firing| firing.due)
    }

    /// Decides about all times that became due since `decided`.
    pub fn decide(&self, decided: Timestamp, now: Timestamp, activity: Activity) -> Decision {
        let decided = reached(decided, now);
        let (mut until, mut found) = (now.max(decided), Vec::new());
        for one in &self.schedules {
            let (pending, complete_until) = one.pending(&self.key, decided, now);
            until = until.min(complete_until);
            let newest = one.newest(&self.key, decided, now);
            found.extend(
                pending.into_iter().map(|firing| (firing, one.skip_reason(firing, now, newest, activity))),
            );
        }
        found.retain(|(firing, _)| firing.due <= until);
        // One run per time: a schedule that starts it wins.
        found.sort_by_key(|(firing, reason)| (firing.at, reason.is_some(), firing.due));
        found.dedup_by_key(|(firing, _)| firing.at);
        let mut firings: Vec<Firing> =
            found.iter().filter(|(_, reason)| reason.is_none()).map(|(firing, _)| *firing).collect();
        firings.sort();
        let next = self.upcoming(until, 1).first().map(|firing| firing.due);
        Decision { firings, skipped: skipped(&found), decided: until, next, found }
    }
}

fn skipped(found: &[(Firing, Option<SkipReason>)]) -> Vec<Skipped> {
    let of = |reason: SkipReason| {
        let mut times = found.iter().filter(|(_, found)| *found == Some(reason)).map(|(firing, _)| firing.at);
        let first = times.next()?;
        let (last, more) = times.fold((first, 0), |(_, more), at| (at, more + 1));
        Some(Skipped { reason, first, last, count: more + 1 })
    };
    SkipReason::ALL.into_iter().filter_map(of).collect()
}

impl Planned {
    fn of(index: usize, schedule: &Schedule) -> Result<Self, BadSchedule> {
        let rule = match &schedule.when {
            When::Cron(text) => text.parse()?,
            When::Every(span) => Rule::Every(span.0.as_secs().max(1)),
        };
        let zone = schedule.timezone.as_deref().map_or_else(|| Ok(Zone::default()), Zone::named)?;
        let times = Times::new(rule, zone, schedule.exclude.clone());
        Ok(Self { index, times, jitter: schedule.jitter(), catch_up: schedule.catch_up() })
    }

    fn firing(&self, key: &str, at: Timestamp) -> Firing {
        Firing { due: at.checked_add(delay(key, at, self.jitter)).unwrap_or(at), at, schedule: self.index }
    }

    /// Returns all times whose start may be later than this.
    fn from(&self, key: &str, after: Timestamp) -> impl Iterator<Item = Firing> {
        self.times.after(before(after, self.jitter.0)).map(|at| self.firing(key, at))
    }

    /// Returns the next `count` starts, in any order.
    fn upcoming(&self, key: &str, after: Timestamp, count: usize) -> BinaryHeap<Firing> {
        let mut found: BinaryHeap<Firing> = BinaryHeap::new();
        for firing in self.from(key, after) {
            // A later time may start earlier, but never before its own time.
            if found.len() == count && found.peek().is_none_or(|last| firing.at > last.due) {
                break;
            }
            if firing.due > after {
                found.push(firing);
            }
            if found.len() > count {
                found.pop();
            }
        }
        found
    }

    /// Returns the times that became due after `decided` and until `now`, and until when the list is complete.
    fn pending(&self, key: &str, decided: Timestamp, now: Timestamp) -> (Vec<Firing>, Timestamp) {
        let (mut pending, mut starts) = (Vec::new(), 0);
        let window_start = before(now, self.catch_up.window.0.max(ON_TIME.unsigned_abs()));
        for firing in self.from(key, decided).take_while(|firing| firing.at <= now) {
            let is_full = starts >= STARTS_AT_ONCE || pending.len() >= SKIPPED_AT_ONCE;
            // Without a step beyond `decided` the next decision would be the same.
            if is_full && firing.at > decided {
                return (pending, before(firing.at, Duration::from_nanos(1)));
            }
            if firing.due > decided && firing.due <= now {
                starts += usize::from(firing.due >= window_start);
                pending.push(firing);
            }
        }
        (pending, now.max(decided))
    }

    /// Returns the latest time that is due; `None` if the schedule does not need it.
    fn newest(&self, key: &str, decided: Timestamp, now: Timestamp) -> Option<Timestamp> {
        if self.catch_up.policy != CatchUpPolicy::Latest {
            return None;
        }
        let mut back = Duration::from_secs(1);
        loop {
            let from = before(now, back).max(decided);
            let due = self.from(key, from).take_while(|firing| firing.at <= now);
            let latest = due.filter(|firing| firing.due > decided && firing.due <= now).last();
            if latest.is_some() || from == decided {
                return latest.map(|firing| firing.at);
            }
            back *= 2;
        }
    }

    fn skip_reason(
        &self,
        firing: Firing,
        now: Timestamp,
        newest: Option<Timestamp>,
        activity: Activity,
    ) -> Option<SkipReason> {
        if activity == Activity::Paused {
            return Some(SkipReason::Paused);
        }
        let late = now.duration_since(firing.due);
        if late <= ON_TIME {
            return None;
        }
        let CatchUp { policy, window } = self.catch_up;
        let in_window = late.unsigned_abs() <= window.0;
        match policy {
            CatchUpPolicy::All | CatchUpPolicy::Latest if !in_window => Some(SkipReason::TooLate),
            CatchUpPolicy::All => None,
            CatchUpPolicy::Latest if newest == Some(firing.at) => None,
            CatchUpPolicy::Latest => Some(SkipReason::Superseded),
            CatchUpPolicy::None => Some(SkipReason::TooLate),
        }
    }
}

/// Returns the time that was reached, unless the clock was wrong then.
fn reached(decided: Timestamp, now: Timestamp) -> Timestamp {
    if decided.duration_since(now) > AHEAD_MOST { now } else { decided }
}

fn before(at: Timestamp, span: Duration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

/// Returns the delay of a start: the same on every server, different for each job and time.
fn delay(key: &str, at: Timestamp, jitter: Span) -> SignedDuration {
    if jitter.is_zero() {
        return SignedDuration::ZERO;
    }
    // FNV-1a.
    let bytes = key.bytes().chain(at.as_second().to_be_bytes());
    let seed = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let millis = u64::try_from(jitter.0.as_millis()).unwrap_or(u64::MAX - 1);
    SignedDuration::from_millis(i64::try_from(Dice::new(seed).below(millis + 1)).unwrap_or_default())
}

#[cfg(test)]
mod tests;
