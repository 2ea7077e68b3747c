//! Constraints, actions, overlap and deadlines of runs on real servers, also of servers that die at every commit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::any;
use bytes::Bytes;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::spec::{self, Definition};
use downbeat_core::{Change, Portion};
use downbeat_store::{Committed, Error, EventFilter, MemoryStore, Page, RunFilter, Store, Wrapped, Wrapper};
use downbeat_testbed::eventually;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::service::{Approval, Mode};
use crate::{Caller, Force, Redo, Retry, Server, Settings, Submit, Surroundings, start_within};

fn parsed(job: &Value) -> Definition {
    spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap()
}

/// A job that runs until a person approves its step.
fn job(more: &Value) -> Definition {
    let mut job = json!({"name": "nightly", "tasks": [{"name": "ok", "approve": {}}]});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    parsed(&job)
}

/// A server on a store, and what tests do with it.
struct Site {
    store: Arc<dyn Store>,
    server: Server,
}

impl Site {
    async fn start(store: Arc<dyn Store>) -> Self {
        let settings = Settings { name: "one".to_owned(), ..Settings::default() };
        let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
        Self { store, server }
    }

    async fn new() -> Self {
        Self::start(Arc::new(MemoryStore::new())).await
    }

    async fn submit(&self, definition: &Definition) -> RunId {
        submit(&self.server, definition).await
    }

    async fn run(&self, id: &RunId) -> RunRecord {
        self.store.run(id).await.unwrap().unwrap()
    }

    async fn reaches(&self, id: &RunId, state: RunState) -> RunRecord {
        reaches(&self.store, id, state).await
    }

    /// Waits until the run waits because of its constraints.
    async fn is_queued(&self, id: &RunId) {
        eventually("the run waits", || async { self.run(id).await.live.is_queued().then_some(()) }).await;
    }

    async fn decide(&self, id: &RunId, approved: bool) {
        decide(&self.server, id, approved).await;
    }

    /// Returns what the events say about the constraints and actions of a run.
    async fn texts(&self, id: &RunId) -> Vec<String> {
        texts(&self.store, id).await
    }
}

async fn submit(server: &Server, definition: &Definition) -> RunId {
    let definition = definition.clone();
    let submit = Submit { definition, params: None, no_cache: false, idempotency_key: None };
    server.service().submit(&Caller::API, submit).await.unwrap().run.id.clone()
}

async fn decide(server: &Server, id: &RunId, approved: bool) {
    let approval = || Approval { run: id.clone(), step: "ok".to_owned(), approved, reason: None };
    eventually("the step is decided", || async {
        server.service().approve(&Caller::API, approval()).await.ok()
    })
    .await;
}

async fn reaches(store: &Arc<dyn Store>, id: &RunId, state: RunState) -> RunRecord {
    let what = format!("run {id} is {state}");
    eventually(&what, || async {
        let run = store.run(id).await.unwrap()?;
        assert!(!run.live.is_ended() || run.state() == state, "{:?}", run.live);
        (run.state() == state).then_some(run)
    })
    .await
}

async fn changes(store: &Arc<dyn Store>, id: &RunId) -> Vec<Change> {
    let filter = EventFilter { run: Some(id.clone()), ..EventFilter::default() };
    let events = store.events(&filter, Portion::of_rows(1000)).await.unwrap();
    events.into_iter().map(|event| event.change).collect()
}

async fn texts(store: &Arc<dyn Store>, id: &RunId) -> Vec<String> {
    let text = |change: &Change| match change {
        Change::RunChecked { results, .. } => {
            let words = results.iter().map(|each| serde_json::to_value(each).unwrap());
            let words = words.map(|each| {
                format!("{} {}", each["constraint"].as_str().unwrap(), each["found"].as_str().unwrap())
            });
            Some(words.collect::<Vec<_>>().join(", "))
        }
        Change::RunActed { action, error: None, .. } => Some(action.to_string()),
        Change::RunActed { action, error: Some(error), .. } => Some(format!("{action} failed: {error}")),
        Change::RunWoken { .. } => Some("woken".to_owned()),
        _ => None,
    };
    changes(store, id).await.iter().filter_map(text).collect()
}

fn error_of(run: &RunRecord) -> &str {
    run.live.end().and_then(|end| end.error.as_deref()).unwrap_or_default()
}

const PASSED: &str = "max_concurrent_runs passed";
const VIOLATED: &str = "max_concurrent_runs violated";

#[tokio::test]
async fn a_run_is_skipped_while_another_run_of_its_job_is_active() {
    let site = Site::new().await;
    let job = job(&json!({"overlap": "skip"}));
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&job).await;
    let skipped = site.reaches(&second, RunState::Completed).await;
    let expected = format!("skipped: run {first} of the job is active or before it, and at most 1 may be");
    assert_eq!(error_of(&skipped), expected);
    assert_eq!(skipped.live.started_at, None);
    assert_eq!(site.texts(&second).await, [VIOLATED, "skip"]);
    site.decide(&first, true).await;
    site.reaches(&first, RunState::Completed).await;
    let third = site.submit(&job).await;
    site.reaches(&third, RunState::Running).await;
    assert_eq!(site.texts(&third).await, [PASSED]);
    // Another job is not concerned.
    let other = parsed(&json!({"name": "other", "overlap": "skip", "tasks": [{"approve": {}}]}));
    let other = site.submit(&other).await;
    site.reaches(&other, RunState::Running).await;
    site.server.stop().await;
}

#[tokio::test]
async fn runs_of_a_job_wait_for_each_other_in_the_order_of_their_creation() {
    let site = Site::new().await;
    let job = job(&json!({"overlap": "queue"}));
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(site.submit(&job).await);
    }
    for run in &runs[1..] {
        site.is_queued(run).await;
    }
    for (number, run) in runs.iter().enumerate() {
        site.reaches(run, RunState::Running).await;
        for later in &runs[number + 1..] {
            assert!(site.run(later).await.live.is_queued());
        }
        site.decide(run, true).await;
        site.reaches(run, RunState::Completed).await;
    }
    assert_eq!(site.texts(&runs[3]).await, [VIOLATED, "wait", "woken", PASSED]);
    let life = site.run(&runs[3]).await.live.life;
    assert_eq!((life.checked, life.violated, life.executed, life.failed), (2, 1, 1, 0));
    site.server.stop().await;
}

#[tokio::test]
async fn a_newer_run_replaces_one_that_waits_if_only_the_latest_waits() {
    let site = Site::new().await;
    let job = job(&json!({"overlap": "queue_latest"}));
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&job).await;
    site.is_queued(&second).await;
    let third = site.submit(&job).await;
    let replaced = site.reaches(&second, RunState::Completed).await;
    assert_eq!(error_of(&replaced), format!("skipped: run {third} replaced it while it waited"));
    site.is_queued(&third).await;
    site.decide(&first, false).await;
    site.reaches(&third, RunState::Running).await;
    site.server.stop().await;
}

#[tokio::test]
async fn a_run_replaces_older_runs_of_its_job() {
    let site = Site::new().await;
    let job = job(&json!({"overlap": "replace"}));
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&job).await;
    site.reaches(&first, RunState::Cancelled).await;
    site.reaches(&second, RunState::Running).await;
    assert_eq!(site.texts(&second).await, [VIOLATED, "kill_old", "woken", PASSED]);
    let by = changes(&site.store, &first).await.iter().find_map(|change| match change {
        Change::RunCancelRequested { by, .. } => Some(by.clone()),
        _ => None,
    });
    assert_eq!(by.as_deref(), Some("job nightly"));
    site.server.stop().await;
}

#[tokio::test]
async fn a_run_that_waits_can_be_cancelled_and_the_next_one_starts() {
    let site = Site::new().await;
    let job = job(&json!({"overlap": "queue"}));
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let (second, third) = (site.submit(&job).await, site.submit(&job).await);
    site.is_queued(&second).await;
    site.is_queued(&third).await;
    site.server.service().cancel(&Caller::API, &second, Force::Off).await.unwrap();
    site.reaches(&second, RunState::Cancelled).await;
    site.server.service().cancel(&Caller::API, &first, Force::Off).await.unwrap();
    site.reaches(&third, RunState::Running).await;
    site.server.stop().await;
}

#[tokio::test]
async fn a_run_needs_the_success_of_the_one_before_if_that_is_required() {
    let site = Site::new().await;
    let job = job(&json!({"constraints": {"require_previous_success": true}}));
    let (passed, violated) = ("require_previous_success passed", "require_previous_success violated");
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    assert_eq!(site.texts(&first).await, [passed]);
    site.decide(&first, false).await;
    site.reaches(&first, RunState::Failed).await;
    // A run that was skipped does not count.
    for _ in 0..2 {
        let skipped = site.submit(&job).await;
        let run = site.reaches(&skipped, RunState::Completed).await;
        assert_eq!(error_of(&run), format!("skipped: the previous run {first} did not complete"));
        assert_eq!(site.texts(&skipped).await, [violated, "skip"]);
    }
    let retry = Retry { run: first.clone(), redo: Redo::Failed, idempotency_key: None };
    let again = site.server.service().retry(&Caller::API, retry).await.unwrap().run.id.clone();
    site.reaches(&again, RunState::Running).await;
    site.decide(&again, true).await;
    site.reaches(&again, RunState::Completed).await;
    let next = site.submit(&job).await;
    site.reaches(&next, RunState::Running).await;
    site.server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_is_checked_again_later_and_given_up_at_its_deadline() {
    let site = Site::new().await;
    let later = json!({"constraints": {"max_concurrent_runs": 1}, "deadline": "30m",
        "on_violation": {"action": "retry_later", "delay": "5m"}});
    let job = job(&later);
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&job).await;
    site.is_queued(&second).await;
    assert!(site.run(&second).await.live.life.queued.unwrap().until.is_some());
    site.decide(&first, true).await;
    site.reaches(&first, RunState::Completed).await;
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(site.run(&second).await.live.is_queued(), "the end of the other run does not matter");
    site.reaches(&second, RunState::Running).await;
    let third = site.submit(&job).await;
    let failed = site.reaches(&third, RunState::Failed).await;
    let expected = format!(
        "not started within 30m: run {second} of the job is active or before it, and at most 1 may be"
    );
    assert_eq!(error_of(&failed), expected);
    assert!(failed.live.life.rounds >= 5, "{:?}", failed.live.life);
    site.server.stop().await;
}

/// Stores a job.
async fn apply(server: &Server, definition: Definition) {
    server.service().apply_job(&Caller::API, definition, Mode::Commit).await.unwrap();
}

async fn runs_of(store: &Arc<dyn Store>, job: &str) -> Vec<RunId> {
    let filter = RunFilter { job: Some(job.to_owned()), ..RunFilter::default() };
    let listed = store.runs(&filter, &Page::first(100)).await.unwrap();
    listed.rows.into_iter().map(|run| run.id).collect()
}

fn report() -> Definition {
    parsed(&json!({"name": "report", "params": {"day": "sunday"}, "tasks": [{"name": "ok", "approve": {}}]}))
}

#[tokio::test]
async fn jobs_are_started_on_success_and_on_failure() {
    let site = Site::new().await;
    apply(&site.server, report()).await;
    let job = job(&json!({
        "on_success": {"action": "trigger_job", "job": "report", "params": {"day": "monday"}},
        "on_failure": [{"action": "trigger_job", "job": "missing"}, {"action": "trigger_job", "job": "report"}],
    }));
    for (approved, state, day) in [(true, RunState::Completed, "monday"), (false, RunState::Failed, "sunday")]
    {
        let before = runs_of(&site.store, "report").await.len();
        let run = site.submit(&job).await;
        site.decide(&run, approved).await;
        site.reaches(&run, state).await;
        let reports = runs_of(&site.store, "report").await;
        assert_eq!(reports.len(), before + 1);
        let started = site.run(&reports[0]).await;
        assert_eq!((started.by.as_str(), &started.params["day"]), ("job nightly", &json!(day)));
        let texts = site.texts(&run).await;
        match approved {
            true => assert_eq!(texts, ["trigger_job"]),
            false => assert!(
                texts[0].starts_with("trigger_job failed: ") && texts[1] == "trigger_job",
                "{texts:?}"
            ),
        }
    }
    site.server.stop().await;
}

#[tokio::test]
async fn a_critical_action_that_fails_fails_the_run() {
    let site = Site::new().await;
    let action = json!({"action": "trigger_job", "job": "missing", "critical": true});
    let after = job(&json!({"on_success": action}));
    let run = site.submit(&after).await;
    site.decide(&run, true).await;
    let failed = site.reaches(&run, RunState::Failed).await;
    assert!(
        error_of(&failed).starts_with("the critical action trigger_job failed: "),
        "{}",
        error_of(&failed)
    );
    let before =
        job(&json!({"name": "b", "constraints": {"max_concurrent_runs": 1}, "on_violation": action}));
    let first = site.submit(&before).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&before).await;
    let failed = site.reaches(&second, RunState::Failed).await;
    assert!(
        error_of(&failed).starts_with("the critical action trigger_job failed: "),
        "{}",
        error_of(&failed)
    );
    assert_eq!(failed.live.life.failed, 1);
    site.server.stop().await;
}

#[tokio::test]
async fn a_run_starts_anyway_if_no_action_decides_about_it() {
    let site = Site::new().await;
    apply(&site.server, report()).await;
    let job = job(&json!({"constraints": {"max_concurrent_runs": 1},
        "on_violation": {"action": "trigger_job", "job": "report"}}));
    let first = site.submit(&job).await;
    site.reaches(&first, RunState::Running).await;
    let second = site.submit(&job).await;
    site.reaches(&second, RunState::Running).await;
    assert_eq!(site.texts(&second).await, [VIOLATED, "trigger_job"]);
    assert_eq!(runs_of(&site.store, "report").await.len(), 1);
    site.server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_too_long_violates_its_constraints() {
    let site = Site::new().await;
    apply(&site.server, report()).await;
    let job = job(&json!({"constraints": {"max_expected": "10m", "max_allowed": "1h"},
        "on_violation": {"action": "trigger_job", "job": "report"}}));
    let quick = site.submit(&job).await;
    site.decide(&quick, true).await;
    site.reaches(&quick, RunState::Completed).await;
    assert_eq!(site.texts(&quick).await, ["max_expected passed, max_allowed passed"]);
    let slow = site.submit(&job).await;
    site.reaches(&slow, RunState::Running).await;
    tokio::time::sleep(Duration::from_secs(15 * 60)).await;
    site.decide(&slow, true).await;
    site.reaches(&slow, RunState::Completed).await;
    assert_eq!(site.texts(&slow).await, ["max_expected violated, max_allowed passed", "trigger_job"]);
    let stuck = site.submit(&job).await;
    let failed = site.reaches(&stuck, RunState::Failed).await;
    assert_eq!(error_of(&failed), "the run took longer than 1h, its max_allowed");
    assert_eq!(site.texts(&stuck).await, ["max_expected violated, max_allowed violated", "trigger_job"]);
    site.server.stop().await;
}

/// When a server dies: at one of its commits.
#[derive(Clone, Copy, Debug)]
enum Death {
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
        if self.is_dead.load(Ordering::SeqCst) {
            self.die().await;
        }
        let is_counted = |change: &Change| {
            matches!(
                change,
                Change::RunChecked { .. }
                    | Change::RunActed { .. }
                    | Change::RunWoken { .. }
                    | Change::RunMoved { .. }
                    | Change::RunCancelRequested { .. }
                    | Change::RunCreated { .. }
                    | Change::RunAdmitted { .. }
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
struct Process {
    runtime: Runtime,
    server: Server,
    is_dead: Arc<AtomicBool>,
}

impl Process {
    async fn start(name: &str, inner: Arc<dyn Store>, death: Death) -> Self {
        let is_dead = Arc::new(AtomicBool::new(false));
        let commits = AtomicUsize::new(0);
        let store = Wrapped(Deadly { inner, death, commits, is_dead: Arc::clone(&is_dead) });
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = Settings { name: name.to_owned(), ..Settings::default() };
        let server = start_within(settings, Arc::new(store), Surroundings::default());
        let server = runtime.spawn(server).await.unwrap().unwrap();
        Self { runtime, server, is_dead }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
        drop(self.server);
    }
}

/// Waits until the run has ended, or the server is dead.
async fn ended_or_dead(store: &Arc<dyn Store>, run: &RunId, process: &Process) {
    eventually("the run ends, or its server dies", || async {
        let run = store.run(run).await.unwrap();
        let is_over = run.is_some_and(|run| run.live.is_ended()) || process.is_dead.load(Ordering::SeqCst);
        is_over.then_some(())
    })
    .await;
}

/// Runs a job that waits for another run, with actions before and after it, on a server that dies at a commit; the next
/// server continues. Returns whether the server died.
async fn die_at(death: Death) -> bool {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let calls = json!({"action": "trigger_job", "job": "report"});
    let limited = parsed(&json!({
        "name": "nightly", "constraints": {"max_concurrent_runs": 1, "max_expected": "1h"},
        "on_violation": [calls, {"action": "kill_old"}], "on_failure": calls,
        "tasks": [{"name": "ok", "approve": {"timeout": "1s"}}],
    }));
    // The first run is there before the server that dies.
    let old = {
        let site = Site::start(Arc::clone(&store)).await;
        apply(&site.server, report()).await;
        let mut endless = limited.clone();
        endless.tasks = job(&json!({})).tasks;
        let old = site.submit(&endless).await;
        site.reaches(&old, RunState::Running).await;
        site.server.stop().await;
        old
    };
    let first = Process::start("one", Arc::clone(&store), death).await;
    let submitting = first.runtime.spawn({
        let service = first.server.service().clone();
        let submit = Submit { definition: limited, params: None, no_cache: false, idempotency_key: None };
        async move { service.submit(&Caller::API, submit).await.map(|submitted| submitted.run.id.clone()) }
    });
    let newest = || async {
        let runs = runs_of(&store, "nightly").await;
        runs.into_iter().find(|id| *id != old)
    };
    let found = eventually("the run exists, or the server is dead", || async {
        match newest().await {
            Some(run) => Some(Some(run)),
            None => first.is_dead.load(Ordering::SeqCst).then_some(None),
        }
    })
    .await;
    drop(submitting);
    let run = match found.or(newest().await) {
        Some(run) => run,
        None => {
            first.kill();
            return true;
        }
    };
    ended_or_dead(&store, &run, &first).await;
    let is_dead = first.is_dead.load(Ordering::SeqCst);
    first.kill();
    let second = Process::start("one", Arc::clone(&store), Death::Never).await;
    let failed = reaches(&store, &run, RunState::Failed).await;
    reaches(&store, &old, RunState::Cancelled).await;
    second.kill();
    assert!(failed.live.started_at.is_some(), "{death:?}: {:?}", texts(&store, &run).await);
    // One call for the violation, one for the failure, however often they were asked for. A second violation has its own.
    let life = &failed.live.life;
    let reports = runs_of(&store, "report").await;
    assert_eq!(reports.len(), life.violated as usize + 1, "{death:?}: {:?}", texts(&store, &run).await);
    assert_eq!(life.failed, 0, "{death:?}");
    is_dead
}

#[test]
fn a_server_that_takes_over_at_any_moment_goes_on_where_the_other_died() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for number in 1.. {
            let died = [die_at(Death::Before(number)).await, die_at(Death::After(number)).await];
            if died == [false, false] {
                assert!(number > 8, "only {number} commits");
                return;
            }
        }
    });
}

type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts a service that answers with the status in the path, and never to `/0`. Returns its URL and the requests it gets.
async fn service() -> (String, Requests) {
    let requests = Requests::default();
    let answer = |State(requests): State<Requests>, uri: Uri, body: Bytes| async move {
        let path = uri.path().trim_start_matches('/').to_owned();
        let body = serde_json::from_slice(&body).unwrap();
        requests.lock().unwrap().push((path.clone(), body));
        match path.parse().unwrap() {
            0 => std::future::pending().await,
            status => StatusCode::from_u16(status).unwrap(),
        }
    };
    let router = Router::new().fallback(any(answer)).with_state(Arc::clone(&requests));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, requests)
}

/// A server that may call this machine.
async fn calling_site() -> Site {
    let (store, hooks_allow): (Arc<dyn Store>, _) =
        (Arc::new(MemoryStore::new()), vec!["127.0.0.1".to_owned()]);
    let settings = Settings { name: "one".to_owned(), hooks_allow, ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    Site { store, server }
}

#[tokio::test]
async fn the_hook_before_a_run_decides_whether_it_starts() {
    let (site, (url, requests)) = (calling_site().await, service().await);
    let cases = [
        ("204", "allow", true, "pre_run_hook passed"),
        ("409", "allow", false, "pre_run_hook violated"),
        ("503", "allow", true, "pre_run_hook unknown"),
        ("503", "skip", false, "pre_run_hook unknown"),
        ("0", "skip", false, "pre_run_hook unknown"),
    ];
    for (path, if_unknown, starts, found) in cases {
        let hook = json!({"url": format!("{url}/{path}"), "timeout": "1s", "if_unknown": if_unknown});
        let run = site.submit(&job(&json!({"constraints": {"pre_run_hook": hook}}))).await;
        let state = if starts { RunState::Running } else { RunState::Completed };
        site.reaches(&run, state).await;
        assert_eq!(site.texts(&run).await[0], found, "{path} {if_unknown}");
        let (_, body) = requests.lock().unwrap().last().cloned().unwrap();
        assert_eq!((&body["run"], &body["event"]), (&json!(run), &json!("pre_run_hook")));
        if starts {
            site.server.service().cancel(&Caller::API, &run, Force::Off).await.unwrap();
            site.reaches(&run, RunState::Cancelled).await;
        }
    }
    site.server.stop().await;
}

#[tokio::test]
async fn a_hook_that_never_answers_does_not_hold_up_a_cancellation() {
    let (site, (url, requests)) = (calling_site().await, service().await);
    let hook = json!({"url": format!("{url}/0"), "timeout": "5m"});
    let run = site.submit(&job(&json!({"constraints": {"pre_run_hook": hook}}))).await;
    eventually("the hook is called", || async { (!requests.lock().unwrap().is_empty()).then_some(()) }).await;
    site.server.service().cancel(&Caller::API, &run, Force::Off).await.unwrap();
    site.reaches(&run, RunState::Cancelled).await;
    site.server.stop().await;
}

#[tokio::test]
async fn the_hook_after_a_run_learns_how_it_ended() {
    let (site, (url, requests)) = (calling_site().await, service().await);
    let hook = json!({"url": format!("{url}/200")});
    let run = site.submit(&job(&json!({"constraints": {"post_run_hook": hook}}))).await;
    site.decide(&run, false).await;
    site.reaches(&run, RunState::Failed).await;
    let (_, body) = requests.lock().unwrap().pop().unwrap();
    assert_eq!((&body["event"], &body["state"]), (&json!("post_run_hook"), &json!("failed")));
    site.server.stop().await;
}

#[tokio::test]
async fn messages_are_queued_when_a_run_ends_and_the_run_does_not_wait_for_them() {
    let (site, (url, requests)) = (calling_site().await, service().await);
    let actions = json!({
        "on_failure": [
            {"action": "webhook", "url": format!("{url}/200"), "body": {"why": "{{ event.error }}", "of": "{{ run.job }}"}},
            {"action": "slack", "url": format!("{url}/0"), "text": "{{ run.job }} {{ event.status }}"},
        ],
        "on_success": {"action": "webhook", "url": format!("{url}/201")},
    });
    let run = site.submit(&job(&actions)).await;
    site.decide(&run, false).await;
    let ended = site.reaches(&run, RunState::Failed).await;
    assert_eq!(site.texts(&run).await, ["webhook", "slack"]);
    let sent = |path: &str, count: usize| {
        let (requests, path) = (Arc::clone(&requests), path.to_owned());
        let of_path = move || {
            let requests = requests.lock().unwrap();
            let bodies = requests.iter().filter(|(to, _)| *to == path).map(|(_, body)| body.clone());
            Some(bodies.collect::<Vec<_>>()).filter(|bodies| bodies.len() >= count)
        };
        async move { eventually("the message is sent", || async { of_path() }).await }
    };
    let webhook = sent("200", 1).await;
    assert_eq!(webhook, [json!({"why": error_of(&ended), "of": "nightly"})]);
    assert_eq!(sent("0", 1).await, [json!({"text": "nightly failed"})]);
    let run = site.submit(&job(&actions)).await;
    site.decide(&run, true).await;
    site.reaches(&run, RunState::Completed).await;
    assert_eq!(sent("201", 1).await[0]["event"], "succeeded");
    site.server.stop().await;
}

#[tokio::test]
async fn a_run_waits_for_a_critical_message_and_fails_if_it_is_not_delivered() {
    let (site, (url, _)) = (calling_site().await, service().await);
    let critical = |path: &str| {
        job(&json!({"on_success": {"action": "webhook", "url": format!("{url}/{path}"), "critical": true}}))
    };
    let run = site.submit(&critical("200")).await;
    site.decide(&run, true).await;
    site.reaches(&run, RunState::Completed).await;
    // The service will never accept it.
    let run = site.submit(&critical("410")).await;
    site.decide(&run, true).await;
    let failed = site.reaches(&run, RunState::Failed).await;
    assert!(error_of(&failed).contains("the critical action webhook failed"), "{}", error_of(&failed));
    site.server.stop().await;
}
