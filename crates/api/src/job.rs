//! Owns how stored jobs are shown.

use downbeat_core::ids::ClusterId;
use downbeat_core::job::{Difference as Differing, JobRecord, JobVersion as Version};
use downbeat_core::schedule::{Firing, Timetable};
use downbeat_core::spec::Trigger;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// How many of the next times a job shows.
const NEXT: usize = 5;

/// A stored job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Unique in the cluster.
    pub name: String,
    #[schema(value_type = Uuid)]
    pub cluster: ClusterId,
    pub cluster_name: String,
    /// The current version, from 1.
    pub version: u64,
    pub created_at: Timestamp,
    /// When the current version was applied, and by whom.
    pub updated_at: Timestamp,
    pub by: String,
    /// Whether its schedules and triggers start no runs.
    pub paused: bool,
    pub paused_at: Option<Timestamp>,
    /// Its schedules, as in the job file.
    #[schema(value_type = Vec<Object>)]
    pub schedule: Vec<Value>,
    /// Its triggers, as in the job file.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub triggers: Vec<Value>,
    /// The paths of its HTTP triggers on every server, such as `/hooks/deploy-web`.
    #[serde(default)]
    pub hooks: Vec<String>,
    /// The next times at which a schedule starts it, at most five; none while it is paused.
    pub next: Vec<NextStart>,
    /// The job file as JSON. Lists have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub definition: Option<Value>,
    /// The versions that are kept, the newest first. Lists have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<JobVersion>,
}

/// A time of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextStart {
    pub at: Timestamp,
    /// When the run starts: later by the jitter.
    pub starts_at: Timestamp,
}

/// A version of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobVersion {
    pub version: u64,
    /// When it was applied, and by whom.
    pub at: Timestamp,
    pub by: String,
}

/// What applying a job file did, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppliedJob {
    /// `created`, `changed` or `unchanged`.
    pub outcome: String,
    pub job: Job,
    /// In what the job differs from the version before; empty for a new job.
    pub differences: Vec<Difference>,
}

/// A value that two versions do not have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Such as `tasks[0].params.command`.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// In what two versions of a job differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDiff {
    pub name: String,
    pub from: u64,
    pub to: u64,
    pub differences: Vec<Difference>,
}

impl Job {
    /// Shows a job without its definition and versions.
    pub fn of(job: &JobRecord, table: Option<&Timetable>, cluster_name: String, now: Timestamp) -> Self {
        let JobRecord { live, current } = job;
        let start = |firing: Firing| NextStart { at: firing.at, starts_at: firing.due };
        let table = table.filter(|_| live.paused_at.is_none());
        let next = table.map(|table| table.upcoming(now.max(live.decided_at), NEXT)).unwrap_or_default();
        let schedule = current.definition.schedule.iter();
        let triggers = current.definition.triggers.iter();
        let hook = |trigger: &Trigger| match trigger {
            Trigger::Http(http) => Some(format!("/hooks/{}", http.path)),
            Trigger::Job(_) | Trigger::Event(_) => None,
        };
        Self {
            name: current.key.name.to_string(),
            cluster: current.key.cluster,
            cluster_name,
            version: live.version,
            created_at: live.created_at,
            updated_at: current.at,
            by: current.by.clone(),
            paused: live.paused_at.is_some(),
            paused_at: live.paused_at,
            schedule: schedule.map(|one| serde_json::to_value(one).unwrap_or_default()).collect(),
            hooks: triggers.clone().filter_map(hook).collect(),
            triggers: triggers.map(|one| serde_json::to_value(one).unwrap_or_default()).collect(),
            next: next.into_iter().map(start).collect(),
            definition: None,
            versions: Vec::new(),
        }
    }

    /// Adds the definition of a version.
    #[must_use]
    pub fn with_definition(mut self, version: &Version) -> Self {
        self.definition = serde_json::to_value(&version.definition).ok();
        self
    }
}

impl From<Differing> for Difference {
    fn from(Differing { path, before, after }: Differing) -> Self {
        Self { path, before, after }
    }
}
