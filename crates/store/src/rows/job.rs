//! Owns the rows of a stored job: its own row, and those of its versions.

use std::sync::Arc;

use downbeat_core::ids::{ClusterId, JobId};
use downbeat_core::job::{JobKey, JobLive, JobRecord, JobVersion};
use uuid::Uuid;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{count, int, json, micros, parse, time, time_opt};
use super::text::Text;
use crate::port::{JobVersionBrief, Result};

columns! {
    /// A row of `jobs`.
    struct JobRow<'a> {
        id: Uuid,
        cluster: Uuid,
        name: Text<'a>,
        version: i64,
        created_at: i64,
        paused_at: Option<i64>,
        decided_at: i64,
        deleted_at: Option<i64>,
    }
}

columns! {
    /// A row of `job_versions`.
    struct JobVersionRow<'a> {
        job: Uuid,
        version: i64,
        hash: Text<'a>,
        applied_by: Text<'a>,
        applied_at: i64,
        definition: Text<'a>,
    }
}

columns! {
    /// The first version of a job that is kept.
    struct OldVersionsRow {
        job: Uuid,
        version: i64,
    }
}

impl<'a> JobRow<'a> {
    pub(crate) fn of(key: &'a JobKey, live: &JobLive) -> Self {
        Self {
            id: key.id().0,
            cluster: key.cluster.0,
            name: (*key.name).into(),
            version: int(live.version),
            created_at: live.created_at.as_microsecond(),
            paused_at: micros(live.paused_at),
            decided_at: live.decided_at.as_microsecond(),
            deleted_at: micros(live.deleted_at),
        }
    }

    fn key(&self) -> JobKey {
        JobKey::new(ClusterId(self.cluster), &*self.name.0)
    }

    fn live(&self) -> Result<JobLive> {
        Ok(JobLive {
            version: count(self.version)?,
            created_at: time(self.created_at)?,
            paused_at: time_opt(self.paused_at)?,
            decided_at: time(self.decided_at)?,
            deleted_at: time_opt(self.deleted_at)?,
        })
    }
}

impl<'a> JobVersionRow<'a> {
    pub(crate) fn of(job: &'a JobVersion) -> Result<Self> {
        Ok(Self {
            job: job.key.id().0,
            version: int(job.version),
            hash: job.hash.as_str().into(),
            applied_by: job.by.as_str().into(),
            applied_at: job.at.as_microsecond(),
            definition: json(&job.definition)?.into(),
        })
    }

    fn version(self, key: JobKey) -> Result<JobVersion> {
        Ok(JobVersion {
            key,
            version: count(self.version)?,
            definition: Arc::new(parse("definition", &self.definition.0)?),
            hash: self.hash.into(),
            by: self.applied_by.into(),
            at: time(self.applied_at)?,
        })
    }
}

impl OldVersionsRow {
    /// Returns the first version that is kept when this one is the newest.
    pub(crate) fn before(job: &JobVersion) -> Self {
        let first = job.version.saturating_sub(downbeat_core::limits::JOB_VERSIONS - 1);
        Self { job: job.key.id().0, version: int(first) }
    }
}

impl Record for (JobId, JobLive) {
    select!(JobRow<'_>, "jobs");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = JobRow::read(row, 0)?;
        Ok((JobId(row.id), row.live()?))
    }
}

impl Record for (JobKey, JobLive) {
    select!(JobRow<'_>, "j", "jobs");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = JobRow::read(row, 0)?;
        Ok((row.key(), row.live()?))
    }
}

/// Returns the columns of a job and of one of its versions.
fn names() -> String {
    format!("{}, {}", JobRow::names_in("j"), JobVersionRow::names_in("v"))
}

impl Record for JobRecord {
    select!(format!(
        "SELECT {} FROM jobs j JOIN job_versions v ON v.job = j.id AND v.version = j.version",
        names()
    ));

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (job, version) = <(JobRow<'_>, JobVersionRow<'_>)>::read(row, 0)?;
        Ok(Self { live: job.live()?, current: version.version(job.key())? })
    }
}

impl Record for JobVersion {
    select!(format!("SELECT {} FROM jobs j JOIN job_versions v ON v.job = j.id", names()));

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (job, version) = <(JobRow<'_>, JobVersionRow<'_>)>::read(row, 0)?;
        version.version(job.key())
    }
}

impl Record for JobVersionBrief {
    fn select() -> &'static str {
        "SELECT v.version, v.hash, v.applied_by, v.applied_at FROM job_versions v"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let [hash, by]: [Text<'_>; 2] = [row.cell(1)?, row.cell(2)?];
        Ok(Self { version: count(row.cell(0)?)?, hash: hash.into(), by: by.into(), at: time(row.cell(3)?)? })
    }
}
