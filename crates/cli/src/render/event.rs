//! Owns how an event looks: one line. What earlier events said of an execution and of a node is told with it.

use std::collections::HashMap;

use downbeat_api::{AddedExecution, Event, Happened};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};

use super::table::{Tone, one_line, painted};
use super::time::millisecond;

/// Events in their order, as lines.
#[derive(Debug, Default)]
pub(crate) struct EventLines {
    hostnames: HashMap<NodeId, String>,
    /// Of the runs that go on.
    executions: HashMap<RunId, HashMap<ExecutionId, Place>>,
}

/// An execution's place in its run.
#[derive(Clone, Copy, Debug)]
struct Place {
    step: u32,
    item: Option<u32>,
    attempt: u32,
    node: Option<NodeId>,
}

impl EventLines {
    /// With the names of nodes that are known beforehand.
    pub(crate) fn new(hostnames: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        Self { hostnames: hostnames.into_iter().collect(), executions: HashMap::new() }
    }

    /// `12  2025-06-01T10:00:00.000Z  execution_started  execution started (run 0197…, step 0 on web-01)`.
    pub(crate) fn line(&mut self, event: &Event) -> String {
        self.learn(event);
        let about = self.about(event);
        self.forget(event);
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        let head = painted(&format!("{:<8}{}", event.seq, millisecond(event.at)), Tone::Dim);
        format!(
            "{head}  {:<26} {}{}",
            event.happened.kind(),
            one_line(&event.text),
            painted(&about, Tone::Dim)
        )
    }

    fn about(&self, event: &Event) -> Vec<String> {
        let mut about = Vec::new();
        if let Some(run) = &event.run {
            about.push(format!("run {run}"));
        }
        let place = self.place(event);
        match (place, event.execution) {
            (Some(place), _) => {
                let node = place.node.map(|node| format!(" on {}", self.name(node))).unwrap_or_default();
                let item = place.item.map(|item| format!("[{item}]")).unwrap_or_default();
                about.push(format!("step {}{item}{node}", place.step));
                if place.attempt > 1 {
                    about.push(format!("attempt {}", place.attempt));
                }
            }
            (None, Some(execution)) => about.push(format!("execution {execution}")),
            (None, None) => {}
        }
        if let (None, Some(node)) = (place, event.node) {
            about.push(format!("node {}", self.name(node)));
        }
        if let Some(by) = &event.by {
            about.push(format!("by {by}"));
        }
        about
    }

    fn place(&self, event: &Event) -> Option<&Place> {
        let only = || match &event.happened {
            Happened::ExecutionsAdded { executions } => match executions.as_slice() {
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
        if let (Some(node), Happened::NodeRegistered { hostname, .. }) = (event.node, &event.happened) {
            self.hostnames.insert(node, hostname.clone());
        }
        let Some(run) = &event.run else { return };
        if let Happened::ExecutionsAdded { executions } = &event.happened {
            let place = |added: &AddedExecution| {
                let AddedExecution { step, item, attempt, node, .. } = *added;
                (added.id, Place { step, item, attempt, node })
            };
            self.executions.entry(run.clone()).or_default().extend(executions.iter().map(place));
        }
        let known = self.executions.get_mut(run);
        if let (Some(known), Some(execution), Some(node)) = (known, event.execution, event.node)
            && let Some(place) = known.get_mut(&execution)
        {
            place.node = Some(node);
        }
    }

    /// Nothing follows the end of a run, and a stream may go on for weeks.
    fn forget(&mut self, event: &Event) {
        if let (Some(run), Happened::RunMoved { state: Some(state), .. }) = (&event.run, &event.happened)
            && state.is_terminal()
        {
            self.executions.remove(run);
        }
    }
}
