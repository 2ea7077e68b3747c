//! Owns how a plan looks: nodes and waves, then the steps in order: what each does, where, and what it waits for.

use downbeat_core::spec::Condition;
use downbeat_server::http::view::{EdgeKind, Plan, Step, Where};
use serde_json::Value;

use super::hosts::{Rows, hosts};
use super::rollout::{planned, planned_waves};
use super::table::{Cell, Table, Tone, facts};
use super::time::short;

/// A param that is longer is cut.
const MOST_VALUE_CHARS: usize = 60;

/// What would run where, and in which order.
pub(crate) fn plan_page(plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let names: Vec<String> = plan.nodes.iter().map(|node| node.hostname.clone()).collect();
    let nodes = match names.len() {
        0 => "0".to_owned(),
        count => format!("{count}: {}", hosts(&names, rows)),
    };
    let mut head = vec![
        ("job", plan.job.as_deref().unwrap_or("-").into()),
        ("steps", plan.steps.len().to_string().into()),
        ("nodes", nodes.into()),
    ];
    match &plan.rollout {
        Some(rollout) => head.push(("rollout", planned(rollout).into())),
        None => head.push(("strategy", plan.strategy.as_str().into())),
    }
    if plan.exclusive {
        head.push(("exclusive", "yes: no other run does anything on its nodes meanwhile".into()));
    }
    if plan.priority != 0 {
        head.push(("priority", plan.priority.to_string().into()));
    }
    if let Some(timeout) = plan.timeout {
        head.push(("timeout", short(timeout).into()));
    }
    let mut text = facts(&head);
    if let Some(rollout) = &plan.rollout {
        text.push_str(&format!("\n{}", planned_waves(rollout, rows, width)));
    }
    text.push_str(&format!("\n{}", steps(plan, &names, rows, width)));
    text
}

fn steps(plan: &Plan, all: &[String], rows: Rows, width: Option<usize>) -> String {
    let mut table = Table::new([
        "STEP", "TASK", "BACKEND", "AFTER", "WHEN", "TIMEOUT", "RETRIES", "IF LOST", "WHERE", "PARAMS",
    ]);
    for step in &plan.steps {
        table.row([
            step.index.to_string().into(),
            task(step).into(),
            format!("{} {}", step.backend, step.action).into(),
            after(step),
            when(step.condition).into(),
            timeout(step).into(),
            step.retries.to_string().into(),
            if_lost(step).into(),
            place(step, all, rows).into(),
            params(step, rows).into(),
        ]);
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
        EdgeKind::PerNode => format!("{} on the node", edge.step),
    });
    edges.collect::<Vec<_>>().join(", ").into()
}

fn when(condition: Option<Condition>) -> &'static str {
    match condition {
        None => "-",
        Some(Condition::Always) => "always",
        Some(Condition::OnSuccess) => "on_success",
        Some(Condition::OnFailure) => "on_failure",
    }
}

/// A server from before does not say it.
fn timeout(step: &Step) -> String {
    if step.timeout.is_zero() { "-".to_owned() } else { short(step.timeout) }
}

/// What becomes of an attempt of which nobody knows how far it came.
fn if_lost(step: &Step) -> &'static str {
    match (step.delivery.as_str(), step.idempotent) {
        ("at_least_once", Some(true)) => "again (idempotent)",
        ("at_least_once", _) => "again",
        _ => "fails",
    }
}

fn place(step: &Step, all: &[String], rows: Rows) -> String {
    match &step.place {
        Where::Placed(_) => match &step.placement {
            None => "once, on a node that fits".to_owned(),
            Some(placement) => {
                let rules = serde_json::to_value(placement).unwrap_or_default();
                format!("once, on a node that fits ({})", members(&rules, rows))
            }
        },
        Where::Nodes(nodes) if nodes == all => match nodes.len() {
            1 => nodes[0].clone(),
            count => format!("all {count}"),
        },
        Where::Nodes(nodes) => hosts(nodes, rows),
    }
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
