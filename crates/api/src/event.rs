//! Owns how a recorded change is shown: a line for people and data for programs.
//!
//! Lease tokens never leave the server: a program that has one could report for the execution.

use downbeat_core::change::{Change, Event as Record};
use downbeat_core::cluster::{ClusterEdit, ClusterRecord};
use downbeat_core::delivery::DeliveryStatus;
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, TaskId};
use downbeat_core::job::{BackfillStep, NotStarted};
use downbeat_core::node::Former;
use downbeat_core::run::{Checked, Found, Queued};
use downbeat_core::schedule::Skipped;
use downbeat_core::shown::shown;
use downbeat_core::spec::ActionKind;
use downbeat_core::standing::RerunScope;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event_body::{EventBody, task_name};

/// A recorded change. In a stream the event's name is its kind and its id is `seq`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Gapless, from 1, in the order of commits.
    pub seq: u64,
    pub at: Timestamp,
    /// `kind` is what happened; `data` has the details.
    #[serde(flatten)]
    pub body: EventBody,
    /// The server that committed it.
    #[schema(value_type = Uuid)]
    pub server: ServerId,
    /// Null in events that an older server recorded, like `job`, `step`, `item`, `attempt` and most of `node`.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    pub cluster: Option<ClusterId>,
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// The name of the run's job.
    #[serde(default)]
    pub job: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    pub execution: Option<ExecutionId>,
    /// The execution's step.
    #[serde(default)]
    pub step: Option<u32>,
    /// The execution's index among the items of its task's `for_each`, from 0.
    #[serde(default)]
    pub item: Option<u32>,
    /// The execution's number among the attempts of its step on its node or for its item, from 1.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// The node itself, or the node of the execution.
    #[schema(value_type = Option<Uuid>)]
    pub node: Option<NodeId>,
    /// Who requested it, if a person or program did.
    pub by: Option<String>,
    /// A description of the event in one line, for people.
    pub text: String,
}

/// In a stream, the event `gap`: earlier events that the client has not received are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gap {
    /// The number of the first event that is kept. The stream continues with it.
    pub first: u64,
}

impl Gap {
    /// The name of the event in a stream.
    pub const NAME: &'static str = "gap";
}

impl Event {
    pub fn of(record: &Record) -> Self {
        let (change, about) = (&record.change, &record.about);
        Self {
            seq: record.seq,
            at: change.at(),
            body: EventBody::of(change),
            server: record.server,
            cluster: about.cluster,
            run: change.run().cloned(),
            job: about.job.as_deref().map(str::to_owned),
            execution: change.execution(),
            step: about.step,
            item: about.item,
            attempt: about.attempt,
            node: record.node(),
            by: change.by().map(str::to_owned),
            text: text(change),
        }
    }
}

/// Describes a decision about the times of a job's schedules.
fn decided(job: &str, until: Timestamp, skipped: &[Skipped], refused: &[NotStarted]) -> String {
    let mut text = format!("schedules of job {job} decided until {until}");
    for Skipped { reason, first, last, count } in skipped {
        let times = if count == &1 { first.to_string() } else { format!("{count} times, {first} to {last}") };
        text.push_str(&format!("; skipped ({}): {times}", reason.as_str().replace('_', " ")));
    }
    for NotStarted { at, error } in refused {
        text.push_str(&format!("; not started: {at}: {error}"));
    }
    text
}

/// Describes progress of a backfill.
fn backfill_moved(job: &str, step: &BackfillStep) -> String {
    let mut text = format!("backfill of job {job}");
    let mut ends = step.ended.iter().map(|end| {
        let how = end.state.map_or("removed", |state| state.as_str());
        format!("{} {how}", end.at)
    });
    if let Some(first) = ends.next() {
        text.push_str(&format!(": {}", ends.fold(first, |all, one| format!("{all}, {one}"))));
    }
    if step.existing {
        text.push_str(&format!(": a time before {} has a run already", step.until));
    }
    if let Some(NotStarted { at, error }) = &step.refused {
        text.push_str(&format!("; not started: {at}: {error}"));
    }
    if step.is_end {
        text.push_str(" has ended");
    }
    text
}

/// Describes a change in one line.
fn text(change: &Change) -> String {
    match change {
        Change::ClusterCreated { cluster, .. } => format!("cluster {} created", cluster.name),
        Change::ClusterChanged { cluster, edit, .. } => {
            format!("cluster {}: {}", cluster.name, edited(cluster, edit))
        }
        Change::ClusterDeleted { name, .. } => format!("cluster {name} deleted"),
        Change::JobApplied { job, .. } if job.version == 1 => format!("job {} created", job.key.name),
        Change::JobApplied { job, .. } => format!("job {} changed: version {}", job.key.name, job.version),
        Change::JobPauseSet { job, paused: true, .. } => format!("job {} paused", job.name),
        Change::JobPauseSet { job, paused: false, .. } => format!("job {} resumed", job.name),
        Change::JobDeleted { job, .. } => format!("job {} deleted", job.name),
        Change::JobDecided { job, until, skipped, refused, .. } => {
            decided(&job.name, *until, skipped, refused)
        }
        Change::BackfillCreated { backfill } => format!(
            "backfill of job {} begins: {} from {} to {}",
            backfill.job.name,
            many(backfill.times as usize, "time"),
            backfill.from,
            backfill.to
        ),
        Change::BackfillMoved { job, step, .. } => backfill_moved(&job.name, step),
        Change::BackfillCancelled { job, .. } => format!("backfill of job {} cancelled", job.name),
        Change::JobNotTriggered { job, by, error, .. } => {
            format!("job {} not started by {by}: {error}", job.name)
        }
        Change::TriggersFollowed { until, .. } => format!("triggers followed all events up to {until}"),
        Change::NodeRegistered { registration } => {
            let starts_over =
                registration.kept_since.is_none() && matches!(registration.former, Former::Session { .. });
            let standing = if starts_over { "; its standing tasks start over" } else { "" };
            format!("node {} registered{standing}", registration.description.hostname)
        }
        Change::NodeMoved { from, to, .. } => {
            format!("node changed from {} to {}", from.as_str(), to.as_str())
        }
        Change::NodeDrainSet { draining: true, .. } => "node is drained".to_owned(),
        Change::NodeDrainSet { draining: false, .. } => "node accepts new tasks again".to_owned(),
        Change::NodeProblemsSet { problems, .. } if problems.is_empty() => {
            "node no longer has problems".to_owned()
        }
        Change::NodeProblemsSet { problems, .. } => format!("node has problems: {}", problems.join("; ")),
        Change::NodeDeleted { .. } => "node was deleted".to_owned(),
        Change::RunCreated { run, .. } if run.id.is_standing() => {
            "the cluster has its first standing task".to_owned()
        }
        Change::RunCreated { run, .. } => {
            let steps = run.definition.steps().count();
            let name = run.job.as_deref().unwrap_or("an inline definition");
            let places = match run.resolved.nodes.len() {
                0 => String::new(),
                nodes => format!(" on {}", many(nodes, "node")),
            };
            let again = match &run.retry_of {
                Some(first) => format!(", a retry of run {first}"),
                None => String::new(),
            };
            format!("run of {name} created: {}{places}{again}", many(steps, "step"))
        }
        Change::RunTaken { owner, .. } => format!("run taken over by server {owner}"),
        Change::RunCancelRequested { .. } => "cancel requested".to_owned(),
        Change::RunPauseSet { paused: true, .. } => "run paused".to_owned(),
        Change::RunPauseSet { paused: false, .. } => "run resumed".to_owned(),
        Change::RunAdmitted { nodes, .. } if nodes.is_empty() => "run admitted".to_owned(),
        Change::RunAdmitted { nodes, .. } => {
            format!("run admitted; it holds {}", many(nodes.len(), "node"))
        }
        Change::ExecutionsAdded { executions, .. } => {
            let carried = executions.iter().filter(|execution| execution.is_carried()).count();
            let cached = executions.iter().filter(|execution| execution.is_cached()).count();
            let mut text = format!("{} added", many(executions.len(), "execution"));
            for (count, source) in [(carried, "reused"), (cached, "cached")] {
                match count {
                    0 => {}
                    count if count == executions.len() => text.push_str(&format!(", {source}")),
                    count => text.push_str(&format!(", {count} of them {source}")),
                }
            }
            text
        }
        Change::ExecutionLeased { .. } => "execution leased".to_owned(),
        Change::ExecutionStarted { .. } => "execution started".to_owned(),
        Change::ExecutionFinished { outcome, .. } => {
            let verdict = match outcome.verdict {
                Verdict::Succeeded => "succeeded",
                Verdict::Failed => "failed",
                Verdict::Cancelled => "was cancelled",
            };
            let code = outcome.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            let error = outcome.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("execution {verdict}{code}{error}")
        }
        Change::ExecutionLost { reason, .. } => format!("execution lost: {reason}"),
        Change::ApprovalDecided { decision, .. } => match (decision.approved, &decision.reason) {
            (true, None) => "step approved".to_owned(),
            (true, Some(reason)) => format!("step approved: {reason}"),
            (false, None) => "step rejected".to_owned(),
            (false, Some(reason)) => format!("step rejected: {reason}"),
        },
        Change::ExecutionCancelRequested { reason, .. } => format!("execution stop requested: {reason}"),
        Change::ExecutionGivenUp { error, .. } => format!("execution given up: {error}"),
        Change::ExecutionSkipped { reason, .. } => format!("execution skipped: {reason}"),
        Change::InstanceFailed { step, item, reason, .. } => {
            let item = item.map(|item| format!(", item {item},")).unwrap_or_default();
            format!("step {step}{item} failed for good: {reason}")
        }
        Change::RunChecked { results, .. } => checked(results),
        Change::RunActed { action, target, error, queued, .. } => {
            acted(*action, target.as_deref(), error.as_deref(), *queued)
        }
        Change::RunWoken { .. } => {
            "run does not wait any longer; its constraints are checked again".to_owned()
        }
        Change::RunMoved { path, stop, end, .. } => {
            let error = end.as_ref().and_then(|end| end.error.as_deref());
            match (path.last(), error) {
                (Some(to), Some(error)) => format!("run is {to}: {error}"),
                (Some(to), None) => format!("run is {to}"),
                (None, _) if stop.is_some() => "the rest of the run is ended".to_owned(),
                (None, _) => "run state unchanged".to_owned(),
            }
        }
        Change::DeliveryQueued { delivery, .. } => {
            format!("{} to {} queued", delivery.message.action(), delivery.message.destination())
        }
        Change::DeliveryTaken { attempt, .. } => format!("message is sent, try {attempt}"),
        Change::DeliveryTried { error, code, state, .. } => {
            let code = code.map(|code| format!(" with status {code}")).unwrap_or_default();
            let error = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            match state.status() {
                DeliveryStatus::Delivered => format!("message delivered{code}"),
                DeliveryStatus::Pending => format!("message not delivered{code}, it is sent again{error}"),
                DeliveryStatus::Failed => format!("message not delivered{code}, given up{error}"),
            }
        }
        Change::DeliveryRequested { .. } => "message is sent again".to_owned(),
        Change::Unknown { .. } => {
            "recorded by a newer server; this version does not know its kind".to_owned()
        }
    }
}

/// Describes what was found about constraints.
fn checked(results: &[Checked]) -> String {
    let each = |Checked { constraint, found }: &Checked| match found {
        Found::Passed => format!("{constraint} holds"),
        Found::Violated { message } => format!("{constraint} is violated: {message}"),
        Found::Unknown { reason, skips: false } => {
            format!("{constraint} cannot be checked, which is allowed: {reason}")
        }
        Found::Unknown { reason, skips: true } => {
            format!("{constraint} cannot be checked, and the run is skipped: {reason}")
        }
    };
    let each: Vec<String> = results.iter().map(each).collect();
    if each.is_empty() { "no constraint had to be checked".to_owned() } else { each.join("; ") }
}

/// Describes an action.
fn acted(action: ActionKind, target: Option<&str>, error: Option<&str>, queued: Option<Queued>) -> String {
    let target = target.map(|target| format!(" ({target})")).unwrap_or_default();
    let outcome = match error {
        None => "executed".to_owned(),
        Some(error) => format!("failed: {error}"),
    };
    let waits = match queued {
        None => String::new(),
        Some(Queued { until: None }) => "; the run waits for another run of its job".to_owned(),
        Some(Queued { until: Some(until) }) => format!("; the run waits until {until}"),
    };
    format!("action {action}{target} {outcome}{waits}")
}

/// Describes an edit of a cluster.
fn edited(cluster: &ClusterRecord, edit: &ClusterEdit) -> String {
    let task = |id: &TaskId| match task_name(cluster, *id) {
        Some(name) => format!("task `{}`", shown(&name)),
        None => format!("task {id}"),
    };
    match edit {
        ClusterEdit::Settings => "settings changed".to_owned(),
        ClusterEdit::TaskAdded { task: id } => format!("{} added", task(id)),
        ClusterEdit::TaskUpdated { task: id } => format!("{} changed", task(id)),
        ClusterEdit::TaskDeleted { task: id } => format!("{} deleted", task(id)),
        ClusterEdit::TasksReordered => "tasks reordered".to_owned(),
        ClusterEdit::TasksApplied => {
            format!("list replaced; it has {}", many(cluster.list.tasks.len(), "task"))
        }
        ClusterEdit::TaskRerun { task: id, scope } => {
            let scope = match scope {
                RerunScope::All => "on all nodes".to_owned(),
                RerunScope::Failed => "where it failed".to_owned(),
                RerunScope::Node { node } => format!("on node {node}"),
            };
            format!("{} is done again {scope}", task(id))
        }
        ClusterEdit::NodeReset { node } => format!("node {node} does all tasks again"),
    }
}

fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use downbeat_core::change::About;
    use downbeat_core::standing::{TaskFields, edit};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_edit_of_a_cluster_is_described_with_the_names_of_its_task() {
        let at = Timestamp::UNIX_EPOCH;
        let (id, node) = (TaskId(Uuid::from_u128(7)), NodeId(Uuid::from_u128(8)));
        let fresh = ClusterRecord::new(ClusterId::DEFAULT, "web".to_owned(), String::new(), at);
        let added = edit::add(&fresh, id, TaskFields::shell("install", "true"), None, at).unwrap();
        let list = &added.cluster;
        let never = |_, _| false;
        let failed = edit::rerun(list, id, RerunScope::Failed, never, at).unwrap();
        let reset = edit::reset_node(list, node, never, at).unwrap();
        let updated = edit::update(list, id, TaskFields::shell("setup", "true"), at).unwrap();
        let deleted = edit::delete(list, id, at).unwrap();
        let reordered = edit::reorder(list, &[id], at).unwrap();
        let (applied, _) = edit::apply(list, Vec::new(), || id, at).unwrap();
        let settings = edit::settings(list, edit::Settings::default(), at).unwrap();
        let cases = [
            (added.clone(), "cluster web: task `install` added", "task_added"),
            (updated, "cluster web: task `setup` changed", "task_updated"),
            (deleted, "cluster web: task `install` deleted", "task_deleted"),
            (failed, "cluster web: task `install` is done again where it failed", "task_rerun"),
            (reset, &format!("cluster web: node {node} does all tasks again"), "node_reset"),
            (reordered, "cluster web: tasks reordered", "tasks_reordered"),
            (applied.unwrap(), "cluster web: list replaced; it has 0 tasks", "tasks_applied"),
            (settings, "cluster web: settings changed", "settings"),
        ];
        for (edited, expected, word) in cases {
            let change =
                Change::ClusterChanged { cluster: edited.cluster, edit: edited.edit, by: "x".to_owned(), at };
            assert_eq!(text(&change), expected);
            let body = serde_json::to_value(EventBody::of(&change)).unwrap();
            assert_eq!((&body["kind"], &body["data"]["edit"]), (&"cluster_changed".into(), &word.into()));
        }
    }

    #[test]
    fn an_event_of_an_unknown_kind_is_shown_under_its_name() {
        let run = Some(RunId::from("run".to_owned()));
        let change = Change::Unknown { name: "job_stored".to_owned(), run, at: Timestamp::UNIX_EPOCH };
        let event = Event::of(&Record {
            seq: 7,
            server: ServerId(uuid::Uuid::from_u128(1)),
            about: About::default(),
            change,
        });
        assert_eq!((event.seq, event.body.kind()), (7, "job_stored"));
        assert_eq!(event.run.as_ref().map(RunId::as_str), Some("run"));
        assert_eq!(event.text, "recorded by a newer server; this version does not know its kind");
    }

    #[test]
    fn an_event_of_a_newer_server_reads_back_as_it_was_written() {
        let text = r#"{"seq":7,"at":"1970-01-01T00:00:00Z","kind":"job_stored","data":{"job":"x"},
            "server":"00000000-0000-0000-0000-000000000001","cluster":null,"run":null,"job":null,"execution":null,
            "step":null,"item":null,"attempt":null,"node":null,"by":null,"text":"t"}"#;
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!(event.body.kind(), "job_stored");
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
    }
}
