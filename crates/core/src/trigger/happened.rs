//! Decides which events start which jobs.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::change::{Change, Event};
use crate::ids::{ClusterId, NodeId, RunId};
use crate::job::JobKey;
use crate::node::NodeStatus;
use crate::run::RunStatus;
use crate::spec::{EventKind, RunEnding, Trigger};

/// An event that may start jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    pub seq: u64,
    pub cluster: ClusterId,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    RunEnded { run: RunId, job: Option<Arc<str>>, status: RunStatus },
    Node { kind: EventKind, hostname: String, groups: Vec<String> },
}

/// The start of the idempotency key of a run that an event starts.
const KEY: &str = "trigger\n";

impl Happened {
    /// Returns what an event is for triggers. `node` returns the hostname and the groups of a node.
    pub fn of(event: &Event, node: impl FnOnce(NodeId) -> Option<(String, Vec<String>)>) -> Option<Self> {
        let (cluster, what) = match &event.change {
            Change::RunMoved { run, path, end: Some(_), .. } if !run.is_debug() && !run.is_standing() => {
                let (run, job, status) = (run.clone(), event.about.job.clone(), path.last()?.status());
                (event.about.cluster?, What::RunEnded { run, job, status })
            }
            Change::NodeRegistered { registration } => {
                let (description, kind) = (&registration.description, EventKind::NodeRegistered);
                let (hostname, groups) = (description.hostname.clone(), description.groups.clone());
                (registration.cluster, What::Node { kind, hostname, groups })
            }
            Change::NodeMoved { node: id, to: NodeStatus::Offline, .. } => {
                let (hostname, groups) = node(*id)?;
                (event.about.cluster?, What::Node { kind: EventKind::NodeOffline, hostname, groups })
            }
            _ => return None,
        };
        Some(Self { seq: event.seq, cluster, what })
    }

    /// Returns the kind of event that triggers name, if there is one.
    pub fn kind(&self) -> Option<EventKind> {
        match &self.what {
            What::RunEnded { status: RunStatus::Completed, .. } => Some(EventKind::RunCompleted),
            What::RunEnded { status: RunStatus::Failed, .. } => Some(EventKind::RunFailed),
            What::RunEnded { .. } => None,
            What::Node { kind, .. } => Some(*kind),
        }
    }

    /// Returns the first trigger of a job that this starts. A job is never started by its own runs.
    pub fn starts<'t>(&self, job: &str, triggers: &'t [Trigger]) -> Option<&'t Trigger> {
        if matches!(&self.what, What::RunEnded { job: Some(of), .. } if **of == *job) {
            return None;
        }
        triggers.iter().find(|trigger| self.is_meant(trigger))
    }

    fn is_meant(&self, trigger: &Trigger) -> bool {
        match (trigger, &self.what) {
            (Trigger::Job(trigger), What::RunEnded { job: Some(job), status, .. }) => {
                **job == *trigger.name
                    && match trigger.on {
                        RunEnding::Success => *status == RunStatus::Completed,
                        RunEnding::Failure => *status == RunStatus::Failed,
                        RunEnding::Always => true,
                    }
            }
            (Trigger::Event(trigger), What::RunEnded { job, .. }) => {
                let is_of = |of: &String| job.as_deref() == Some(of);
                Some(trigger.kind) == self.kind() && trigger.job.as_ref().is_none_or(is_of)
            }
            (Trigger::Event(trigger), What::Node { kind, groups, .. }) => {
                trigger.kind == *kind && trigger.group.as_ref().is_none_or(|group| groups.contains(group))
            }
            (Trigger::Http(_), _) | (Trigger::Job(_), _) => false,
        }
    }

    /// Returns the value of `trigger` in expressions.
    pub fn facts(&self) -> Value {
        match &self.what {
            What::RunEnded { run, job, status } => json!({
                "event": self.kind().map(EventKind::as_str), "run": run, "job": job, "status": status.as_str(),
            }),
            What::Node { kind, hostname, .. } => json!({"event": kind.as_str(), "node": hostname}),
        }
    }

    /// Returns what is the same for every server that sees the event, and for no other event.
    fn cause(&self) -> String {
        match &self.what {
            What::RunEnded { run, .. } => run.to_string(),
            What::Node { .. } => format!("event {}", self.seq),
        }
    }

    /// Returns the id of the run of a job that this starts: each event starts a job once.
    pub fn run_id(&self, job: &JobKey) -> RunId {
        RunId::from(Uuid::new_v5(&job.id().0, format!("{KEY}{}", self.cause()).as_bytes()))
    }

    /// Returns the idempotency key of that run. It has the number of runs that started each other before it.
    pub fn key(&self, job: &JobKey, depth: u32) -> String {
        format!("{KEY}{depth}\n{}\n{}", job.name, self.cause())
    }
}

/// Returns how many runs started each other before a run with this idempotency key, and it. A run that no event started
/// has none.
pub fn depth_of(key: Option<&str>) -> u32 {
    let depth = key.and_then(|key| key.strip_prefix(KEY)?.split_once('\n')?.0.parse().ok());
    depth.unwrap_or(0)
}

/// Returns who starts the runs of a trigger.
pub fn caller_of(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Http(trigger) => format!("trigger:http:{}", trigger.path),
        Trigger::Job(trigger) => format!("trigger:job:{}", trigger.name),
        Trigger::Event(trigger) => format!("trigger:event:{}", trigger.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn triggers(value: Value) -> Vec<Trigger> {
        serde_json::from_value(value).unwrap()
    }

    fn ended(job: Option<&str>, status: RunStatus) -> Happened {
        let what = What::RunEnded { run: RunId::from("r".to_owned()), job: job.map(Into::into), status };
        Happened { seq: 7, cluster: ClusterId::DEFAULT, what }
    }

    fn node(kind: EventKind, groups: &[&str]) -> Happened {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Happened {
            seq: 7,
            cluster: ClusterId::DEFAULT,
            what: What::Node { kind, hostname: "web-01".to_owned(), groups },
        }
    }

    #[test]
    fn each_trigger_waits_for_its_own_events() {
        use RunStatus::{Cancelled, Completed, Failed};
        let job = |on: &str| json!([{"job": {"name": "a", "on": on}}]);
        let event = |more: Value| json!([{"event": more}]);
        for (triggers_of, happened, expected) in [
            (job("success"), ended(Some("a"), Completed), true),
            (job("success"), ended(Some("a"), Failed), false),
            (job("success"), ended(Some("b"), Completed), false),
            (job("success"), ended(None, Completed), false),
            (job("failure"), ended(Some("a"), Failed), true),
            (job("failure"), ended(Some("a"), Completed), false),
            (job("failure"), ended(Some("a"), Cancelled), false),
            (job("always"), ended(Some("a"), Cancelled), true),
            (job("always"), ended(Some("a"), Failed), true),
            (job("always"), ended(Some("a"), Completed), true),
            // The job itself.
            (event(json!({"kind": "run_failed"})), ended(Some("me"), Failed), false),
            (event(json!({"kind": "run_failed"})), ended(Some("a"), Failed), true),
            (event(json!({"kind": "run_failed"})), ended(None, Failed), true),
            (event(json!({"kind": "run_failed"})), ended(Some("a"), Completed), false),
            (event(json!({"kind": "run_failed"})), ended(Some("a"), Cancelled), false),
            (event(json!({"kind": "run_failed", "job": "a"})), ended(Some("a"), Failed), true),
            (event(json!({"kind": "run_failed", "job": "a"})), ended(Some("b"), Failed), false),
            (event(json!({"kind": "run_failed", "job": "a"})), ended(None, Failed), false),
            (event(json!({"kind": "run_completed"})), ended(Some("a"), Completed), true),
            (event(json!({"kind": "node_registered"})), node(EventKind::NodeRegistered, &[]), true),
            (event(json!({"kind": "node_registered"})), node(EventKind::NodeOffline, &[]), false),
            (
                event(json!({"kind": "node_offline", "group": "web"})),
                node(EventKind::NodeOffline, &["db", "web"]),
                true,
            ),
            (
                event(json!({"kind": "node_offline", "group": "web"})),
                node(EventKind::NodeOffline, &["webs"]),
                false,
            ),
            (json!([{"http": {"path": "a", "auth": "none"}}]), ended(Some("a"), Completed), false),
        ] {
            let triggers = triggers(triggers_of.clone());
            assert_eq!(happened.starts("me", &triggers).is_some(), expected, "{triggers_of} {happened:?}");
        }
    }

    #[test]
    fn a_run_has_the_same_id_on_every_server_and_counts_the_runs_before_it() {
        let (me, other) = (JobKey::new(ClusterId::DEFAULT, "me"), JobKey::new(ClusterId::DEFAULT, "other"));
        let run = ended(Some("a"), RunStatus::Completed);
        // The same run, seen at another place of another store's feed.
        assert_eq!(run.run_id(&me), Happened { seq: 8, ..run.clone() }.run_id(&me));
        assert_ne!(run.run_id(&me), run.run_id(&other));
        let registered = node(EventKind::NodeRegistered, &[]);
        assert_ne!(registered.run_id(&me), Happened { seq: 8, ..registered.clone() }.run_id(&me));
        assert_eq!(depth_of(Some(&run.key(&me, 3))), 3);
        for key in [None, Some("schedule\nme\n2026"), Some("trigger"), Some("trigger\nx\ny"), Some("7")] {
            assert_eq!(depth_of(key), 0, "{key:?}");
        }
    }
}
