//! Owns how the times of schedules look.

use downbeat_core::schedule::{Firing, SkipReason, Skipped, Timetable};
use jiff::Timestamp;
use serde::Serialize;

use super::plural;
use super::table::{Cell, Table, Tone};
use super::time::{age, second};

/// A time of a schedule.
#[derive(Debug, Serialize)]
pub(crate) struct PreviewTime {
    pub(crate) at: Timestamp,
    /// The same time in the zone of the schedule, with its offset.
    pub(crate) local: String,
    pub(crate) timezone: String,
    /// Later than `at` by the jitter.
    pub(crate) starts_at: Timestamp,
}

impl PreviewTime {
    pub(crate) fn of(firing: Firing, table: &Timetable) -> Self {
        let zone = table.zone(firing.schedule);
        Self {
            at: firing.at,
            local: zone.shown(firing.at),
            timezone: zone.name().to_owned(),
            starts_at: firing.due,
        }
    }
}

/// What would happen to missed times.
#[derive(Debug, Default, Serialize)]
pub(crate) struct MissedTimes {
    pub(crate) starts: Vec<PreviewTime>,
    pub(crate) skipped: Vec<SkippedTimes>,
    pub(crate) next: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SkippedTimes {
    reason: SkipReason,
    count: usize,
    first: Timestamp,
    last: Timestamp,
}

impl MissedTimes {
    /// Adds skipped times to those with the same reason.
    pub(crate) fn skip(&mut self, more: &[Skipped]) {
        for Skipped { reason, first, last, count } in more {
            match self.skipped.iter_mut().find(|skipped| skipped.reason == *reason) {
                Some(known) => (known.last, known.count) = (*last, known.count + count),
                None => {
                    let (reason, count, first, last) = (*reason, *count, *first, *last);
                    self.skipped.push(SkippedTimes { reason, count, first, last });
                }
            }
        }
    }
}

pub(crate) fn preview_table(times: &[PreviewTime], now: Timestamp, width: Option<usize>) -> String {
    let jitter = times.iter().any(|time| time.starts_at != time.at);
    let mut head = vec!["TIME", "TIMEZONE", "UTC", "IN"];
    if jitter {
        head.push("STARTS");
    }
    let mut table = Table::new(head);
    for time in times {
        let distance = if time.at > now { age(now, time.at) } else { format!("-{}", age(time.at, now)) };
        let mut row: Vec<Cell> = vec![
            time.local.clone().into(),
            Cell::new(&*time.timezone, Tone::Dim),
            second(time.at).into(),
            Cell::new(distance, Tone::Dim),
        ];
        if jitter {
            row.push(second(time.starts_at).into());
        }
        table.row(row);
    }
    table.draw(width)
}

pub(crate) fn missed_page(missed: &MissedTimes, now: Timestamp, width: Option<usize>) -> String {
    let mut text = match missed.starts.as_slice() {
        [] => "nothing would start now\n".to_owned(),
        starts => format!("would start now:\n{}", preview_table(starts, now, width)),
    };
    for SkippedTimes { reason, count, first, last } in &missed.skipped {
        let why = match reason {
            SkipReason::Paused => "the job is paused",
            SkipReason::TooLate => "too late for the window of catch_up",
            SkipReason::Superseded => "only the latest is caught up",
        };
        let times = plural(u32::try_from(*count).unwrap_or(u32::MAX), "time");
        text.push_str(&format!("skipped: {times} from {} to {}: {why}\n", second(*first), second(*last)));
    }
    if let Some(next) = missed.next {
        text.push_str(&format!("next: {}\n", second(next)));
    }
    text
}

#[cfg(test)]
mod tests {
    use downbeat_core::backend::Catalogue;
    use downbeat_core::schedule::Activity;
    use downbeat_core::spec;

    use super::*;

    fn table(schedule: &str) -> Timetable {
        let text = format!("name: report\nschedule: {schedule}\ntasks: [{{backend: ping, action: ping}}]\n");
        let job = spec::parse(&text, "job.yaml", &Catalogue::builtin()).unwrap();
        Timetable::new("default:report", &job.schedule).unwrap()
    }

    fn shown(schedule: &str, after: &str, count: usize) -> String {
        let (table, after) = (table(schedule), after.parse().unwrap());
        let times: Vec<PreviewTime> =
            table.upcoming(after, count).into_iter().map(|firing| PreviewTime::of(firing, &table)).collect();
        anstream::adapter::strip_str(&preview_table(&times, after, None)).to_string()
    }

    #[test]
    fn the_next_times_of_schedules() {
        let mut text = shown("{cron: 30 2 * * *, timezone: Europe/Berlin}", "2026-03-27T12:00:00Z", 4);
        text.push_str("\nwith jitter, in two zones:\n\n");
        let schedules = "[{cron: 0 9 * * *, timezone: Asia/Tokyo}, {every: 8h, jitter: 30m}]";
        text.push_str(&shown(schedules, "2026-03-27T12:00:00Z", 5));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn what_would_be_caught_up() {
        let mut text = String::new();
        let (since, now) = ("2026-03-27T00:00:00Z".parse().unwrap(), "2026-03-27T05:59:00Z".parse().unwrap());
        for catch_up in ["none", "2h", "{window: 2h, policy: latest}"] {
            let table = table(&format!("{{cron: '*/30 * * * *', catch_up: {catch_up}}}"));
            let decision = table.decide(since, now, Activity::Active);
            let starts = decision.firings.iter().map(|firing| PreviewTime::of(*firing, &table)).collect();
            let mut missed = MissedTimes { starts, next: decision.next, ..MissedTimes::default() };
            missed.skip(&decision.skipped);
            text.push_str(&format!("catch_up: {catch_up}\n{}\n", missed_page(&missed, now, None)));
        }
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    }
}
