//! Owns how runs look: a row in a list, a line, and the page with every step on every node and for every item.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_api::{
    InstanceResult, Plan, Round, Run, RunRow, RunSummary, StateStay, Step, StepProgress, StepWaiting,
    WaveStatus, WholeRun,
};
use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::run::RunStatus;
use jiff::Timestamp;

use super::absent::{left_out, silent};
use super::hosts::{Rows, counts, few, hosts};
use super::rollout::{brief_position, nodes_of, position, waves};
use super::table::{Cell, Table, Tone, facts_within, one_line, painted, plain};
use super::time::{age, elapsed, second, short, time_of_day};
use super::waits::{awaited, wait_reason, waiting_task};

/// From this width on, a list of runs shows whole ids.
const WIDE_COLUMNS: usize = 120;
const UUID_CHARS: usize = 36;
/// The part of an id that holds the run's creation time in milliseconds; the rest is random.
const SHORTEST_ID: usize = 13;
/// Of more steps than this only the first are shown: failed ones, then running ones.
const MOST_STEPS: usize = 50;

/// More instances than this are only counted, except failed ones.
const MOST_INSTANCES: usize = 60;
const MOST_FAILURES: usize = 40;
/// A step with more items than this has one row for all, and a row for each of the first failed items.
const MOST_ITEMS: usize = 12;
const MOST_FAILED_ITEMS: usize = 10;

pub(crate) fn run_table(runs: &[RunRow], now: Timestamp, width: Option<usize>) -> String {
    if runs.is_empty() {
        return "no runs\n".to_owned();
    }
    let ids = ids(runs, width);
    let mut table = Table::new([
        "RUN",
        "JOB",
        "STATUS",
        "STEPS",
        "NODES",
        "SUCCEEDED",
        "FAILED",
        "DURATION",
        "AGE",
        "ERROR",
    ])
    .one_line_each()
    .or_short("DURATION", "TOOK")
    .or_short("SUCCEEDED", "OK")
    .may_cut("JOB", 8)
    .may_cut("STATUS", 9);
    for (RunRow { summary: run, counts, rollout }, id) in runs.iter().zip(ids) {
        let [succeeded, failed] = match counts {
            Some(counts) => [counts.succeeded, counts.failed + counts.lost].map(Some),
            None => [None, None],
        };
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let why = run.error.as_ref().or(run.pending_reason.as_ref()).cloned();
        let rollout = rollout.as_ref().filter(|_| run.finished_at.is_none());
        let why = why.or_else(|| rollout.and_then(brief_position));
        table.row([
            id.into(),
            run.job.as_deref().unwrap_or("-").into(),
            status(run),
            run.steps.count().to_string().into(),
            run.nodes.to_string().into(),
            number(succeeded).into(),
            Cell::new(number(failed), if failed > Some(0) { Tone::Bad } else { Tone::Plain }),
            duration(run, now).into(),
            age(run.created_at, now).into(),
            Cell::new(why.unwrap_or_default(), Tone::Dim),
        ]);
    }
    table.draw(width)
}

/// Returns the ids. A narrow terminal gets the shortest unique prefixes, which every command accepts.
fn ids(runs: &[RunRow], width: Option<usize>) -> Vec<&str> {
    let ids = || runs.iter().map(|run| run.summary.id.as_str());
    if width.is_none_or(|width| width >= WIDE_COLUMNS) {
        return ids().collect();
    }
    let is_short_of = |id: &str, length: usize| id.len() != UUID_CHARS || !id.is_char_boundary(length);
    let tells_apart = |length: &usize| {
        let prefixes: BTreeSet<&str> =
            ids().map(|id| if is_short_of(id, *length) { id } else { &id[..*length] }).collect();
        prefixes.len() == runs.len()
    };
    let length = (SHORTEST_ID..UUID_CHARS).find(tells_apart).unwrap_or(UUID_CHARS);
    ids().map(|id| if is_short_of(id, length) { id } else { &id[..length] }).collect()
}

pub(crate) fn started_line(run: &RunSummary) -> String {
    let name = run.job.as_deref().map(|job| format!(" ({job})")).unwrap_or_default();
    let id = &run.id;
    match &run.pending_reason {
        Some(reason) => format!("run {id}{name} {}; `downbeat run watch {id}` follows it", one_line(reason)),
        None if run.state.is_terminal() => {
            format!("run {id}{name} is already {}; `downbeat run show {id}` shows it", run.status)
        }
        None => format!("run {id}{name} started; `downbeat run watch {id}` follows it"),
    }
}

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
    let error = run.error.as_deref().map(|error| format!(": {}", one_line(error))).unwrap_or_default();
    let (text, tone) = status_text(run);
    format!("run {}{name} {}{took}{error}", run.id, painted(&text, tone))
}

/// Renders a run with every step on every node, or with counts per step if there are many. Of a large run only some
/// results were read: the failed ones.
pub(crate) fn run_page(
    whole: &WholeRun,
    plan: &Plan,
    rows: Rows,
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let run = &whole.run;
    let mut text = facts_within(&head(run, plan, rows, now), width);
    if let Some(rollout) = &run.rollout {
        text.push_str(&format!("\n{}", waves(rollout, plan, rows, width)));
    }
    let untouched = match rows {
        Rows::All => BTreeSet::new(),
        // They are named below.
        Rows::Few => untouched(run, plan),
    };
    let shown = |node: &str| !untouched.contains(node);
    let rows_of = |results: &StepResults| match folded(results, rows) {
        Some(failed) => 1 + failed.len().min(MOST_FAILED_ITEMS),
        None => results.keys().filter(|node| shown(node)).count(),
    };
    // A step without results has a row of its own.
    let without_results =
        plan.steps.iter().filter(|step| whole.results.get(&step.index).is_none_or(BTreeMap::is_empty));
    let all = without_results.count() + whole.results.values().map(rows_of).sum::<usize>();
    let has_rows = rows == Rows::All || (is_complete(whole) && all <= MOST_INSTANCES);
    if has_rows {
        text.push_str(&format!("\n{}", results(whole, plan, rows, shown, width)));
        if whole.results.values().any(|results| folded(results, rows).is_some()) {
            text.push_str(&format!("\n`downbeat run show {} --all` shows every item\n", run.summary.id));
        }
    } else {
        text.push_str(&format!("\n{}", counted(run, plan, rows, width)));
        text.push_str(&failures(whole, plan, width));
    }
    // Rows of steps on nodes show their reasons, unless the rows were only counted.
    text.push_str(&waiting(run.waiting.iter().filter(|step| !(step.bound && has_rows))));
    if let Some(untouched) = run.rollout.as_ref().and_then(|rollout| rollout.untouched.as_ref()) {
        text.push_str(&format!("\nnot reached: {}\n", few(untouched, rows)));
    }
    text.push_str(&next_commands(whole));
    text
}

/// Returns whether all results were read.
fn is_complete(whole: &WholeRun) -> bool {
    let read: usize = whole.results.values().map(BTreeMap::len).sum();
    let counts = whole.run.steps().iter().flat_map(|step| step.counts.values());
    read as u64 >= counts.sum::<u64>()
}

/// Returns the nodes of the waves that never started.
fn untouched<'a>(run: &Run, plan: &'a Plan) -> BTreeSet<&'a str> {
    let rollout = run.rollout.iter().filter(|rollout| rollout.untouched.is_some());
    let skipped =
        rollout.flat_map(|rollout| &rollout.waves).filter(|wave| wave.status == WaveStatus::Skipped);
    let named = plan.waves();
    skipped.flat_map(|wave| nodes_of(&named, wave.wave)).copied().collect()
}

/// A table of results, a row for each.
pub(crate) fn result_table(results: &[InstanceResult], width: Option<usize>) -> String {
    if results.is_empty() {
        return "no results\n".to_owned();
    }
    let mut table = instances();
    for result in results {
        table.row(instance(result));
    }
    table.draw(width)
}

fn head(run: &Run, plan: &Plan, rows: Rows, now: Timestamp) -> Vec<(&'static str, Cell)> {
    let summary = &run.summary;
    let created =
        format!("{} ({} ago) by {}", second(summary.created_at), age(summary.created_at, now), summary.by);
    let mut head = vec![
        ("run", summary.id.as_str().into()),
        ("job", summary.job.as_deref().unwrap_or("-").into()),
        ("cluster", cluster(summary).into()),
        ("status", status(summary)),
        ("state", summary.state.as_str().into()),
        ("target", target(plan, rows).into()),
    ];
    if !run.left_out.is_empty() {
        head.push(("left out", left_out(&run.left_out, rows).into()));
    }
    if !run.silent.is_empty() {
        head.push(("silent", Cell::new(silent(&run.silent, rows), Tone::Busy)));
    }
    if let Some(rollout) = &run.rollout {
        let tone = if rollout.failed > rollout.budget { Tone::Bad } else { Tone::Plain };
        head.push(("rollout", Cell::new(position(rollout), tone)));
    }
    if !run.params.is_empty() {
        let params = run.params.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        head.push(("params", params.collect::<Vec<_>>().join(" ").into()));
    }
    if summary.no_cache {
        head.push(("cache", "not used (--no-cache)".into()));
    }
    if let Some(version) = summary.job_version {
        head.push(("version", format!("{version} of the job").into()));
    }
    if let Some(at) = summary.scheduled_at {
        head.push(("scheduled", second(at).into()));
    }
    if let Some(round) = &run.round {
        head.push(("round", rounds(round).into()));
    }
    if let Some(first) = &summary.retry_of {
        head.push(("retry of", first.as_str().into()));
    }
    head.push(("created", created.into()));
    if let (true, Some(at)) = (summary.paused, summary.paused_at) {
        let (since, ago, id) = (second(at), age(at, now), &summary.id);
        let text = format!("{since} ({ago} ago); `downbeat run resume {id}` continues it");
        head.push(("paused", Cell::new(text, Tone::Busy)));
    }
    if let Some(reason) = &summary.pending_reason {
        head.push(("pending", Cell::new(reason.as_str(), Tone::Busy)));
    }
    head.push(("duration", duration(summary, now).into()));
    if !run.states.is_empty() {
        head.push(("states", states(&run.states).into()));
    }
    if let Some(error) = &summary.error {
        head.push(("error", Cell::new(error.as_str(), Tone::Bad)));
    }
    head
}

/// Returns which attempt of the whole run this is, and when the next one begins.
fn rounds(round: &Round) -> String {
    let Round { number, most, next_at } = round;
    let next = next_at.map(|at| format!("; the next one begins at {}", second(at))).unwrap_or_default();
    format!("{number} of {most}{next}")
}

/// Returns the states that a run has entered, each with the time of its last entry and how long it lasted.
fn states(states: &[StateStay]) -> String {
    let text = |stay: &StateStay| {
        let again = if stay.times > 1 { format!(" ({} times)", stay.times) } else { String::new() };
        let took = stay.duration.map(|took| format!(" {}", short(took))).unwrap_or_default();
        format!("{} {}{took}{again}", stay.state, time_of_day(stay.entered_at))
    };
    states.iter().map(text).collect::<Vec<_>>().join(" → ")
}

/// Older servers do not send the name.
fn cluster(run: &RunSummary) -> String {
    if run.cluster_name.is_empty() { run.cluster.to_string() } else { run.cluster_name.clone() }
}

fn target(plan: &Plan, rows: Rows) -> String {
    let nodes: Vec<String> = plan.nodes.iter().map(|node| node.hostname.clone()).collect();
    match nodes.as_slice() {
        [] => "placed".to_owned(),
        [only] => only.clone(),
        nodes => format!("{} nodes: {}", nodes.len(), hosts(nodes, rows)),
    }
}

/// The results of one step.
type StepResults = BTreeMap<String, InstanceResult>;

/// Orders results by hostname, items by their number.
fn in_order(results: &StepResults) -> Vec<&InstanceResult> {
    let mut rows: Vec<&InstanceResult> = results.values().collect();
    rows.sort_by(|a, b| (a.item, &a.node).cmp(&(b.item, &b.node)));
    rows
}

/// Returns the failed results of a step with so many items that they share a row.
fn folded(results: &StepResults, rows: Rows) -> Option<Vec<&InstanceResult>> {
    let items = results.values().filter(|result| result.item.is_some()).count();
    if rows == Rows::All || items <= MOST_ITEMS {
        return None;
    }
    Some(in_order(results).into_iter().filter(|result| is_failed(result)).collect())
}

fn is_failed(result: &InstanceResult) -> bool {
    matches!(result.status, Status::Failed | Status::Lost | Status::Cancelled)
}

/// A table with a row per instance.
fn instances() -> Table {
    Table::new(["STEP", "TASK", "NODE", "STATUS", "ATTEMPTS", "DURATION", "EXIT", "DETAIL"])
        .or_short("ATTEMPTS", "TRY")
        .or_short("DURATION", "TOOK")
        .may_cut("TASK", 10)
        .may_cut("NODE", 10)
}

fn results(
    whole: &WholeRun,
    plan: &Plan,
    rows: Rows,
    shown: impl Fn(&str) -> bool,
    width: Option<usize>,
) -> String {
    let mut table = instances();
    for step in &plan.steps {
        match whole.results.get(&step.index).filter(|results| !results.is_empty()) {
            Some(results) => {
                if let Some(failed) = folded(results, rows) {
                    table.row(items(plan, step, results));
                    for result in failed.into_iter().take(MOST_FAILED_ITEMS) {
                        table.row(instance(result));
                    }
                    continue;
                }
                for result in in_order(results).into_iter().filter(|result| shown(&result.key())) {
                    table.row(instance(result));
                }
            }
            None => {
                let text = match whole.run.summary.state.is_terminal() {
                    true if has_no_items(step, &whole.run) => "no items",
                    true => "not reached",
                    false => "pending",
                };
                let (number, name, text) =
                    (step.index.to_string().into(), step.name.as_str().into(), Cell::new(text, Tone::Dim));
                let blank = || Cell::from("-");
                table.row([number, name, blank(), text, blank(), blank(), blank(), "".into()]);
            }
        }
    }
    table.draw(width)
}

/// Returns whether the step had no items. Skipped instances are recorded, so a step without results in a completed run
/// had none.
fn has_no_items(step: &Step, run: &Run) -> bool {
    step.for_each.as_ref().is_some_and(|each| match each.items.as_array() {
        Some(items) => items.is_empty(),
        None => run.summary.status == RunStatus::Completed,
    })
}

fn items(plan: &Plan, step: &Step, results: &StepResults) -> [Cell; 8] {
    // Failures count as final.
    let progress = StepProgress::of(plan, step, Some(results), true, |_, _| false);
    let (succeeded, skipped) = (progress.count(Status::Succeeded), progress.count(Status::Skipped));
    let (failed, cancelled) = (progress.failed(), progress.count(Status::Cancelled));
    let (running, open) = (progress.running(), progress.open());
    let nodes: BTreeSet<&str> = results.values().filter_map(|result| result.node.as_deref()).collect();
    let (status, tone) = match (open, failed, cancelled, succeeded) {
        (1.., ..) if running + progress.ended() > 0 => ("running", Tone::Busy),
        (1.., ..) => ("pending", Tone::Dim),
        (0, 1.., ..) => ("failed", Tone::Bad),
        (0, 0, 1.., _) => ("cancelled", Tone::Bad),
        (0, 0, 0, 0) => ("skipped", Tone::Dim),
        (0, 0, 0, _) => ("succeeded", Tone::Good),
    };
    let counts = counts(&[
        (succeeded, "succeeded"),
        (progress.cached, "of them cached"),
        (failed, "failed"),
        (cancelled, "cancelled"),
        (skipped, "skipped"),
        (running, "running"),
        (open.saturating_sub(running), "pending"),
    ]);
    let shown = failed + cancelled > MOST_FAILED_ITEMS as u64;
    let first = if shown { format!("; the first {MOST_FAILED_ITEMS} failures:") } else { String::new() };
    [
        step.index.to_string().into(),
        format!("{}[0-{}]", step.name, progress.instances.saturating_sub(1)).into(),
        match nodes.len() {
            0 => "-".into(),
            1 => nodes.into_iter().next().unwrap_or_default().into(),
            count => format!("{count} nodes").into(),
        },
        Cell::new(status, tone),
        "-".into(),
        progress.longest.map_or_else(|| "-".to_owned(), short).into(),
        "-".into(),
        Cell::new(format!("{counts}{first}"), Tone::Dim),
    ]
}

/// Renders a row per step with the counts of its instances. Of very many steps, only the most urgent.
fn counted(run: &Run, plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let with_items = plan.steps.iter().any(|step| step.for_each.is_some());
    let all = if with_items { "INSTANCES" } else { "NODES" };
    let head = ["STEP", "TASK", all, "SUCCEEDED", "FAILED", "SKIPPED", "CANCELLED", "OPEN"];
    let mut table = Table::new(head)
        .or_short("INSTANCES", "ALL")
        .or_short("SUCCEEDED", "OK")
        .or_short("CANCELLED", "CANC")
        .may_cut("TASK", 10);
    let mut steps: Vec<&StepProgress> = run.steps().iter().collect();
    let all = steps.len();
    if rows == Rows::Few && all > MOST_STEPS {
        steps.sort_by_key(|step| (urgency(step), step.step));
        steps.truncate(MOST_STEPS);
    }
    for step in &steps {
        let count = |count: u64, tone| match count {
            0 => Cell::new("-", Tone::Dim),
            count => Cell::new(count.to_string(), tone),
        };
        table.row([
            step.step.to_string().into(),
            step.task.as_str().into(),
            step.instances.to_string().into(),
            count(step.count(Status::Succeeded), Tone::Good),
            count(step.failed(), Tone::Bad),
            count(step.count(Status::Skipped), Tone::Dim),
            count(step.count(Status::Cancelled), Tone::Bad),
            count(step.open(), Tone::Busy),
        ]);
    }
    let mut text = table.draw(width);
    if all > steps.len() {
        text.push_str(&format!("… and {} more steps; --all or -o json shows them\n", all - steps.len()));
    }
    text
}

/// Orders steps for the reader: the most urgent has the lowest number.
fn urgency(step: &StepProgress) -> u8 {
    match step {
        _ if step.failed() + step.count(Status::Cancelled) > 0 => 0,
        _ if step.running() > 0 => 1,
        _ if step.open() > 0 => 2,
        _ => 3,
    }
}

fn failures(whole: &WholeRun, plan: &Plan, width: Option<usize>) -> String {
    let mut table = instances();
    let steps = plan.steps.iter().filter_map(|step| whole.results.get(&step.index));
    let failed = steps.flat_map(in_order).filter(|result| is_failed(result)).take(MOST_FAILURES);
    failed.for_each(|result| table.row(instance(result)));
    let (id, counts) = (&whole.run.summary.id, &whole.run.counts);
    let found = counts.failed + counts.lost + counts.cancelled;
    let all = format!("`downbeat run results {id}` lists every node\n");
    match found.saturating_sub(MOST_FAILURES as u64) {
        _ if found == 0 => format!("\n{all}"),
        0 => format!("\n{}\n{all}", table.draw(width)),
        more => {
            let list = format!("`downbeat run results {id} --status failed,lost,cancelled` lists them");
            format!("\n{}\n… and {more} more that did not succeed; {list}\n", table.draw(width))
        }
    }
}

/// Suggests commands for a run that did not succeed.
fn next_commands(whole: &WholeRun) -> String {
    let run = &whole.run;
    let (summary, id) = (&run.summary, &run.summary.id);
    let well = summary.status == RunStatus::Completed && !summary.partial;
    if well || !summary.state.is_terminal() {
        return String::new();
    }
    let mut text =
        format!("\ndownbeat run retry {id}   # runs what did not succeed; keeps the other results\n");
    // With one node it would be the same.
    if run.counts.failed + run.counts.lost > 0 && summary.nodes > 1 {
        text.push_str(&format!("downbeat run retry {id} --failed-only   # only the failed nodes\n"));
    }
    text.push_str(&logs_of_failure(whole));
    text
}

/// Suggests the command that prints the output of the first failed instance.
fn logs_of_failure(whole: &WholeRun) -> String {
    let failed = |result: &&InstanceResult| result.status == Status::Failed && result.attempts_made() > 0;
    let found = whole.results.values().find_map(|results| in_order(results).into_iter().find(failed));
    let Some(result) = found else { return String::new() };
    let part = match result.item {
        Some(item) => format!("--step {} --item {item}", result.step),
        None => format!("--node {}", result.key()),
    };
    format!("downbeat run logs {} {part}   # its output\n", whole.run.summary.id)
}

/// `shard`, or `shard[3]`.
pub(super) fn task_label(task: &str, item: Option<u32>) -> String {
    item.map_or_else(|| task.to_owned(), |item| format!("{task}[{item}]"))
}

fn instance(result: &InstanceResult) -> [Cell; 8] {
    let status = if result.cached { "cached" } else { result.status.as_str() };
    [
        result.step.to_string().into(),
        task_label(&result.task, result.item).into(),
        result.node.as_deref().unwrap_or("-").into(),
        Cell::new(status, status_tone(result.status)),
        match result.attempts_made() {
            0 => "-".into(),
            made => made.to_string().into(),
        },
        result.duration.map_or_else(|| "-".to_owned(), short).into(),
        result.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()).into(),
        Cell::new(detail(result), Tone::Dim),
    ]
}

/// Returns the reason of the status, or the outputs.
fn detail(result: &InstanceResult) -> String {
    if let Some(why) = result.error.as_ref().or(result.reason.as_ref()).or(result.waits.as_ref()) {
        // The error may already contain the line.
        let wrote = result.stderr.as_ref().filter(|line| !why.contains(line.as_str()));
        return wrote.map_or_else(|| why.clone(), |line| format!("{why}: {line}"));
    }
    let outputs = result.outputs.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    let reused = result.reused.map(|first| match result.cached {
        true => format!("from execution {first}"),
        false => "reused".to_owned(),
    });
    reused.into_iter().chain(outputs).collect::<Vec<_>>().join(" ")
}

fn waiting<'a>(steps: impl Iterator<Item = &'a StepWaiting>) -> String {
    let mut text = String::new();
    for step in steps {
        if step.bound {
            text.push_str(&format!("\nstep {} ({}) waits {}\n", step.step, step.task, awaited(step)));
            continue;
        }
        let waits = if step.others > 0 { "wait" } else { "waits" };
        let what = if step.nodes.iter().all(|node| node.node == "-") { "" } else { " for a node" };
        let what = if step.nodes.is_empty() { " for a node" } else { what };
        text.push_str(&format!("\nstep {} ({}) {waits}{what}:\n", step.step, waiting_task(step)));
        if step.nodes.is_empty() {
            text.push_str("  no node has registered\n");
        }
        for node in &step.nodes {
            text.push_str(&format!("  {}\n", wait_reason(node)));
        }
    }
    text
}

fn status(run: &RunSummary) -> Cell {
    let (text, tone) = status_text(run);
    Cell::new(text, tone)
}

fn status_text(run: &RunSummary) -> (String, Tone) {
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
        (true, ..) => format!("{}, partial", run.status),
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

/// Returns the time from start to end, or until now.
fn duration(run: &RunSummary, now: Timestamp) -> String {
    match (run.duration, run.started_at) {
        (Some(duration), _) => short(duration),
        (None, Some(started)) if run.finished_at.is_none() => short(Span(elapsed(started, now))),
        (None, _) => "-".to_owned(),
    }
}
