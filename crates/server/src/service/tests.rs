//! Runs that are submitted while no slot for large plans is free, and views of large runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::Execution;
use downbeat_core::ids::RunId;
use downbeat_core::run::RunState;
use downbeat_core::{Change, Portion, limits, spec};
use downbeat_store::conformance::make;
use downbeat_store::{self as store, Executions as _, InstanceFacts, MemoryStore, Store, Wrapped, Wrapper};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::patience::PATIENCE;
use super::{Service, Submit, Submitted};
use crate::caller::Caller;
use crate::error::Error;
use crate::heavy::HeavyWork;
use crate::testing::{placed, register};
use crate::{Server, Settings, Surroundings, start_within};

const TASKS: usize = 100;

/// A server with so many nodes that a job of [`TASKS`] on all of them is a large plan.
async fn server() -> Server {
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::new(MemoryStore::new()), Surroundings::default()).await.unwrap();
    for number in 0..=limits::PLAN_SMALL_INSTANCES / TASKS {
        server.link().register(register(&format!("web-{number}"))).await.unwrap();
    }
    server
}

fn large() -> Submit {
    let task = json!({"backend": "test", "action": "noop"});
    let job = json!({"target": "all", "tasks": vec![task; TASKS]}).to_string();
    let definition = spec::parse(&job, "job.json", &Catalogue::builtin()).unwrap();
    Submit { definition, params: None, no_cache: false, idempotency_key: None }
}

/// Occupies every slot; each is free again when its sender is dropped.
async fn take_all(heavy: &HeavyWork) -> Vec<mpsc::Sender<()>> {
    let mut taken = Vec::new();
    for _ in 0..limits::PLANS_AT_ONCE {
        let (finish, held) = mpsc::channel::<()>();
        let heavy = heavy.clone();
        tokio::spawn(async move { heavy.run(move || held.recv().unwrap_err()).await });
        taken.push(finish);
    }
    until_left(heavy, limits::PLANS_WAITING).await;
    taken
}

async fn until_left(heavy: &HeavyWork, room: usize) {
    while heavy.left() != room {
        tokio::task::yield_now().await;
    }
}

/// Submits a run, and returns when its plan waits for a slot.
async fn submit_large(service: &Service) -> JoinHandle<Result<Submitted, Error>> {
    let submitter = service.clone();
    let submitted = tokio::spawn(async move { submitter.submit(&Caller::API, large()).await });
    until_left(&service.parts.heavy, limits::PLANS_WAITING - 1).await;
    submitted
}

#[tokio::test]
async fn a_caller_that_disconnects_while_its_plan_waits_leaves_no_run() {
    let server = server().await;
    let service = server.service().clone();
    let mut taken = take_all(&service.parts.heavy).await;
    let submitted = submit_large(&service).await;
    submitted.abort();
    assert!(submitted.await.unwrap_err().is_cancelled());
    taken.pop();
    // Slots are assigned in order: the run of the first request would exist by now.
    let run = service.submit(&Caller::API, large()).await.unwrap().run.id.clone();
    let events = service.views().events(&Default::default(), Portion::of_rows(usize::MAX)).await.unwrap();
    let runs = events.into_iter().filter_map(|event| match event.change {
        Change::RunCreated { run, .. } => Some(run.id.clone()),
        _ => None,
    });
    assert_eq!(runs.collect::<Vec<_>>(), [run]);
    drop(taken);
    server.stop().await;
}

#[tokio::test]
async fn a_plan_that_finds_no_place_is_refused_as_busy_and_nothing_is_created() {
    let server = server().await;
    let service = server.service().clone();
    let taken = take_all(&service.parts.heavy).await;
    let submitted = submit_large(&service).await;
    tokio::time::pause();
    tokio::time::advance(PATIENCE * 2).await;
    let refused = submitted.await.unwrap();
    tokio::time::resume();
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    drop(taken);
    server.stop().await;
}

/// A store that returns facts about instances only to those who get a permit.
#[derive(Debug)]
struct Slow {
    store: MemoryStore,
    readers: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
}

#[async_trait]
impl Wrapper for Slow {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn instance_facts(&self, run: &RunId) -> Result<Vec<InstanceFacts>, store::Error> {
        self.readers.fetch_add(1, Ordering::Relaxed);
        let _permit = self.permits.acquire().await.unwrap();
        self.store.instance_facts(run).await
    }
}

#[tokio::test]
async fn few_views_of_large_runs_are_read_at_once_and_plans_do_not_wait_for_them() {
    // All instances are items: the definition alone looks small.
    const TASKS: u32 = 2;
    const ITEMS: u32 = limits::PLAN_SMALL_INSTANCES as u32 / TASKS + 1;
    let (readers, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let store = Slow { store: MemoryStore::new(), readers: readers.clone(), permits: permits.clone() };
    let store: Arc<dyn Store> = Arc::new(Wrapped(store));
    let execution = |number| Execution {
        of: make::origin(1, number / ITEMS, Some(number % ITEMS)),
        ..make::execution(number, 1, make::pending())
    };
    let changes = [
        make::created_as(placed(1, TASKS, ITEMS)),
        make::moved(1, &[RunState::Starting, RunState::Running], 5),
        make::added(1, (0..TASKS * ITEMS).map(execution).collect()),
    ];
    make::apply(&store, &changes).await;
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, store, Surroundings::default()).await.unwrap();
    let service = server.service().clone();
    let run = service.run(&Caller::API, &make::run_id(1)).await.unwrap();
    let view = || {
        let (service, run) = (service.clone(), run.clone());
        tokio::spawn(async move { service.instance_facts(&run).await.map(|(facts, _)| facts.len()) })
    };
    let views = [view(), view(), view()];
    until_left(&service.parts.large_views, limits::PLANS_WAITING - 1).await;
    while readers.load(Ordering::Relaxed) < limits::LARGE_VIEWS_AT_ONCE {
        tokio::task::yield_now().await;
    }
    assert_eq!(service.parts.heavy.run(|| 1).await, Ok(1));
    assert_eq!(readers.load(Ordering::Relaxed), limits::LARGE_VIEWS_AT_ONCE);
    permits.add_permits(1);
    for view in views {
        assert_eq!(view.await.unwrap(), Ok((TASKS * ITEMS) as usize));
    }
    server.stop().await;
}
