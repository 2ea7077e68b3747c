//! Backfills of servers that die at every moment, alone and in company.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use downbeat_core::job::BackfillRecord;
use downbeat_core::{Change, Timestamp};
use downbeat_store::{MemoryStore, Store};
use downbeat_testbed::{Database, eventually};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle, Runtime};

use super::tests::{Death, Process, changes, commit, key, start, tick};
use crate::Caller;
use crate::service::{Approval, BackfillRequest, Mode, Service};

/// The first time of the job, every minute from then on, in the past.
const FROM: i64 = 1_767_312_000;

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(FROM + 60 * minute).unwrap()
}

/// A job whose runs wait for a person, so that tests decide when they end.
fn job(more: &Value) -> Change {
    let mut job = json!({"schedule": {"every": "1m", "catch_up": "none"}, "tasks": [{"approve": {}}]});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tick(1, Timestamp::now(), &job)
}

async fn begin(service: &Service, minutes: i64, parallel: u32, again: bool) -> BackfillRecord {
    let job = service.job(&Caller::API, key().cluster, &key().name).await.unwrap();
    let request = BackfillRequest { from: at(0), to: at(minutes), parallel, again };
    service.backfill_job(&Caller::API, &job, request, Mode::Commit).await.unwrap().0
}

async fn read(store: &Arc<dyn Store>) -> BackfillRecord {
    store.backfills(key().id()).await.unwrap().swap_remove(0)
}

/// Waits until a condition of the newest backfill holds.
async fn until(
    store: &Arc<dyn Store>,
    what: &str,
    holds: impl Fn(&BackfillRecord) -> bool,
) -> BackfillRecord {
    eventually(what, || async { Some(read(store).await).filter(|backfill| holds(backfill)) }).await
}

/// Lets the open runs of the newest backfill end. A server that is dead does not answer.
async fn end_runs(store: &Arc<dyn Store>, (handle, service): (&Handle, &Service)) {
    for run in read(store).await.live.open.values() {
        let (service, run, step) = (service.clone(), run.clone(), "0".to_owned());
        let approval = Approval { run, step, approved: true, reason: None };
        handle.spawn(async move { service.approve(&Caller::API, approval).await });
    }
}

/// Checks that each minute has one run, in the order of time, and at most so many were open.
async fn each_time_once(store: &Arc<dyn Store>, minutes: i64, parallel: usize) {
    let (mut open, mut order) = (0, Vec::new());
    for change in changes(store).await {
        match change {
            Change::RunCreated { run, .. } => {
                let (cluster, job, at) = run.id.schedule().unwrap();
                assert_eq!(
                    (cluster, job, run.job_version, &*run.by),
                    ("default", "tick", Some(1), "backfill")
                );
                order.push(at);
                open += 1;
                assert!(open <= parallel, "{open} are open");
            }
            Change::RunMoved { path, .. } if path.last().is_some_and(|state| state.is_terminal()) => {
                open -= 1;
            }
            _ => {}
        }
    }
    assert_eq!(order, (0..minutes).map(at).collect::<Vec<_>>());
}

fn create(test: &Runtime, store: &Arc<dyn Store>, minutes: i64, parallel: u32) {
    test.block_on(commit(store, job(&json!({}))));
    let process = Process::start("zero", Arc::clone(store), Death::Before(1));
    test.block_on(begin(process.service().1, minutes, parallel, false));
    process.kill();
}

/// Ends runs until the backfill has ended, or the server has died.
async fn play(store: &Arc<dyn Store>, server: (&Handle, &Service), is_over: impl Fn() -> bool) {
    eventually("the backfill or its server ends", || async {
        end_runs(store, server).await;
        (is_over() || read(store).await.live.ended_at.is_some()).then_some(())
    })
    .await;
}

#[test]
fn a_server_that_dies_at_any_commit_backfills_each_time_once() {
    let test = Builder::new_current_thread().enable_all().build().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    create(&test, &store, 12, 2);
    // Each server dies at a later commit of its own: of a run, and of progress.
    for death in 1..=4 {
        for death in [Death::Before(death), Death::After(death)] {
            let process = Process::start("one", Arc::clone(&store), death);
            test.block_on(play(&store, process.service(), || process.is_dead.load(Ordering::SeqCst)));
            process.kill();
        }
    }
    let last = Process::start("one", Arc::clone(&store), Death::Never);
    test.block_on(play(&store, last.service(), || false));
    last.kill();
    test.block_on(each_time_once(&store, 12, 2));
    let backfill = test.block_on(read(&store));
    assert_eq!((backfill.live.counts.succeeded, backfill.left()), (12, 0));
}

#[test]
fn servers_on_one_database_backfill_each_time_once_while_some_of_them_die() {
    let test = Builder::new_multi_thread().enable_all().build().unwrap();
    let database = test.block_on(Database::create());
    let open = || test.block_on(downbeat_store::open(&database.url)).unwrap();
    let store: Arc<dyn Store> = open();
    create(&test, &store, 10, 3);
    let deaths = [("one", Death::After(2)), ("two", Death::Before(3)), ("three", Death::Never)];
    let mut processes = Vec::new();
    for (name, death) in deaths {
        processes.push(Process::start(name, open(), death));
    }
    let last = processes.pop().unwrap();
    for process in processes {
        test.block_on(play(&store, last.service(), || process.is_dead.load(Ordering::SeqCst)));
        process.kill();
    }
    test.block_on(play(&store, last.service(), || false));
    last.kill();
    test.block_on(each_time_once(&store, 10, 3));
    let backfill = test.block_on(read(&store));
    assert_eq!((backfill.live.counts.succeeded, backfill.left()), (10, 0));
    test.block_on(async {
        store.close().await;
        database.drop().await;
    });
}

#[tokio::test]
async fn a_cancelled_backfill_cancels_its_runs_and_starts_nothing_more() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    commit(&store, job(&json!({}))).await;
    let server = start(&store).await;
    let id = begin(server.service(), 50, 3, false).await.made.id.to_string();
    until(&store, "three runs are open", |backfill| backfill.live.open.len() == 3).await;
    server.service().cancel_backfill(&Caller::API, &id).await.unwrap();
    let over = until(&store, "the backfill ends", |backfill| backfill.live.ended_at.is_some()).await;
    assert_eq!((over.live.counts.cancelled, over.left()), (3, 47));
    let again = server.service().cancel_backfill(&Caller::API, &id).await.unwrap_err();
    assert_eq!(again.to_string(), format!("backfill `{id}` has ended"));
    server.stop().await;
    each_time_once(&store, 3, 3).await;
}

#[tokio::test]
async fn a_deleted_job_ends_its_backfill() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    commit(&store, job(&json!({}))).await;
    let server = start(&store).await;
    begin(server.service(), 50, 1, false).await;
    until(&store, "a run is open", |backfill| backfill.live.open.len() == 1).await;
    server.service().delete_job(&Caller::API, &key()).await.unwrap();
    let over = until(&store, "the backfill ends", |backfill| backfill.live.ended_at.is_some()).await;
    assert_eq!(over.live.cancelled.map(|cancel| cancel.by).as_deref(), Some("backfill"));
    assert_eq!(over.live.counts.cancelled, 1);
    server.stop().await;
}

#[tokio::test]
async fn times_that_ran_before_run_only_again_if_that_is_requested() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let task = json!({"backend": "test", "action": "noop"});
    commit(&store, job(&json!({"target": "group:nobody", "tasks": [task]}))).await;
    let server = start(&store).await;
    begin(server.service(), 2, 1, false).await;
    // A job that cannot run is recorded, and the next time is tried.
    let refused = until(&store, "it ends", |backfill| backfill.live.ended_at.is_some()).await.live;
    assert_eq!(refused.counts.refused, 2, "{refused:?}");
    assert!(refused.refused.is_some_and(|last| last.at == at(1)));
    server.stop().await;

    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    commit(&store, job(&json!({}))).await;
    let server = start(&store).await;
    begin(server.service(), 2, 2, false).await;
    play(&store, (&Handle::current(), server.service()), || false).await;
    begin(server.service(), 3, 3, false).await;
    let second = until(&store, "the third time runs", |backfill| backfill.live.open.len() == 1).await;
    assert_eq!((second.live.counts.existing, second.live.open.contains_key(&at(2))), (2, true));
    begin(server.service(), 2, 2, true).await;
    let third = until(&store, "both run again", |backfill| backfill.live.open.len() == 2).await;
    let ids: Vec<&str> = third.live.open.values().map(|run| run.as_str()).collect();
    assert!(ids.iter().all(|id| id.ends_with(&format!("Z:backfill-{}", third.made.id))), "{ids:?}");
    server.stop().await;
    let mut runs: BTreeMap<Timestamp, usize> = BTreeMap::new();
    for change in changes(&store).await {
        if let Change::RunCreated { run, .. } = change {
            *runs.entry(run.id.schedule().unwrap().2).or_default() += 1;
        }
    }
    assert_eq!(runs, BTreeMap::from([(at(0), 2), (at(1), 2), (at(2), 1)]));
}

#[tokio::test]
async fn impossible_ranges_are_refused_with_advice() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    commit(&store, job(&json!({}))).await;
    let server = start(&store).await;
    let job = server.service().job(&Caller::API, key().cluster, &key().name).await.unwrap();
    let soon = Timestamp::now() + SignedDuration::from_hours(1);
    for (from, to, parallel, expected) in [
        (at(1), at(1), 1, "`to` is not later than `from`"),
        (at(1), soon, 1, "`to` is in the future"),
        (at(1), at(2), 0, "`parallel` is 0; write 1 to 100"),
        (at(1), at(2), 101, "`parallel` is 101; write 1 to 100"),
        (
            at(0) + SignedDuration::from_secs(1),
            at(0) + SignedDuration::from_secs(9),
            1,
            "its schedules have no time in the range",
        ),
        (at(0), at(10_001), 1, "the range has more than 10000 times; let it end at 2026-01-08T22:40:00Z"),
    ] {
        let request = BackfillRequest { from, to, parallel, again: false };
        let error =
            server.service().backfill_job(&Caller::API, &job, request, Mode::DryRun).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let request = BackfillRequest { from: at(0), to: at(10_000), parallel: 1, again: false };
    let (_, times) = server.service().backfill_job(&Caller::API, &job, request, Mode::DryRun).await.unwrap();
    assert_eq!((times.len(), times[0], times[9_999]), (10_000, at(0), at(9_999)));
    server.stop().await;
}
