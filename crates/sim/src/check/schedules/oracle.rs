//! Decides again which times of a job's schedules were due, and what becomes of them: slowly, second by second, without the
//! code that the servers use. It knows what `jobs::stored_job` draws, not all that schedules may have.

use std::collections::BTreeMap;

use downbeat_core::schedule::{Day, SkipReason};
use downbeat_core::spec::{CatchUpPolicy, Schedule, When};
use downbeat_core::{Dice, Timestamp};
use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A start that is at most this late is on time.
const ON_TIME_US: i64 = 10_000_000;
const SECOND_US: i64 = 1_000_000;
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The schedules of one version of a job.
#[derive(Clone, Debug)]
pub(super) struct Oracle {
    /// Cluster and job, from which the delays follow.
    key: String,
    schedules: Vec<Schedule>,
}

/// A time that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    pub(super) due: Timestamp,
    /// Why it starts no run; nothing if it starts one.
    pub(super) skip: Option<SkipReason>,
}

impl Oracle {
    pub(super) fn new(key: String, schedules: &[Schedule]) -> Self {
        Self { key, schedules: schedules.to_vec() }
    }

    /// Returns what a decision at `now` has to say about the times that are due after `from` and until `until`, by time.
    pub(super) fn fates(
        &self,
        from: Timestamp,
        until: Timestamp,
        now: Timestamp,
        is_paused: bool,
    ) -> BTreeMap<Timestamp, Due> {
        let mut fates: BTreeMap<Timestamp, Due> = BTreeMap::new();
        for schedule in &self.schedules {
            let all = self.due(schedule, from, now);
            let newest = all.iter().map(|(at, _)| *at).max();
            for (at, due) in all.into_iter().filter(|(_, due)| *due <= until) {
                let skip =
                    if is_paused { Some(SkipReason::Paused) } else { skip(schedule, at, due, now, newest) };
                let fate = Due { at, due, skip };
                let known = fates.entry(at).or_insert(fate);
                // A schedule that starts the run wins, then the one that is due first.
                if (fate.skip.is_some(), fate.due) < (known.skip.is_some(), known.due) {
                    *known = fate;
                }
            }
        }
        fates
    }

    /// Returns whether a time is due within this time by any schedule.
    pub(super) fn is_due(&self, at: Timestamp, after: Timestamp, until: Timestamp) -> bool {
        let due = |schedule: &&Schedule| {
            let due = at + self.delay(schedule, at);
            matches(schedule, at) && due > after && due <= until
        };
        self.schedules.iter().any(|schedule| due(&schedule))
    }

    fn due(&self, schedule: &Schedule, after: Timestamp, until: Timestamp) -> Vec<(Timestamp, Timestamp)> {
        let jitter = i64::try_from(schedule.jitter().0.as_secs()).expect("jitter is short");
        (after.as_second() - jitter..=until.as_second())
            .map(|second| Timestamp::from_second(second).expect("simulated times are valid"))
            .filter(|at| matches(schedule, *at))
            .map(|at| (at, at + self.delay(schedule, at)))
            .filter(|(_, due)| *due > after && *due <= until)
            .collect()
    }

    /// Returns the delay of a time: FNV-1a of the job and the time, as the first number of the dice.
    fn delay(&self, schedule: &Schedule, at: Timestamp) -> SignedDuration {
        let jitter_ms = u64::try_from(schedule.jitter().0.as_millis()).expect("jitter is short");
        if jitter_ms == 0 {
            return SignedDuration::ZERO;
        }
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.key.bytes().chain(at.as_second().to_be_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        SignedDuration::from_millis(i64::try_from(Dice::new(hash).below(jitter_ms + 1)).unwrap_or_default())
    }
}

fn skip(
    schedule: &Schedule,
    at: Timestamp,
    due: Timestamp,
    now: Timestamp,
    newest: Option<Timestamp>,
) -> Option<SkipReason> {
    let late_us = now.as_microsecond() - due.as_microsecond();
    let window_s = i64::try_from(schedule.catch_up().window.0.as_secs()).expect("windows are short");
    let is_late = late_us > ON_TIME_US;
    let is_too_late = late_us > window_s * SECOND_US;
    match schedule.catch_up().policy {
        _ if !is_late => None,
        CatchUpPolicy::None => Some(SkipReason::TooLate),
        _ if is_too_late => Some(SkipReason::TooLate),
        CatchUpPolicy::Latest if newest != Some(at) => Some(SkipReason::Superseded),
        CatchUpPolicy::Latest | CatchUpPolicy::All => None,
    }
}

/// Returns whether a whole second is a time of a schedule.
fn matches(schedule: &Schedule, at: Timestamp) -> bool {
    let ahead = match schedule.timezone.as_deref() {
        None => SignedDuration::ZERO,
        // It has no summer time.
        Some("Asia/Kolkata") => SignedDuration::from_secs(5 * 3600 + 1800),
        Some(other) => panic!("the checker does not know the zone {other}"),
    };
    let local = (at + ahead).to_zoned(TimeZone::UTC).datetime();
    let weekday = WEEKDAYS[usize::from(local.weekday().to_sunday_zero_offset().unsigned_abs())];
    let is_date = |day: &Day| match day {
        Day::Once(date) => *date == local.date(),
        Day::EveryYear(month, day) => (*month, *day) == (local.month(), local.day()),
    };
    let exclude = &schedule.exclude;
    if exclude.weekdays.iter().any(|day| day.as_str() == weekday) || exclude.dates.iter().any(is_date) {
        return false;
    }
    match &schedule.when {
        When::Every(span) => {
            at.subsec_nanosecond() == 0 && at.as_second() % i64::try_from(span.0.as_secs()).unwrap_or(1) == 0
        }
        When::Cron(text) => at.subsec_nanosecond() == 0 && cron_matches(text, local),
    }
}

/// Returns whether an expression with six fields has this second. The days must be `*`.
fn cron_matches(text: &str, local: DateTime) -> bool {
    let fields: Vec<&str> = text.split(' ').collect();
    let values = [local.second(), local.minute(), local.hour()];
    assert!(fields.len() == 6 && fields[3..] == ["*"; 3], "the checker does not know `{text}`");
    fields.iter().zip(values).all(|(field, value)| field.split(',').any(|part| part_matches(part, value)))
}

fn part_matches(part: &str, value: i8) -> bool {
    let number = |text: &str| text.parse::<i8>().expect("fields have numbers");
    let (range, step) = part.split_once('/').map_or((part, 1), |(range, step)| (range, number(step)));
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (number(first), number(last)),
        None if range == "*" => (0, 59),
        None => (number(range), number(range)),
    };
    (first..=last).contains(&value) && (value - first) % step == 0
}
