//! Owns how the matrix of nodes and standing tasks looks: a row per node, a sign per task.

use downbeat_api::{StandingTask, Walk};
use downbeat_core::standing::{Cell as Sign, WalkState};

use super::node::node_status;
use super::table::{Cell, NARROWEST_COLUMN, Table, Tone, or_dash, painted, wrapped};

/// Signs stand in groups, so that the number of a task can be counted.
const GROUP: usize = 10;
/// Joins a number and its name, so that they are not wrapped.
const JOINED: &str = "\u{a0}";
/// More tasks than this are not listed below the matrix.
const MOST_LISTED: usize = 40;

pub(crate) fn walk_page(tasks: &[StandingTask], walks: &[Walk], width: Option<usize>) -> String {
    if walks.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut table = Table::new(["NODE", "STATUS", "STATE", "STUCK AT", "TASKS"])
        .may_cut("STUCK AT", 8)
        .may_cut("NODE", 12);
    let ruler = grouped(&(1..=tasks.len()).map(|number| digit(number % 10)).collect::<Vec<_>>());
    let none = || Cell::new("", Tone::Dim);
    table.row([none(), none(), none(), none(), Cell::new(ruler, Tone::Dim)]);
    for walk in walks {
        let signs: Vec<char> = walk.cells.iter().copied().map(sign).collect();
        let tone = tone(walk.state);
        let stuck = walk.stuck.as_ref().map(|stuck| stuck.task.clone());
        table.row([
            walk.hostname.as_str().into(),
            node_status(walk.status, false),
            Cell::new(walk.state.as_str(), tone),
            stuck.map_or_else(|| or_dash(String::new()), |task| Cell::new(task, Tone::Bad)),
            Cell::new(grouped(&signs), tone),
        ]);
    }
    format!("{}\n{}{}", table.draw(width), listed(tasks, width), legend())
}

fn tone(state: WalkState) -> Tone {
    match state {
        WalkState::Complete => Tone::Good,
        WalkState::Running | WalkState::Pending => Tone::Busy,
        WalkState::Failed | WalkState::Blocked => Tone::Bad,
    }
}

fn sign(cell: Sign) -> char {
    match cell {
        Sign::Succeeded => '✔',
        Sign::Failed => '✖',
        Sign::Lost => '?',
        Sign::Running => '▶',
        Sign::Pending => '·',
        Sign::Skipped => '○',
        Sign::NotSelected => '-',
    }
}

fn legend() -> String {
    let signs: Vec<String> =
        Sign::ALL.iter().map(|cell| format!("{} {}", sign(*cell), cell.as_str().replace('_', " "))).collect();
    format!("{}\n", painted(&signs.join("  "), Tone::Dim))
}

fn digit(number: usize) -> char {
    u32::try_from(number).ok().and_then(|number| char::from_digit(number, 10)).unwrap_or('?')
}

/// Returns the signs in groups, between which the table may wrap.
fn grouped(signs: &[char]) -> String {
    let groups: Vec<String> = signs.chunks(GROUP).map(|group| group.iter().collect()).collect();
    groups.join(" ")
}

/// Renders `1 install  2 configure  3 start`: the tasks by their number.
fn listed(tasks: &[StandingTask], width: Option<usize>) -> String {
    if tasks.len() > MOST_LISTED {
        return format!("{} tasks; `downbeat task list` shows them\n", tasks.len());
    }
    let names = tasks.iter().map(|task| format!("{}{JOINED}{}", task.order, task.name.replace(' ', JOINED)));
    let text = names.collect::<Vec<_>>().join("  ");
    let lines = match width.filter(|width| *width >= NARROWEST_COLUMN) {
        Some(width) => wrapped(&text, width),
        None => vec![text],
    };
    let line = |line: String| format!("{}\n", line.trim().replace(JOINED, " "));
    lines.into_iter().map(line).collect()
}
