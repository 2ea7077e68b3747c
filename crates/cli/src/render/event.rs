//! Owns how an event looks: one line.

use downbeat_server::http::view::Event;

use super::table::{Tone, one_line, painted};
use super::time::millisecond;

/// `12  2025-06-01T10:00:00.000Z  run_created  run of deploy created (run 0197…, by root)`.
pub(crate) fn event_line(event: &Event) -> String {
    let mut about = Vec::new();
    if let Some(run) = &event.run {
        about.push(format!("run {run}"));
    }
    if let Some(execution) = &event.execution {
        about.push(format!("execution {execution}"));
    }
    if let Some(node) = &event.node {
        about.push(format!("node {node}"));
    }
    if let Some(by) = &event.by {
        about.push(format!("by {by}"));
    }
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    let head = painted(&format!("{:<8}{}", event.seq, millisecond(event.at)), Tone::Dim);
    format!("{head}  {:<26} {}{}", event.kind, one_line(&event.text), painted(&about, Tone::Dim))
}
