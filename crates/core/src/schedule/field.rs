//! Reads one field of a cron expression into the set of its values.

use super::cron::BadCron;
use crate::nearest::advice;
use crate::shown::shown;

/// The values of a field and their names.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    first: u8,
    last: u8,
    /// The names of the values from `first` on.
    names: &'static [&'static str],
}

pub(super) const SECOND: Kind = Kind { name: "second", first: 0, last: 59, names: &[] };
pub(super) const MINUTE: Kind = Kind { name: "minute", first: 0, last: 59, names: &[] };
pub(super) const HOUR: Kind = Kind { name: "hour", first: 0, last: 23, names: &[] };
pub(super) const DAY: Kind = Kind { name: "day of the month", first: 1, last: 31, names: &[] };
pub(super) const MONTH: Kind = Kind {
    name: "month",
    first: 1,
    last: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
/// 7 is Sunday as well as 0, so that ranges can end with it.
pub(super) const WEEKDAY: Kind = Kind { name: "weekday", first: 0, last: 7, names: WEEKDAYS };
pub(super) const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const SUNDAY: u8 = 0;
const SUNDAY_AT_THE_END: u8 = 7;

/// The set of values that a field allows, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    pub(super) fn of(value: u8) -> Self {
        Self(1 << value)
    }

    pub(super) fn has(self, value: i8) -> bool {
        u8::try_from(value).is_ok_and(|value| value < 64 && self.0 & (1 << value) != 0)
    }

    /// Returns the values from this one on, in order.
    pub(super) fn from(self, first: i8) -> impl Iterator<Item = i8> {
        let mut left = self.0 & (u64::MAX << first.max(0));
        std::iter::from_fn(move || {
            let value = i8::try_from(left.trailing_zeros()).ok().filter(|value| *value < 64)?;
            left &= left - 1;
            Some(value)
        })
    }

    fn add(&mut self, value: u8) {
        self.0 |= 1 << value;
    }
}

/// A field as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) set: Set,
    /// The field begins with `*` or `?`: it does not restrict by itself.
    pub(super) is_open: bool,
    /// The field contains `L`: the last day of the month.
    pub(super) last_day: bool,
}

pub(super) fn read(kind: &Kind, text: &str) -> Result<Field, BadCron> {
    let mut field = Field { is_open: text.starts_with(['*', '?']), ..Field::default() };
    for part in text.split(',') {
        if kind.name == DAY.name && part.eq_ignore_ascii_case("L") {
            field.last_day = true;
        } else {
            add_part(kind, part, &mut field.set)?;
        }
    }
    if kind.name == WEEKDAY.name && field.set.has(SUNDAY_AT_THE_END as i8) {
        field.set.add(SUNDAY);
    }
    Ok(field)
}

/// Adds `*`, `5`, `1-5`, `*/15`, `10-30/5` or `10/5`.
fn add_part(kind: &Kind, part: &str, set: &mut Set) -> Result<(), BadCron> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step_of(kind, step)?)),
        None => (part, None),
    };
    let (first, last) = match range.split_once('-') {
        _ if range == "*" || range == "?" => (kind.first, kind.last_once()),
        Some((first, last)) => (value(kind, first)?, end_value(kind, last)?),
        // `10/5` is every fifth from 10 on.
        None if step.is_some() => (value(kind, range)?, kind.last_once()),
        None => {
            let only = value(kind, range)?;
            (only, only)
        }
    };
    if first > last {
        return Err(BadCron::Backwards { field: kind.name, range: shown(range) });
    }
    (first..=last).step_by(usize::from(step.unwrap_or(1))).for_each(|value| set.add(value));
    Ok(())
}

fn step_of(kind: &Kind, step: &str) -> Result<u8, BadCron> {
    let number = step.parse().ok().filter(|_| is_digits(step));
    let number = number.filter(|step| (1..=kind.last).contains(step));
    number.ok_or_else(|| BadCron::Step { field: kind.name, step: shown(step), most: kind.last })
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// As `value`, but a range that ends with `SUN` ends with the Sunday after Saturday.
fn end_value(kind: &Kind, text: &str) -> Result<u8, BadCron> {
    match value(kind, text)? {
        SUNDAY if kind.name == WEEKDAY.name => Ok(SUNDAY_AT_THE_END),
        value => Ok(value),
    }
}

fn value(kind: &Kind, text: &str) -> Result<u8, BadCron> {
    if let Some(index) = kind.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(kind.first + u8::try_from(index).unwrap_or_default());
    }
    let number = text.parse::<u8>().ok().filter(|_| is_digits(text));
    if let Some(value) = number.filter(|value| (kind.first..=kind.last).contains(value)) {
        return Ok(value);
    }
    if text.starts_with(|c: char| c.is_alphabetic()) && !kind.names.is_empty() {
        let advice = advice(text, kind.names, "names");
        return Err(BadCron::Name { field: kind.name, name: shown(text), advice });
    }
    Err(BadCron::Value { field: kind.name, value: shown(text), first: kind.first, last: kind.last })
}

impl Kind {
    /// Returns the last value, without the second name of Sunday.
    fn last_once(&self) -> u8 {
        if self.last == SUNDAY_AT_THE_END { self.last - 1 } else { self.last }
    }
}
