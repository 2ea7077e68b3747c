//! Owns how an event looks: one line. What earlier events said of an execution and of a node is told with it.

use std::collections::HashMap;

use downbeat_api::Event;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::run::RunStatus;
use serde::Deserialize;

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

/// The data of `executions_added`.
#[derive(Debug, Deserialize)]
struct Added {
    executions: Vec<AddedExecution>,
}

#[derive(Debug, Deserialize)]
struct AddedExecution {
    id: ExecutionId,
    step: u32,
    #[serde(default)]
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
        format!("{head}  {:<26} {}{}", event.kind, one_line(&event.text), painted(&about, Tone::Dim))
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
        let only = || match event.data["executions"].as_array()?.as_slice() {
            [only] => ExecutionId::deserialize(&only["id"]).ok(),
            _ => None,
        };
        self.executions.get(event.run.as_ref()?)?.get(&event.execution.or_else(only)?)
    }

    fn name(&self, node: NodeId) -> String {
        self.hostnames.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    fn learn(&mut self, event: &Event) {
        if let (Some(node), Some(hostname)) = (event.node, event.data["hostname"].as_str()) {
            self.hostnames.insert(node, hostname.to_owned());
        }
        let Some(run) = &event.run else { return };
        if let Ok(added) = Added::deserialize(&event.data) {
            let places = added.executions.into_iter().map(|execution| {
                let AddedExecution { id, step, item, attempt, node } = execution;
                (id, Place { step, item, attempt, node })
            });
            self.executions.entry(run.clone()).or_default().extend(places);
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
        let status = event.data["status"].as_str();
        let ended = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled].map(|end| end.as_str());
        if let (Some(run), "run_moved", Some(status)) = (&event.run, event.kind.as_str(), status)
            && ended.contains(&status)
        {
            self.executions.remove(run);
        }
    }
}
