//! Applies changes to stored jobs.

use jiff::Timestamp;

use super::tables::Tables;
use crate::change::{Applied, FiringGuard, Refusal};
use crate::ids::BackfillId;
use crate::job::{Backfill, BackfillRecord, JobKey, JobLive, JobVersion, NotStarted};
use crate::run::RunRecord;
use crate::schedule::{Activity, SkipReason, Skipped};

/// Returns whether a decision was made for a paused job or for an active one. Returns `None` if both come to it.
pub(super) fn relied_on(skipped: &[Skipped], refused: &[NotStarted]) -> Option<Activity> {
    if skipped.iter().any(|times| times.reason == SkipReason::Paused) {
        return Some(Activity::Paused);
    }
    (!skipped.is_empty() || !refused.is_empty()).then_some(Activity::Active)
}

impl Tables {
    pub(super) fn apply_job(&mut self, job: &JobVersion, triggers_seen: Option<u64>) -> Applied {
        if !self.clusters.contains_key(&job.key.cluster) {
            return Err(Refusal::NotFound);
        }
        let stored = self.jobs.get(&job.key.id());
        if stored.map_or(0, |stored| stored.version) + 1 != job.version {
            return Err(Refusal::StaleVersion);
        }
        if let Some(seen) = triggers_seen {
            if self.triggers_applied > seen {
                return Err(Refusal::StaleVersion);
            }
            // Its event has no number yet.
            self.triggers_applied = u64::MAX;
        }
        let next = match stored {
            Some(stored) if stored.deleted_at.is_none() => JobLive { version: job.version, ..*stored },
            _ => JobLive::new(job.version, job.at),
        };
        self.jobs.insert(job.key.id(), next);
        Ok(())
    }

    pub(super) fn pause_job(&mut self, job: &JobKey, paused: bool, at: Timestamp) -> Applied {
        let live = self.live_job(job)?;
        if live.paused_at.is_some() == paused {
            return Err(Refusal::WrongState);
        }
        live.paused_at = paused.then_some(at);
        Ok(())
    }

    pub(super) fn delete_job(&mut self, job: &JobKey, at: Timestamp) -> Applied {
        self.live_job(job)?.deleted_at = Some(at);
        Ok(())
    }

    pub(super) fn decide_job(
        &mut self,
        job: &JobKey,
        version: u64,
        from: Timestamp,
        until: Timestamp,
        relied_on: Option<Activity>,
    ) -> Applied {
        let live = self.live_job(job)?;
        if live.version != version {
            return Err(Refusal::StaleVersion);
        }
        if relied_on.is_some_and(|activity| activity != live.activity()) {
            return Err(Refusal::WrongState);
        }
        if live.decided_at != from {
            return Err(Refusal::DecidedBefore(live.decided_at));
        }
        live.decided_at = until;
        Ok(())
    }

    /// Refuses a run that a schedule starts, if another decision about the job was committed.
    pub(super) fn may_fire(&mut self, run: &RunRecord, firing: Option<FiringGuard>) -> Applied {
        let Some(FiringGuard { version, from, backfill }) = firing else { return Ok(()) };
        let job = JobKey::new(run.cluster, run.job.as_deref().ok_or(Refusal::NotFound)?);
        let live = self.live_job(&job)?;
        if let Some(time) = backfill {
            // Whether the run can be created is decided later: nothing is written yet.
            return self.backfill_of(&job, time.id)?.clone().start(from, time.at, &run.id);
        }
        if live.version != version {
            return Err(Refusal::StaleVersion);
        }
        if live.paused_at.is_some() {
            return Err(Refusal::WrongState);
        }
        if live.decided_at != from {
            return Err(Refusal::DecidedBefore(live.decided_at));
        }
        Ok(())
    }

    /// Records the run that a backfill starts, after it was created.
    pub(super) fn start_backfilled(&mut self, run: &RunRecord, firing: Option<FiringGuard>) -> Applied {
        let Some((from, time)) = firing.and_then(|firing| Some((firing.from, firing.backfill?))) else {
            return Ok(());
        };
        self.backfills.get_mut(&time.id).ok_or(Refusal::NotFound)?.start(from, time.at, &run.id)
    }

    pub(super) fn create_backfill(&mut self, backfill: &Backfill) -> Applied {
        self.live_job(&backfill.job)?;
        if self.backfills.contains_key(&backfill.id) {
            return Err(Refusal::WrongState);
        }
        self.backfills.insert(backfill.id, BackfillRecord::new(backfill.clone()));
        Ok(())
    }

    /// Returns a backfill of a job of a cluster that exists.
    pub(super) fn backfill_of(
        &mut self,
        job: &JobKey,
        id: BackfillId,
    ) -> Result<&mut BackfillRecord, Refusal> {
        if !self.clusters.contains_key(&job.cluster) {
            return Err(Refusal::NotFound);
        }
        self.backfills.get_mut(&id).filter(|backfill| backfill.made.job == *job).ok_or(Refusal::NotFound)
    }

    /// Returns a job that is not deleted.
    pub(super) fn live_job(&mut self, job: &JobKey) -> Result<&mut JobLive, Refusal> {
        if !self.clusters.contains_key(&job.cluster) {
            return Err(Refusal::NotFound);
        }
        self.jobs.get_mut(&job.id()).filter(|job| job.deleted_at.is_none()).ok_or(Refusal::NotFound)
    }
}
