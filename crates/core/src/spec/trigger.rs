//! Owns the triggers of a job definition: what starts the job besides its schedules. `trigger` decides what they do.

use serde::{Deserialize, Serialize};

use crate::backend::Params;
use crate::words::words;

/// One trigger of a job. `fields` describes each field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    Http(HttpTrigger),
    Job(JobTrigger),
    Event(EventTrigger),
}

/// A request to `POST /hooks/{path}` starts the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpTrigger {
    /// Unique over all jobs of the store.
    pub path: String,
    pub auth: HookAuth,
    /// Absent with `auth: none`.
    #[serde(flatten)]
    pub secret: Option<SecretSource>,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
}

words! {
    /// How the sender of a request proves that it knows the secret.
    pub enum HookAuth {
        /// It sends the secret.
        Secret = "secret",
        /// It signs the body as GitHub does.
        Github = "github",
        /// It signs the time and the body as Slack does.
        Slack = "slack",
        None = "none",
    }
}

/// Where the servers find the secret: definitions, events and replicas never have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecretSource {
    /// A variable of the servers' environment.
    #[serde(rename = "secret_env")]
    Env(String),
    /// A file of the servers' machines, by its absolute path.
    #[serde(rename = "secret_file")]
    File(String),
}

/// The end of a run of another job starts the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobTrigger {
    /// A job of the same cluster.
    pub name: String,
    #[serde(default)]
    pub on: RunEnding,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
}

words! {
    /// The ends of runs that a trigger waits for.
    #[derive(Default)]
    pub enum RunEnding {
        #[default]
        Success = "success",
        /// Not if the run was cancelled.
        Failure = "failure",
        Always = "always",
    }
}

/// An event of the cluster starts the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventTrigger {
    pub kind: EventKind,
    /// Only events of nodes in this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only runs of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
}

words! {
    /// The events that start jobs.
    pub enum EventKind {
        NodeRegistered = "node_registered",
        NodeOffline = "node_offline",
        RunFailed = "run_failed",
        RunCompleted = "run_completed",
    }
}

impl EventKind {
    pub fn is_of_nodes(self) -> bool {
        matches!(self, EventKind::NodeRegistered | EventKind::NodeOffline)
    }
}

impl Trigger {
    pub fn params(&self) -> &Params {
        match self {
            Trigger::Http(HttpTrigger { params, .. })
            | Trigger::Job(JobTrigger { params, .. })
            | Trigger::Event(EventTrigger { params, .. }) => params,
        }
    }

    /// Returns the parts of `trigger` that expressions in its params may use.
    pub fn facts(&self) -> &'static [&'static str] {
        match self {
            Trigger::Http(_) => &["path", "event", "delivery"],
            Trigger::Job(_) => &["job", "run", "status"],
            Trigger::Event(trigger) if trigger.kind.is_of_nodes() => &["event", "node"],
            Trigger::Event(_) => &["event", "job", "run", "status"],
        }
    }

    /// Returns the job whose runs start this one, if it names one.
    pub fn source(&self) -> Option<&str> {
        match self {
            Trigger::Http(_) => None,
            Trigger::Job(trigger) => Some(&trigger.name),
            Trigger::Event(trigger) => trigger.job.as_deref(),
        }
    }
}
