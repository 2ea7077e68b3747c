//! Owns how a plan looks: steps in order, where each runs and what it waits for.

use downbeat_core::spec::Condition;
use downbeat_server::http::view::{EdgeKind, Plan, Step, Where};

use super::table::{Cell, Table, Tone, facts};

/// Hostnames that are listed one by one before they are only counted.
const MOST_HOSTNAMES: usize = 4;

/// What would run where, and in which order.
pub(crate) fn plan_page(plan: &Plan, width: Option<usize>) -> String {
    let head = facts(&[
        ("job", plan.job.as_deref().unwrap_or("-").into()),
        ("strategy", plan.strategy.as_str().into()),
        ("steps", plan.steps.len().to_string().into()),
        ("nodes", plan.nodes.len().to_string().into()),
    ]);
    let mut table = Table::new(["STEP", "TASK", "BACKEND", "AFTER", "WHEN", "WHERE"]);
    for step in &plan.steps {
        table.row([
            step.index.to_string().into(),
            task(step).into(),
            format!("{} {}", step.backend, step.action).into(),
            after(step),
            when(step.condition).into(),
            place(&step.place).into(),
        ]);
    }
    format!("{head}\n{}", table.draw(width))
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

fn place(place: &Where) -> String {
    match place {
        Where::Placed(_) => "once, on a node that fits".to_owned(),
        Where::Nodes(nodes) if nodes.len() <= MOST_HOSTNAMES => nodes.join(", "),
        Where::Nodes(nodes) => {
            format!("{} nodes: {}, …", nodes.len(), nodes[..MOST_HOSTNAMES - 1].join(", "))
        }
    }
}
