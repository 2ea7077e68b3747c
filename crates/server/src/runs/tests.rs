//! Runs that a store accepts only in part, and taking over runs that it cannot read at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::plan::{NodeRef, Plan, RetryScope, SetIx, resolve};
use downbeat_core::run::again::retry_of;
use downbeat_core::run::{RunEnd, RunMade, RunRecord, RunState};
use downbeat_core::work::Origin;
use downbeat_core::{Change, Dice, Span, Timestamp, limits, spec};
use downbeat_store::{
    Committed, Error, ExecutionFilter, Executions as _, Listed, MemoryStore, Page, Runs as _, Store, Wrapped,
    Wrapper,
};
use serde_json::json;
use uuid::Uuid;

use super::carry;
use crate::heavy::{HeavyWork, Place};
use crate::{Caller, Force, Redo, Retry, Settings, Submit, Surroundings, start_within};

/// A store that does not hold executions beyond the first portion of a run.
#[derive(Debug)]
struct Picky {
    store: MemoryStore,
    /// It will never hold them; otherwise it is only unavailable for them.
    is_final: bool,
}

fn is_too_much(change: &Change) -> bool {
    let is_beyond =
        |one: &Execution| one.item().unwrap_or(one.step()) as usize >= limits::EXECUTIONS_PER_COMMIT;
    let Change::ExecutionsAdded { executions, .. } = change else { return false };
    executions.iter().any(|one| is_beyond(one) && one.state.status() == Status::Pending)
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

#[tokio::test(start_paused = true)]
async fn a_large_run_that_is_read_again_waits_for_a_thread() {
    let store = store(true);
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let service = server.service();
    let threads = take_threads(&service.parts.heavy).await;
    let large = named_job("large", limits::PLAN_SMALL_INSTANCES / 2 + 1);
    let run = service.submit(&Caller::API, large).await.unwrap().run.id.clone();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!store.run(&run).await.unwrap().unwrap().live.is_ended());
    drop(threads);
    while !store.run(&run).await.unwrap().unwrap().live.is_ended() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.stop().await;
}

/// Takes all threads for heavy work.
async fn take_threads(heavy: &HeavyWork) -> Vec<Place> {
    let mut threads = Vec::new();
    for _ in 0..limits::PLANS_AT_ONCE {
        threads.push(heavy.place().await.unwrap());
    }
    threads
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_the_store_is_left_when_another_server_takes_it() {
    let store = store(false);
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let (service, many) = (server.service(), limits::EXECUTIONS_PER_COMMIT + 500);
    let run = service.submit(&Caller::API, job(many)).await.unwrap().run.id.clone();
    let parts = &service.parts;
    assert!(parts.runs.owns(&run));
    let (owner, epoch, at) = (ServerId(uuid::Uuid::from_u128(7)), 2, service.now());
    let taken = Change::RunTaken { run: run.clone(), owner, epoch, at };
    assert_eq!(parts.journal.commit_one(taken).await.unwrap(), Ok(()));
    let is_left = async {
        while parts.runs.owns(&run) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_left).await.expect("the actor ends");
    assert_eq!(store.run(&run).await.unwrap().unwrap().live.epoch, 2);
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

/// A store with a run that cannot be compiled when it is taken over: the attempt panics.
#[derive(Debug)]
struct Broken {
    inner: Arc<MemoryStore>,
    run: RunId,
}

#[async_trait]
impl Wrapper for Broken {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>, Error> {
        let mut runs = self.inner.open_runs().await?;
        runs.retain(|run| run.id != self.run);
        Ok(runs)
    }

    async fn runs_by_id(&self, ids: &[RunId]) -> Result<Vec<RunRecord>, Error> {
        let mut runs = self.inner.runs_by_id(ids).await?;
        for run in runs.iter_mut().filter(|run| run.id == self.run) {
            let node = NodeRef { id: NodeId(Uuid::nil()), hostname: "web-01".to_owned() };
            let mut resolved = (*run.resolved).clone();
            resolved.nodes = vec![node; limits::PLAN_SMALL_INSTANCES + 1];
            // There is no such set.
            resolved.entries.fill(Some(SetIx(0)));
            run.made = Arc::new(RunMade { resolved: Arc::new(resolved), ..(*run.made).clone() });
        }
        Ok(runs)
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_run_that_cannot_be_compiled_keeps_no_other_from_being_taken_over() {
    let inner = Arc::new(MemoryStore::new());
    let settings = || Settings { name: "one".to_owned(), ..Settings::default() };
    let first = start_within(settings(), inner.clone(), Surroundings::default()).await.unwrap();
    let submit = async || first.service().submit(&Caller::API, job(1)).await.unwrap().run.id.clone();
    let (broken, other) = (submit().await, submit().await);
    first.stop().await;
    let store = Arc::new(Wrapped(Broken { inner: inner.clone(), run: broken.clone() }));
    let second = start_within(settings(), store, Surroundings::default()).await.unwrap();
    let epoch = async |run: &RunId| inner.run(run).await.unwrap().unwrap().live.epoch;
    let is_taken = async {
        while epoch(&other).await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), is_taken).await.expect("the other run is taken over");
    assert_eq!(epoch(&broken).await, 1);
    second.stop().await;
}

/// A store that is unavailable for carried results after the first portion of them.
#[derive(Debug)]
struct Halting {
    inner: Arc<MemoryStore>,
    portions: AtomicU32,
}

#[async_trait]
impl Wrapper for Halting {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let carries = |change: &&Change| {
            let Change::ExecutionsAdded { executions, .. } = change else { return false };
            executions.iter().any(Execution::is_carried)
        };
        let portions = u32::try_from(changes.iter().filter(carries).count()).unwrap();
        if portions + self.portions.load(Ordering::Relaxed) > 1 {
            return Err(Error::Unavailable("the disk is full".to_owned()));
        }
        let committed = self.inner.commit(server, changes).await;
        self.portions.fetch_add(portions, Ordering::Relaxed);
        committed
    }
}

/// Stores a run that has ended: its first task succeeded for all items, and its second one failed.
async fn store_failed_run(store: &MemoryStore, items: usize) -> RunId {
    let (id, at) = (RunId::from("first"), Timestamp::UNIX_EPOCH);
    let task = |name: &str| json!({"name": name, "backend": "test", "action": "noop"});
    let (mut each, mut last) = (task("each"), task("last"));
    each["for_each"] = (0..items).collect();
    last["depends_on"] = json!(["each"]);
    let job = json!({"tasks": [each, last]});
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let made = RunMade {
        id: id.clone(),
        cluster: ClusterId::DEFAULT,
        job: None,
        resolved: Arc::new(resolve(&definition, &definition.params, &[]).unwrap()),
        definition: Arc::new(definition),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
        by: "ada".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at,
    };
    let lease = |number: u32| Lease {
        token: LeaseToken(Uuid::from_u128(number.into())),
        node: NodeId(Uuid::from_u128(1)),
        session: SessionId(Uuid::from_u128(1)),
        granted_at: at,
    };
    let execution = |number: u32, step: u32, item: Option<u32>, state: State| Execution {
        id: ExecutionId(Uuid::from_u128(number.into())),
        of: Origin::Step { run: id.clone(), step, item },
        pinned: None,
        attempt: 1,
        former: None,
        params: None,
        reused: None,
        limits: None,
        cache_key: None,
        failed_for_good: None,
        round: 1,
        created_at: at,
        state,
    };
    let succeeded = |item: u32| {
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: None,
            error: None,
            started_at: at,
            finished_at: at,
            outputs: Default::default(),
            received_at: None,
        };
        execution(item, 0, Some(item), State::Succeeded { lease: Some(lease(item)), outcome })
    };
    let failed = State::Failed { lease: None, outcome: None, error: Some("no".to_owned()), at };
    let items = u32::try_from(items).unwrap();
    let executions = (0..items).map(succeeded).chain([execution(items, 1, None, failed)]).collect();
    let server = ServerId(Uuid::from_u128(7));
    let path = vec![RunState::Starting, RunState::Running, RunState::Terminating, RunState::Failed];
    let changes = [
        Change::RunCreated {
            run: RunRecord::new(made, server),
            max_pending: None,
            max_open: None,
            firing: None,
        },
        Change::ExecutionsAdded {
            run: id.clone(),
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at,
        },
        Change::RunMoved {
            room: None,
            run: id.clone(),
            epoch: 1,
            path,
            stop: None,
            end: Some(RunEnd::default()),
            at,
        },
    ];
    let committed = store.commit(server, &changes).await.unwrap();
    assert!(committed.outcomes.iter().all(Result::is_ok), "{:?}", committed.outcomes);
    id
}

/// A store that does not return all executions of a run at once, and remembers its longest page of them.
#[derive(Debug)]
struct Paged {
    inner: Arc<MemoryStore>,
    longest: Arc<AtomicU32>,
}

#[async_trait]
impl Wrapper for Paged {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error> {
        Err(Error::Corrupt(format!("all executions of `{run}` are too many")))
    }

    async fn executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>, Error> {
        self.longest.fetch_max(page.limit, Ordering::Relaxed);
        self.inner.executions(filter, page).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_reads_the_first_run_in_pages() {
    let (inner, longest) = (Arc::new(MemoryStore::new()), Arc::new(AtomicU32::new(0)));
    let items = 2 * limits::RETRY_READ as usize + 100;
    let run = store_failed_run(&inner, items).await;
    let store: Arc<dyn Store> =
        Arc::new(Wrapped(Paged { inner: inner.clone(), longest: Arc::clone(&longest) }));
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, store, Surroundings::default()).await.unwrap();
    let retry = Retry { run, redo: Redo::Failed, idempotency_key: None };
    let retry = server.service().retry(&Caller::API, retry).await.unwrap().run.id.clone();
    let executions = inner.executions_of(&retry).await.unwrap();
    assert_eq!(executions.iter().filter(|each| each.is_carried()).count(), items);
    assert_eq!(longest.load(Ordering::Relaxed), limits::RETRY_READ);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_whose_owner_dies_before_all_results_are_carried_over_is_completed() {
    let inner = Arc::new(MemoryStore::new());
    let items = limits::EXECUTIONS_PER_COMMIT + 500;
    let run = store_failed_run(&inner, items).await;
    let settings = || Settings { name: "one".to_owned(), ..Settings::default() };
    let halting: Arc<dyn Store> =
        Arc::new(Wrapped(Halting { inner: inner.clone(), portions: AtomicU32::new(0) }));
    let first = start_within(settings(), halting, Surroundings::default()).await.unwrap();
    let retry = Retry { run, redo: Redo::Failed, idempotency_key: None };
    let retry = first.service().retry(&Caller::API, retry).await.unwrap().run.id.clone();
    assert_eq!(inner.run(&retry).await.unwrap().unwrap().state(), RunState::Pending);
    assert_eq!(inner.executions_of(&retry).await.unwrap().len(), limits::EXECUTIONS_PER_COMMIT);
    first.stop().await;

    let second = start_within(settings(), inner.clone(), Surroundings::default()).await.unwrap();
    let executions = loop {
        let executions = inner.executions_of(&retry).await.unwrap();
        if executions.iter().any(|execution| execution.step() == 1) {
            break executions;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let mut carried: Vec<_> = executions.iter().filter(|each| each.is_carried()).collect();
    carried.sort_unstable_by_key(|each| each.item());
    let numbers: Vec<_> = carried.iter().map(|each| each.item().unwrap() as usize).collect();
    assert_eq!(numbers, (0..items).collect::<Vec<_>>());
    assert_eq!(executions.len(), items + 1, "only the failed task is executed again");
    assert_eq!(inner.run(&retry).await.unwrap().unwrap().state(), RunState::Running);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_large_run_waits_for_a_thread_before_it_is_completed() {
    let store = MemoryStore::new();
    let items = limits::ITEMS;
    let first = store_failed_run(&store, items).await;
    let (first, executions) =
        (store.run(&first).await.unwrap().unwrap(), store.executions_of(&first).await.unwrap());
    let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved)).unwrap();
    let resolved = retry_of(&first, &plan, &executions, RetryScope::AllNodes).unwrap().resolved;
    let (retried, resolved) = (Some(first.id.clone()), Arc::new(resolved));
    let made = RunMade { id: RunId::from("second"), retry_of: retried, resolved, ..(*first.made).clone() };
    let second = RunRecord::new(made, ServerId(Uuid::from_u128(7)));
    let (heavy, mut dice) = (HeavyWork::of_plans(), Dice::new(1));
    let threads = take_threads(&heavy).await;
    let mut completed = Box::pin(carry::complete(&store, &heavy, &second, Vec::new(), &mut dice));
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut completed).await.is_err());
    drop(threads);
    let (all, left) = completed.await.unwrap();
    assert_eq!((all.len(), left.len()), (items, items));
}
