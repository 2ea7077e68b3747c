//! Owns how nodes look.

use downbeat_api::{Node, NodeSummary};
use downbeat_core::node::NodeStatus;
use jiff::Timestamp;
use serde_json::Value;

use super::cluster::quoted;
use super::hosts::plural;
use super::table::{Cell, Table, Tone, facts_within, or_dash, plain};
use super::time::{age, second};

/// Returns what is shown instead of an empty table of all nodes of a cluster.
pub(crate) fn no_nodes(cluster: Option<&str>) -> String {
    let flag = match cluster {
        None | Some("default") => String::new(),
        Some(cluster) => format!(" --cluster {}", quoted(cluster)),
    };
    format!("no nodes; start `downbeat agent --server HOST:4681{flag}` on a machine to add it\n")
}

pub(crate) fn node_table(nodes: &[NodeSummary], now: Timestamp, width: Option<usize>) -> String {
    let mut table = Table::new(["NODE", "STATUS", "GROUPS", "LABELS", "SLOTS", "SEEN", "BACKENDS"])
        .may_cut("LABELS", 8)
        .may_cut("GROUPS", 8)
        .may_cut("NODE", 12);
    for node in nodes {
        let labels: Vec<String> = node.labels.iter().map(label).collect();
        table.row([
            node.hostname.as_str().into(),
            marked(node.status, node.draining, &node.problems),
            or_dash(node.groups.join(",")),
            or_dash(labels.join(",")),
            node.slots.to_string().into(),
            age(node.seen_at, now).into(),
            or_dash(node.backends.join(",")),
        ]);
    }
    table.draw(width)
}

pub(crate) fn node_page(node: &Node, now: Timestamp, width: Option<usize>) -> String {
    let labels: Vec<String> = node.labels.iter().map(label).collect();
    let capability = |(name, value): (&String, &Value)| label((name, &plain(value)));
    let capabilities: Vec<String> = node.capabilities.iter().map(capability).collect();
    let at = |time: Timestamp| Cell::from(format!("{} ({} ago)", second(time), age(time, now)));
    let mut lines = vec![
        ("node", node.hostname.as_str().into()),
        ("id", node.id.to_string().into()),
        ("status", node_status(node.status, node.draining)),
        ("groups", or_dash(node.groups.join(", "))),
        ("labels", or_dash(labels.join(", "))),
        ("capabilities", or_dash(capabilities.join(", "))),
        ("slots", node.slots.to_string().into()),
        ("version", or_dash(node.version.clone())),
        ("registered", at(node.registered_at)),
        ("seen", at(node.seen_at)),
    ];
    lines.extend(node.reset_at.map(|reset| ("tasks since", at(reset))));
    lines.extend(node.problems.iter().map(|problem| ("problem", Cell::new(problem, Tone::Bad))));
    let head = facts_within(&lines, width);
    let mut table = Table::new(["BACKEND", "ACTION", "IDEMPOTENT", "PARAMS"]);
    for backend in &node.backends {
        for action in &backend.actions {
            let params: Vec<String> = action
                .params
                .iter()
                .map(|param| if param.required { param.name.clone() } else { format!("[{}]", param.name) })
                .collect();
            table.row([
                backend.name.as_str().into(),
                action.name.as_str().into(),
                if action.idempotent { "yes".into() } else { "no".into() },
                or_dash(params.join(" ")),
            ]);
        }
    }
    format!("{head}\n{}", table.draw(width))
}

pub(super) fn node_status(status: NodeStatus, draining: bool) -> Cell {
    let tone = match (status, draining) {
        (NodeStatus::Online, false) => Tone::Good,
        (NodeStatus::Online, true) | (NodeStatus::Stale, _) => Tone::Busy,
        (NodeStatus::Offline, _) => Tone::Bad,
    };
    Cell::new(status_text(status, draining), tone)
}

/// Renders the status, marked if the host has a problem; `node show` lists the problems.
fn marked(status: NodeStatus, draining: bool, problems: &[String]) -> Cell {
    let text = status_text(status, draining);
    match problems.len() {
        0 => node_status(status, draining),
        count => Cell::new(format!("{text}, {}", plural(count, "problem")), Tone::Bad),
    }
}

fn status_text(status: NodeStatus, draining: bool) -> String {
    if draining { format!("{}, draining", status.as_str()) } else { status.as_str().to_owned() }
}

fn label((name, value): (&String, &String)) -> String {
    if value.is_empty() { name.clone() } else { format!("{name}={value}") }
}
