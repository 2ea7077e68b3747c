//! Owns how an event looks: one line, completed with facts about its execution and node from earlier events.

use std::collections::HashMap;

use downbeat_api::{AddedExecution, Event, EventBody};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};

use super::table::{Tone, one_line, painted};
use super::time::millisecond;

/// Renders events, in their order, as lines.
#[derive(Debug, Default)]
pub(crate) struct EventLines {
    hostnames: HashMap<NodeId, String>,
    /// Executions of the runs that have not ended.
    executions: HashMap<RunId, HashMap<ExecutionId, Position>>,
}

/// The position of an execution in its run.
#[derive(Clone, Copy, Debug)]
struct Position {
    step: u32,
    item: Option<u32>,
    attempt: u32,
    node: Option<NodeId>,
}

impl EventLines {
    /// Starts with the names of nodes that are already known.
    pub(crate) fn new(hostnames: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        Self { hostnames: hostnames.into_iter().collect(), executions: HashMap::new() }
    }

    /// Renders `12  2025-06-01T10:00:00.000Z  execution_started  execution started (run 0197…, step 0 on web-01)`.
    pub(crate) fn line(&mut self, event: &Event) -> String {
        self.learn(event);
        let about = self.about(event);
        self.forget(event);
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        let head = painted(&format!("{:<8}{}", event.seq, millisecond(event.at)), Tone::Dim);
        format!("{head}  {:<26} {}{}", event.body.kind(), one_line(&event.text), painted(&about, Tone::Dim))
    }

    fn about(&self, event: &Event) -> Vec<String> {
        let mut about = Vec::new();
        if let Some(run) = &event.run {
            about.push(format!("run {run}"));
        }
        let position = self.position(event);
        match (position, event.execution) {
            (Some(position), _) => {
                let node = position.node.map(|node| format!(" on {}", self.name(node))).unwrap_or_default();
                let item = position.item.map(|item| format!("[{item}]")).unwrap_or_default();
                about.push(format!("step {}{item}{node}", position.step));
                if position.attempt > 1 {
                    about.push(format!("attempt {}", position.attempt));
                }
            }
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

    fn position(&self, event: &Event) -> Option<&Position> {
        let only = || match &event.body {
            EventBody::ExecutionsAdded { executions } => match executions.as_slice() {
                [only] => Some(only.id),
                _ => None,
            },
            _ => None,
        };
        self.executions.get(event.run.as_ref()?)?.get(&event.execution.or_else(only)?)
    }

    fn name(&self, node: NodeId) -> String {
        self.hostnames.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    fn learn(&mut self, event: &Event) {
        if let (Some(node), EventBody::NodeRegistered { hostname, .. }) = (event.node, &event.body) {
            self.hostnames.insert(node, hostname.clone());
        }
        let Some(run) = &event.run else { return };
        if let EventBody::ExecutionsAdded { executions } = &event.body {
            let position = |added: &AddedExecution| {
                let AddedExecution { step, item, attempt, node, .. } = *added;
                (added.id, Position { step, item, attempt, node })
            };
            self.executions.entry(run.clone()).or_default().extend(executions.iter().map(position));
        }
        let known = self.executions.get_mut(run);
        if let (Some(known), Some(execution), Some(node)) = (known, event.execution, event.node)
            && let Some(position) = known.get_mut(&execution)
        {
            position.node = Some(node);
        }
    }

    /// Removes the executions of an ended run: no event follows, and a stream may last for weeks.
    fn forget(&mut self, event: &Event) {
        if let (Some(run), EventBody::RunMoved { state: Some(state), .. }) = (&event.run, &event.body)
            && state.is_terminal()
        {
            self.executions.remove(run);
        }
    }
}
