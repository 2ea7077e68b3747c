//! Owns the record of a stored job: its key, the part that changes, and its versions.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, JobId, sha256_hex};
use crate::schedule::Activity;
use crate::spec::Definition;

/// Names a stored job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    pub cluster: ClusterId,
    /// Unique in the cluster.
    pub name: Arc<str>,
}

impl JobKey {
    pub fn new(cluster: ClusterId, name: impl Into<Arc<str>>) -> Self {
        Self { cluster, name: name.into() }
    }

    pub fn id(&self) -> JobId {
        JobId::derive(self.cluster, &self.name)
    }
}

/// The part of a stored job that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLive {
    /// The current version, from 1. It never falls: a job that is applied after its deletion continues the numbers, so
    /// that each run names one version only.
    pub version: u64,
    /// When the job was first applied, or first after its deletion.
    pub created_at: Timestamp,
    /// Since when no schedule starts the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// All times of its schedules up to here are decided.
    pub decided_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

impl JobLive {
    /// Returns a job whose schedules count from its first version on.
    pub fn new(version: u64, at: Timestamp) -> Self {
        Self { version, created_at: at, paused_at: None, decided_at: at, deleted_at: None }
    }

    pub fn activity(&self) -> Activity {
        if self.paused_at.is_some() { Activity::Paused } else { Activity::Active }
    }
}

/// One version of a job. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobVersion {
    #[serde(flatten)]
    pub key: JobKey,
    pub version: u64,
    /// Without the name of the cluster, which may change.
    pub definition: Arc<Definition>,
    /// See [`definition_hash`].
    pub hash: String,
    /// Who applied it.
    pub by: String,
    pub at: Timestamp,
}

/// A stored job with its current version.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    pub live: JobLive,
    pub current: JobVersion,
}

impl JobRecord {
    pub fn key(&self) -> &JobKey {
        &self.current.key
    }
}

/// A time of a schedule that started no run, because the job cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    pub at: Timestamp,
    pub error: String,
}

/// Returns the idempotency key of the run of a time. The id has the name of the cluster, which may change; the key is
/// unique in the cluster.
pub fn schedule_key(job: &JobKey, at: Timestamp) -> String {
    format!("schedule\n{}\n{at}", job.name)
}

/// Returns the hash by which equal definitions are recognised.
pub fn definition_hash(definition: &Definition) -> String {
    let text = serde_json::to_vec(definition).expect("definitions have text for keys");
    sha256_hex(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_job_follows_from_its_cluster_and_name() {
        let other = ClusterId(uuid::Uuid::from_u128(7));
        let backup = JobKey::new(ClusterId::DEFAULT, "backup");
        assert_eq!(backup.id(), JobKey::new(ClusterId::DEFAULT, "backup").id());
        assert_ne!(backup.id(), JobKey::new(other, "backup").id());
        assert_ne!(backup.id(), JobKey::new(ClusterId::DEFAULT, "backups").id());
    }

    #[test]
    fn equal_definitions_have_equal_hashes() {
        let named = |name: &str| Definition { name: Some(name.to_owned()), ..Definition::default() };
        assert_eq!(definition_hash(&named("a")), definition_hash(&named("a")));
        assert_ne!(definition_hash(&named("a")), definition_hash(&named("b")));
    }
}
