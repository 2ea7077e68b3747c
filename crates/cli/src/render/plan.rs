//! Owns how a plan looks: nodes and waves, then the steps in order: action, nodes, and dependencies. `plan_graph` draws
//! a graph first.

use downbeat_api::{Absent, EdgeKind, Plan, Shape, Step, Where};
use downbeat_core::spec::{Condition, Delivery, ForEach, Limit, Placement};
use downbeat_core::{Span, limits};
use serde_json::Value;

use super::absent::{left_out, silent};
use super::hosts::{Rows, hosts, plural};
use super::plan_graph::graph;
use super::rollout::{planned, planned_waves};
use super::table::{Cell, Table, Tone, facts};
use super::time::short;

/// Longer params are cut.
const MOST_VALUE_CHARS: usize = 60;

/// Renders which steps run where, and in which order.
pub(crate) fn plan_page(plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let names: Vec<String> = plan.nodes.iter().map(|node| node.hostname.clone()).collect();
    let mut head = vec![
        ("job", plan.job.as_deref().unwrap_or("-").into()),
        ("steps", plan.steps.len().to_string().into()),
    ];
    // A placed job has no nodes before it runs.
    if !names.is_empty() {
        head.push(("nodes", format!("{}: {}", names.len(), hosts(&names, rows)).into()));
    }
    if !plan.left_out.is_empty() {
        head.push(("left out", left_out(&Absent::group(&plan.left_out), rows).into()));
    }
    if !plan.silent.is_empty() {
        head.push(("silent", Cell::new(silent(&Absent::group(&plan.silent), rows), Tone::Busy)));
    }
    match &plan.rollout {
        Some(rollout) => head.push(("rollout", planned(rollout).into())),
        None => head.push(("strategy", plan.strategy.as_str().into())),
    }
    if plan.exclusive {
        head.push(("exclusive", "yes: no other run uses its nodes at the same time".into()));
    }
    if plan.priority != 0 {
        head.push(("priority", plan.priority.to_string().into()));
    }
    if let Some(timeout) = plan.timeout {
        let cleanup =
            plan.cleanup_timeout.map(|most| format!(", then up to {} for on_failure steps", short(most)));
        head.push(("timeout", format!("{}{}", short(timeout), cleanup.unwrap_or_default()).into()));
    }
    if let Some(most) = plan.max_parallel {
        head.push(("parallel", format!("{most} executions at once").into()));
    }
    let common = common_placement(plan).filter(|_| plan.shape == Shape::Graph);
    if let Some(placement) = common {
        head.push(("placement", rules_of(placement, rows).into()));
    }
    let mut text = facts(&head);
    if plan.rollout.is_some() {
        text.push_str(&format!("\n{}", planned_waves(plan, rows, width)));
    }
    if plan.shape == Shape::Graph {
        text.push_str(&format!("\n{}", graph(plan, &names, common, rows, width)));
    }
    if plan.shape == Shape::List || rows == Rows::All {
        text.push_str(&format!("\n{}", steps(plan, &names, rows, width)));
    }
    for note in &plan.notes {
        text.push_str(&format!("\nnote: {note}\n"));
    }
    text
}

/// Returns the placement that all placed steps share, if they do.
fn common_placement(plan: &Plan) -> Option<&Placement> {
    let mut placed = plan.steps.iter().filter(|step| matches!(step.place, Where::Placed(_)));
    let first = placed.next()?.placement.as_ref()?;
    placed.all(|step| step.placement.as_ref() == Some(first)).then_some(first)
}

fn steps(plan: &Plan, all: &[String], rows: Rows, width: Option<usize>) -> String {
    // Few jobs need this column.
    let with_rules = plan.steps.iter().any(|step| !bounds(step).is_empty());
    let rules = with_rules.then_some("RULES");
    let head = ["STEP", "TASK", "BACKEND", "AFTER", "WHEN", "TIMEOUT", "RETRIES", "IF LOST", "WHERE"];
    let mut table = Table::new(head.into_iter().chain(rules).chain(["PARAMS"]));
    for step in &plan.steps {
        let rules = with_rules.then(|| bounds(step).join("; ").into());
        let cells: [Cell; 9] = [
            step.index.to_string().into(),
            task(step).into(),
            step.does().into(),
            after(step),
            when(step.condition).into(),
            timeout(step).into(),
            step.retries.to_string().into(),
            if_lost(step).into(),
            place(plan, step, all, rows).into(),
        ];
        table.row(cells.into_iter().chain(rules).chain([params(step, rows).into()]));
    }
    table.draw(width)
}

fn task(step: &Step) -> String {
    match &step.branch {
        Some(branch) => format!("{branch} / {}", step.name),
        None => step.name.clone(),
    }
}

fn after(step: &Step) -> Cell {
    if step.after.is_empty() {
        return Cell::new("-", Tone::Dim);
    }
    let edges = step.after.iter().map(|edge| match edge.kind {
        EdgeKind::Barrier => edge.step.to_string(),
        EdgeKind::PerNode => format!("{} on the same node", edge.step),
    });
    edges.collect::<Vec<_>>().join(", ").into()
}

pub(super) fn when(condition: Option<Condition>) -> &'static str {
    match condition {
        None => "-",
        Some(Condition::Always) => "always",
        Some(Condition::OnSuccess) => "on_success",
        Some(Condition::OnFailure) => "on_failure",
    }
}

/// Returns `-` for an older server, which does not send the timeout.
fn timeout(step: &Step) -> String {
    if step.timeout.is_zero() { "-".to_owned() } else { short(step.timeout) }
}

/// Returns how an attempt continues whose result is unknown.
fn if_lost(step: &Step) -> &'static str {
    match (step.delivery, step.idempotent) {
        _ if step.approve.is_some() => "-",
        (Some(Delivery::AtLeastOnce), Some(true)) => "retried (idempotent)",
        (Some(Delivery::AtLeastOnce), _) => "retried",
        _ => "fails",
    }
}

fn place(plan: &Plan, step: &Step, all: &[String], rows: Rows) -> String {
    match plan.nodes_of(step) {
        None if step.approve.is_some() => "a person".to_owned(),
        None => match &step.placement {
            None => "once, on a node that fits".to_owned(),
            Some(placement) => format!("once, on a node that fits ({})", rules_of(placement, rows)),
        },
        Some(nodes) if nodes == all => match nodes.as_slice() {
            [only] => (*only).to_owned(),
            nodes => format!("all {}", nodes.len()),
        },
        Some(nodes) => hosts(&nodes, rows),
    }
}

/// `labels=["gpu"] max_per_node=1`.
pub(super) fn rules_of(placement: &Placement, rows: Rows) -> String {
    members(&serde_json::to_value(placement).unwrap_or_default(), rows)
}

/// Returns the items, limits and cache rules of a step: `for each of 3 items; limits db=4; cached`.
pub(super) fn bounds(step: &Step) -> Vec<String> {
    let mut found: Vec<String> = step.for_each.as_ref().map(each).into_iter().collect();
    if !step.limits.is_empty() {
        let limits = step.limits.iter().map(|(key, limit): (&String, &Limit)| format!("{key}={limit}"));
        found.push(format!("limits {}", limits.collect::<Vec<_>>().join(", ")));
    }
    if let Some(cache) = step.cache {
        let age = cache.max_age.map(|age| format!(" up to {}", short(age))).unwrap_or_default();
        found.push(format!("cached{age}"));
    }
    let default = Span::from_secs(limits::PLACEMENT_TIMEOUT_DEFAULT_S);
    if let Some(timeout) = step.placement_timeout.filter(|timeout| *timeout != default) {
        found.push(format!("fails after {} without a node", short(timeout)));
    }
    found
}

/// `for each of 3 items, 2 at once`.
pub(super) fn each(each: &ForEach) -> String {
    let items = match &each.items {
        Value::Array(items) => plural(items.len(), "item"),
        Value::String(text) => text.trim().trim_start_matches("{{").trim_end_matches("}}").trim().to_owned(),
        other => other.to_string(),
    };
    let most = each.max_parallel.map(|most| format!(", {most} at once")).unwrap_or_default();
    format!("for each of {items}{most}")
}

fn params(step: &Step, rows: Rows) -> String {
    members(&Value::Object(step.params.clone().into_iter().collect()), rows)
}

/// `command=["echo","x"] env={…}`.
fn members(map: &Value, rows: Rows) -> String {
    let shown = |value: &Value| {
        let text = match value {
            Value::String(text) if !text.contains([' ', '\n', '"']) && !text.is_empty() => text.clone(),
            other => other.to_string(),
        };
        if rows == Rows::All || text.chars().count() <= MOST_VALUE_CHARS {
            return text;
        }
        let cut: String = text.chars().take(MOST_VALUE_CHARS).collect();
        format!("{cut}…")
    };
    let fields = map.as_object().into_iter().flatten();
    fields.map(|(name, value)| format!("{name}={}", shown(value))).collect::<Vec<_>>().join(" ")
}
