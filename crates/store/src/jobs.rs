//! Owns the reads of stored jobs of both SQL stores: one text for both dialects.

use async_trait::async_trait;
use downbeat_core::ids::{BackfillId, JobId};
use downbeat_core::job::{BackfillRecord, JobRecord, JobVersion};
use uuid::Uuid;

use crate::filter::arg;
use crate::port::{JobVersionBrief, Jobs, Result};
use crate::read::{Database, one};
use crate::rows::{condition, int};

#[async_trait]
impl<D: Database> Jobs for D {
    async fn jobs(&self, after: Option<JobId>, most: u32) -> Result<Vec<JobRecord>> {
        let rest = concat!(
            " WHERE j.id > $1 AND j.deleted_at IS NULL AND j.cluster NOT IN (",
            condition!(deleted clusters),
            ") ORDER BY j.id LIMIT $2"
        );
        let after = after.map_or(Uuid::nil(), |after| after.0);
        self.fetch_many(rest, vec![arg(after), arg(i64::from(most))]).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        one(self, " WHERE j.id = $1", vec![arg(id.0)]).await
    }

    async fn job_versions(&self, id: JobId) -> Result<Vec<JobVersionBrief>> {
        self.fetch(" WHERE v.job = $1 ORDER BY v.version DESC", vec![arg(id.0)]).await
    }

    async fn job_version(&self, id: JobId, version: u64) -> Result<Option<JobVersion>> {
        one(self, " WHERE v.job = $1 AND v.version = $2", vec![arg(id.0), arg(int(version))]).await
    }

    async fn open_backfills(&self, after: Option<BackfillId>, most: u32) -> Result<Vec<BackfillRecord>> {
        let rest = concat!(
            " WHERE b.id > $1 AND b.ended_at IS NULL AND b.cluster NOT IN (",
            condition!(deleted clusters),
            ") ORDER BY b.id LIMIT $2"
        );
        let after = after.map_or(Uuid::nil(), |after| after.0);
        self.fetch_many(rest, vec![arg(after), arg(i64::from(most))]).await
    }

    async fn backfills(&self, job: JobId) -> Result<Vec<BackfillRecord>> {
        self.fetch(" WHERE b.job = $1 ORDER BY b.id DESC", vec![arg(job.0)]).await
    }

    async fn backfill(&self, id: BackfillId) -> Result<Option<BackfillRecord>> {
        one(self, " WHERE b.id = $1", vec![arg(id.0)]).await
    }
}
