//! Triggers of servers that die between an event and the run that it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, ServerId};
use downbeat_core::job::{JobKey, JobVersion, definition_hash};
use downbeat_core::run::{RunEnd, RunMade, RunState};
use downbeat_core::{Change, Portion, Timestamp, spec};
use downbeat_store::conformance::make;
use downbeat_store::{Committed, Error, EventFilter, MemoryStore, Store, Wrapped, Wrapper};
use downbeat_testbed::eventually;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::{Server, Settings, Surroundings, start_within};

const SOMEBODY: ServerId = ServerId(Uuid::nil());

#[derive(Clone, Copy, Debug)]
enum Death {
    Never,
    Before(usize),
    /// After the commit, before the server learns of it.
    After(usize),
}

/// A store whose server dies at a commit of a run that a trigger starts: that commit never returns.
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

fn is_triggered(change: &Change) -> bool {
    matches!(change, Change::RunCreated { run, .. } if run.by.starts_with("trigger:"))
}

#[async_trait]
impl Wrapper for Deadly {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let number = match changes.iter().any(is_triggered) {
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
struct Process {
    runtime: Runtime,
    server: Server,
    is_dead: Arc<AtomicBool>,
}

impl Process {
    fn start(inner: Arc<dyn Store>, death: Death) -> Self {
        let is_dead = Arc::new(AtomicBool::new(false));
        let commits = AtomicUsize::new(0);
        let store = Wrapped(Deadly { inner, death, commits, is_dead: Arc::clone(&is_dead) });
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = start_within(settings(), Arc::new(store), Surroundings::default());
        let server = runtime.block_on(server).unwrap();
        Self { runtime, server, is_dead }
    }

    /// Ends without a graceful stop, as a killed process does.
    fn kill(self) {
        self.runtime.shutdown_background();
        drop(self.server);
    }
}

fn settings() -> Settings {
    Settings { name: "one".to_owned(), ..Settings::default() }
}

/// Returns the first version of a job.
fn applied(name: &str, more: &Value) -> Change {
    let mut job = json!({"name": name, "tasks": [{"backend": "test", "action": "noop"}]});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let (definition, hash) = (Arc::new(definition.clone()), definition_hash(&definition));
    let (key, by, at) = (JobKey::new(ClusterId::DEFAULT, name), "ada".to_owned(), Timestamp::now());
    Change::JobApplied { job: JobVersion { key, version: 1, definition, hash, by, at }, triggers_seen: None }
}

async fn commit(store: &Arc<dyn Store>, change: Change) {
    assert_eq!(store.commit(SOMEBODY, &[change]).await.unwrap().outcomes, [Ok(())]);
}

/// Adds a run of the job `a` that has ended, with an idempotency key.
async fn ended(store: &Arc<dyn Store>, number: u32, end: RunState, key: Option<String>) {
    let made = RunMade {
        job: Some("a".to_owned()),
        job_version: Some(1),
        idempotency_key: key,
        cluster: ClusterId::DEFAULT,
        ..make::made(number)
    };
    commit(store, make::created_as(make::made_as(made))).await;
    let path = vec![RunState::Starting, RunState::Running, RunState::Terminating, end];
    let (run, end) = (make::run_id(number), Some(RunEnd::default()));
    commit(
        store,
        Change::RunMoved { run, epoch: 1, path, stop: None, room: None, end, at: Timestamp::now() },
    )
    .await;
}

async fn changes(store: &Arc<dyn Store>) -> Vec<Change> {
    let events = store.events(&EventFilter::default(), Portion::of_rows(usize::MAX)).await.unwrap();
    events.into_iter().map(|event| event.change).collect()
}

/// Returns the jobs that triggers have started, with those that they did not start.
async fn started(store: &Arc<dyn Store>) -> Vec<String> {
    let mut found = Vec::new();
    for change in changes(store).await {
        match change {
            Change::RunCreated { run, .. } if run.by.starts_with("trigger:") => {
                found.push(format!("{} by {}", run.job.clone().unwrap_or_default(), run.by));
            }
            Change::JobNotTriggered { job, error, .. } => found.push(format!("{}: {error}", job.name)),
            _ => {}
        }
    }
    found.sort();
    found
}

/// Waits until servers have recorded that they followed all events so far.
async fn followed(store: &Arc<dyn Store>) {
    let last = store.last_seq().await.unwrap();
    eventually("the triggers were followed", || async {
        let is_mark =
            |change: &Change| matches!(change, Change::TriggersFollowed { until, .. } if *until >= last);
        changes(store).await.iter().any(is_mark).then_some(())
    })
    .await;
}

#[test]
fn a_server_that_dies_between_an_event_and_its_run_misses_nothing_and_starts_nothing_twice() {
    let test = Builder::new_current_thread().enable_all().build().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    test.block_on(async {
        commit(&store, applied("early", &json!({"triggers": [{"job": {"name": "a"}}]}))).await;
        commit(&store, applied("always", &json!({"triggers": [{"job": {"name": "a", "on": "always"}}]})))
            .await;
        commit(&store, applied("failed", &json!({"triggers": [{"event": {"kind": "run_failed"}}]}))).await;
        ended(&store, 1, RunState::Completed, None).await;
        // Events before a trigger was applied do not start its job.
        commit(&store, applied("late", &json!({"triggers": [{"job": {"name": "a", "on": "always"}}]}))).await;
        ended(&store, 2, RunState::Failed, None).await;
    });
    for death in 1..=2 {
        for death in [Death::Before(death), Death::After(death)] {
            let process = Process::start(Arc::clone(&store), death);
            let is_over = || async {
                let is_dead = process.is_dead.load(Ordering::SeqCst);
                (is_dead || started(&store).await.len() >= 5).then_some(())
            };
            test.block_on(eventually("the server dies, or everything is done", is_over));
            process.kill();
        }
    }
    let last = Process::start(Arc::clone(&store), Death::Never);
    test.block_on(eventually("all runs exist", || async {
        (started(&store).await.len() >= 5).then_some(())
    }));
    test.block_on(followed(&store));
    last.kill();
    test.block_on(ended(&store, 3, RunState::Cancelled, None));
    let again = Process::start(Arc::clone(&store), Death::Never);
    test.block_on(followed(&store));
    again.kill();
    let found = test.block_on(started(&store));
    let by_job = "by trigger:job:a";
    assert_eq!(
        found,
        [
            format!("always {by_job}"),
            format!("always {by_job}"),
            format!("always {by_job}"),
            format!("early {by_job}"),
            "failed by trigger:event:run_failed".to_owned(),
            format!("late {by_job}"),
            format!("late {by_job}"),
        ]
    );
}

#[tokio::test]
async fn a_start_that_is_refused_and_a_chain_that_is_too_long_are_recorded() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let nowhere = json!({"target": "group:nobody", "triggers": [{"job": {"name": "a"}}]});
    commit(&store, applied("nowhere", &nowhere)).await;
    commit(&store, applied("chained", &json!({"triggers": [{"job": {"name": "a", "on": "failure"}}]}))).await;
    ended(&store, 1, RunState::Completed, None).await;
    ended(&store, 2, RunState::Failed, Some("trigger\n15\na\nr".to_owned())).await;
    ended(&store, 3, RunState::Failed, Some("trigger\n16\na\ns".to_owned())).await;
    let server = start_within(settings(), Arc::clone(&store), Surroundings::default()).await.unwrap();
    eventually("all is decided", || async { (started(&store).await.len() >= 3).then_some(()) }).await;
    followed(&store).await;
    server.stop().await;
    let found = started(&store).await;
    assert_eq!(found[0], "chained by trigger:job:a");
    assert!(found[1].starts_with("chained: 16 runs have started each other"), "{found:?}");
    assert!(found[2].starts_with("nowhere: ") && found[2].contains("no nodes"), "{found:?}");
    assert_eq!(found.len(), 3, "{found:?}");
}
