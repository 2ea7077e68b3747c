//! `schedule preview`: the next times of schedules, and what would be caught up after an outage.

use clap::Args;
use downbeat_core::backend::Catalogue;
use downbeat_core::schedule::{Activity, Timetable};
use downbeat_core::shown::shown;
use downbeat_core::spec::{self, Schedule};
use downbeat_core::{limits, schedule};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::exit::{Failure, Result};
use crate::job::JobFile;
use crate::out::Out;
use crate::render::{MissedTimes, PreviewTime, missed_page, preview_table};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        downbeat schedule preview --cron '0 3 * * MON-FRI' --timezone Europe/Berlin --count 20\n  \
        downbeat schedule preview --cron '@every 5m'\n  \
        downbeat schedule preview --file report.yaml\n  \
        downbeat schedule preview --file report.yaml --missed-since 2026-03-01T00:00:00Z")]
pub(crate) struct PreviewArgs {
    /// Cron expression (minute hour day month weekday, optionally the second first), @daily and the like, or @every 5m
    #[arg(long, value_name = "CRON", required_unless_present = "file")]
    cron: Option<String>,
    /// Time zone of the expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    timezone: Option<String>,
    /// Job file with a schedule, instead of an expression; `-` reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["cron", "timezone"])]
    file: Option<String>,
    /// How many times to show
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
    /// Show times after this one instead of now, such as 2026-03-28T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    after: Option<Timestamp>,
    /// Job file: show what would start now if no server had run since this time, at most 30 days ago
    #[arg(long, value_name = "TIME", value_parser = time, requires = "file", conflicts_with_all = ["after", "cron"])]
    missed_since: Option<Timestamp>,
}

/// Reads a time of an argument.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| {
        "write a time with its zone: 2026-03-28T00:00:00Z or 2026-03-28T01:00:00+01:00".to_owned()
    })
}

pub(super) fn run(args: &PreviewArgs, out: Out) -> Result {
    let now = Timestamp::now();
    let (schedules, key) = match &args.file {
        Some(file) => of_file(file)?,
        None => (vec![of_expression(args)?], String::new()),
    };
    let table = Timetable::new(key, &schedules).map_err(|error| Failure::bad_input(error.to_string()))?;
    if let Some(since) = args.missed_since {
        return missed(&table, since, now, out);
    }
    let times: Vec<PreviewTime> = table
        .upcoming(args.after.unwrap_or(now), usize::from(args.count))
        .into_iter()
        .map(|firing| PreviewTime::of(firing, &table))
        .collect();
    if times.is_empty() {
        return Err(Failure::bad_input("the schedule never fires"));
    }
    out.result(&json!({ "data": times }), || preview_table(&times, now, out.width()))
}

fn of_expression(args: &PreviewArgs) -> Result<Schedule> {
    let cron = args.cron.as_deref().unwrap_or_default();
    let rule: schedule::Rule =
        cron.parse().map_err(|error| Failure::bad_input(format!("--cron `{}`: {error}", shown(cron))))?;
    let zone = args.timezone.as_deref().map(schedule::Zone::named).transpose();
    let zone = zone.map_err(|error| Failure::bad_input(format!("--timezone: {error}")))?;
    Ok(Schedule::new(&rule, zone.as_ref()))
}

/// Reads the schedules of a job file, and the key of the job.
fn of_file(path: &str) -> Result<(Vec<Schedule>, String)> {
    let file = JobFile::read(path)?;
    let definition =
        spec::parse_bytes(&file.bytes, &file.name, &Catalogue::builtin()).map_err(|problems| {
            Failure::bad_input(format!("{} is not valid", file.name))
                .with_details(problems.iter().map(|problem| problem.render(&file.name)).collect())
        })?;
    if definition.schedule.is_empty() {
        return Err(Failure::bad_input(format!("{} has no `schedule`", file.name)));
    }
    let key = schedule::key(definition.cluster.as_deref(), definition.name.as_deref().unwrap_or_default());
    Ok((definition.schedule, key))
}

fn missed(table: &Timetable, since: Timestamp, now: Timestamp, out: Out) -> Result {
    let longest = SignedDuration::from_secs(i64::try_from(limits::CATCH_UP_MOST_S).unwrap_or(i64::MAX));
    if now.duration_since(since) > longest || since > now {
        return Err(Failure::bad_input("--missed-since must be a time in the last 30 days"));
    }
    let mut missed = MissedTimes::default();
    let mut decided = since;
    loop {
        let decision = table.decide(decided, now, Activity::Active);
        decided = decision.decided;
        missed.starts.extend(decision.firings.iter().map(|firing| PreviewTime::of(*firing, table)));
        missed.skip(&decision.skipped);
        missed.next = decision.next;
        if decision.next.is_none_or(|next| next > now) {
            break;
        }
    }
    out.result(&missed, || missed_page(&missed, now, out.width()))
}
