//! Owns how a recorded change is shown: who, what, when, in a line for people and in data for programs.
//!
//! Lease tokens never leave the server: whoever holds one may speak for the execution.

use downbeat_core::change::{Change, Event as Record};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{ExecutionId, NodeId, RunId, ServerId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A recorded change. In a stream the event's name is its kind and its id is `seq`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Gapless, from 1, in the order of commits.
    pub seq: u64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// `run_created`, `execution_finished`, …
    pub kind: String,
    /// The server that committed it.
    #[schema(value_type = Uuid)]
    pub server: ServerId,
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    #[schema(value_type = Option<Uuid>)]
    pub execution: Option<ExecutionId>,
    #[schema(value_type = Option<Uuid>)]
    pub node: Option<NodeId>,
    /// Who asked for it, where a person or program did.
    pub by: Option<String>,
    /// What happened, in one line for people.
    pub text: String,
    /// What else is known of it; depends on the kind.
    #[schema(value_type = Object)]
    pub data: Value,
}

impl Event {
    pub fn of(record: &Record) -> Self {
        let change = &record.change;
        let (text, data) = told(change);
        Self {
            seq: record.seq,
            at: change.at(),
            kind: change.kind().to_owned(),
            server: record.server,
            run: change.run().cloned(),
            execution: change.execution(),
            node: change.node(),
            by: change.by().map(str::to_owned),
            text,
            data,
        }
    }
}

fn told(change: &Change) -> (String, Value) {
    match change {
        Change::NodeRegistered { registration } => {
            let hostname = &registration.description.hostname;
            let data = json!({
                "hostname": hostname,
                "groups": registration.description.groups,
                "session": registration.session,
                "version": registration.description.version,
            });
            (format!("node {hostname} registered"), data)
        }
        Change::NodeMoved { from, to, .. } => {
            let (from, to) = (from.as_str(), to.as_str());
            (format!("node went from {from} to {to}"), json!({"from": from, "to": to}))
        }
        Change::NodeDrainSet { draining, .. } => {
            let text = if *draining { "node is drained" } else { "node takes work again" };
            (text.to_owned(), json!({"draining": draining}))
        }
        Change::NodeProblemsSet { problems, .. } => {
            let text = if problems.is_empty() {
                "node has no problems any more".to_owned()
            } else {
                format!("node has problems: {}", problems.join("; "))
            };
            (text, json!({"problems": problems}))
        }
        Change::NodeDeleted { session, .. } => ("node was deleted".to_owned(), json!({"session": session})),
        Change::RunCreated { run, .. } => {
            let steps: usize = run.definition.tasks.iter().map(|entry| entry.leaves().len()).sum();
            let nodes = run.resolved.nodes.len();
            let name = run.job.as_deref().unwrap_or("an inline definition");
            let mut data = json!({"job": run.job, "state": run.state, "steps": steps, "nodes": nodes, "owner": run.owner});
            if run.no_cache {
                data["no_cache"] = json!(true);
            }
            let mut again = String::new();
            if let Some(first) = &run.retry_of {
                data["retry_of"] = json!(first);
                again = format!(", trying run {first} again");
            }
            let places = if nodes > 0 { format!(" on {}", many(nodes, "node")) } else { String::new() };
            (format!("run of {name} created: {}{places}{again}", many(steps, "step")), data)
        }
        Change::RunTaken { owner, epoch, .. } => {
            (format!("run taken over by server {owner}"), json!({"owner": owner, "epoch": epoch}))
        }
        Change::RunCancelRequested { .. } => ("cancel requested".to_owned(), json!({})),
        Change::RunPauseSet { paused, .. } => {
            let text = if *paused { "run paused" } else { "run resumed" };
            (text.to_owned(), json!({"paused": paused}))
        }
        Change::RunAdmitted { nodes, .. } => match nodes.len() {
            0 => ("run let in".to_owned(), json!({})),
            held => (format!("run let in; it holds {}", many(held, "node")), json!({"held": held})),
        },
        Change::ExecutionsAdded { executions, .. } => {
            let data: Vec<Value> = executions
                .iter()
                .map(|execution| {
                    let mut data = json!({
                        "id": execution.id,
                        "step": execution.step,
                        "node": execution.node(),
                        "attempt": execution.attempt,
                        "status": execution.state.status(),
                    });
                    if let Some(item) = execution.item {
                        data["item"] = json!(item);
                    }
                    if execution.is_cached() {
                        data["cached"] = json!(true);
                    }
                    data
                })
                .collect();
            let (all, carried, cached) = (
                executions.len(),
                executions.iter().filter(|execution| execution.is_carried()).count(),
                executions.iter().filter(|execution| execution.is_cached()).count(),
            );
            let mut text = format!("{} added", many(all, "execution"));
            for (count, whence) in [(carried, "taken over"), (cached, "cached")] {
                match count {
                    0 => {}
                    count if count == all => text.push_str(&format!(", {whence}")),
                    count => text.push_str(&format!(", {count} of them {whence}")),
                }
            }
            (text, json!({"executions": data}))
        }
        Change::ExecutionLeased { .. } => ("execution leased".to_owned(), json!({})),
        Change::ExecutionStarted { .. } => ("execution started".to_owned(), json!({})),
        Change::ExecutionFinished { outcome, .. } => {
            let verdict = match outcome.verdict {
                Verdict::Succeeded => "succeeded",
                Verdict::Failed => "failed",
                Verdict::Cancelled => "was cancelled",
            };
            let code = outcome.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            let error = outcome.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            (format!("execution {verdict}{code}{error}"), json!(outcome))
        }
        Change::ExecutionLost { reason, .. } => {
            (format!("execution lost: {reason}"), json!({"reason": reason}))
        }
        Change::ExecutionCancelRequested { reason, .. } => {
            (format!("execution is to stop: {reason}"), json!({"reason": reason}))
        }
        Change::ExecutionGivenUp { error, .. } => {
            (format!("execution given up: {error}"), json!({"error": error}))
        }
        Change::ExecutionSkipped { reason, .. } => {
            (format!("execution skipped: {reason}"), json!({"reason": reason}))
        }
        Change::RunMoved { path, end, .. } => {
            let to = path.last();
            let error = end.as_ref().and_then(|end| end.error.as_deref());
            let text = match (to, error) {
                (Some(to), Some(error)) => format!("run is {to}: {error}"),
                (Some(to), None) => format!("run is {to}"),
                (None, _) => "run stays where it is".to_owned(),
            };
            let mut data = json!({"path": path, "state": to, "status": to.map(|state| state.status())});
            if let Some(end) = end {
                data["partial"] = json!(end.partial);
                data["error"] = json!(end.error);
            }
            (text, data)
        }
        Change::Unknown { .. } => {
            ("a newer server wrote this; this one does not know its kind".to_owned(), json!({}))
        }
    }
}

fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_an_unknown_kind_is_shown_under_its_name() {
        let run = Some(RunId::from("run".to_owned()));
        let change = Change::Unknown { name: "job_stored".to_owned(), run, at: Timestamp::UNIX_EPOCH };
        let event = Event::of(&Record { seq: 7, server: ServerId(uuid::Uuid::from_u128(1)), change });
        assert_eq!((event.seq, event.kind.as_str()), (7, "job_stored"));
        assert_eq!(event.run.as_ref().map(RunId::as_str), Some("run"));
        assert_eq!(event.text, "a newer server wrote this; this one does not know its kind");
    }
}
