//! Owns the stored jobs of the memory store.

use async_trait::async_trait;
use downbeat_core::ids::{BackfillId, ClusterId, JobId};
use downbeat_core::job::{BackfillRecord, JobKey, JobRecord, JobVersion};
use downbeat_core::limits;

use super::MemoryStore;
use super::store::State;
use crate::port::{JobVersionBrief, Jobs, Result};

impl State {
    /// Adds a version of a job, and removes those that are too old.
    pub(super) fn put_job_version(&mut self, job: &JobVersion) {
        let id = job.key.id();
        self.job_versions.insert((id, job.version), job.clone());
        let first = job.version.saturating_sub(limits::JOB_VERSIONS - 1);
        self.job_versions.retain(|(of, version), _| *of != id || *version >= first);
    }

    /// Removes the ended backfills of a job that has a new one, beyond the last few.
    pub(super) fn forget_backfills(&mut self, job: &JobKey) {
        let of_job = self.tables.backfills.iter().rev().filter(|(_, backfill)| backfill.made.job == *job);
        let old = of_job.skip(limits::BACKFILLS).filter(|(_, backfill)| !backfill.is_open());
        let gone: Vec<BackfillId> = old.map(|(id, _)| *id).collect();
        self.tables.backfills.retain(|id, _| !gone.contains(id));
    }

    /// Returns the name of a job. Every job has at least one version.
    pub(super) fn job_key(&self, id: JobId) -> Option<&JobKey> {
        self.job_versions.range((id, 0)..=(id, u64::MAX)).next().map(|(_, version)| &version.key)
    }

    fn job(&self, id: JobId) -> Option<JobRecord> {
        let live = *self.tables.jobs.get(&id)?;
        let current = self.job_versions.get(&(id, live.version))?.clone();
        Some(JobRecord { live, current })
    }

    /// Removes the jobs of a cluster. Returns how many rows were removed.
    pub(super) fn remove_jobs(&mut self, cluster: ClusterId) -> u64 {
        let backfills = &mut self.tables.backfills;
        let before = self.tables.jobs.len() + self.job_versions.len() + backfills.len();
        backfills.retain(|_, backfill| backfill.made.job.cluster != cluster);
        let versions = &mut self.job_versions;
        let is_gone = |id: &JobId| {
            versions.range((*id, 0)..=(*id, u64::MAX)).any(|(_, version)| version.key.cluster == cluster)
        };
        let gone: Vec<JobId> = self.tables.jobs.keys().copied().filter(is_gone).collect();
        self.tables.jobs.retain(|id, _| !gone.contains(id));
        versions.retain(|(id, _), _| !gone.contains(id));
        (before - self.tables.jobs.len() - versions.len() - self.tables.backfills.len()) as u64
    }
}

#[async_trait]
impl Jobs for MemoryStore {
    async fn jobs(&self, after: Option<JobId>, most: u32) -> Result<Vec<JobRecord>> {
        let state = self.lock();
        let ids = state.tables.jobs.keys().filter(|id| after.is_none_or(|after| **id > after));
        let is_alive = |job: &JobRecord| {
            job.live.deleted_at.is_none() && state.clusters.contains_key(&job.key().cluster)
        };
        let jobs = ids.filter_map(|id| state.job(*id)).filter(is_alive);
        Ok(jobs.take(most as usize).collect())
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        Ok(self.lock().job(id))
    }

    async fn job_versions(&self, id: JobId) -> Result<Vec<JobVersionBrief>> {
        let state = self.lock();
        let versions = state.job_versions.range((id, 0)..=(id, u64::MAX)).rev();
        Ok(versions.map(|(_, version)| JobVersionBrief::of(version)).collect())
    }

    async fn job_version(&self, id: JobId, version: u64) -> Result<Option<JobVersion>> {
        Ok(self.lock().job_versions.get(&(id, version)).cloned())
    }

    async fn open_backfills(&self, after: Option<BackfillId>, most: u32) -> Result<Vec<BackfillRecord>> {
        let state = self.lock();
        let is_wanted = |backfill: &&BackfillRecord| {
            let made = &backfill.made;
            let is_next = after.is_none_or(|after| made.id > after);
            is_next && backfill.is_open() && state.clusters.contains_key(&made.job.cluster)
        };
        Ok(state.tables.backfills.values().filter(is_wanted).take(most as usize).cloned().collect())
    }

    async fn backfills(&self, job: JobId) -> Result<Vec<BackfillRecord>> {
        let state = self.lock();
        let of_job = |backfill: &&BackfillRecord| backfill.made.job.id() == job;
        Ok(state.tables.backfills.values().rev().filter(of_job).cloned().collect())
    }

    async fn backfill(&self, id: BackfillId) -> Result<Option<BackfillRecord>> {
        Ok(self.lock().tables.backfills.get(&id).cloned())
    }
}
