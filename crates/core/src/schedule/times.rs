//! Finds the moments of one schedule: its rule, in its time zone, without the days that it leaves out.

use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};

use super::{Cron, Days, Rule, Zone};

/// How many days a search for an interval covers: more than a year in which every day is left out.
const DAYS_SEARCHED: u32 = 3 * 366;

/// The moments of one schedule, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    rule: Rule,
    zone: Zone,
    left_out: Days,
}

impl Times {
    pub fn new(rule: Rule, zone: Zone, left_out: Days) -> Self {
        Self { rule, zone, left_out }
    }

    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Returns the first moment after this one. Returns `None` if there is none for many years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            Rule::Cron(cron) => self.next_of_cron(cron, after),
            Rule::Every(seconds) => self.next_of_interval(i64::try_from(*seconds).ok()?, after),
        }
    }

    /// Returns all moments after this one.
    pub fn after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next(after), |last| self.next(*last))
    }

    fn next_of_cron(&self, cron: &Cron, after: Timestamp) -> Option<Timestamp> {
        // No earlier local time has a later moment.
        let mut from = second_after(self.zone.local(after))?;
        loop {
            let found = cron.next(from, |date| self.left_out.has(date))?;
            let at = self.zone.moment(found)?;
            if at > after {
                return Some(at);
            }
            // Clocks repeat an hour, and this time of it was used when it was first reached; or clocks skipped this time,
            // and `after` is the moment of all skipped times.
            from = second_after(found)?;
        }
    }

    fn next_of_interval(&self, interval: i64, after: Timestamp) -> Option<Timestamp> {
        let mut after = after;
        for _ in 0..DAYS_SEARCHED {
            let count = after.as_second().div_euclid(interval) + 1;
            let at = Timestamp::from_second(count.checked_mul(interval)?).ok()?;
            let date = self.zone.local(at).date();
            if !self.left_out.has(date) {
                return Some(at);
            }
            let next_day = self.zone.start_of(date.tomorrow().ok()?)?;
            after = at.max(next_day.checked_sub(SignedDuration::from_nanos(1)).ok()?);
        }
        None
    }
}

/// Returns the next whole second.
fn second_after(local: DateTime) -> Option<DateTime> {
    const NANOS: i64 = 1_000_000_000;
    let nanos = NANOS - i64::from(local.subsec_nanosecond());
    local.checked_add(SignedDuration::from_nanos(nanos)).ok()
}
