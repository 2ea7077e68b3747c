//! Owns sets of days that a schedule leaves out: weekdays, dates, and dates of every year.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::shown::shown;
use crate::words::words;

words! {
    pub enum Weekday {
        Sunday = "sun",
        Monday = "mon",
        Tuesday = "tue",
        Wednesday = "wed",
        Thursday = "thu",
        Friday = "fri",
        Saturday = "sat",
    }
}

impl Weekday {
    /// Returns the whole name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Weekday::Sunday => "sunday",
            Weekday::Monday => "monday",
            Weekday::Tuesday => "tuesday",
            Weekday::Wednesday => "wednesday",
            Weekday::Thursday => "thursday",
            Weekday::Friday => "friday",
            Weekday::Saturday => "saturday",
        }
    }
}

/// A date, or a date of every year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Day {
    Once(Date),
    /// Month and day.
    EveryYear(i8, i8),
}

/// A text that is not a date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a date; write 2026-12-24 for one day, or 12-24 for the day in every year")]
pub struct BadDay(String);

impl FromStr for Day {
    type Err = BadDay;

    fn from_str(text: &str) -> Result<Self, BadDay> {
        let bad = || BadDay(shown(text));
        let number = |part: &str, digits: usize| {
            let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<i16>().ok().filter(|_| is_number)
        };
        let small = |part: &str| number(part, 2).and_then(|value| i8::try_from(value).ok());
        match text.split('-').collect::<Vec<_>>()[..] {
            [year, month, day] => {
                let (year, month, day) = (number(year, 4), small(month), small(day));
                let date = year.zip(month).zip(day);
                date.and_then(|((year, month), day)| Date::new(year, month, day).ok()).map(Day::Once)
            }
            [month, day] => {
                let date = small(month).zip(small(day));
                // A leap year has all days.
                date.filter(|(month, day)| Date::new(2000, *month, *day).is_ok())
                    .map(|(month, day)| Day::EveryYear(month, day))
            }
            _ => None,
        }
        .ok_or_else(bad)
    }
}

impl TryFrom<String> for Day {
    type Error = BadDay;

    fn try_from(text: String) -> Result<Self, BadDay> {
        text.parse()
    }
}

impl From<Day> for String {
    fn from(day: Day) -> Self {
        day.to_string()
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Day::Once(date) => write!(f, "{date}"),
            Day::EveryYear(month, day) => write!(f, "{month:02}-{day:02}"),
        }
    }
}

/// Days that a schedule leaves out, in its time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Days {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dates: Vec<Day>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<Weekday>,
}

impl Days {
    pub fn is_empty(&self) -> bool {
        self.dates.is_empty() && self.weekdays.is_empty()
    }

    pub(super) fn has(&self, date: Date) -> bool {
        let weekday = usize::from(date.weekday().to_sunday_zero_offset().unsigned_abs());
        self.weekdays.contains(&Weekday::ALL[weekday])
            || self.dates.contains(&Day::Once(date))
            || self.dates.contains(&Day::EveryYear(date.month(), date.day()))
    }
}
