//! Starts the runs of schedules. Any number of servers do so at the same time.
//!
//! The runs of a decision are committed first, then the decision itself. A server that dies in between leaves runs whose ids
//! follow from their times: the next one finds that they exist. Each run is guarded by the decision before it, so that a
//! server with an older view of the job starts nothing.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::backend::Params;
use downbeat_core::change::FiringGuard;
use downbeat_core::ids::RunId;
use downbeat_core::job::{JobKey, JobRecord, JobVersion, NotStarted, schedule_key};
use downbeat_core::run::RunMade;
use downbeat_core::schedule::{Decision, Firing, Timetable};
use downbeat_core::spec::resolve_params;
use downbeat_core::{Change, Refusal, Timestamp, level};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info, warn};

use crate::error::{Class, Error};
use crate::runs::{Launch, launch};
use crate::service::Service;

/// Who starts the runs of schedules.
const BY: &str = "schedule";
/// The longest sleep: the clock may be set meanwhile.
const SLEEP: Duration = Duration::from_secs(1);
/// The pause before a decision is repeated that could not be committed.
const RETRY: SignedDuration = SignedDuration::from_secs(1);
/// Jobs that are decided at the same time: so many that a commit of the journal holds many runs, and so few that their
/// plans need little memory.
const AT_ONCE: usize = 256;

/// The result of a decision about the schedules of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// Nothing was due.
    Nothing,
    Committed,
    /// Not everything could be started or committed.
    Unfinished,
}

/// What became of the run of one time.
pub(super) enum Start {
    Created,
    /// It existed before.
    Exists,
    /// The job cannot run.
    Refused(String),
    /// It could not be created now.
    Later,
    /// Another server decided about the job, or somebody changed it.
    Stale,
}

/// Decides about schedules when they are due, until `stop` is cancelled.
pub(crate) async fn fire(service: Service, stop: CancellationToken) {
    let parts = service.parts.clone();
    // Each on its own: a job with many missed times does not delay the others.
    let mut deciding = FuturesUnordered::new();
    loop {
        let due = iter::from_fn(|| parts.jobs.take_due(parts.clock.now()));
        deciding.extend(due.take(AT_ONCE - deciding.len()).map(|key| decide_due(&service, key)));
        let next = parts.jobs.next().filter(|_| deciding.len() < AT_ONCE);
        let wait = next.map_or(SLEEP, |next| parts.clock.until(next).min(SLEEP));
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(()) = deciding.next() => {}
            () = parts.jobs.woken() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn decide_due(service: &Service, key: JobKey) {
    let again = match decide(service, &key).await {
        // The event of the decision sets the next time, unless it came earlier.
        Decided::Committed | Decided::Nothing => None,
        Decided::Unfinished => service.now().checked_add(RETRY).ok(),
    };
    service.parts.jobs.decide_again(&key, again);
}

/// Decides about all times of a job that are due, and starts their runs.
async fn decide(service: &Service, key: &JobKey) -> Decided {
    decide_if(service, key, |decision| !decision.is_empty()).await
}

/// Decides about all times of a job up to now, and records that also if none was due. Called before the job changes: what
/// the change brings counts from now on, not from the last time that was due.
pub(crate) async fn settle(service: &Service, key: &JobKey) -> Decided {
    decide_if(service, key, |_| true).await
}

async fn decide_if(service: &Service, key: &JobKey, is_needed: impl Fn(&Decision) -> bool) -> Decided {
    let jobs = &service.parts.jobs;
    let Some(job) = jobs.get(key) else { return Decided::Nothing };
    let _turn = job.turn.lock().await;
    // It may have changed while this decision waited for its turn.
    let Some(job) = jobs.get(key) else { return Decided::Nothing };
    let (record, now) = (&job.record, service.now());
    let live = &record.live;
    let decide = |table: &Arc<Timetable>| table.decide(live.decided_at, now, live.activity());
    let mut decision = job.table.as_ref().map_or_else(|| Decision::nothing(live.decided_at, now), decide);
    if !is_needed(&decision) {
        return Decided::Nothing;
    }
    if !service.parts.level.reaches(level::JOBS) {
        return Decided::Unfinished;
    }
    let (mut refused, mut missing) = (Vec::new(), None);
    for firing in &decision.firings {
        match start(service, record, *firing).await {
            Start::Created | Start::Exists => {}
            Start::Refused(error) => {
                warn!(job = %key.name, at = %firing.at, error, "a schedule could not start its run");
                refused.push(NotStarted { at: firing.at, error });
            }
            Start::Later => {
                missing = Some(firing.due);
                break;
            }
            Start::Stale => return Decided::Unfinished,
        }
    }
    if let Some(missing) = missing {
        decision = decision.before(missing);
    }
    let until = whole_micros(decision.decided);
    if until <= live.decided_at && missing.is_some() {
        return Decided::Unfinished;
    }
    let change = Change::JobDecided {
        job: key.clone(),
        version: record.current.version,
        from: live.decided_at,
        until,
        skipped: decision.skipped,
        refused,
        at: now,
    };
    match service.parts.journal.commit_one(change).await {
        Ok(Ok(())) if missing.is_none() => Decided::Committed,
        Ok(Ok(())) => Decided::Unfinished,
        Ok(Err(refusal)) => {
            debug!(job = %key.name, %refusal, "another server decided about the schedules of a job");
            Decided::Unfinished
        }
        Err(error) => {
            warn!(job = %key.name, %error, "cannot record a decision about the schedules of a job");
            Decided::Unfinished
        }
    }
}

/// Returns the time as stores keep it.
fn whole_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// Starts the run of a time, unless it exists.
async fn start(service: &Service, job: &JobRecord, firing: Firing) -> Start {
    let (key, version) = (job.key(), job.current.version);
    let Some(cluster) = service.parts.standing.cluster_by_id(key.cluster) else { return Start::Stale };
    let time = Time {
        run: RunId::scheduled(&cluster.name, &key.name, firing.at),
        idempotency_key: schedule_key(key, firing.at),
        by: BY,
        guard: FiringGuard { version, from: job.live.decided_at, backfill: None },
    };
    start_time(service, &job.current, time).await
}

/// A time of a job's schedules that starts a run.
pub(super) struct Time {
    pub(super) run: RunId,
    pub(super) idempotency_key: String,
    pub(super) by: &'static str,
    pub(super) guard: FiringGuard,
}

/// Starts the run of a time with a version of the job.
pub(super) async fn start_time(service: &Service, job: &JobVersion, time: Time) -> Start {
    let (key, parts, id) = (&job.key, service.parts.clone(), time.run);
    let definition = Arc::clone(&job.definition);
    let params = match resolve_params(&definition, &Params::new()) {
        Ok(params) => params,
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Start::Refused(problems.join("; "));
        }
    };
    let plan = match service.compile(key.cluster, definition, &params, Arc::new).await {
        Ok(plan) => plan,
        Err(error) => return not_compiled(&error),
    };
    let made = RunMade {
        id: id.clone(),
        cluster: key.cluster,
        job: Some(key.name.to_string()),
        job_version: Some(job.version),
        definition: Arc::clone(&plan.definition),
        resolved: Arc::clone(&plan.resolved),
        params,
        retry_of: None,
        no_cache: false,
        by: time.by.to_owned(),
        idempotency_key: Some(time.idempotency_key),
        request_hash: None,
        created_at: service.now(),
    };
    let new = Launch { made, plan, taken: Vec::new(), firing: Some(time.guard), derived: true };
    // On its own: a committed run needs an actor, also if the request that caused the decision is gone.
    let launched = tokio::spawn(async move { launch(&parts, new).await }.in_current_span()).await;
    match launched {
        Ok(Ok(Ok(_))) => {
            info!(run = %id, job = %key.name, by = time.by, "a run was started for a time of a schedule");
            Start::Created
        }
        Ok(Ok(Err(Refusal::RunExists(_) | Refusal::KeyInUse(_)))) => Start::Exists,
        Ok(Ok(Err(
            refusal @ (Refusal::StaleVersion
            | Refusal::DecidedBefore(_)
            | Refusal::WrongState
            | Refusal::NotFound),
        ))) => {
            debug!(run = %id, %refusal, "the job has changed");
            Start::Stale
        }
        Ok(Ok(Err(refusal))) => {
            warn!(run = %id, %refusal, "a schedule cannot start its run yet");
            Start::Later
        }
        Ok(Err(error)) => {
            warn!(run = %id, %error, "a schedule cannot start its run yet");
            Start::Later
        }
        Err(error) => {
            warn!(run = %id, %error, "starting the run of a schedule panicked");
            Start::Later
        }
    }
}

/// Decides what follows when the plan of a job cannot be made.
fn not_compiled(error: &Error) -> Start {
    match error.class() {
        Class::Rejected | Class::Unproven | Class::Conflict | Class::NotFound => {
            Start::Refused(error.to_string())
        }
        Class::TooMany | Class::Unavailable | Class::Busy | Class::Bug => Start::Later,
    }
}
