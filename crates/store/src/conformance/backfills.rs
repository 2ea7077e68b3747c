//! Cases about backfills of stored jobs.

use std::sync::Arc;

use downbeat_core::change::{BackfillTime, Change, FiringGuard, Refusal};
use downbeat_core::ids::{BackfillId, ClusterId, RunId};
use downbeat_core::job::{
    Backfill, BackfillCancel, BackfillEnd, BackfillLive, BackfillRecord, BackfillStep, JobKey, NotStarted,
};
use downbeat_core::limits;
use downbeat_core::run::{RunMade, RunState};
use uuid::Uuid;

use super::copies::copy;
use super::make::*;
use crate::port::Store;

pub fn backfill_id(number: u32) -> BackfillId {
    BackfillId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0000 + u128::from(number)))
}

/// A backfill of the seconds 10 to 40, of which two run at once.
fn backfill(number: u32, job: JobKey) -> Backfill {
    Backfill {
        id: backfill_id(number),
        job,
        version: 1,
        from: at(10),
        to: at(40),
        times: 3,
        parallel: 2,
        again: number.is_multiple_of(2),
        by: "ada".to_owned(),
        created_at: at(60),
    }
}

pub fn backfill_created(number: u32, job: u32) -> Change {
    Change::BackfillCreated { backfill: backfill(number, job_key(job)) }
}

/// Creates a run of a backfill that is at a position.
pub fn backfilled(run: u32, job: u32, number: u32, from: i64, time: i64) -> Change {
    let made = RunMade { job: Some(format!("job-{job}")), job_version: Some(1), ..made(run) };
    let backfill = Some(BackfillTime { id: backfill_id(number), at: at(time) });
    let firing = Some(FiringGuard { version: 1, from: at(from), backfill });
    Change::RunCreated { run: made_as(made), max_pending: None, max_open: None, firing }
}

fn step(from: i64, until: i64) -> BackfillStep {
    let (from, until) = (at(from), at(until));
    BackfillStep { from, until, existing: false, refused: None, ended: Vec::new(), is_end: false }
}

fn moved_by(number: u32, step: BackfillStep) -> Change {
    Change::BackfillMoved { job: job_key(1), backfill: backfill_id(number), step, at: at(70) }
}

pub fn backfill_ended(number: u32, position: i64) -> Change {
    moved_by(number, BackfillStep { is_end: true, ..step(position, position) })
}

pub fn backfill_cancelled(number: u32) -> Change {
    let cancel = BackfillCancel { by: "ada".to_owned(), at: at(71) };
    Change::BackfillCancelled { job: job_key(1), backfill: backfill_id(number), cancel }
}

async fn read(store: &Arc<dyn Store>, number: u32) -> Option<BackfillRecord> {
    store.backfill(backfill_id(number)).await.unwrap()
}

async fn live(store: &Arc<dyn Store>, number: u32) -> BackfillLive {
    read(store, number).await.expect("the backfill exists").live
}

fn numbers(backfills: Vec<BackfillRecord>) -> Vec<BackfillId> {
    backfills.into_iter().map(|backfill| backfill.made.id).collect()
}

pub async fn a_backfill_is_read_back_whole(store: Arc<dyn Store>) {
    refuse(&store, backfill_created(1, 1), Refusal::NotFound).await;
    apply(&store, &[job_applied(1, 1), job_applied(2, 1)]).await;
    apply(&store, &[backfill_created(1, 1), backfill_created(2, 1), backfill_created(3, 2)]).await;
    refuse(&store, backfill_created(1, 1), Refusal::WrongState).await;
    assert_eq!(read(&store, 1).await, Some(BackfillRecord::new(backfill(1, job_key(1)))));
    assert_eq!(read(&store, 9).await, None);
    let of_job = numbers(store.backfills(job_key(1).id()).await.unwrap());
    assert_eq!(of_job, [backfill_id(2), backfill_id(1)]);
    let first = numbers(store.open_backfills(None, 2).await.unwrap());
    assert_eq!(first, [backfill_id(1), backfill_id(2)]);
    let second = numbers(store.open_backfills(Some(first[1]), 9).await.unwrap());
    assert_eq!(second, [backfill_id(3)]);
    apply(&store, &[backfill_ended(1, 10)]).await;
    assert_eq!(store.open_backfills(None, 9).await.unwrap().len(), 2);
}

pub async fn a_backfill_and_its_run_are_created_together_or_not(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1)]).await;
    refuse(&store, backfilled(1, 1, 1, 10, 10), Refusal::NotFound).await;
    apply(&store, &[backfill_created(1, 1)]).await;
    // Two servers start the same time: one of them does.
    let both = [backfilled(1, 1, 1, 10, 10), backfilled(2, 1, 1, 10, 10)];
    assert_eq!(commit(&store, &both).await.outcomes, [Ok(()), Err(Refusal::StaleVersion)]);
    assert_eq!((live(&store, 1).await.next, live(&store, 1).await.open.len()), (at(11), 1));
    refuse(&store, backfilled(2, 1, 1, 10, 10), Refusal::StaleVersion).await;
    // A run that exists moves nothing.
    refuse(&store, backfilled(1, 1, 1, 11, 20), Refusal::RunExists(RunId::from("run-001"))).await;
    assert_eq!(live(&store, 1).await.next, at(11));
    apply(&store, &[backfilled(2, 1, 1, 11, 20)]).await;
    refuse(&store, backfilled(3, 1, 1, 21, 30), Refusal::WrongState).await;
    // A paused job can be backfilled, a deleted one cannot.
    let ended = vec![BackfillEnd { at: at(10), state: Some(RunState::Completed) }];
    apply(&store, &[job_paused(1, true), moved_by(1, BackfillStep { ended, ..step(21, 21) })]).await;
    apply(&store, &[backfilled(3, 1, 1, 21, 30), job_decided(1, 1, 1, 5)]).await;
    apply(&store, &[job_deleted(1)]).await;
    refuse(&store, backfilled(4, 1, 1, 31, 35), Refusal::NotFound).await;
}

pub async fn progress_of_a_backfill_is_recorded_once(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1), backfill_created(1, 1)]).await;
    let existing = || moved_by(1, BackfillStep { existing: true, ..step(10, 11) });
    let both = [existing(), existing()];
    assert_eq!(commit(&store, &both).await.outcomes, [Ok(()), Err(Refusal::StaleVersion)]);
    let refused = Some(NotStarted { at: at(20), error: "no node".to_owned() });
    apply(&store, &[moved_by(1, BackfillStep { refused: refused.clone(), ..step(11, 21) })]).await;
    apply(&store, &[backfilled(1, 1, 1, 21, 30)]).await;
    refuse(&store, backfill_ended(1, 31), Refusal::WrongState).await;
    let ended = || vec![BackfillEnd { at: at(30), state: Some(RunState::Failed) }];
    let end = || moved_by(1, BackfillStep { ended: ended(), ..step(31, 31) });
    apply(&store, &[end()]).await;
    refuse(&store, end(), Refusal::StaleVersion).await;
    apply(&store, &[backfill_ended(1, 31)]).await;
    refuse(&store, backfill_ended(1, 31), Refusal::WrongState).await;
    let live = live(&store, 1).await;
    let counts = live.counts;
    assert_eq!((counts.existing, counts.refused, counts.failed, counts.succeeded), (1, 1, 1, 0));
    assert_eq!((live.refused, live.ended_at), (refused, Some(at(70))));
}

pub async fn a_cancelled_backfill_starts_nothing_more(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1), backfill_created(1, 1)]).await;
    apply(&store, &[backfilled(1, 1, 1, 10, 10)]).await;
    apply(&store, &[backfill_cancelled(1)]).await;
    refuse(&store, backfill_cancelled(1), Refusal::WrongState).await;
    refuse(&store, backfilled(2, 1, 1, 11, 20), Refusal::WrongState).await;
    let ended = vec![BackfillEnd { at: at(10), state: None }];
    apply(&store, &[moved_by(1, BackfillStep { ended, is_end: true, ..step(11, 11) })]).await;
    let live = live(&store, 1).await;
    assert_eq!(live.cancelled.map(|cancel| (cancel.by, cancel.at)), Some(("ada".to_owned(), at(71))));
    assert_eq!((live.counts.failed, live.ended_at), (1, Some(at(70))));
}

pub async fn only_the_last_ended_backfills_of_a_job_are_kept(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1), job_applied(2, 1), backfill_created(1, 1), backfill_created(2, 2)])
        .await;
    let kept = u32::try_from(limits::BACKFILLS).unwrap();
    for number in 3..=kept + 4 {
        apply(&store, &[backfill_created(number, 1)]).await;
        apply(&store, &[backfill_ended(number, 10)]).await;
    }
    let of_job = numbers(store.backfills(job_key(1).id()).await.unwrap());
    // The first one is open. The last one was created when the one before it had ended.
    let expected = (5..=kept + 4).rev().chain([1]).map(backfill_id).collect::<Vec<_>>();
    assert_eq!(of_job, expected);
    assert_eq!(store.backfills(job_key(2).id()).await.unwrap().len(), 1);
}

pub async fn a_backfill_goes_with_its_cluster(store: Arc<dyn Store>) {
    let key = || JobKey::new(cluster_id(7), "job-1");
    apply(&store, &[cluster_created(7), job_applied(1, 1)]).await;
    apply(&store, &[Change::JobApplied { job: job_version(key(), 1), triggers_seen: None }]).await;
    apply(&store, &[Change::BackfillCreated { backfill: backfill(1, key()) }, backfill_created(2, 1)]).await;
    // The job has another key.
    refuse(&store, backfill_cancelled(1), Refusal::NotFound).await;
    apply(&store, &[cluster_deleted(7)]).await;
    let cancel = BackfillCancel { by: "ada".to_owned(), at: at(71) };
    let cancelled = Change::BackfillCancelled { job: key(), backfill: backfill_id(1), cancel };
    refuse(&store, cancelled, Refusal::NotFound).await;
    assert_eq!(numbers(store.open_backfills(None, 9).await.unwrap()), [backfill_id(2)]);
    while store.remove_cluster(cluster_id(7), 3).await.unwrap() > 0 {}
    assert_eq!(read(&store, 1).await, None);
    assert_eq!(read(&store, 2).await.map(|backfill| backfill.made.job.cluster), Some(ClusterId::DEFAULT));
}

pub async fn backfills_are_part_of_a_copy(store: Arc<dyn Store>) {
    apply(&store, &[job_applied(1, 1), backfill_created(1, 1), backfill_created(2, 1)]).await;
    apply(&store, &[backfilled(1, 1, 1, 10, 10), backfill_ended(2, 10)]).await;
    let copied = copy(&store).await;
    for number in [1, 2] {
        assert_eq!(read(&copied, number).await, read(&store, number).await);
    }
}
