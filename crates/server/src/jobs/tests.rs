//! Schedules of servers that die at every moment, alone and in company.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, ServerId};
use downbeat_core::job::{JobKey, JobRecord, JobVersion, NotStarted, definition_hash};
use downbeat_core::schedule::SkipReason;
use downbeat_core::{Change, Portion, Timestamp, spec};
use downbeat_store::{Committed, Error, EventFilter, MemoryStore, Store, Wrapped, Wrapper};
use downbeat_testbed::{Database, eventually};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle, Runtime};
use uuid::Uuid;

use crate::service::Service;
use crate::{Caller, Server, Settings, Surroundings, start_within};

/// Times that are missed before the first server starts.
const MISSED: i64 = 6;
const SOMEBODY: ServerId = ServerId(Uuid::nil());

/// When a server dies: at one of its commits about a schedule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Death {
    Never,
    Before(usize),
    /// After the commit, before the server learns of it.
    After(usize),
}

/// A store whose server dies at a commit: that commit never returns.
#[derive(Debug)]
struct Deadly {
    inner: Arc<dyn Store>,
    death: Death,
    commits: AtomicUsize,
    is_dead: Arc<AtomicBool>,
}

impl Deadly {
    async fn die(&self) -> ! {
        self.is_dead.store(true, Ordering::SeqCst);
        std::future::pending().await
    }
}

#[async_trait]
impl Wrapper for Deadly {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let is_counted = |change: &Change| {
            matches!(
                change,
                Change::RunCreated { firing: Some(_), .. }
                    | Change::JobDecided { .. }
                    | Change::BackfillMoved { .. }
            )
        };
        let number = match changes.iter().any(is_counted) {
            true => self.commits.fetch_add(1, Ordering::SeqCst) + 1,
            false => 0,
        };
        if matches!(self.death, Death::Before(death) if death == number) {
            self.die().await;
        }
        let committed = self.inner.commit(server, changes).await;
        if matches!(self.death, Death::After(death) if death == number) {
            self.die().await;
        }
        committed
    }
}

/// A server in a process of its own.
pub(super) struct Process {
    runtime: Runtime,
    server: Server,
    pub(super) is_dead: Arc<AtomicBool>,
}

impl Process {
    pub(super) fn start(name: &str, inner: Arc<dyn Store>, death: Death) -> Self {
        let is_dead = Arc::new(AtomicBool::new(false));
        let commits = AtomicUsize::new(0);
        let store = Wrapped(Deadly { inner, death, commits, is_dead: Arc::clone(&is_dead) });
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = Settings { name: name.to_owned(), ..Settings::default() };
        let server = start_within(settings, Arc::new(store), Surroundings::default());
        let server = runtime.block_on(server).unwrap();
        Self { runtime, server, is_dead }
    }

    pub(super) fn service(&self) -> (&Handle, &Service) {
        (self.runtime.handle(), self.server.service())
    }

    /// Ends without a graceful stop, as a killed process does.
    pub(super) fn kill(self) {
        self.runtime.shutdown_background();
        drop(self.server);
    }
}

pub(super) fn key() -> JobKey {
    JobKey::new(ClusterId::DEFAULT, "tick")
}

/// Returns a version of the job `tick` whose schedules count from a time on.
pub(super) fn tick(version: u64, at: Timestamp, more: &Value) -> Change {
    let mut job = json!({
        "name": "tick", "schedule": {"every": "1s", "catch_up": "1h"},
        "tasks": [{"backend": "test", "action": "noop"}],
    });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let (definition, hash) = (Arc::new(definition.clone()), definition_hash(&definition));
    Change::JobApplied {
        job: JobVersion { key: key(), version, definition, hash, by: "ada".to_owned(), at },
        triggers_seen: None,
    }
}

/// Returns a time in whole seconds, so long ago.
fn ago(seconds: i64) -> Timestamp {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    now - SignedDuration::from_secs(seconds)
}

pub(super) async fn commit(store: &Arc<dyn Store>, change: Change) {
    assert_eq!(store.commit(SOMEBODY, &[change]).await.unwrap().outcomes, [Ok(())]);
}

async fn read(store: &Arc<dyn Store>) -> JobRecord {
    store.job(key().id()).await.unwrap().unwrap()
}

/// Waits until everything up to a time is decided.
async fn decided(store: &Arc<dyn Store>, until: Timestamp) -> Timestamp {
    eventually("the schedules are decided", || async {
        Some(read(store).await.live.decided_at).filter(|decided| *decided >= until)
    })
    .await
}

pub(super) async fn changes(store: &Arc<dyn Store>) -> Vec<Change> {
    let events = store.events(&EventFilter::default(), Portion::of_rows(usize::MAX)).await.unwrap();
    events.into_iter().map(|event| event.change).collect()
}

/// Checks that every second between two times has one run, and no other has any.
async fn none_missed_and_none_twice(store: &Arc<dyn Store>, from: Timestamp, until: Timestamp) {
    let mut runs: BTreeMap<Timestamp, usize> = BTreeMap::new();
    for change in changes(store).await {
        match change {
            Change::RunCreated { run, .. } => {
                let (cluster, job, at) = run.id.schedule().unwrap();
                assert_eq!((cluster, job, run.job_version), ("default", "tick", Some(1)));
                *runs.entry(at).or_default() += 1;
            }
            Change::JobDecided { skipped, refused, .. } => {
                assert_eq!((skipped, refused), (Vec::new(), Vec::new()));
            }
            _ => {}
        }
    }
    // A run may exist although its decision is not committed yet.
    runs.retain(|at, _| *at <= until);
    let expected = from.as_second() + 1..=until.as_second();
    let expected: BTreeMap<Timestamp, usize> =
        expected.map(|second| (Timestamp::from_second(second).unwrap(), 1)).collect();
    assert_eq!(runs, expected);
}

#[test]
fn a_server_that_dies_at_any_commit_misses_nothing_and_starts_nothing_twice() {
    let (test, from) = (Builder::new_current_thread().enable_all().build().unwrap(), ago(MISSED));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    test.block_on(commit(&store, tick(1, from, &json!({}))));
    // Each server dies at a later commit of its own: of a run, and of the decision that follows the runs.
    for death in 1..=4 {
        for death in [Death::Before(death), Death::After(death)] {
            let process = Process::start("one", Arc::clone(&store), death);
            let is_dead = || async { process.is_dead.load(Ordering::SeqCst).then_some(()) };
            test.block_on(eventually("the server dies", is_dead));
            process.kill();
        }
    }
    let last = Process::start("one", Arc::clone(&store), Death::Never);
    let until = test.block_on(decided(&store, Timestamp::now()));
    last.kill();
    test.block_on(none_missed_and_none_twice(&store, from, until));
}

#[test]
fn servers_on_one_database_start_each_run_once_while_some_of_them_die() {
    let (test, from) = (Builder::new_multi_thread().enable_all().build().unwrap(), ago(MISSED));
    let database = test.block_on(Database::create());
    let open = || test.block_on(downbeat_store::open(&database.url)).unwrap();
    let store: Arc<dyn Store> = open();
    test.block_on(commit(&store, tick(1, from, &json!({}))));
    let deaths = [("one", Death::After(2)), ("two", Death::Before(3)), ("three", Death::Never)];
    let mut processes = Vec::new();
    for (name, death) in deaths {
        processes.push(Process::start(name, open(), death));
    }
    let until = Timestamp::now() + SignedDuration::from_secs(2);
    let until = test.block_on(decided(&store, until));
    processes.into_iter().for_each(Process::kill);
    test.block_on(none_missed_and_none_twice(&store, from, until));
    test.block_on(async {
        store.close().await;
        database.drop().await;
    });
}

pub(super) async fn start(store: &Arc<dyn Store>) -> Server {
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    start_within(settings, Arc::clone(store), Surroundings::default()).await.unwrap()
}

#[tokio::test]
async fn a_job_that_cannot_run_is_recorded_and_not_tried_again() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let from = ago(2);
    commit(&store, tick(1, from, &json!({"target": "group:nobody"}))).await;
    let server = start(&store).await;
    decided(&store, Timestamp::now()).await;
    server.stop().await;
    let mut refused = Vec::new();
    for change in changes(&store).await {
        assert!(!matches!(change, Change::RunCreated { .. }), "{change:?}");
        if let Change::JobDecided { refused: more, .. } = change {
            refused.extend(more);
        }
    }
    let second = SignedDuration::from_secs(1);
    let times: Vec<Timestamp> = refused.iter().map(|one: &NotStarted| one.at).take(2).collect();
    assert_eq!(times, [from + second, from + second * 2]);
    assert!(refused[0].error.contains("the cluster has no nodes yet"), "{refused:?}");
    let mut twice: Vec<Timestamp> = refused.iter().map(|one| one.at).collect();
    twice.dedup();
    assert_eq!(twice.len(), refused.len());
}

#[tokio::test]
async fn times_of_a_pause_are_skipped_when_the_job_is_resumed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let from = ago(5);
    commit(&store, tick(1, from, &json!({}))).await;
    let paused = Change::JobPauseSet { job: key(), paused: true, by: "ada".to_owned(), at: from };
    commit(&store, paused).await;
    let server = start(&store).await;
    let resumed = server.service().pause_job(&Caller::API, &key(), false).await.unwrap();
    assert_eq!(resumed.record.live.paused_at, None);
    decided(&store, Timestamp::now()).await;
    server.stop().await;
    let changes = changes(&store).await;
    let skipped = changes.iter().find_map(|change| match change {
        Change::JobDecided { skipped, .. } => skipped.first(),
        _ => None,
    });
    let skipped = skipped.unwrap();
    assert_eq!((skipped.reason, skipped.first), (SkipReason::Paused, from + SignedDuration::from_secs(1)));
    let first_run = changes.iter().find_map(|change| match change {
        Change::RunCreated { run, .. } => run.id.schedule().map(|(_, _, at)| at),
        _ => None,
    });
    assert_eq!(first_run, Some(skipped.last + SignedDuration::from_secs(1)));
}

#[tokio::test]
async fn times_that_are_due_belong_to_the_version_before() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let from = ago(3);
    commit(&store, tick(1, from, &json!({}))).await;
    let server = start(&store).await;
    let next = json!({
        "name": "tick", "schedule": "0 0 1 1 *", "tasks": [{"backend": "test", "action": "noop"}],
    });
    let definition = spec::parse(&next.to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let applied = server.service().apply_job(&Caller::API, definition, crate::service::Mode::Commit).await;
    assert_eq!(applied.unwrap().job.live.version, 2);
    server.stop().await;
    let runs: Vec<Option<u64>> = changes(&store)
        .await
        .into_iter()
        .filter_map(|change| match change {
            Change::RunCreated { run, .. } => Some(run.job_version),
            _ => None,
        })
        .collect();
    assert!(runs.len() >= 3 && runs.iter().all(|version| *version == Some(1)), "{runs:?}");
}

#[tokio::test]
async fn a_new_version_starts_nothing_for_times_before_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // Nothing was due since, so nothing was decided since.
    commit(&store, tick(1, ago(1_800), &json!({"schedule": "0 0 1 1 *"}))).await;
    let server = start(&store).await;
    let next = json!({
        "name": "tick", "schedule": {"every": "1m", "catch_up": "1h"},
        "tasks": [{"backend": "test", "action": "noop"}],
    });
    let definition = spec::parse(&next.to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let before = Timestamp::now();
    server.service().apply_job(&Caller::API, definition, crate::service::Mode::Commit).await.unwrap();
    assert!(read(&store).await.live.decided_at >= before, "its times count from now on");
    let paused = server.service().pause_job(&Caller::API, &key(), true).await.unwrap();
    assert!(paused.record.live.paused_at.is_some());
    server.stop().await;
    let started = |change: &Change| matches!(change, Change::RunCreated { run, .. } if run.id.schedule().is_some_and(|(_, _, at)| at < before));
    assert!(!changes(&store).await.iter().any(started));
}
