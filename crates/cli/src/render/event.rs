//! Owns how an event looks: one line, with nodes by name.

use std::collections::HashMap;

use downbeat_api::{AddedExecution, Event, EventBody};
use downbeat_core::ids::NodeId;

use super::table::{Tone, one_line, painted};
use super::time::millisecond;

/// Renders events, in their order, as lines.
#[derive(Debug, Default)]
pub(crate) struct EventLines {
    hostnames: HashMap<NodeId, String>,
}

impl EventLines {
    /// Starts with the names of nodes that are already known.
    pub(crate) fn new(hostnames: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        Self { hostnames: hostnames.into_iter().collect() }
    }

    /// Renders `12  2025-06-01T10:00:00.000Z  execution_started  execution started (run 0197…, step 0 on web-01)`.
    pub(crate) fn line(&mut self, event: &Event) -> String {
        if let (Some(node), EventBody::NodeRegistered { hostname, .. }) = (event.node, &event.body) {
            self.hostnames.insert(node, hostname.clone());
        }
        let about = self.about(event);
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        let head = painted(&format!("{:<8}{}", event.seq, millisecond(event.at)), Tone::Dim);
        format!("{head}  {:<26} {}{}", event.body.kind(), one_line(&event.text), painted(&about, Tone::Dim))
    }

    fn about(&self, event: &Event) -> Vec<String> {
        let mut about = Vec::new();
        if let Some(run) = &event.run {
            about.push(format!("run {run}"));
        }
        let position = Position::of(event);
        match (&position, event.execution) {
            (Some(position), _) => {
                let node = position.node.map(|node| format!(" on {}", self.name(node))).unwrap_or_default();
                let item = position.item.map(|item| format!("[{item}]")).unwrap_or_default();
                about.push(format!("step {}{item}{node}", position.step));
                if let Some(attempt) = position.attempt.filter(|attempt| *attempt > 1) {
                    about.push(format!("attempt {attempt}"));
                }
            }
            // An older server recorded the event.
            (None, Some(execution)) => about.push(format!("execution {execution}")),
            (None, None) => {}
        }
        if let (None, Some(node)) = (position, event.node) {
            about.push(format!("node {}", self.name(node)));
        }
        if let Some(by) = &event.by {
            about.push(format!("by {by}"));
        }
        about
    }

    fn name(&self, node: NodeId) -> String {
        self.hostnames.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }
}

/// The position of an execution in its run.
struct Position {
    step: u32,
    item: Option<u32>,
    attempt: Option<u32>,
    node: Option<NodeId>,
}

impl Position {
    /// Returns the position of the only execution that an event concerns.
    fn of(event: &Event) -> Option<Self> {
        if let EventBody::ExecutionsAdded { executions } = &event.body {
            let [AddedExecution { step, item, attempt, node, .. }] = executions.as_slice() else {
                return None;
            };
            return Some(Self { step: *step, item: *item, attempt: Some(*attempt), node: *node });
        }
        let Event { step, item, attempt, node, .. } = *event;
        Some(Self { step: step?, item, attempt, node })
    }
}
