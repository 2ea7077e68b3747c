//! Starts, shows and cancels backfills.

use downbeat_core::ids::BackfillId;
use downbeat_core::job::{Backfill, BackfillCancel, BackfillRecord, JobKey};
use downbeat_core::{Change, Refusal, Timestamp, limits};

use super::patience::read_in_time;
use super::{Mode, Service};
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};
use crate::jobs::JobState;

/// What a person asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackfillRequest {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) parallel: u32,
    pub(crate) again: bool,
}

impl Service {
    /// Starts a backfill of a job. Returns it with its times; a dry run starts nothing.
    pub(crate) async fn backfill_job(
        &self,
        caller: &Caller,
        job: &JobState,
        request: BackfillRequest,
        mode: Mode,
    ) -> Result<(BackfillRecord, Vec<Timestamp>)> {
        self.check_jobs()?;
        let (now, key, times) = (self.now(), job.record.key().clone(), self.times_of(job, request)?);
        let backfill = Backfill {
            id: BackfillId(self.parts.chance.dice().uuid_at(now)),
            job: key.clone(),
            version: job.record.current.version,
            from: request.from,
            to: request.to,
            times: u32::try_from(times.len()).unwrap_or(u32::MAX),
            parallel: request.parallel,
            again: request.again,
            by: caller.name().to_owned(),
            created_at: now,
        };
        let record = BackfillRecord::new(backfill.clone());
        if mode == Mode::DryRun {
            return Ok((record, times));
        }
        let open = self.parts.backfills.count(&key);
        if open >= limits::BACKFILLS_OPEN {
            return Err(Conflict::TooManyBackfills(open).into());
        }
        match self.commit_one(Change::BackfillCreated { backfill }).await? {
            Ok(()) => Ok((record, times)),
            Err(refusal) => Err(self.job_refused(&key, refusal)),
        }
    }

    /// Returns the times of the job's schedules in the range of a request that is valid.
    fn times_of(&self, job: &JobState, request: BackfillRequest) -> Result<Vec<Timestamp>> {
        let BackfillRequest { from, to, parallel, .. } = request;
        let invalid = |why: String| Err(Error::InvalidBackfill(why));
        if from >= to {
            return invalid("`to` is not later than `from`".to_owned());
        }
        if to > self.now() {
            return invalid("`to` is in the future; the schedules start the job then".to_owned());
        }
        if !(1..=limits::BACKFILL_PARALLEL).contains(&parallel) {
            return invalid(format!("`parallel` is {parallel}; write 1 to {}", limits::BACKFILL_PARALLEL));
        }
        let Some(table) = &job.table else {
            return invalid("it has no schedule, so that the range has no times".to_owned());
        };
        let times = table.times(from, to, limits::BACKFILL_TIMES + 1);
        match times.get(limits::BACKFILL_TIMES) {
            Some(next) => {
                let most = limits::BACKFILL_TIMES;
                invalid(format!(
                    "the range has more than {most} times; let it end at {next}, and continue there"
                ))
            }
            None if times.is_empty() => invalid("its schedules have no time in the range".to_owned()),
            None => Ok(times),
        }
    }

    /// Returns the backfills of a job that are kept, the newest first.
    pub(crate) async fn backfills(&self, key: &JobKey) -> Result<Vec<BackfillRecord>> {
        let id = key.id();
        read_in_time(async { Ok(self.views().backfills(id).await?) }).await
    }

    pub(crate) async fn backfill(&self, id: &str) -> Result<BackfillRecord> {
        let unknown = || Noun::Backfill(id.to_owned());
        let parsed: BackfillId = id.parse().map_err(|_| unknown())?;
        let found = read_in_time(async { Ok(self.views().backfill(parsed).await?) }).await?;
        // Its cluster may be deleted, and its rows not removed yet.
        let is_alive =
            |record: &BackfillRecord| self.parts.standing.cluster_by_id(record.made.job.cluster).is_some();
        Ok(found.filter(is_alive).ok_or_else(unknown)?)
    }

    /// Cancels a backfill: nothing more starts, and its open runs are cancelled.
    pub(crate) async fn cancel_backfill(&self, caller: &Caller, id: &str) -> Result<BackfillRecord> {
        self.check_jobs()?;
        let BackfillRecord { made, live } = self.backfill(id).await?;
        let cancel = BackfillCancel { by: caller.name().to_owned(), at: self.now() };
        let change = Change::BackfillCancelled { job: made.job.clone(), backfill: made.id, cancel };
        match self.commit_one(change).await? {
            Ok(()) => self.backfill(id).await,
            Err(Refusal::WrongState) if live.cancelled.is_some() && live.ended_at.is_none() => {
                Err(Conflict::BackfillCancelled(made.id).into())
            }
            Err(Refusal::WrongState) => Err(Conflict::BackfillEnded(made.id).into()),
            Err(Refusal::NotFound) => Err(Noun::Backfill(id.to_owned()).into()),
            Err(refusal) => Err(self.job_refused(&made.job, refusal)),
        }
    }
}
