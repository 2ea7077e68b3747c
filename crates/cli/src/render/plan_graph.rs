//! Owns how the tasks of a graph look in a plan: drawn with lines, or as layers and a list if there are many.

use std::collections::BTreeMap;

use downbeat_api::{Plan, Step};
use downbeat_core::spec::{Condition, Placement};
use downbeat_core::{Span, limits};

use super::graph::{Drawing, Row, alike, draw, layers};
use super::hosts::{Rows, hosts};
use super::plan::{bounds, each, rules_of, when};
use super::table::{Cell, GAP, NARROWEST_COLUMN, Table, Tone, one_line, painted, wrapped};
use super::time::short;

/// More tasks than this, or lines with more columns, are not drawn: nobody could follow them.
const MOST_DRAWN: usize = 60;
const WIDEST_LINES: usize = 40;
/// The rows of the list that replaces a drawing.
const MOST_LISTED: usize = 200;

/// A top-level task of the graph.
struct Task<'p> {
    steps: &'p [Step],
    after: Vec<usize>,
}

impl Task<'_> {
    fn first(&self) -> &Step {
        &self.steps[0]
    }

    fn is_branch(&self) -> bool {
        self.steps.len() > 1 || self.first().branch.is_some()
    }

    fn name(&self) -> String {
        let first = self.first();
        first.branch.clone().unwrap_or_else(|| match self.is_branch() {
            true => format!("steps {}", self.numbers()),
            false => first.name.clone(),
        })
    }

    fn numbers(&self) -> String {
        let (first, last) = (self.first().index, self.steps[self.steps.len() - 1].index);
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    }
}

/// The cells on the right of a task's lines.
struct TaskCells {
    task: String,
    step: String,
    does: String,
    place: String,
    rules: String,
}

/// Renders the tasks of a graph and their dependencies. `common` is the placement that the head already shows.
pub(super) fn graph(
    plan: &Plan,
    all: &[String],
    common: Option<&Placement>,
    rows: Rows,
    width: Option<usize>,
) -> String {
    let tasks = tasks(plan);
    let after: Vec<Vec<usize>> = tasks.iter().map(|task| task.after.clone()).collect();
    let cells: Vec<Vec<TaskCells>> =
        tasks.iter().map(|task| cells_of(plan, task, all, common, rows)).collect();
    if tasks.len() <= MOST_DRAWN {
        let drawing = draw(&after);
        if drawing.width <= WIDEST_LINES {
            return drawn(&drawing, &cells, width);
        }
    }
    format!("{}\n{}", layered(&tasks, &after, rows, width), listed(&tasks, &after, &cells, rows, width))
}

fn tasks(plan: &Plan) -> Vec<Task<'_>> {
    let entry_of: BTreeMap<u32, usize> =
        plan.steps.iter().map(|step| (step.index, step.entry as usize)).collect();
    let entries = plan.steps.chunk_by(|one, other| one.entry == other.entry);
    let task = |steps| {
        let steps: &[Step] = steps;
        let after = steps[0].after.iter().filter_map(|edge| entry_of.get(&edge.step).copied()).collect();
        Task { steps, after }
    };
    entries.map(task).collect()
}

/// Returns a row for the task, and one for each leaf of a branch.
fn cells_of(
    plan: &Plan,
    task: &Task<'_>,
    all: &[String],
    common: Option<&Placement>,
    rows: Rows,
) -> Vec<TaskCells> {
    let first = task.first();
    let place = place(plan, first, all);
    if !task.is_branch() {
        let rules = one_line(&rules(first, common, rows).join("; "));
        let does = first.does();
        return vec![TaskCells { task: task.name(), step: first.index.to_string(), does, place, rules }];
    }
    let mut whole: Vec<String> = first.for_each.as_ref().map(each).into_iter().collect();
    whole.extend(condition(first));
    let head = TaskCells {
        task: task.name(),
        step: task.numbers(),
        does: format!("{} leaves", task.steps.len()),
        place,
        rules: one_line(&whole.join("; ")),
    };
    let leaves = task.steps.iter().enumerate().map(|(place, step)| {
        // Rules of the branch are in its own row.
        let mut own = step.clone();
        own.for_each = None;
        if place == 0 {
            own.condition = None;
        }
        TaskCells {
            task: format!("  {}", step.name),
            step: step.index.to_string(),
            does: step.does(),
            place: String::new(),
            rules: one_line(&rules(&own, common, rows).join("; ")),
        }
    });
    std::iter::once(head).chain(leaves).collect()
}

fn place(plan: &Plan, step: &Step, all: &[String]) -> String {
    match plan.nodes_of(step).as_deref() {
        None if step.approve.is_some() => "a person".to_owned(),
        None => "placed".to_owned(),
        Some([only]) => (*only).to_owned(),
        Some(nodes) if nodes == all => format!("all {} nodes", nodes.len()),
        Some(nodes) => format!("{} nodes", nodes.len()),
    }
}

fn condition(step: &Step) -> Option<String> {
    step.condition.filter(|condition| *condition != Condition::OnSuccess).map(|it| when(Some(it)).to_owned())
}

/// Returns every rule that differs from the default.
fn rules(step: &Step, common: Option<&Placement>, rows: Rows) -> Vec<String> {
    let mut found: Vec<String> = condition(step).into_iter().collect();
    if let Some(placement) = step.placement.as_ref().filter(|placement| Some(*placement) != common) {
        found.push(rules_of(placement, rows));
    }
    found.extend(bounds(step));
    match step.retries {
        0 => {}
        1 => found.push("1 retry".to_owned()),
        retries => found.push(format!("{retries} retries")),
    }
    let default = Span::from_secs(limits::TASK_TIMEOUT_DEFAULT_S);
    if !step.timeout.is_zero() && step.timeout != default {
        found.push(format!("timeout {}", short(step.timeout)));
    }
    if !step.outputs.is_empty() {
        found.push(format!("outputs {}", step.outputs.join(", ")));
    }
    found
}

/// A drawn row with the cells of its task; wrapped cells continue next to `below`.
struct DrawnRow<'s> {
    lines: &'s str,
    below: &'s str,
    cells: Option<&'s TaskCells>,
}

fn drawn(drawing: &Drawing, cells: &[Vec<TaskCells>], width: Option<usize>) -> String {
    let mut rows: Vec<DrawnRow<'_>> = Vec::new();
    for Row { task, lines, below } in &drawing.rows {
        let of_task = task.map(|task| cells[task].as_slice()).unwrap_or_default();
        rows.push(DrawnRow { lines, below, cells: of_task.first() });
        rows.extend(of_task.iter().skip(1).map(|leaf| DrawnRow { lines: below, below, cells: Some(leaf) }));
    }
    let all_cells = || cells.iter().flatten();
    let longest = |of: fn(&TaskCells) -> &str, head: &str| {
        all_cells().map(|cells| of(cells).chars().count()).chain([head.len()]).max().unwrap_or(0)
    };
    let widths = [
        longest(|cells| &cells.task, "TASK"),
        longest(|cells| &cells.step, "STEP"),
        longest(|cells| &cells.does, "DOES"),
        longest(|cells| &cells.place, "WHERE"),
    ];
    let before_rules = drawing.width + 1 + widths.iter().map(|width| width + GAP).sum::<usize>();
    let room = width.map(|width| width.saturating_sub(before_rules)).filter(|room| *room >= NARROWEST_COLUMN);
    let row_text = |lines: &str, cells: [&str; 4], rules: &str| {
        let [task, step, does, place] = cells;
        let [tasks, steps, do_width, places] = widths;
        let (lanes, gap) = (drawing.width + 1, "  ");
        let line = format!(
            "{lines:lanes$}{task:tasks$}{gap}{step:steps$}{gap}{does:do_width$}{gap}{place:places$}{gap}{rules}"
        );
        line.trim_end().to_owned() + "\n"
    };
    let has_rules = all_cells().any(|cells| !cells.rules.is_empty());
    let head = row_text("", ["TASK", "STEP", "DOES", "WHERE"], if has_rules { "RULES" } else { "" });
    let mut text = painted(head.trim_end_matches('\n'), Tone::Dim) + "\n";
    for DrawnRow { lines, below, cells } in rows {
        let Some(TaskCells { task, step, does, place, rules }) = cells else {
            text.push_str(&format!("{lines}\n"));
            continue;
        };
        let mut parts = room.map_or_else(|| vec![rules.clone()], |room| wrapped(rules, room)).into_iter();
        text.push_str(&row_text(lines, [task, step, does, place], &parts.next().unwrap_or_default()));
        parts.for_each(|part| text.push_str(&row_text(below, [""; 4], &part)));
    }
    text.push_str(&format!("\n{}\n", painted(&legend(drawing), Tone::Dim)));
    text
}

/// Explains only the signs that occur.
fn legend(drawing: &Drawing) -> String {
    let has = |sign: char| drawing.rows.iter().any(|row| row.lines.contains(sign));
    let mut parts = vec!["● tasks that wait for it are below"];
    if has('○') {
        parts.push("○ nothing waits for it");
    }
    if has('┏') {
        parts.push("┏ ┗ side by side");
    }
    if drawing.rows.iter().any(|row| row.lines.contains("─│")) {
        parts.push("─│─ lines that only cross");
    }
    parts.join(" · ")
}

/// Renders how many tasks may run at the same time.
fn layered(tasks: &[Task<'_>], after: &[Vec<usize>], rows: Rows, width: Option<usize>) -> String {
    let mut table = Table::new(["LAYER", "TASKS", "WHICH"]);
    for (layer, members) in (1..).zip(layers(after)) {
        let layer: u32 = layer;
        let names: Vec<String> = members.iter().map(|task| tasks[*task].name()).collect();
        table.row([layer.to_string().into(), names.len().to_string().into(), hosts(&names, rows).into()]);
    }
    table.draw(width)
}

/// Lists every task with its dependencies. Tasks that differ only in their name share a row.
fn listed(
    tasks: &[Task<'_>],
    after: &[Vec<usize>],
    cells: &[Vec<TaskCells>],
    rows: Rows,
    width: Option<usize>,
) -> String {
    let mut table = Table::new(["TASK", "STEP", "DOES", "WHERE", "← AFTER", "RULES"]);
    let same = |one: usize, other: usize| {
        let words = |task: usize| cells[task].iter().map(|cells| (&cells.does, &cells.place, &cells.rules));
        words(one).eq(words(other)) && !tasks[one].is_branch()
    };
    let mut count = 0;
    for class in alike(after) {
        let parts: Vec<&[usize]> = match rows {
            Rows::Few => class.chunk_by(|one, other| same(*one, *other)).collect(),
            Rows::All => class.chunks(1).collect(),
        };
        for part in parts {
            count += 1;
            if rows == Rows::Few && count > MOST_LISTED {
                continue;
            }
            let (first, last) = (part[0], part[part.len() - 1]);
            let names: Vec<String> = after[first].iter().map(|former| tasks[*former].name()).collect();
            let after = if names.is_empty() { "-".to_owned() } else { hosts(&names, rows) };
            for (place, words) in cells[first].iter().enumerate() {
                let (task, step) = if part.len() > 1 {
                    let (from, to) = (tasks[first].name(), tasks[last].name());
                    (format!("{from} … {to} ({})", part.len()), String::new())
                } else {
                    (words.task.clone(), words.step.clone())
                };
                let after = if place == 0 { after.as_str() } else { "" };
                table.row([
                    Cell::painted(task),
                    step.into(),
                    words.does.as_str().into(),
                    words.place.as_str().into(),
                    after.into(),
                    words.rules.as_str().into(),
                ]);
            }
        }
    }
    let more = count.saturating_sub(MOST_LISTED);
    let rest =
        if more > 0 && rows == Rows::Few { format!("{more} more rows: --all\n") } else { String::new() };
    format!("{}{rest}", table.draw(width))
}
