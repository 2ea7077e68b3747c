//! Owns how standing tasks look: their list, one of them, its executions, and the differences to a file.

use downbeat_api::{Execution, ListChange, StandingTask};
use downbeat_core::standing::ChangeKind;
use jiff::Timestamp;

use super::hosts::counts;
use super::run::status_tone;
use super::table::{Cell, Table, Tone, cut, facts_within, one_line, painted, plain};
use super::time::{age, second, short};

/// The columns of a command in a list; `task show` has all of it.
const MOST_OF_COMMAND: usize = 120;

pub(crate) fn standing_task_table(tasks: &[StandingTask], width: Option<usize>) -> String {
    if tasks.is_empty() {
        return "no standing tasks; `downbeat task add NAME --command COMMAND` adds one\n".to_owned();
    }
    let mut table = Table::new(["#", "TASK", "BLOCKING", "TIMEOUT", "SELECTOR", "DOES"])
        .or_short("BLOCKING", "BLOCKS")
        .may_cut("SELECTOR", 10)
        .may_cut("TASK", 12);
    for task in tasks {
        table.row([
            task.order.to_string().into(),
            task.name.as_str().into(),
            if task.blocking { "yes".into() } else { "no".into() },
            short(task.timeout).into(),
            selector(task),
            cut(&one_line(&does(task)), MOST_OF_COMMAND).into(),
        ]);
    }
    table.draw(width)
}

fn selector(task: &StandingTask) -> Cell {
    task.selector
        .as_ref()
        .map_or_else(|| Cell::new("all nodes", Tone::Dim), |selector| selector.as_str().into())
}

/// Renders the action with its params; of a shell command only the command.
fn does(task: &StandingTask) -> String {
    let action = format!("{} {}", task.backend, task.action);
    let params = task.params.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    match task.params.get("command").and_then(|command| command.as_str()) {
        Some(command) if action == "exec shell" => command.to_owned(),
        _ => std::iter::once(action).chain(params).collect::<Vec<_>>().join(" "),
    }
}

pub(crate) fn standing_task_page(task: &StandingTask, now: Timestamp, width: Option<usize>) -> String {
    let blocking = match task.blocking {
        true => "yes: a node on which it fails does none of the tasks after it",
        false => "no: a node on which it fails continues with the next task",
    };
    let at = |time: Timestamp| Cell::from(format!("{} ({} ago)", second(time), age(time, now)));
    let mut lines = vec![
        ("task", task.name.as_str().into()),
        ("id", task.id.to_string().into()),
        ("number", task.order.to_string().into()),
        ("blocking", blocking.into()),
        ("selector", selector(task)),
        ("timeout", task.timeout.to_string().into()),
        ("does", format!("{} {}", task.backend, task.action).into()),
    ];
    lines.extend(task.params.iter().map(|(name, value)| (name.as_str(), Cell::from(plain(value)))));
    lines.extend([("created", at(task.created_at)), ("updated", at(task.updated_at))]);
    facts_within(&lines, width)
}

/// A table of executions, a row for each attempt on a node.
pub(crate) fn attempt_table(executions: &[Execution], now: Timestamp, width: Option<usize>) -> String {
    if executions.is_empty() {
        return "no executions\n".to_owned();
    }
    let mut table = Table::new(["NODE", "ATTEMPT", "STATUS", "CREATED", "DURATION", "EXIT", "DETAIL"])
        .or_short("ATTEMPT", "TRY")
        .or_short("DURATION", "TOOK")
        .may_cut("NODE", 12);
    for execution in executions {
        let why = execution.error.as_ref().or(execution.reason.as_ref());
        table.row([
            execution.node.as_deref().unwrap_or("-").into(),
            execution.attempt.to_string().into(),
            Cell::new(execution.status.as_str(), status_tone(execution.status)),
            format!("{} ago", age(execution.created_at, now)).into(),
            execution.duration.map_or_else(|| "-".to_owned(), short).into(),
            execution.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()).into(),
            Cell::new(why.cloned().unwrap_or_default(), Tone::Dim),
        ]);
    }
    table.draw(width)
}

/// Whether the differences to a file were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    Done,
    DryRun,
}

/// Renders the differences, a line for each task that is not as it was, and their number.
pub(crate) fn list_changes(
    changes: &[ListChange],
    cluster: &str,
    how: Applied,
    width: Option<usize>,
) -> String {
    let of = |kind: ChangeKind| changes.iter().filter(|change| change.change == kind).count() as u64;
    let kept = of(ChangeKind::Keep);
    if kept == changes.len() as u64 {
        return format!("cluster {cluster}: nothing to change, {kept} unchanged\n");
    }
    let mut table = Table::new(["", "#", "TASK", "CHANGE"]).may_cut("TASK", 12);
    for change in changes.iter().filter(|change| change.change != ChangeKind::Keep) {
        let (sign, tone, mut what) = match change.change {
            ChangeKind::Add => ("+", Tone::Good, "added".to_owned()),
            ChangeKind::Update => ("~", Tone::Busy, change.fields.join(", ")),
            ChangeKind::Delete => ("-", Tone::Bad, "deleted".to_owned()),
            ChangeKind::Move => ("↕", Tone::Busy, "moved".to_owned()),
            ChangeKind::Keep => continue,
        };
        if let (Some(from), Some(to)) = (change.from, change.to)
            && from != to
        {
            what.push_str(&format!(" (was {from})"));
        }
        let place = change.to.or(change.from).map_or_else(String::new, |place| place.to_string());
        table.row([Cell::new(sign, tone), place.into(), Cell::new(change.name.as_str(), tone), what.into()]);
    }
    let totals = counts(&[
        (of(ChangeKind::Add), "added"),
        (of(ChangeKind::Update), "changed"),
        (of(ChangeKind::Move), "moved"),
        (of(ChangeKind::Delete), "deleted"),
        (kept, "unchanged"),
    ]);
    let note = match how {
        Applied::Done => "",
        Applied::DryRun => "\na dry run: nothing was changed",
    };
    // The table has no names of columns: its signs explain themselves.
    let rows = table.draw(width);
    let rows = rows.split_once('\n').map_or("", |(_, rows)| rows);
    format!("{rows}{}\n", painted(&format!("cluster {cluster}: {totals}{note}"), Tone::Dim))
}
