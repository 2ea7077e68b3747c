//! Owns how stored jobs look.

use std::time::Duration;

use downbeat_api::{AppliedJob, Difference, Job, RunRow};
use downbeat_core::run::RunStatus;
use jiff::Timestamp;
use serde_json::Value;

use super::hosts::plural;
use super::table::{Cell, Table, Tone, facts_within, or_dash};
use super::time::{age, second, short};

/// The bytes of a value in a line about a difference.
const VALUE_MOST: usize = 200;
/// The columns of the longest bar of a chart.
const BAR: usize = 24;

pub(crate) fn job_table(jobs: &[Job], now: Timestamp, width: Option<usize>) -> String {
    if jobs.is_empty() {
        return "no stored jobs; `downbeat job apply -f FILE` stores one".to_owned();
    }
    let mut table =
        Table::new(["JOB", "CLUSTER", "VERSION", "CHANGED", "SCHEDULES", "NEXT"]).may_cut("JOB", 12);
    for job in jobs {
        table.row([
            job.name.as_str().into(),
            job.cluster_name.as_str().into(),
            job.version.to_string().into(),
            format!("{} ago", age(job.updated_at, now)).into(),
            job.schedule.len().to_string().into(),
            next(job),
        ]);
    }
    table.draw(width)
}

/// Renders the next start of a job.
fn next(job: &Job) -> Cell {
    if job.paused {
        return Cell::new("paused", Tone::Busy);
    }
    or_dash(job.next.first().map(|next| second(next.starts_at)).unwrap_or_default())
}

pub(crate) fn job_page(job: &Job, now: Timestamp, width: Option<usize>) -> String {
    let at = |time: Timestamp| format!("{} ({} ago)", second(time), age(time, now));
    let mut facts: Vec<(&str, Cell)> = vec![
        ("job", job.name.as_str().into()),
        ("cluster", job.cluster_name.as_str().into()),
        ("version", format!("{}, {} by {}", job.version, at(job.updated_at), job.by).into()),
        ("created", at(job.created_at).into()),
    ];
    for schedule in &job.schedule {
        facts.push(("schedule", schedule.to_string().into()));
    }
    for trigger in &job.triggers {
        facts.push(("trigger", trigger.to_string().into()));
    }
    for hook in &job.hooks {
        facts.push(("hook", format!("POST {hook}").into()));
    }
    if let Some(paused) = job.paused_at {
        let resumes = "resumes its schedules and triggers";
        let text = format!("{}; `downbeat job resume {}` {resumes}", at(paused), job.name);
        facts.push(("paused", Cell::new(text, Tone::Busy)));
    }
    for next in &job.next {
        let delayed = if next.starts_at == next.at {
            String::new()
        } else {
            format!(" (jitter: starts at {})", second(next.starts_at))
        };
        facts.push(("next", format!("{}{delayed}", second(next.at)).into()));
    }
    if job.versions.len() > 1 {
        let versions = job.versions.iter().map(|one| one.version.to_string()).collect::<Vec<_>>();
        facts.push(("versions", versions.join(", ").into()));
    }
    facts_within(&facts, width)
}

/// Renders what applying jobs did, or would do.
pub(crate) fn applied_lines(applied: &[AppliedJob], deleted: &[String], dry_run: bool) -> String {
    let mut lines = Vec::new();
    for AppliedJob { outcome, job, differences } in applied {
        let would = match (outcome.as_str(), dry_run) {
            ("unchanged", _) => format!("job {}: unchanged, version {}", job.name, job.version),
            (outcome, true) => format!("job {}: would be {outcome}: version {}", job.name, job.version),
            (outcome, false) => format!("job {}: {outcome}: version {}", job.name, job.version),
        };
        lines.push(would);
        if !differences.is_empty() {
            lines.push(difference_lines(differences));
        }
    }
    let how = if dry_run { "would be deleted" } else { "deleted" };
    lines.extend(deleted.iter().map(|name| format!("job {name}: {how}")));
    lines.join("\n")
}

pub(crate) fn difference_lines(differences: &[Difference]) -> String {
    let value = |value: &Value| {
        let text = value.to_string();
        super::table::cut(&text, VALUE_MOST)
    };
    let line = |one: &Difference| match (&one.before, &one.after) {
        (Some(before), Some(after)) => format!("  ~ {}: {} → {}", one.path, value(before), value(after)),
        (Some(before), None) => format!("  - {}: {}", one.path, value(before)),
        (None, Some(after)) => format!("  + {}: {}", one.path, value(after)),
        (None, None) => format!("  ~ {}", one.path),
    };
    differences.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Renders the runs of a job, the newest first, each with a bar of its duration.
pub(crate) fn history_page(job: &str, runs: &[RunRow], now: Timestamp, width: Option<usize>) -> String {
    if runs.is_empty() {
        return format!("job {job} has no runs");
    }
    let duration = |run: &RunRow| run.summary.duration.map(|span| span.0);
    let longest = runs.iter().filter_map(duration).max().unwrap_or_default();
    let mut table = Table::new(["RUN", "VERSION", "STATUS", "CREATED", "DURATION", ""]);
    for run in runs {
        let summary = &run.summary;
        let tone = match summary.status {
            RunStatus::Completed => Tone::Good,
            RunStatus::Failed => Tone::Bad,
            RunStatus::Cancelled => Tone::Dim,
            RunStatus::Pending | RunStatus::Running => Tone::Busy,
        };
        table.row([
            summary.id.as_str().into(),
            or_dash(summary.job_version.map(|version| version.to_string()).unwrap_or_default()),
            Cell::new(summary.status.as_str(), tone),
            format!("{} ago", age(summary.created_at, now)).into(),
            or_dash(summary.duration.map(short).unwrap_or_default()),
            Cell::new(duration(run).map(|took| bar(took, longest)).unwrap_or_default(), tone),
        ]);
    }
    let count = runs.iter().filter(|run| run.summary.status == RunStatus::Completed).count();
    let ended = runs.iter().filter(|run| run.summary.finished_at.is_some()).count();
    format!("{}\n{} of {} completed", table.draw(width), count, plural(ended as u64, "ended run"))
}

/// Returns a bar whose length is the part of the longest duration.
fn bar(took: Duration, longest: Duration) -> String {
    let part = if longest.is_zero() { 0.0 } else { took.as_secs_f64() / longest.as_secs_f64() };
    // At most the longest bar, at least one character.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 24")]
    let length = (part * BAR as f64).round() as usize;
    "█".repeat(length.clamp(1, BAR))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part_of_the_longest() {
        let bar =
            |took, longest| bar(Duration::from_secs(took), Duration::from_secs(longest)).chars().count();
        assert_eq!([bar(10, 10), bar(5, 10), bar(0, 10), bar(0, 0)], [BAR, BAR / 2, 1, 1]);
    }

    #[test]
    fn differences_are_lines() {
        let one = |path: &str, before, after| Difference { path: path.to_owned(), before, after };
        let lines = difference_lines(&[
            one("a", Some(json!(1)), Some(json!("x"))),
            one("b", None, Some(json!({"c": 1}))),
            one("d", Some(json!([])), None),
        ]);
        assert_eq!(lines, "  ~ a: 1 → \"x\"\n  + b: {\"c\":1}\n  - d: []");
    }
}
