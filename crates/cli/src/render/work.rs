//! Owns how a node's executions look.

use downbeat_api::{HeldWork, NodeWork};
use jiff::Timestamp;

use super::node::node_status;
use super::run::{status_tone, task_label};
use super::status::counts;
use super::table::{Cell, Table, Tone, facts};
use super::time::{age, second, short};

/// Renders the executions that a node has leased, and the totals of those that it has finished.
pub(crate) fn work_page(work: &NodeWork, now: Timestamp, width: Option<usize>) -> String {
    let slots = format!("{} of {} free", work.slots.free, work.slots.total);
    let totals = work.totals.iter().map(|(status, count)| (*count, status.as_str(), status_tone(*status)));
    let expired = match work.expired_leases {
        0 => Cell::new("none", Tone::Dim),
        count => Cell::new(count.to_string(), Tone::Bad),
    };
    let ago = |what: &str, at: Option<Timestamp>| at.map(|at| format!("{what} {} ago", age(at, now)));
    let parts = [
        ago("heartbeat", Some(work.heartbeat_at)),
        ago("claim", work.claimed_at),
        ago("result", work.finished_at),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let head = facts(&[
        ("node", work.hostname.as_str().into()),
        ("id", work.id.to_string().into()),
        ("status", node_status(work.status, work.draining)),
        ("slots", slots.into()),
        ("executions", Cell::painted(counts(totals))),
        ("expired leases", expired),
        ("last active", format!("{} ({})", second(work.active_at), parts.join(", ")).into()),
    ]);
    if work.held.is_empty() {
        return format!("{head}\nno leased executions\n");
    }
    let mut table =
        Table::new(["RUN", "JOB", "STEP", "TASK", "ATTEMPT", "STATUS", "LEASED", "EXPIRES IN", "NAME"]);
    for held in &work.held {
        table.row(row(held));
    }
    format!("{head}\n{}", table.draw(width))
}

fn row(held: &HeldWork) -> [Cell; 9] {
    let status =
        if held.stopping { format!("{}, stopping", held.status) } else { held.status.as_str().to_owned() };
    let expires = if held.expires_in.is_zero() {
        Cell::new("overdue", Tone::Bad)
    } else {
        Cell::from(short(held.expires_in))
    };
    [
        held.run.as_ref().map_or_else(|| Cell::new("standing", Tone::Dim), |run| run.to_string().into()),
        held.job.as_deref().map_or_else(|| Cell::new("-", Tone::Dim), Cell::from),
        held.step.to_string().into(),
        task_label(&held.task, held.item).into(),
        held.attempt.to_string().into(),
        Cell::new(status, status_tone(held.status)),
        format!("{} ago", short(held.lease_age)).into(),
        expires,
        held.name.as_str().into(),
    ]
}
