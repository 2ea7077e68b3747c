//! Continues backfills. Any number of servers do so at the same time: the guards of the store decide who is first, and the
//! others learn of it from the feed.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::change::{BackfillTime, FiringGuard};
use downbeat_core::ids::BackfillId;
use downbeat_core::job::{
    BackfillCancel, BackfillEnd, BackfillFacts, BackfillLive, BackfillNext, BackfillRecord, BackfillStep,
    NotStarted, next_of_backfill,
};
use downbeat_core::run::RunRecord;
use downbeat_core::schedule::{self, Timetable};
use downbeat_core::{Change, Timestamp, level};
use downbeat_store::{self as store, Store};
use futures_util::{StreamExt as _, stream};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::backfills::{OpenBackfill, Version};
use super::fire::{Start, Time, start_time};
use crate::service::Service;

/// Who starts the runs of backfills, and cancels those of a deleted job.
const BY: &str = "backfill";
/// The longest sleep: the clock may be set meanwhile.
const SLEEP: Duration = Duration::from_secs(1);
/// The pause before a decision is repeated that could not be committed.
const RETRY: SignedDuration = SignedDuration::from_secs(1);
/// Backfills that are continued at the same time.
const AT_ONCE: usize = 32;
/// Decisions about one backfill in a row; then the others are continued.
const IN_A_ROW: usize = 20;

/// What follows a decision about a backfill.
enum After {
    /// The next one.
    Next,
    /// Something has to happen first: an event announces it.
    Wait,
    /// The decision is repeated after a pause.
    Again,
}

/// Continues all open backfills until `stop` is cancelled.
pub(crate) async fn continue_backfills(service: Service, stop: CancellationToken) {
    let parts = service.parts.clone();
    loop {
        let wait = parts.backfills.next().map_or(SLEEP, |next| parts.clock.until(next).min(SLEEP));
        tokio::select! {
            () = stop.cancelled() => return,
            () = parts.backfills.woken() => {}
            () = tokio::time::sleep(wait) => {}
        }
        loop {
            let due = parts.backfills.take_due(parts.clock.now(), AT_ONCE);
            if due.is_empty() || stop.is_cancelled() {
                break;
            }
            stream::iter(due).for_each_concurrent(None, |id| continue_one(&service, id)).await;
        }
    }
}

async fn continue_one(service: &Service, id: BackfillId) {
    let backfills = &service.parts.backfills;
    for _ in 0..IN_A_ROW {
        match decide(service, id).await {
            Ok(After::Next) => {}
            Ok(After::Wait) => return,
            Ok(After::Again) => return backfills.decide_at(id, later(service)),
            Err(error) => {
                warn!(backfill = %id, %error, "cannot continue a backfill");
                return backfills.decide_at(id, later(service));
            }
        }
    }
    backfills.decide_at(id, service.now());
}

fn later(service: &Service) -> Timestamp {
    let now = service.now();
    now.checked_add(RETRY).unwrap_or(now)
}

/// Decides about one backfill, and does what it needs next.
async fn decide(service: &Service, id: BackfillId) -> Result<After, store::Error> {
    let parts = &service.parts;
    if !parts.level.reaches(level::JOBS) {
        return Ok(After::Again);
    }
    let Some(open) = parts.backfills.get(id) else { return Ok(After::Wait) };
    let store = parts.store.as_ref();
    if !open.is_followed {
        let ended = ends(store, &open.record).await?;
        parts.backfills.found(id, &ended);
        return Ok(After::Next);
    }
    let version = version(service, &open).await?;
    let OpenBackfill { record, ended, .. } = open;
    let has_job = version.is_some() && parts.jobs.get(&record.made.job).is_some();
    let first = |from| version.as_ref().and_then(|version| version.table.first_time(from));
    match next_of_backfill(&record, BackfillFacts { ended, has_job }, first) {
        BackfillNext::Start(at) => match version {
            Some(version) => Ok(start(service, &record, &version, at).await),
            None => Ok(After::Again),
        },
        BackfillNext::Record(step) => Ok(commit(service, moved(service, &record, step)).await),
        BackfillNext::Cancel => {
            info!(backfill = %id, job = %record.made.job.name, "the job of a backfill does not exist any more");
            let cancel = BackfillCancel { by: BY.to_owned(), at: service.now() };
            let job = record.made.job.clone();
            Ok(commit(service, Change::BackfillCancelled { job, backfill: id, cancel }).await)
        }
        BackfillNext::CancelRuns => Ok(cancel_runs(service, &record.live).await),
        BackfillNext::Wait | BackfillNext::Nothing => Ok(After::Wait),
    }
}

/// Reads which open runs of a backfill have ended.
async fn ends(store: &dyn Store, backfill: &BackfillRecord) -> Result<Vec<BackfillEnd>, store::Error> {
    let mut ended = Vec::new();
    for (at, run) in &backfill.live.open {
        let state = store.run(run).await?.as_ref().map(RunRecord::state);
        if state.is_none_or(|state| state.is_terminal()) {
            ended.push(BackfillEnd { at: *at, state });
        }
    }
    Ok(ended)
}

/// Returns the version of the job that a backfill runs; none if it is not kept any more.
async fn version(service: &Service, open: &OpenBackfill) -> Result<Option<Arc<Version>>, store::Error> {
    if let Some(version) = &open.version {
        return Ok(Some(Arc::clone(version)));
    }
    let made = &open.record.made;
    let Some(job) = service.parts.store.job_version(made.job.id(), made.version).await? else {
        return Ok(None);
    };
    // Delays do not matter here, so neither does the name of the cluster.
    let Ok(table) = Timetable::new(schedule::key(None, &made.job.name), &job.definition.schedule) else {
        return Ok(None);
    };
    let version = Arc::new(Version { job, table });
    service.parts.backfills.set_version(made.id, &version);
    Ok(Some(version))
}

fn moved(service: &Service, backfill: &BackfillRecord, step: BackfillStep) -> Change {
    let (job, id, at) = (backfill.made.job.clone(), backfill.made.id, service.now());
    Change::BackfillMoved { job, backfill: id, step, at }
}

async fn start(service: &Service, backfill: &BackfillRecord, version: &Version, at: Timestamp) -> After {
    let BackfillRecord { made, live } = backfill;
    let Some(cluster) = service.parts.standing.cluster_by_id(made.job.cluster) else { return After::Again };
    let time = Time {
        run: made.run_id(&cluster.name, at),
        idempotency_key: made.run_key(at),
        by: BY,
        guard: FiringGuard {
            version: made.version,
            from: live.next,
            backfill: Some(BackfillTime { id: made.id, at }),
        },
    };
    match start_time(service, &version.job, time).await {
        Start::Created => After::Next,
        Start::Exists => {
            commit(service, moved(service, backfill, BackfillStep::over_existing(live, at))).await
        }
        Start::Refused(error) => {
            warn!(job = %made.job.name, %at, error, "a backfill could not start a run");
            let step = BackfillStep::over_refused(live, NotStarted { at, error });
            commit(service, moved(service, backfill, step)).await
        }
        Start::Later | Start::Stale => After::Again,
    }
}

/// Cancels the open runs of a cancelled backfill. Their ends are events.
async fn cancel_runs(service: &Service, live: &BackfillLive) -> After {
    let by = live.cancelled.as_ref().map_or(BY, |cancel| &cancel.by);
    for run in live.open.values() {
        let (run, by, at) = (run.clone(), by.to_owned(), service.now());
        match service.parts.journal.commit_one(Change::RunCancelRequested { run, by, at }).await {
            // Refused: it has ended, or its cancellation was requested before.
            Ok(_) => {}
            Err(error) => {
                warn!(%error, "cannot cancel a run of a backfill");
                return After::Again;
            }
        }
    }
    After::Wait
}

async fn commit(service: &Service, change: Change) -> After {
    match service.parts.journal.commit_one(change).await {
        Ok(Ok(())) => After::Next,
        Ok(Err(refusal)) => {
            debug!(%refusal, "another server continued a backfill");
            After::Again
        }
        Err(error) => {
            warn!(%error, "cannot record the progress of a backfill");
            After::Again
        }
    }
}
