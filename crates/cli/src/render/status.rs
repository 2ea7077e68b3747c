//! Owns how the status of the whole system looks.

use downbeat_api::{Growth, Replica, Server, Status, Volume};
use downbeat_core::execution::Status as ExecutionStatus;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunStatus;
use jiff::Timestamp;

use super::hosts::plural;
use super::run::status_tone;
use super::table::{Cell, Table, Tone, facts, painted};
use super::time::{age, short};

pub(crate) fn status_page(status: &Status, now: Timestamp, width: Option<usize>) -> String {
    let nodes = counts(status.nodes.iter().map(|(node, count)| {
        let tone = match node {
            NodeStatus::Online => Tone::Good,
            NodeStatus::Stale => Tone::Busy,
            NodeStatus::Offline => Tone::Bad,
        };
        (*count, node.as_str(), tone)
    }));
    let runs = counts(status.runs.iter().map(|(run, count)| {
        let tone = match run {
            RunStatus::Completed => Tone::Good,
            RunStatus::Failed | RunStatus::Cancelled => Tone::Bad,
            RunStatus::Running | RunStatus::Pending => Tone::Busy,
        };
        (*count, run.as_str(), tone)
    }));
    let executions = counts(status.executions.iter().map(|(execution, count): (&ExecutionStatus, _)| {
        (*count, execution.as_str(), status_tone(*execution))
    }));
    let server = format!("{} (downbeat {}, up {})", status.server, status.version, short(status.uptime));
    let mut lines = vec![("server", server.into())];
    if let Some(replica) = &status.replica {
        lines.push(("replica of", replica.primary.as_str().into()));
        lines.push(("behind", Cell::painted(behind(replica))));
    }
    lines.push(("store", status.store.as_str().into()));
    if let Some(problem) = &status.store_problem {
        lines.push(("problem", Cell::new(problem, Tone::Bad)));
    }
    let nodes = match status.nodes_with_problems {
        0 => nodes,
        count => format!("{nodes}; {}", painted(&format!("{count} with problems"), Tone::Bad)),
    };
    lines.extend([
        ("nodes", Cell::painted(nodes)),
        ("runs", Cell::painted(runs)),
        ("executions", Cell::painted(executions)),
    ]);
    if let Some(volume) = &status.volume {
        lines.push(("holds", holds(volume).into()));
        lines.push((
            "grows",
            volume.growth.as_ref().map_or_else(|| "not measured yet".to_owned(), grows).into(),
        ));
    }
    let text = facts(&lines);
    format!("{text}\n{}", server_table(&status.servers, now, width))
}

pub(crate) fn server_table(servers: &[Server], now: Timestamp, width: Option<usize>) -> String {
    let mut table =
        Table::new(["SERVER", "ROLE", "STATUS", "RUNS", "HTTP", "GRPC", "VERSION", "UP", "SEEN", "ID"]);
    for server in servers {
        table.row([
            server.name.as_str().into(),
            server.role.as_str().into(),
            if server.alive { Cell::new("alive", Tone::Good) } else { Cell::new("gone", Tone::Bad) },
            server.runs.to_string().into(),
            server.http.as_str().into(),
            server.grpc.as_str().into(),
            server.version.as_str().into(),
            age(server.started_at, now).into(),
            age(server.seen_at, now).into(),
            server.id.to_string().into(),
        ]);
    }
    table.draw(width)
}

/// Renders `12 events, 0.4s`, with the error if the replica does not follow the primary.
fn behind(replica: &Replica) -> String {
    let events = match replica.lag_events {
        Some(count) => plural(count, "event"),
        None => "unknown number of events".to_owned(),
    };
    let age = replica.lag.map(|lag| format!(", {}", short(lag))).unwrap_or_default();
    let tone = if replica.connected && replica.lag_events == Some(0) { Tone::Good } else { Tone::Busy };
    let text = painted(&format!("{events}{age}"), tone);
    match &replica.error {
        Some(error) if !replica.connected => format!("{text} {}", painted(&format!("({error})"), Tone::Bad)),
        _ => text,
    }
}

/// Renders `2 runs, 12 executions, 80 events, 1.5 KiB of output, 2.0 MiB on disk`.
fn holds(volume: &Volume) -> String {
    let disk = volume.disk_bytes.map(|bytes| format!(", {} on disk", size(bytes))).unwrap_or_default();
    format!(
        "{}, {}, {}, {} of output{disk}",
        plural(volume.runs, "run"),
        plural(volume.executions, "execution"),
        plural(volume.events, "event"),
        size(volume.output_bytes),
    )
}

/// Renders the same with signs, and the measured time.
fn grows(growth: &Growth) -> String {
    let sign = |change: i64| if change < 0 { '-' } else { '+' };
    let count = |change: i64, noun: &str| format!("{}{}", sign(change), plural(change.unsigned_abs(), noun));
    let bytes = |change: i64| format!("{}{}", sign(change), size(change.unsigned_abs()));
    let disk = growth.disk_bytes.map(|change| format!(", {} on disk", bytes(change))).unwrap_or_default();
    format!(
        "{}, {}, {}, {} of output{disk} a day (measured for {})",
        count(growth.runs, "run"),
        count(growth.executions, "execution"),
        count(growth.events, "event"),
        bytes(growth.output_bytes),
        short(growth.over),
    )
}

/// Renders `512 B`, `1.5 KiB`.
fn size(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Renders `3 online, 1 stale`; zeros are left out.
pub(super) fn counts<'a>(parts: impl Iterator<Item = (u64, &'a str, Tone)>) -> String {
    let text: Vec<String> = parts
        .filter(|(count, ..)| *count > 0)
        .map(|(count, name, tone)| painted(&format!("{count} {name}"), tone))
        .collect();
    if text.is_empty() { "none".to_owned() } else { text.join(", ") }
}
