//! Owns cron expressions: how they are written, and the local dates and times that match one. Time zones are not known
//! here.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};

use super::field::{self, Field, Set};
use crate::limits::CRON_BYTES;
use crate::nearest::advice;
use crate::shown::shown;
use crate::span::Span;

/// The shortest and the longest interval of `@every`, in seconds.
pub const EVERY_LEAST_S: u64 = 1;
pub const EVERY_MOST_S: u64 = 366 * 24 * 3600;
/// How many years a search covers. A date that exists recurs on each weekday within 40 years.
const YEARS_SEARCHED: i16 = 50;

/// Names of expressions.
const NAMES: &[(&str, &str)] = &[
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
const EVERY: &str = "@every";

/// What a schedule follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Cron(Cron),
    /// All multiples of this many seconds since 1970-01-01T00:00:00Z, so that all servers agree on them.
    Every(u64),
}

/// A cron expression with five fields, or six with seconds first.
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    seconds: Set,
    minutes: Set,
    hours: Set,
    days: Field,
    months: Set,
    weekdays: Field,
}

/// Why a text is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCron {
    #[error(
        "a cron expression has 5 fields (minute, hour, day, month, weekday), or 6 with the second first; this has {0}"
    )]
    Count(usize),
    #[error("the {field} `{value}` is not from {first} to {last}")]
    Value { field: &'static str, value: String, first: u8, last: u8 },
    #[error("the {field} `{name}` is unknown; {advice}")]
    Name { field: &'static str, name: String, advice: String },
    #[error("the step `{step}` of the {field} is not from 1 to {most}")]
    Step { field: &'static str, step: String, most: u8 },
    #[error("the range `{range}` of the {field} goes backwards; write two ranges, such as 22-23,0-4")]
    Backwards { field: &'static str, range: String },
    #[error("the name `{name}` is unknown; {advice}")]
    Macro { name: String, advice: String },
    #[error(
        "`@reboot` is not a time; add a standing task (`downbeat task add`) for work that each node does when its agent starts"
    )]
    Reboot,
    #[error(
        "`{0}` is not an interval; write @every and a duration of whole seconds from 1s to 366d: @every 5m"
    )]
    Every(String),
    #[error("it never fires: no month that it names has such a day")]
    NeverFires,
    #[error("it has {0} bytes; at most {CRON_BYTES} are allowed")]
    TooLong(usize),
}

impl FromStr for Rule {
    type Err = BadCron;

    fn from_str(text: &str) -> Result<Self, BadCron> {
        if text.len() > CRON_BYTES {
            return Err(BadCron::TooLong(text.len()));
        }
        let text = text.trim();
        if let Some(interval) = text.strip_prefix(EVERY) {
            let seconds = interval.parse::<Span>().ok().and_then(whole_seconds);
            return seconds.map(Rule::Every).ok_or_else(|| BadCron::Every(shown(text)));
        }
        if !text.starts_with('@') {
            return Cron::read(text, text).map(Rule::Cron);
        }
        if text.eq_ignore_ascii_case("@reboot") {
            return Err(BadCron::Reboot);
        }
        match NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            Some((name, fields)) => Cron::read(name, fields).map(Rule::Cron),
            None => {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).chain([EVERY]).collect();
                Err(BadCron::Macro { name: shown(text), advice: advice(text, &names, "names") })
            }
        }
    }
}

/// Returns the seconds of an interval that a schedule can have.
fn whole_seconds(span: Span) -> Option<u64> {
    let seconds = span.0.as_secs();
    (span.0.subsec_nanos() == 0 && (EVERY_LEAST_S..=EVERY_MOST_S).contains(&seconds)).then_some(seconds)
}

impl Cron {
    fn read(text: &str, fields: &str) -> Result<Self, BadCron> {
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let (second, rest) = match fields.as_slice() {
            [second, rest @ ..] if rest.len() == 5 => (Some(*second), rest),
            rest if rest.len() == 5 => (None, rest),
            other => return Err(BadCron::Count(other.len())),
        };
        let cron = Self {
            text: text.to_owned(),
            seconds: match second {
                Some(second) => field::read(&field::SECOND, second)?.set,
                None => Set::of(0),
            },
            minutes: field::read(&field::MINUTE, rest[0])?.set,
            hours: field::read(&field::HOUR, rest[1])?.set,
            days: field::read(&field::DAY, rest[2])?,
            months: field::read(&field::MONTH, rest[3])?.set,
            weekdays: field::read(&field::WEEKDAY, rest[4])?,
        };
        match cron.next(DateTime::constant(2000, 1, 1, 0, 0, 0, 0), |_| false) {
            Some(_) => Ok(cron),
            None => Err(BadCron::NeverFires),
        }
    }

    /// Returns the first local time that matches, from `from` on, on a day that is not left out. The search ends after
    /// 50 years. `from` has whole seconds.
    pub(super) fn next(&self, from: DateTime, is_left_out: impl Fn(Date) -> bool) -> Option<DateTime> {
        let (mut date, mut time) = (from.date(), from.time());
        while date.year() <= from.year().saturating_add(YEARS_SEARCHED) {
            if !self.months.has(date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
            } else if let Some(found) = self.time_of(date, time, &is_left_out) {
                return Some(date.to_datetime(found));
            } else {
                date = date.tomorrow().ok()?;
            }
            time = Time::midnight();
        }
        None
    }

    /// Returns the first matching time of this day, from `from` on.
    fn time_of(&self, date: Date, from: Time, is_left_out: impl Fn(Date) -> bool) -> Option<Time> {
        if !self.has_day(date) || is_left_out(date) {
            return None;
        }
        for hour in self.hours.from(from.hour()) {
            let same_hour = hour == from.hour();
            for minute in self.minutes.from(if same_hour { from.minute() } else { 0 }) {
                let same_minute = same_hour && minute == from.minute();
                if let Some(second) = self.seconds.from(if same_minute { from.second() } else { 0 }).next() {
                    return Time::new(hour, minute, second, 0).ok();
                }
            }
        }
        None
    }

    /// As in every cron: if both the day and the weekday are restricted, one of them is enough.
    fn has_day(&self, date: Date) -> bool {
        let last = self.days.last_day && date.day() == date.days_in_month();
        let day = last || self.days.set.has(date.day());
        let weekday = self.weekdays.set.has(date.weekday().to_sunday_zero_offset());
        if self.days.is_open || self.weekdays.is_open { day && weekday } else { day || weekday }
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({})", self.text)
    }
}
