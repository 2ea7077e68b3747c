//! Owns how backfills look.

use downbeat_api::Backfill;
use jiff::Timestamp;

use super::hosts::plural;
use super::table::{Cell, Table, Tone, facts_within};
use super::time::{age, second};

fn status(backfill: &Backfill) -> Cell {
    let tone = match backfill.status.as_str() {
        "completed" => Tone::Good,
        "failed" => Tone::Bad,
        "cancelled" => Tone::Dim,
        _ => Tone::Busy,
    };
    Cell::new(backfill.status.as_str(), tone)
}

/// Renders the counts of a backfill in one line.
fn counts(backfill: &Backfill) -> String {
    let all = [
        (backfill.succeeded, "succeeded"),
        (backfill.failed, "failed"),
        (backfill.cancelled, "cancelled"),
        (backfill.existing, "existed before"),
        (backfill.refused, "refused"),
        (backfill.running, "running"),
        (backfill.left, "left"),
    ];
    let shown = all.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    shown.collect::<Vec<_>>().join(", ")
}

/// Renders the progress of a backfill as a line.
pub(crate) fn backfill_progress(backfill: &Backfill) -> String {
    let times = plural(backfill.times, "time");
    format!("backfill {} of job {}: {times}: {}", backfill.id, backfill.job, counts(backfill))
}

pub(crate) fn backfill_table(backfills: &[Backfill], now: Timestamp, width: Option<usize>) -> String {
    if backfills.is_empty() {
        return "no backfills; `downbeat job backfill NAME --from TIME --to TIME` starts one".to_owned();
    }
    let mut table =
        Table::new(["BACKFILL", "STATUS", "CREATED", "FROM", "TIMES", "FAILED", "RUNNING", "LEFT"]);
    for backfill in backfills {
        table.row([
            backfill.id.to_string().into(),
            status(backfill),
            format!("{} ago", age(backfill.created_at, now)).into(),
            second(backfill.from).into(),
            backfill.times.to_string().into(),
            (backfill.failed + backfill.refused).to_string().into(),
            backfill.running.to_string().into(),
            backfill.left.to_string().into(),
        ]);
    }
    table.draw(width)
}

pub(crate) fn backfill_page(backfill: &Backfill, now: Timestamp, width: Option<usize>) -> String {
    let at = |time: Timestamp| format!("{} ({} ago)", second(time), age(time, now));
    let mut facts: Vec<(&str, Cell)> = vec![
        ("backfill", backfill.id.to_string().into()),
        ("job", format!("{}, version {}", backfill.job, backfill.job_version).into()),
        ("cluster", backfill.cluster_name.as_str().into()),
        ("status", status(backfill)),
        ("range", format!("from {} to {}", second(backfill.from), second(backfill.to)).into()),
        ("created", format!("{} by {}", at(backfill.created_at), backfill.by).into()),
    ];
    if let Some(ended) = backfill.ended_at {
        facts.push(("ended", at(ended).into()));
    }
    if let Some(by) = &backfill.cancelled_by {
        facts.push(("cancelled", format!("by {by}").into()));
    }
    let again = if backfill.again { ", also those that ran before" } else { "" };
    facts.push(("times", format!("{}, {} at once{again}", backfill.times, backfill.parallel).into()));
    facts.push(("progress", counts(backfill).into()));
    if let Some(refusal) = &backfill.last_refusal {
        facts.push(("refused", Cell::new(refusal.clone(), Tone::Bad)));
    }
    facts.extend(backfill.open.iter().map(|run| ("running", run.as_str().into())));
    facts_within(&facts, width)
}

/// Renders the times of a dry run.
pub(crate) fn backfill_plan(backfill: &Backfill) -> String {
    let mut lines: Vec<String> = backfill.planned.iter().map(|time| second(*time)).collect();
    lines.push(format!("{} of job {}; nothing was started", plural(backfill.times, "time"), backfill.job));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backfill(changes: &Value) -> Backfill {
        let mut backfill = json!({
            "id": "0197f3c0-0000-7000-8000-070000000001", "job": "report", "job_version": 3,
            "cluster": "0d0bea70-0000-7000-8000-000000000001", "cluster_name": "default", "status": "running",
            "from": "2025-05-01T00:00:00Z", "to": "2025-05-08T00:00:00Z", "parallel": 2, "again": false, "by": "ada",
            "created_at": "2025-06-01T10:00:00Z", "ended_at": null, "cancelled_by": null, "times": 7, "succeeded": 2,
            "failed": 1, "cancelled": 0, "existing": 1, "refused": 0, "running": 2, "left": 1,
            "open": ["default:report:2025-05-05T03:00:00Z", "default:report:2025-05-06T03:00:00Z"],
        });
        backfill.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(backfill).unwrap()
    }

    #[test]
    fn the_progress_of_a_backfill() {
        let now: Timestamp = "2025-06-01T10:05:00Z".parse().unwrap();
        let (running, ended) = (
            backfill(&json!({})),
            backfill(&json!({
                "status": "cancelled", "ended_at": "2025-06-01T10:04:00Z", "cancelled_by": "bob", "again": true,
                "cancelled": 2, "existing": 0, "refused": 1, "running": 0, "open": [],
                "last_refusal": "2025-05-04T03:00:00Z: no node matches",
            })),
        );
        let planned =
            backfill(&json!({"planned": ["2025-05-01T03:00:00Z", "2025-05-02T03:00:00Z"], "times": 2}));
        let pages = [
            backfill_page(&running, now, Some(80)),
            backfill_page(&ended, now, Some(80)),
            backfill_table(&[running.clone(), ended.clone()], now, None),
            backfill_progress(&running),
            backfill_progress(&ended),
            backfill_plan(&planned),
            backfill_table(&[], now, None),
        ];
        insta::assert_snapshot!(pages.join("\n---\n"));
    }
}
