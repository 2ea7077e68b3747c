//! Owns how clusters look, and the status of one.

use downbeat_api::{Cluster, ClusterStatus, TaskCounts, Walk};
use downbeat_core::cluster::OnRegister;
use downbeat_core::ids::ClusterId;
use downbeat_core::standing::Cell as Sign;
use jiff::Timestamp;

use super::hosts::plural;
use super::table::{Cell, Table, Tone, cut, facts_within, one_line, or_dash};
use super::time::{age, second};

/// The columns of a description in a list; `cluster show` has all of it.
const MOST_OF_DESCRIPTION: usize = 80;
/// How many tasks get lines with the commands that help.
const TASKS_HELPED: usize = 3;

pub(crate) fn cluster_table(clusters: &[Cluster], now: Timestamp, width: Option<usize>) -> String {
    let mut table = Table::new(["CLUSTER", "NODES", "TASKS", "ON REGISTER", "CREATED", "DESCRIPTION"])
        .may_cut("CLUSTER", 12);
    for cluster in clusters {
        table.row([
            cluster.name.as_str().into(),
            cluster.nodes.to_string().into(),
            cluster.tasks.to_string().into(),
            cluster.on_register.as_str().into(),
            created(cluster, |at| format!("{} ago", age(at, now))),
            or_dash(cut(&one_line(&cluster.description), MOST_OF_DESCRIPTION)),
        ]);
    }
    table.draw(width)
}

pub(crate) fn cluster_page(cluster: &Cluster, now: Timestamp, width: Option<usize>) -> String {
    let on_register = match cluster.on_register {
        OnRegister::Reset => "reset: a node whose agent starts again does all standing tasks again",
        OnRegister::Resume => "resume: a node whose agent starts again keeps what succeeded",
    };
    let at = |time: Timestamp| format!("{} ({} ago)", second(time), age(time, now));
    facts_within(
        &[
            ("cluster", cluster.name.as_str().into()),
            ("id", cluster.id.to_string().into()),
            ("description", or_dash(cluster.description.clone())),
            ("on register", on_register.into()),
            ("nodes", cluster.nodes.to_string().into()),
            ("tasks", cluster.tasks.to_string().into()),
            ("created", created(cluster, at)),
        ],
        width,
    )
}

/// Renders the time of creation; the first cluster was always there.
fn created(cluster: &Cluster, text: impl FnOnce(Timestamp) -> String) -> Cell {
    if cluster.created_at == Timestamp::UNIX_EPOCH {
        or_dash(String::new())
    } else {
        text(cluster.created_at).into()
    }
}

/// The first nodes that a failed blocking task keeps from the rest, and how many there are.
#[derive(Debug)]
pub(crate) struct StuckNodes {
    pub(crate) nodes: Vec<Walk>,
    pub(crate) total: u64,
}

pub(crate) fn cluster_status_page(
    cluster: &Cluster,
    status: &ClusterStatus,
    stuck: &StuckNodes,
    width: Option<usize>,
) -> String {
    let nodes = match status.total_nodes {
        0 => "none".to_owned(),
        total => format!("{total}: {} active, {} inactive", status.active_nodes, status.inactive_nodes),
    };
    let of_nodes = |count: u64, tone| match count {
        0 => Cell::new("-", Tone::Dim),
        count => Cell::new(plural(count, "node"), tone),
    };
    let complete = match status.nodes_with_all_tasks_complete {
        0 => of_nodes(0, Tone::Dim),
        count => Cell::new(
            format!("{} ({})", plural(count, "node"), percent(status.completion_percentage)),
            Tone::Good,
        ),
    };
    let head = facts_within(
        &[
            ("cluster", cluster.name.as_str().into()),
            ("id", status.cluster_id.to_string().into()),
            ("nodes", nodes.into()),
            ("tasks", status.total_tasks.to_string().into()),
            ("all done", complete),
            ("pending", of_nodes(status.nodes_with_pending_tasks, Tone::Busy)),
            ("failed", of_nodes(status.nodes_with_failed_tasks, Tone::Bad)),
        ],
        width,
    );
    if status.tasks.is_empty() {
        let flag = cluster_flag(cluster);
        return format!(
            "{head}\nno standing tasks; `downbeat task add NAME --command COMMAND{flag}` adds one\n"
        );
    }
    let failed = match status.nodes_with_failed_tasks.saturating_sub(stuck.total) {
        0 => String::new(),
        _ => {
            let name = quoted(&cluster.name);
            let which = if stuck.total > 0 { "other failed tasks" } else { "failed tasks" };
            format!("\n{which}: downbeat cluster status {name} --nodes --state failed\n")
        }
    };
    let stuck = stuck_nodes(cluster, stuck, width);
    format!("{head}\n{}{stuck}{failed}", task_counts(&status.tasks, width))
}

/// `88.9 %`. Only a whole cluster has 100 %.
fn percent(percentage: f64) -> String {
    let tenths = (percentage * 10.0).floor() / 10.0;
    if tenths.fract() == 0.0 { format!("{tenths:.0} %") } else { format!("{tenths:.1} %") }
}

/// Renders a row per task: how many nodes are how far with it.
fn task_counts(tasks: &[TaskCounts], width: Option<usize>) -> String {
    let head = [
        "#",
        "TASK",
        "BLOCKING",
        "SUCCEEDED",
        "FAILED",
        "LOST",
        "RUNNING",
        "PENDING",
        "SKIPPED",
        "NOT SELECTED",
    ];
    let mut table = Table::new(head)
        .or_short("BLOCKING", "BLOCKS")
        .or_short("SUCCEEDED", "OK")
        .or_short("RUNNING", "RUN")
        .or_short("PENDING", "WAIT")
        .or_short("SKIPPED", "SKIP")
        .or_short("NOT SELECTED", "N/A")
        .may_cut("TASK", 10);
    for task in tasks {
        let count = |sign: Sign, tone| match task.counts.get(&sign).copied().unwrap_or_default() {
            0 => Cell::new("-", Tone::Dim),
            count => Cell::new(count.to_string(), tone),
        };
        table.row([
            task.order.to_string().into(),
            task.name.as_str().into(),
            if task.blocking { "yes".into() } else { "no".into() },
            count(Sign::Succeeded, Tone::Good),
            count(Sign::Failed, Tone::Bad),
            count(Sign::Lost, Tone::Bad),
            count(Sign::Running, Tone::Busy),
            count(Sign::Pending, Tone::Busy),
            count(Sign::Skipped, Tone::Dim),
            count(Sign::NotSelected, Tone::Dim),
        ]);
    }
    table.draw(width)
}

/// Renders the nodes that a failed blocking task keeps from the rest, why, and the commands that help.
fn stuck_nodes(cluster: &Cluster, stuck: &StuckNodes, width: Option<usize>) -> String {
    if stuck.total == 0 {
        return String::new();
    }
    let mut table = Table::new(["NODE", "TASK", "WHY"]).may_cut("TASK", 10).may_cut("NODE", 12);
    // The first node of each task.
    let mut helped: Vec<(&str, &str)> = Vec::new();
    for walk in &stuck.nodes {
        let Some(at) = &walk.stuck else { continue };
        table.row([
            walk.hostname.as_str().into(),
            at.task.as_str().into(),
            Cell::new(at.why.as_str(), Tone::Bad),
        ]);
        if !helped.iter().any(|(task, _)| *task == at.task) {
            helped.push((&at.task, &walk.hostname));
        }
    }
    let flag = cluster_flag(cluster);
    let mut text = format!(
        "\n{} stuck: a blocking task failed, and the tasks after it are skipped\n{}",
        if stuck.total == 1 { "1 node is".to_owned() } else { format!("{} nodes are", stuck.total) },
        table.draw(width)
    );
    let more = stuck.total.saturating_sub(stuck.nodes.len() as u64);
    if more > 0 {
        let name = quoted(&cluster.name);
        text.push_str(&format!(
            "… and {more} more; downbeat cluster status {name} --nodes --state blocked shows them\n"
        ));
    }
    text.push('\n');
    for (task, node) in helped.into_iter().take(TASKS_HELPED) {
        let (task, node) = (quoted(task), quoted(node));
        text.push_str(&format!("downbeat task logs {task} --node {node}{flag}   # its output\n"));
        text.push_str(&format!("downbeat task rerun {task} --node {node}{flag}   # once fixed\n"));
    }
    if stuck.total > 1 {
        text.push_str("--failed instead of --node: on all nodes where the task failed\n");
    }
    text
}

/// Returns the flag that names the cluster in a command, unless it is the default.
pub(super) fn cluster_flag(cluster: &Cluster) -> String {
    if cluster.id == ClusterId::DEFAULT {
        String::new()
    } else {
        format!(" --cluster {}", quoted(&cluster.name))
    }
}

/// Returns a name as an argument of a shell command.
pub(crate) fn quoted(name: &str) -> String {
    let is_plain =
        |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '+' | ',');
    if !name.is_empty() && name.chars().all(is_plain) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_copied_into_a_shell() {
        for (name, expected) in [
            ("web-01", "web-01"),
            ("Production Cluster", "'Production Cluster'"),
            ("it's; rm", "'it'\\''s; rm'"),
            ("Köln", "Köln"),
            ("", "''"),
        ] {
            assert_eq!(quoted(name), expected);
        }
    }

    #[test]
    fn only_a_whole_cluster_is_at_a_hundred_per_cent() {
        for (percentage, expected) in
            [(0.0, "0 %"), (66.66, "66.6 %"), (99.99, "99.9 %"), (100.0, "100 %"), (50.0, "50 %")]
        {
            assert_eq!(percent(percentage), expected);
        }
    }
}
