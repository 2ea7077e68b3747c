//! Applies, pauses, deletes and runs stored jobs.

use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::ids::ClusterId;
use downbeat_core::job::{Difference, JobKey, JobLive, JobRecord, JobVersion, definition_hash, differences};
use downbeat_core::spec::{Definition, Problem, resolve_params};
use downbeat_core::{Change, Refusal, level, limits};
use downbeat_store::JobVersionBrief;

use super::patience::read_in_time;
use super::{IdempotencyKey, Service, Submitted};
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};
use crate::jobs::{JobState, settle};
use crate::runs::Launch;

/// How often a change is repeated when others are faster.
const TRIES: usize = 20;
/// How many names an error about an unknown job considers.
const NAMES: usize = 100;

/// What applying a definition did, or would do.
#[derive(Clone, Debug)]
pub struct AppliedJob {
    pub job: JobRecord,
    pub outcome: Outcome,
    pub differences: Vec<Difference>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Changed,
    Unchanged,
}

/// Whether a change is made, or only described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Commit,
    DryRun,
}

impl Service {
    /// Returns a stored job of a cluster.
    pub(crate) async fn job(&self, _caller: &Caller, cluster: ClusterId, name: &str) -> Result<JobState> {
        let key = JobKey::new(cluster, name);
        if let Some(job) = self.parts.jobs.get(&key) {
            return Ok(job);
        }
        // Another server may have applied it just now.
        self.catch_up().await?;
        Ok(self.parts.jobs.get(&key).ok_or_else(|| self.no_job(&key))?)
    }

    fn no_job(&self, key: &JobKey) -> Noun {
        let known = self.parts.jobs.list(Some(key.cluster));
        let names = known.iter().take(NAMES).map(|job| job.record.key().name.to_string());
        Noun::Job(key.name.to_string(), names.collect())
    }

    /// Makes a definition the current version of the job that it names.
    pub async fn apply_job(
        &self,
        caller: &Caller,
        mut definition: Definition,
        mode: Mode,
    ) -> Result<AppliedJob> {
        self.check_jobs()?;
        self.check_level(definition.level())?;
        self.catch_up().await?;
        let cluster = self.cluster(caller, definition.cluster.as_deref()).await?;
        // The name of a cluster may change.
        definition.cluster = None;
        let name = definition.name.clone().ok_or_else(|| invalid("name", "a stored job needs a name"))?;
        if !definition.schedule.is_empty()
            && let Err(problems) = resolve_params(&definition, &Params::new())
        {
            let problem = |problem: &dyn ToString| {
                format!("a schedule starts the job without values for its params: {}", problem.to_string())
            };
            return Err(invalid("schedule", &problem(&problems[0])));
        }
        let (key, hash) = (JobKey::new(cluster, name), definition_hash(&definition));
        let definition = Arc::new(definition);
        for _ in 0..TRIES {
            let triggers_seen = match definition.triggers.is_empty() {
                true => None,
                false => Some(self.catch_up_all().await?),
            };
            self.check_triggers(&key, &definition)?;
            let former = self.parts.jobs.get(&key).map(|job| job.record);
            if let Some(job) = former.as_ref().filter(|job| job.current.hash == hash) {
                let (job, outcome) = ((**job).clone(), Outcome::Unchanged);
                return Ok(AppliedJob { job, outcome, differences: Vec::new() });
            }
            let before = former.as_ref().map(|job| &*job.current.definition);
            let differences = differ(before, &definition);
            let applied = self.next_version(&key, former.as_deref(), mode).await?;
            let (version, at) = (applied.0 + 1, applied.1);
            let (definition, hash, by) = (Arc::clone(&definition), hash.clone(), caller.name().to_owned());
            let current = JobVersion { key: key.clone(), version, definition, hash, by, at };
            let (outcome, live) = match &former {
                Some(job) => (Outcome::Changed, JobLive { version, ..job.live }),
                None => (Outcome::Created, JobLive::new(version, at)),
            };
            let job = JobRecord { live, current };
            if mode == Mode::DryRun {
                return Ok(AppliedJob { job, outcome, differences });
            }
            match self.commit_one(Change::JobApplied { job: job.current.clone(), triggers_seen }).await? {
                Ok(()) => return Ok(AppliedJob { job, outcome, differences }),
                Err(Refusal::StaleVersion) => self.catch_up().await?,
                Err(refusal) => return Err(self.job_refused(&key, refusal)),
            }
        }
        Err(Conflict::JobBusy(key.name.to_string()).into())
    }

    /// Returns the version that the next one follows, and the time of the change. Times that are due belong to the former
    /// version.
    async fn next_version(
        &self,
        key: &JobKey,
        former: Option<&JobRecord>,
        mode: Mode,
    ) -> Result<(u64, downbeat_core::Timestamp)> {
        if let Some(former) = former {
            if mode == Mode::Commit {
                settle(self, key).await;
            }
            return Ok((former.live.version, self.now()));
        }
        let count = self.parts.jobs.count(key.cluster);
        if count >= limits::JOBS {
            return Err(Conflict::TooManyJobs(count).into());
        }
        // A deleted job continues its numbers.
        let id = key.id();
        let deleted = read_in_time(async { Ok(self.parts.store.job(id).await?) }).await?;
        Ok((deleted.map_or(0, |job| job.live.version), self.now()))
    }

    /// Pauses or resumes the schedules of a job.
    pub async fn pause_job(&self, caller: &Caller, key: &JobKey, paused: bool) -> Result<JobState> {
        self.check_jobs()?;
        // Times up to now belong to the former condition.
        settle(self, key).await;
        let (job, by, at) = (key.clone(), caller.name().to_owned(), self.now());
        match self.commit_one(Change::JobPauseSet { job, paused, by, at }).await? {
            Ok(()) => {}
            Err(Refusal::WrongState) if paused => {
                return Err(Conflict::JobPaused(key.name.to_string()).into());
            }
            Err(Refusal::WrongState) => return Err(Conflict::JobNotPaused(key.name.to_string()).into()),
            Err(refusal) => return Err(self.job_refused(key, refusal)),
        }
        self.catch_up().await?;
        self.job(caller, key.cluster, &key.name).await
    }

    pub async fn delete_job(&self, caller: &Caller, key: &JobKey) -> Result<()> {
        self.check_jobs()?;
        let (job, by, at) = (key.clone(), caller.name().to_owned(), self.now());
        let deleted = self.commit_one(Change::JobDeleted { job, by, at }).await?;
        deleted.map_err(|refusal| self.job_refused(key, refusal))
    }

    /// Starts a stored job now.
    pub(crate) async fn run_job(
        &self,
        caller: &Caller,
        job: &JobRecord,
        given: &Params,
        no_cache: bool,
        idempotency_key: Option<IdempotencyKey>,
    ) -> Result<Submitted> {
        let definition = Arc::clone(&job.current.definition);
        self.check_level(definition.level())?;
        self.catch_up().await?;
        let cluster = job.key().cluster;
        let params = resolve_params(&definition, given).map_err(Error::Params)?;
        let plan = self.compile(cluster, definition, &params, Arc::new).await?;
        let mut made = self.new_run(caller, cluster, &plan, params, idempotency_key);
        made.no_cache = no_cache;
        made.job_version = Some(job.current.version);
        self.create(Launch { made, plan, taken: Vec::new(), firing: None, derived: false }).await
    }

    /// Returns the versions of a job that are kept, the newest first.
    pub(crate) async fn job_versions(&self, key: &JobKey) -> Result<Vec<JobVersionBrief>> {
        let id = key.id();
        read_in_time(async { Ok(self.views().job_versions(id).await?) }).await
    }

    pub(crate) async fn job_version(&self, key: &JobKey, version: u64) -> Result<JobVersion> {
        let id = key.id();
        let found = read_in_time(async { Ok(self.views().job_version(id, version).await?) }).await?;
        Ok(found.ok_or_else(|| Noun::JobVersion(key.name.to_string(), version))?)
    }

    pub(super) fn check_jobs(&self) -> Result<()> {
        if self.parts.level.reaches(level::JOBS) {
            return Ok(());
        }
        Err(Error::OlderServer("stored jobs"))
    }

    pub(super) fn job_refused(&self, key: &JobKey, refusal: Refusal) -> Error {
        match refusal {
            // The job or its cluster was deleted at the same time.
            Refusal::NotFound => self.no_job(key).into(),
            Refusal::NotKnownToAll => {
                Error::Unavailable("an older server has just joined; try again".to_owned())
            }
            other => Error::Bug(format!("the store refused a change of a job: {other}")),
        }
    }
}

pub(super) fn invalid(path: &str, message: &str) -> Error {
    Error::Invalid(vec![Problem { path: path.to_owned(), at: None, message: message.to_owned() }])
}

/// Returns the values in which two definitions differ; a new job has no former one.
pub(crate) fn differ(before: Option<&Definition>, after: &Definition) -> Vec<Difference> {
    let value = |definition| serde_json::to_value(definition).unwrap_or_default();
    before.map_or_else(Vec::new, |before| differences(&value(before), &value(after)))
}
