//! Runs that a store accepts only in part, and taking over runs that it cannot read at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::run::RunState;
use downbeat_core::{Change, Span, limits, spec};
use downbeat_store::{Committed, Error, Executions as _, MemoryStore, Runs as _, Store, Wrapped, Wrapper};
use serde_json::json;

use crate::{Caller, Force, Settings, Submit, Surroundings, start_within};

/// A store that does not hold executions beyond the first portion of a run.
#[derive(Debug)]
struct Picky {
    store: MemoryStore,
    /// It will never hold them; otherwise it is only unavailable for them.
    is_final: bool,
}

fn is_too_much(change: &Change) -> bool {
    let is_beyond = |step: u32| step as usize >= limits::EXECUTIONS_PER_COMMIT;
    let Change::ExecutionsAdded { executions, .. } = change else { return false };
    executions.iter().any(|one| is_beyond(one.step()) && one.state.status() == Status::Pending)
}

#[async_trait]
impl Wrapper for Picky {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        if changes.iter().any(is_too_much) {
            let why = "string or blob too big".to_owned();
            return Err(if self.is_final { Error::Corrupt(why) } else { Error::Unavailable(why) });
        }
        self.store.commit(server, changes).await
    }
}

fn job(tasks: usize) -> Submit {
    let task =
        |number| json!({"name": format!("t{number}"), "backend": "test", "action": "noop", "depends_on": []});
    let job = json!({"tasks": (0..tasks).map(task).collect::<Vec<_>>()});
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin());
    Submit { definition: definition.unwrap(), params: None, no_cache: false, idempotency_key: None }
}

fn store(is_final: bool) -> Arc<dyn Store> {
    Arc::new(Wrapped(Picky { store: MemoryStore::new(), is_final }))
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_the_store_can_be_cancelled_and_times_out() {
    let store = store(false);
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let many = limits::EXECUTIONS_PER_COMMIT + 500;
    let mut late = job(many);
    late.definition.timeout = Some(Span::from_secs(60));
    for (job, is_cancelled) in [(job(many), true), (late, false)] {
        let run = server.service().submit(&Caller::API, job).await.unwrap().run.id.clone();
        if is_cancelled {
            server.service().cancel(&Caller::API, &run, Force::Off).await.unwrap();
        }
        let ended = loop {
            let run = store.run(&run).await.unwrap().unwrap();
            if run.live.is_ended() {
                break run.state();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(ended, if is_cancelled { RunState::Cancelled } else { RunState::Failed });
        assert_eq!(store.executions_of(&run).await.unwrap().len(), many);
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_next_step_can_never_be_stored_fails_and_others_go_on() {
    let store = store(true);
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let submit =
        async |tasks| server.service().submit(&Caller::API, job(tasks)).await.unwrap().run.id.clone();
    let ended = async |run: &RunId| loop {
        let run = store.run(run).await.unwrap().unwrap();
        if run.live.is_ended() {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let large = submit(limits::EXECUTIONS_PER_COMMIT + 500).await;
    let failed = ended(&large).await;
    assert_eq!(failed.state(), RunState::Failed);
    let why = failed.live.end().and_then(|end| end.error.clone());
    assert_eq!(why.as_deref(), Some("the store cannot hold the next step of the run"));
    let executions = store.executions_of(&large).await.unwrap();
    assert!(executions.iter().all(|one| !one.state.status().is_open()), "nothing stays open");
    let small = submit(1).await;
    assert_eq!(store.executions_of(&small).await.unwrap().len(), 1);
    server.stop().await;
}

/// A store that cannot read the executions of runs with this job at first.
#[derive(Debug)]
struct Unreadable {
    inner: Arc<MemoryStore>,
    job: &'static str,
    /// How often it still fails.
    failures: AtomicU32,
}

#[async_trait]
impl Wrapper for Unreadable {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error> {
        let is_one = self.inner.run(run).await?.is_some_and(|run| run.job.as_deref() == Some(self.job));
        let fail = |left: u32| left.checked_sub(1);
        if is_one && self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fail).is_ok() {
            return Err(Error::Unavailable("the query took too long".to_owned()));
        }
        self.inner.executions_of(run).await
    }
}

fn named_job(name: &str, items: usize) -> Submit {
    let items: Vec<usize> = (0..items).collect();
    let task = |task: &str| json!({"name": task, "backend": "test", "action": "noop", "for_each": items, "depends_on": []});
    let job = json!({"name": name, "tasks": [task("a"), task("b")]});
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin());
    Submit { definition: definition.unwrap(), params: None, no_cache: false, idempotency_key: None }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_be_read_is_taken_once_and_does_not_delay_others() {
    let inner = Arc::new(MemoryStore::new());
    let settings = || Settings { name: "one".to_owned(), ..Settings::default() };
    let first = start_within(settings(), inner.clone(), Surroundings::default()).await.unwrap();
    let submit = async |name: &str, items| {
        let submitted = first.service().submit(&Caller::API, named_job(name, items)).await;
        submitted.unwrap().run.id.clone()
    };
    let (large, unreadable, small) = (
        submit("large", limits::PLAN_SMALL_INSTANCES).await,
        submit("unreadable", 1).await,
        submit("small", 1).await,
    );
    first.stop().await;

    let store = Unreadable { inner: inner.clone(), job: "unreadable", failures: AtomicU32::new(5) };
    let store: Arc<dyn Store> = Arc::new(Wrapped(store));
    let second = start_within(settings(), store, Surroundings::default()).await.unwrap();
    for run in [&small, &large, &unreadable] {
        let cancelled =
            Change::RunCancelRequested { run: run.clone(), by: "ada".to_owned(), at: second.service().now() };
        assert_eq!(second.service().parts.journal.commit_one(cancelled).await.unwrap(), Ok(()));
    }
    for run in [&small, &large, &unreadable] {
        let ended = loop {
            let run = inner.run(run).await.unwrap().unwrap();
            if run.live.is_ended() {
                break run;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!((ended.state(), ended.live.epoch), (RunState::Cancelled, 2), "{run}");
    }
    second.stop().await;
}
