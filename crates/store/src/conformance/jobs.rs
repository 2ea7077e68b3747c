//! Cases about stored jobs and the decisions of their schedules.

use std::sync::Arc;

use downbeat_core::change::{About, Change, FiringGuard, Refusal};
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::job::{JobKey, JobLive, JobRecord, JobVersion};
use downbeat_core::limits;
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::schedule::{SkipReason, Skipped};

use super::copies::{copy, dump};
use super::make::*;
use crate::port::{EventFilter, Store};

/// Creates a run that a schedule of a job starts.
pub fn fired(number: u32, job: u32, version: u64, from: i64) -> Change {
    let job = Some(format!("job-{job}"));
    let run = made_as(RunMade { job, job_version: Some(version), ..made(number) });
    let firing = Some(FiringGuard { version, from: at(from), backfill: None });
    Change::RunCreated { run, max_pending: None, max_open: None, firing }
}

async fn read(store: &Arc<dyn Store>, number: u32) -> Option<JobRecord> {
    store.job(job_key(number).id()).await.unwrap()
}

async fn live(store: &Arc<dyn Store>, number: u32) -> JobLive {
    read(store, number).await.expect("the job exists").live
}

pub async fn an_applied_job_is_read_back_whole(store: Arc<dyn Store>) {
    assert_eq!(store.jobs(None, 9).await.unwrap(), []);
    apply(&store, &[job_applied(1, 1), job_applied(2, 1)]).await;
    let one = JobRecord { live: JobLive::new(1, at(1)), current: job_version(job_key(1), 1) };
    assert_eq!(read(&store, 1).await, Some(one));
    assert_eq!(read(&store, 3).await, None);
    // In pages, by id.
    let mut ids = [job_key(1).id(), job_key(2).id()];
    ids.sort();
    let first = store.jobs(None, 1).await.unwrap();
    assert_eq!(first.iter().map(|job| job.key().id()).collect::<Vec<_>>(), ids[..1]);
    let second = store.jobs(Some(ids[0]), 9).await.unwrap();
    assert_eq!(second.iter().map(|job| job.key().id()).collect::<Vec<_>>(), ids[1..]);
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let about =
        About { cluster: Some(ClusterId::DEFAULT), job: Some(Arc::from("job-1")), ..About::default() };
    assert_eq!(events[0].about, about);
    // A run names the version that it runs.
    apply(&store, &[created_as(made_as(RunMade { job_version: Some(7), ..made(1) }))]).await;
    assert_eq!(read_run(&store, 1).await.job_version, Some(7));
}

pub async fn a_job_changes_version_by_version(store: Arc<dyn Store>) {
    refuse(&store, job_applied(1, 2), Refusal::StaleVersion).await;
    apply(&store, &[job_applied(1, 1)]).await;
    for version in [1, 3] {
        refuse(&store, job_applied(1, version), Refusal::StaleVersion).await;
    }
    // Of two in one batch one is refused.
    let committed = commit(&store, &[job_applied(1, 2), job_applied(1, 2)]).await;
    assert_eq!(committed.outcomes, [Ok(()), Err(Refusal::StaleVersion)]);
    let two = job_version(job_key(1), 2);
    let live = JobLive { version: 2, ..JobLive::new(1, at(1)) };
    assert_eq!(read(&store, 1).await, Some(JobRecord { live, current: two.clone() }));
    let versions = store.job_versions(job_key(1).id()).await.unwrap();
    assert_eq!(versions.iter().map(|brief| brief.version).collect::<Vec<_>>(), [2, 1]);
    let read = async |version| store.job_version(job_key(1).id(), version).await.unwrap();
    assert_eq!(read(1).await, Some(job_version(job_key(1), 1)));
    assert_eq!(read(2).await, Some(two));
    assert_eq!(read(3).await, None);
}

pub async fn of_two_jobs_with_triggers_that_saw_the_same_events_one_is_refused(store: Arc<dyn Store>) {
    let triggered = |number, version, seen| Change::JobApplied {
        job: job_version(job_key(number), version),
        triggers_seen: Some(seen),
    };
    let seen = store.last_seq().await.unwrap();
    let both = [triggered(1, 1, seen), triggered(2, 1, seen)];
    assert_eq!(commit(&store, &both).await.outcomes, [Ok(()), Err(Refusal::StaleVersion)]);
    refuse(&store, triggered(2, 1, seen), Refusal::StaleVersion).await;
    let seen = store.last_seq().await.unwrap();
    // Other changes do not matter, nor do jobs without triggers.
    apply(&store, &[job_applied(3, 1), job_paused(3, true)]).await;
    apply(&store, &[triggered(2, 1, seen)]).await;
    refuse(&store, triggered(1, 2, seen), Refusal::StaleVersion).await;
    apply(&store, &[triggered(1, 2, store.last_seq().await.unwrap())]).await;
    // A refused change of the job itself takes nothing.
    let seen = store.last_seq().await.unwrap();
    refuse(&store, triggered(1, 9, seen), Refusal::StaleVersion).await;
    apply(&store, &[triggered(1, 3, seen)]).await;
}

pub async fn old_versions_of_a_job_are_removed(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(2, 1)]).await;
    let kept = u32::try_from(limits::JOB_VERSIONS).unwrap();
    for version in 1..=kept + 3 {
        apply(&store, &[job_applied(1, version)]).await;
    }
    let versions = store.job_versions(job_key(1).id()).await.unwrap();
    let numbers: Vec<u64> = versions.iter().map(|brief| brief.version).collect();
    assert_eq!(numbers, (4..=u64::from(kept) + 3).rev().collect::<Vec<_>>());
    assert_eq!(store.job_versions(job_key(2).id()).await.unwrap().len(), 1);
}

pub async fn a_job_is_paused_and_resumed(store: Arc<dyn Store>) {
    refuse(&store, job_paused(1, true), Refusal::NotFound).await;
    apply(&store, &[job_applied(1, 1)]).await;
    refuse(&store, job_paused(1, false), Refusal::WrongState).await;
    apply(&store, &[job_paused(1, true)]).await;
    refuse(&store, job_paused(1, true), Refusal::WrongState).await;
    assert_eq!(live(&store, 1).await.paused_at, Some(at(60)));
    // A new version stays paused.
    apply(&store, &[job_applied(1, 2)]).await;
    assert_eq!(live(&store, 1).await.paused_at, Some(at(60)));
    apply(&store, &[job_paused(1, false)]).await;
    assert_eq!(live(&store, 1).await.paused_at, None);
}

pub async fn a_deleted_job_is_hidden_and_keeps_its_numbers(store: Arc<dyn Store>) {
    refuse(&store, job_deleted(1), Refusal::NotFound).await;
    apply(&store, &[job_applied(1, 1), job_applied(2, 1)]).await;
    apply(&store, &[job_applied(1, 2)]).await;
    apply(&store, &[job_paused(1, true), job_deleted(1)]).await;
    assert_eq!(store.jobs(None, 9).await.unwrap().len(), 1);
    assert_eq!(live(&store, 1).await.deleted_at, Some(at(61)));
    refuse(&store, job_deleted(1), Refusal::NotFound).await;
    refuse(&store, job_paused(1, false), Refusal::NotFound).await;
    refuse(&store, job_decided(1, 2, 1, 2), Refusal::NotFound).await;
    refuse(&store, job_applied(1, 1), Refusal::StaleVersion).await;
    // A job that is applied again is new, except for its number.
    apply(&store, &[job_applied(1, 3)]).await;
    assert_eq!(live(&store, 1).await, JobLive::new(3, at(3)));
}

pub async fn the_schedules_of_a_job_are_decided_once(store: Arc<dyn Store>) {
    refuse(&store, job_decided(1, 1, 1, 5), Refusal::NotFound).await;
    apply(&store, &[job_applied(1, 1)]).await;
    refuse(&store, job_decided(1, 1, 2, 5), Refusal::DecidedBefore(at(1))).await;
    refuse(&store, job_decided(1, 2, 1, 5), Refusal::StaleVersion).await;
    let both = [job_decided(1, 1, 1, 5), job_decided(1, 1, 1, 6)];
    assert_eq!(commit(&store, &both).await.outcomes, [Ok(()), Err(Refusal::DecidedBefore(at(5)))]);
    apply(&store, &[job_decided(1, 1, 5, 9)]).await;
    // A new version continues where the former one ended.
    apply(&store, &[job_applied(1, 2)]).await;
    assert_eq!(live(&store, 1).await.decided_at, at(9));
    apply(&store, &[job_decided(1, 2, 9, 10)]).await;
}

pub async fn times_are_skipped_because_a_job_is_paused_only_while_it_is(store: Arc<dyn Store>) {
    let skips = |reason| {
        let skipped = vec![Skipped { reason, first: at(2), last: at(3), count: 2 }];
        let (from, until) = (at(1), at(5));
        Change::JobDecided {
            job: job_key(1),
            version: 1,
            from,
            until,
            skipped,
            refused: Vec::new(),
            at: until,
        }
    };
    apply(&store, &[job_applied(1, 1)]).await;
    refuse(&store, skips(SkipReason::Paused), Refusal::WrongState).await;
    apply(&store, &[job_paused(1, true)]).await;
    refuse(&store, skips(SkipReason::TooLate), Refusal::WrongState).await;
    apply(&store, &[skips(SkipReason::Paused)]).await;
    assert_eq!(live(&store, 1).await.decided_at, at(5));
}

pub async fn a_schedule_starts_a_run_only_from_the_current_decision(store: Arc<dyn Store>) {
    refuse(&store, fired(1, 1, 1, 1), Refusal::NotFound).await;
    apply(&store, &[job_applied(1, 1)]).await;
    refuse(&store, fired(1, 1, 2, 1), Refusal::StaleVersion).await;
    refuse(&store, fired(1, 1, 1, 2), Refusal::DecidedBefore(at(1))).await;
    apply(&store, &[fired(1, 1, 1, 1), fired(2, 1, 1, 1)]).await;
    refuse(&store, fired(1, 1, 1, 1), Refusal::RunExists(RunId::from("run-001"))).await;
    apply(&store, &[job_decided(1, 1, 1, 5)]).await;
    refuse(&store, fired(3, 1, 1, 1), Refusal::DecidedBefore(at(5))).await;
    apply(&store, &[job_paused(1, true)]).await;
    refuse(&store, fired(3, 1, 1, 5), Refusal::WrongState).await;
    apply(&store, &[job_paused(1, false)]).await;
    apply(&store, &[fired(3, 1, 1, 5)]).await;
    apply(&store, &[job_deleted(1)]).await;
    refuse(&store, fired(4, 1, 1, 5), Refusal::NotFound).await;
}

pub async fn the_work_of_a_run_that_another_server_has_started_is_refused(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1)]).await;
    apply(&store, &[fired(1, 1, 1, 1), added(1, vec![execution(1, 1, pending())])]).await;
    // A second server decided the same: its changes have the same id and the same epoch.
    let moved = Change::RunMoved {
        run: run_id(1),
        epoch: 1,
        path: vec![RunState::PreRun],
        stop: None,
        room: None,
        end: None,
        at: at(11),
    };
    let second = [fired(1, 1, 1, 1), added(1, vec![execution(2, 1, pending())]), moved];
    let refused = [Err(Refusal::RunExists(run_id(1))), Err(Refusal::StaleEpoch), Err(Refusal::StaleEpoch)];
    assert_eq!(commit(&store, &second).await.outcomes, refused);
    assert_eq!(store.executions_of(&run_id(1)).await.unwrap().len(), 1);
    // That concerns one commit only.
    apply(&store, &[added(1, vec![execution(2, 1, pending())])]).await;
}

pub async fn a_job_needs_its_cluster_and_goes_with_it(store: Arc<dyn Store>) {
    let key = || JobKey::new(cluster_id(7), "job-1");
    let applied = |version| Change::JobApplied { job: job_version(key(), version), triggers_seen: None };
    refuse(&store, applied(1), Refusal::NotFound).await;
    apply(&store, &[cluster_created(7), job_applied(1, 1)]).await;
    apply(&store, &[applied(1)]).await;
    apply(&store, &[applied(2)]).await;
    apply(&store, &[cluster_deleted(7)]).await;
    assert_eq!(store.jobs(None, 9).await.unwrap().len(), 1);
    refuse(&store, applied(3), Refusal::NotFound).await;
    let paused = Change::JobPauseSet { job: key(), paused: true, by: "ada".to_owned(), at: at(9) };
    refuse(&store, paused, Refusal::NotFound).await;
    while store.remove_cluster(cluster_id(7), 3).await.unwrap() > 0 {}
    assert_eq!(store.job(key().id()).await.unwrap(), None);
    assert_eq!(store.job_versions(key().id()).await.unwrap(), []);
    assert!(read(&store, 1).await.is_some());
    // The name is free, from the first number on.
    apply(&store, &[cluster_created(7)]).await;
    apply(&store, &[applied(1)]).await;
}

pub async fn jobs_are_part_of_a_copy(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1), job_applied(2, 1), job_applied(3, 1)]).await;
    apply(&store, &[job_applied(1, 2), job_paused(2, true), job_deleted(3)]).await;
    let copied = copy(&store).await;
    assert_eq!(dump(&copied).await, dump(&store).await);
    assert_eq!(dump(&copied).await.jobs.len(), 2);
    // Deleted ones are part of it, so that the numbers continue.
    let version = |job: Option<JobRecord>| job.map(|job| (job.live.version, job.live.deleted_at));
    assert_eq!(version(read(&copied, 3).await), Some((1, Some(at(61)))));
    let versions: Vec<JobVersion> =
        dump(&copied).await.jobs.into_iter().flat_map(|(_, versions)| versions).collect();
    assert_eq!(versions.len(), 3);
}
