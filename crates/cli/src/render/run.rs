//! Owns how runs look: a row in a list, a line, and the page with every step on every node.

use std::collections::BTreeSet;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::run::RunStatus;
use downbeat_server::http::view::{InstanceResult, Plan, Run, RunSummary};
use jiff::Timestamp;

use super::hosts::{Rows, hosts};
use super::progress::Tally;
use super::rollout::{standing, waves};
use super::table::{Cell, Table, Tone, facts, painted};
use super::time::{age, elapsed, second, short};

/// More instances than this are only counted, except those that went wrong.
const MOST_INSTANCES: usize = 60;
/// Of those that went wrong, how many are shown.
const MOST_FAILURES: usize = 40;

/// Runs, as the server ordered them.
pub(crate) fn run_table(runs: &[RunSummary], now: Timestamp, width: Option<usize>) -> String {
    if runs.is_empty() {
        return "no runs\n".to_owned();
    }
    let mut table = Table::new(["RUN", "JOB", "STATUS", "STEPS", "NODES", "DURATION", "AGE", "ERROR"]);
    for run in runs {
        table.row([
            run.id.as_str().into(),
            run.job.as_deref().unwrap_or("-").into(),
            status(run),
            run.steps.to_string().into(),
            run.nodes.to_string().into(),
            duration(run, now).into(),
            age(run.created_at, now).into(),
            Cell::new(
                run.error.as_ref().or(run.pending_reason.as_ref()).map_or("", String::as_str),
                Tone::Dim,
            ),
        ]);
    }
    table.draw(width)
}

/// One line that says how a run stands.
pub(crate) fn run_line(run: &RunSummary, now: Timestamp) -> String {
    let name = run.job.as_deref().map(|job| format!(" ({job})")).unwrap_or_default();
    let took = duration(run, now);
    let took = if took == "-" {
        String::new()
    } else if run.finished_at.is_some() {
        format!(" in {took}")
    } else {
        format!(" for {took}")
    };
    let error =
        run.error.as_deref().map(|error| format!(": {}", super::table::one_line(error))).unwrap_or_default();
    let (text, tone) = told(run);
    format!("run {}{name} {}{took}{error}", run.id, painted(&text, tone))
}

/// A run with every step on every node, or with the counts of each step when there are many.
pub(crate) fn run_page(run: &Run, plan: &Plan, rows: Rows, now: Timestamp, width: Option<usize>) -> String {
    let mut text = facts(&head(run, rows, now));
    if let Some(rollout) = &run.rollout {
        text.push_str(&format!("\n{}", waves(rollout, rows, width)));
    }
    let untouched: BTreeSet<&str> = match rows {
        Rows::All => BTreeSet::new(),
        // They are named below, and there is nothing else to say of them.
        Rows::Few => run.untouched.iter().map(String::as_str).collect(),
    };
    let shown = |node: &str| !untouched.contains(node);
    let instances = run.results.values().flat_map(|nodes| nodes.keys()).filter(|node| shown(node)).count();
    if rows == Rows::All || instances <= MOST_INSTANCES {
        text.push_str(&format!("\n{}", results(run, plan, shown, width)));
    } else {
        text.push_str(&format!("\n{}", counted(run, plan, width)));
        text.push_str(&failures(run, plan, width));
    }
    text.push_str(&waiting(run));
    if !run.untouched.is_empty() {
        text.push_str(&format!("\nnever touched: {}\n", hosts(&run.untouched, rows)));
    }
    text.push_str(&again(run));
    text
}

fn head(run: &Run, rows: Rows, now: Timestamp) -> Vec<(&'static str, Cell)> {
    let summary = &run.summary;
    let created =
        format!("{} ({} ago) by {}", second(summary.created_at), age(summary.created_at, now), summary.by);
    let mut head = vec![
        ("run", summary.id.as_str().into()),
        ("job", summary.job.as_deref().unwrap_or("-").into()),
        ("status", status(summary)),
        ("state", summary.state.as_str().into()),
        ("target", target(&run.expected, rows).into()),
    ];
    if let Some(rollout) = &run.rollout {
        let tone = if rollout.failed > rollout.budget { Tone::Bad } else { Tone::Plain };
        head.push(("rollout", Cell::new(standing(rollout), tone)));
    }
    if !run.params.is_empty() {
        let params = run.params.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        head.push(("params", params.collect::<Vec<_>>().join(" ").into()));
    }
    if let Some(first) = &summary.retry_of {
        head.push(("retry of", first.as_str().into()));
    }
    head.push(("created", created.into()));
    if let (true, Some(at)) = (summary.paused, summary.paused_at) {
        let text =
            format!("{} ({} ago); `downbeat run resume {}` goes on", second(at), age(at, now), summary.id);
        head.push(("paused", Cell::new(text, Tone::Busy)));
    }
    if let Some(reason) = &summary.pending_reason {
        head.push(("waits", Cell::new(reason.as_str(), Tone::Busy)));
    }
    head.push(("duration", duration(summary, now).into()));
    if let Some(error) = &summary.error {
        head.push(("error", Cell::new(error.as_str(), Tone::Bad)));
    }
    head
}

fn target(expected: &[String], rows: Rows) -> String {
    match expected.len() {
        0 => "placed".to_owned(),
        1 => expected[0].clone(),
        count => format!("{count} nodes: {}", hosts(expected, rows)),
    }
}

fn results(run: &Run, plan: &Plan, shown: impl Fn(&str) -> bool, width: Option<usize>) -> String {
    let mut table = Table::new(["STEP", "TASK", "NODE", "STATUS", "ATTEMPTS", "DURATION", "EXIT", "DETAIL"]);
    for step in &plan.steps {
        let number = step.index.to_string();
        match run.results.get(&step.index).filter(|results| !results.is_empty()) {
            Some(results) => {
                for (node, result) in results.iter().filter(|(node, _)| shown(node)) {
                    table.row(instance(&number, &step.name, node, result));
                }
            }
            None => {
                let text = if run.summary.state.is_terminal() { "not reached" } else { "pending" };
                let blank = || Cell::from("-");
                table.row([
                    number.as_str().into(),
                    step.name.as_str().into(),
                    blank(),
                    Cell::new(text, Tone::Dim),
                    blank(),
                    blank(),
                    blank(),
                    "".into(),
                ]);
            }
        }
    }
    table.draw(width)
}

/// A row per step: how many of its instances stand where.
fn counted(run: &Run, plan: &Plan, width: Option<usize>) -> String {
    let mut table = Table::new([
        "STEP",
        "TASK",
        "NODES",
        "SUCCEEDED",
        "FAILED",
        "SKIPPED",
        "CANCELLED",
        "OPEN",
        "LONGEST",
    ]);
    for step in &plan.steps {
        let tally = Tally::of(step, run, |_, _| false);
        let count = |count: u64, tone| match count {
            0 => Cell::new("-", Tone::Dim),
            count => Cell::new(count.to_string(), tone),
        };
        table.row([
            step.index.to_string().into(),
            step.name.as_str().into(),
            tally.wanted.to_string().into(),
            count(tally.succeeded, Tone::Good),
            count(tally.failed, Tone::Bad),
            count(tally.skipped, Tone::Dim),
            count(tally.cancelled, Tone::Bad),
            count(tally.wanted.saturating_sub(tally.ended()), Tone::Busy),
            tally.longest.map_or_else(|| "-".to_owned(), short).into(),
        ]);
    }
    table.draw(width)
}

/// The instances that went wrong; the first of them.
fn failures(run: &Run, plan: &Plan, width: Option<usize>) -> String {
    let mut table = Table::new(["STEP", "TASK", "NODE", "STATUS", "ATTEMPTS", "DURATION", "EXIT", "DETAIL"]);
    let wrong =
        |result: &InstanceResult| matches!(result.status, Status::Failed | Status::Lost | Status::Cancelled);
    let mut found = 0;
    for step in &plan.steps {
        let results = run.results.get(&step.index).into_iter().flatten();
        for (node, result) in results.filter(|(_, result)| wrong(result)) {
            found += 1;
            if found <= MOST_FAILURES {
                table.row(instance(&step.index.to_string(), &step.name, node, result));
            }
        }
    }
    let all = format!("`downbeat run show {} --all` shows every node\n", run.summary.id);
    match found {
        0 => format!("\n{all}"),
        found if found > MOST_FAILURES => {
            format!("\n{}\n{} more went wrong; {all}", table.draw(width), found - MOST_FAILURES)
        }
        _ => format!("\n{}\n{all}", table.draw(width)),
    }
}

/// How to go on with a run that did not end well.
fn again(run: &Run) -> String {
    let (summary, id) = (&run.summary, &run.summary.id);
    let well = summary.status == RunStatus::Completed && !summary.partial;
    if well || !summary.state.is_terminal() {
        return String::new();
    }
    let failed = run.counts.failed + run.counts.lost > 0;
    let nodes = if failed && !run.expected.is_empty() {
        format!("downbeat run retry {id} --failed-only   # the failed nodes only\n")
    } else {
        String::new()
    };
    format!("\ndownbeat run retry {id}   # what did not succeed; what did is kept\n{nodes}")
}

/// A value as it was written: texts without their quotes.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn instance(step: &str, task: &str, node: &str, result: &InstanceResult) -> [Cell; 8] {
    [
        step.into(),
        task.into(),
        node.into(),
        Cell::new(result.status.as_str(), status_tone(result.status)),
        match attempts_made(result) {
            0 => "-".into(),
            made => made.to_string().into(),
        },
        result.duration.map_or_else(|| "-".to_owned(), short).into(),
        result.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()).into(),
        Cell::new(detail(result), Tone::Dim),
    ]
}

/// Why it stands where it does, or what it said.
fn detail(result: &InstanceResult) -> String {
    if let Some(why) = result.error.as_ref().or(result.reason.as_ref()) {
        return why.clone();
    }
    let said = result.outputs.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    let reused = result.reused.map(|_| "reused".to_owned());
    reused.into_iter().chain(said).collect::<Vec<_>>().join(" ")
}

/// Attempts that a node was asked to make: the last one was not if it waits, was withdrawn, or failed without
/// being sent.
pub(super) fn attempts_made(result: &InstanceResult) -> u32 {
    if result.reused.is_some() {
        return 0;
    }
    let sent = match result.status {
        Status::Pending | Status::Skipped => false,
        Status::Failed => result.duration.is_some(),
        Status::Leased | Status::Running | Status::Succeeded | Status::Cancelled | Status::Lost => true,
    };
    if sent { result.attempts } else { result.attempts.saturating_sub(1) }
}

fn waiting(run: &Run) -> String {
    let mut text = String::new();
    for step in &run.waiting {
        text.push_str(&format!("\nstep {} ({}) waits for a node:\n", step.step, step.task));
        if step.nodes.is_empty() {
            text.push_str("  no node has registered\n");
        }
        for node in &step.nodes {
            text.push_str(&format!("  {}: {}\n", node.node, node.reason));
        }
    }
    text
}

fn status(run: &RunSummary) -> Cell {
    let (text, tone) = told(run);
    Cell::new(text, tone)
}

fn told(run: &RunSummary) -> (String, Tone) {
    let tone = match run.status {
        RunStatus::Completed => Tone::Good,
        RunStatus::Failed | RunStatus::Cancelled => Tone::Bad,
        RunStatus::Running => Tone::Busy,
        RunStatus::Pending => Tone::Dim,
    };
    let cancelling = run.cancel_requested_at.is_some() && run.finished_at.is_none();
    let text = match (run.partial, cancelling, run.paused) {
        (_, true, _) => format!("{}, cancelling", run.status),
        (_, _, true) => format!("{}, paused", run.status),
        (true, ..) => format!("{} (partial)", run.status),
        (false, ..) => run.status.to_string(),
    };
    (text, tone)
}

pub(super) fn status_tone(status: Status) -> Tone {
    match status {
        Status::Succeeded => Tone::Good,
        Status::Failed | Status::Lost | Status::Cancelled => Tone::Bad,
        Status::Leased | Status::Running => Tone::Busy,
        Status::Pending | Status::Skipped => Tone::Dim,
    }
}

/// From start to end, or up to now.
fn duration(run: &RunSummary, now: Timestamp) -> String {
    match (run.duration, run.started_at) {
        (Some(duration), _) => short(duration),
        (None, Some(started)) if run.finished_at.is_none() => short(Span(elapsed(started, now))),
        (None, _) => "-".to_owned(),
    }
}
