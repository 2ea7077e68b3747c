//! Owns how runs look: a row in a list, a line, and the page with every step on every node.

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::run::RunStatus;
use downbeat_server::http::view::{InstanceResult, Plan, Run, RunSummary};
use jiff::Timestamp;

use super::table::{Cell, Table, Tone, facts, painted};
use super::time::{age, elapsed, second, short};

/// Hostnames that are listed one by one before they are only counted.
const MOST_HOSTNAMES: usize = 8;

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
            Cell::new(run.error.as_deref().unwrap_or_default(), Tone::Dim),
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

/// A run with every step on every node.
pub(crate) fn run_page(run: &Run, plan: &Plan, now: Timestamp, width: Option<usize>) -> String {
    let summary = &run.summary;
    let created =
        format!("{} ({} ago) by {}", second(summary.created_at), age(summary.created_at, now), summary.by);
    let mut rows = vec![
        ("run", summary.id.as_str().into()),
        ("job", summary.job.as_deref().unwrap_or("-").into()),
        ("status", status(summary)),
        ("state", summary.state.as_str().into()),
        ("target", target(&run.expected).into()),
        ("created", created.into()),
        ("duration", duration(summary, now).into()),
    ];
    if let Some(error) = &summary.error {
        rows.push(("error", Cell::new(error.as_str(), Tone::Bad)));
    }
    format!("{}\n{}{}", facts(&rows), results(run, plan, width), waiting(run))
}

fn target(expected: &[String]) -> String {
    match expected.len() {
        0 => "placed".to_owned(),
        1 => expected[0].clone(),
        count if count <= MOST_HOSTNAMES => format!("{count} nodes: {}", expected.join(", ")),
        count => format!("{count} nodes: {}, …", expected[..MOST_HOSTNAMES].join(", ")),
    }
}

fn results(run: &Run, plan: &Plan, width: Option<usize>) -> String {
    let mut table = Table::new(["STEP", "TASK", "NODE", "STATUS", "ATTEMPTS", "DURATION", "EXIT", "DETAIL"]);
    for step in &plan.steps {
        let number = step.index.to_string();
        match run.results.get(&step.index).filter(|results| !results.is_empty()) {
            Some(results) => {
                for (node, result) in results {
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
        Cell::new(result.error.as_deref().or(result.reason.as_deref()).unwrap_or_default(), Tone::Dim),
    ]
}

/// Attempts that a node was asked to make: the last one was not if it waits, was withdrawn, or failed without
/// being sent.
pub(super) fn attempts_made(result: &InstanceResult) -> u32 {
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
    let text = match (run.partial, run.cancel_requested_at.is_some() && run.finished_at.is_none()) {
        (_, true) => format!("{}, cancelling", run.status),
        (true, false) => format!("{} (partial)", run.status),
        (false, false) => run.status.to_string(),
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
