//! A server without one of its vital tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::debug::DebugCommand;
use downbeat_core::execution::Stream;
use downbeat_core::ids::ServerId;
use downbeat_core::run::RunState;
use downbeat_core::{Change, Portion, Span, Timestamp, spec};
use downbeat_store::{
    Committed, DirectWrites, Error, EventFilter, Events, Executions, MemoryStore, OutputChunk, Runs, Store,
    Totals, Wrapped, Wrapper,
};
use serde_json::json;

use crate::service::{DebugTarget, StartDebug};
use crate::{Caller, Server, Service, Settings, Submit, Submitted, Surroundings, start_within};

/// A store that several servers share. Commits panic on demand.
#[derive(Debug)]
struct Shared {
    memory: Arc<MemoryStore>,
    panics: Arc<AtomicBool>,
}

#[async_trait]
impl Wrapper for Shared {
    fn store(&self) -> &dyn Store {
        &*self.memory
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
        self.memory.commit(server, changes).await
    }
}

async fn server(name: &str, memory: &Arc<MemoryStore>, panics: &Arc<AtomicBool>) -> Server {
    let store = Shared { memory: Arc::clone(memory), panics: Arc::clone(panics) };
    let settings = Settings {
        name: name.to_owned(),
        server_stale_after: Span(Duration::from_millis(500)),
        ..Settings::default()
    };
    start_within(settings, Arc::new(Wrapped(store)), Surroundings::default()).await.unwrap()
}

async fn submit(service: &Service) -> Submitted {
    let job = json!({"tasks": [{"backend": "test", "action": "noop"}]}).to_string();
    let definition = spec::parse(&job, "job.json", &Catalogue::builtin()).unwrap();
    let submit = Submit { definition, params: None, no_cache: false, idempotency_key: None };
    service.submit(&Caller::named("test"), submit).await.unwrap()
}

/// Panics while it holds the board, as a defect would.
fn poison_board(service: &Service) {
    let dispatcher = service.parts.dispatcher.clone();
    let panicking = std::thread::spawn(move || {
        let _board = dispatcher.board();
        panic!("on purpose");
    });
    assert!(panicking.join().is_err());
    service.parts.dispatcher.wake();
}

#[tokio::test]
async fn a_panic_under_the_lock_of_the_board_fails_the_server() {
    let server = server("one", &Arc::default(), &Arc::default()).await;
    server.service().readiness().await.unwrap();
    poison_board(server.service());
    let ended = server.failed().await;
    assert_eq!(ended.to_string(), "vital task `dispatcher` panicked");
    assert_eq!(server.service().readiness().await, Err(ended.to_string()));
}

#[tokio::test]
async fn a_panic_of_the_journal_fails_the_server() {
    let panics = Arc::new(AtomicBool::new(false));
    let server = server("one", &Arc::default(), &panics).await;
    panics.store(true, Ordering::Relaxed);
    let service = server.service().clone();
    let submitting = tokio::spawn(async move { submit(&service).await });
    assert_eq!(server.failed().await.task, "journal");
    assert!(submitting.await.is_err(), "the submission has no outcome");
}

#[test]
fn another_server_takes_the_runs_of_one_that_failed() {
    let (memory, panics) = (Arc::new(MemoryStore::new()), Arc::new(AtomicBool::new(false)));
    let process =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (process(), process());
    let one = first.block_on(server("one", &memory, &panics));
    let two = second.block_on(server("two", &memory, &panics));
    let Submitted { run, .. } = first.block_on(submit(one.service()));
    poison_board(one.service());
    first.block_on(one.failed());
    // The program does the same: it exits without a graceful stop.
    first.shutdown_background();
    second.block_on(async {
        let taken = async {
            while memory.run(&run.id).await.unwrap().unwrap().live.owner != two.service().server_id() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), taken).await.expect("the run is taken over");
        two.stop().await;
    });
}

/// Starts a server whose clock is ahead by so many hours.
async fn server_at(hours: i64, memory: &Arc<MemoryStore>) -> Server {
    let ahead = jiff::SignedDuration::from_hours(hours);
    let surroundings =
        Surroundings { wall: Arc::new(move || Timestamp::now() + ahead), ..Surroundings::default() };
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    start_within(settings, Arc::clone(memory) as _, surroundings).await.unwrap()
}

#[tokio::test]
async fn a_server_removes_the_oldest_runs_events_and_output_that_the_settings_do_not_keep() {
    let memory = Arc::new(MemoryStore::new());
    let server = server_at(0, &memory).await;
    let caller = Caller::named("test");
    let mut runs = Vec::new();
    for _ in 0..3 {
        let id = submit(server.service()).await.run.id.clone();
        server.service().cancel(&caller, &id, crate::Force::Off).await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !memory.run(&id).await.unwrap().is_some_and(|run| run.live.is_ended()) {
            assert!(tokio::time::Instant::now() < deadline, "the run ends");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for execution in memory.executions_of(&id).await.unwrap() {
            let (offset, stream, text, at) = (0, Stream::Stdout, "text".to_owned(), Timestamp::now());
            let chunk = OutputChunk { execution: execution.id, offset, stream, text, at };
            memory.append_output(&[chunk], 100).await.unwrap();
        }
        runs.push(id);
    }
    let open = submit(server.service()).await.run.id.clone();
    server.stop().await;
    let outputs = async || memory.volume().await.unwrap().output_bytes;
    let per_run = outputs().await / 3;
    assert!(per_run > 0);

    let settings = Settings {
        name: "one".to_owned(),
        keep_runs: Some(2),
        keep_events: Some(4),
        keep_output_bytes: Some(per_run),
        ..Settings::default()
    };
    // Nothing goes within an hour.
    for (hours, left, output) in [(0, 3, 3 * per_run), (2, 2, per_run)] {
        let ahead = jiff::SignedDuration::from_hours(hours);
        let wall = Arc::new(move || Timestamp::now() + ahead);
        let surroundings = Surroundings { wall, ..Surroundings::default() };
        let server = start_within(settings.clone(), Arc::clone(&memory) as _, surroundings).await.unwrap();
        super::prune::clean(&server.service().parts).await;
        let mut kept = Vec::new();
        for run in &runs {
            kept.extend(memory.run(run).await.unwrap().map(|run| run.id.clone()));
        }
        assert_eq!((kept.as_slice(), outputs().await), (&runs[3 - left..], output), "after {hours} h");
        assert!(memory.run(&open).await.unwrap().is_some(), "an open run stays");
        server.stop().await;
    }
    // Those of the last server are young.
    let events = memory.events(&EventFilter::default(), Portion::of_rows(100)).await.unwrap();
    let old = events.iter().filter(|event| event.change.at() < Timestamp::now()).count();
    assert!(old <= 4, "{events:?}");
}

#[tokio::test]
async fn a_debug_command_is_removed_a_day_after_its_end() {
    let memory = Arc::new(MemoryStore::new());
    let server = server_at(0, &memory).await;
    let register = crate::testing::register("web-1");
    let node = register.node;
    server.link().register(register).await.unwrap();
    let command = DebugCommand::new("uptime", None).unwrap();
    let start =
        || StartDebug { target: DebugTarget::Node(node), command: command.clone(), idempotency_key: None };
    let caller = Caller::named("test");
    let ended = server.service().start_debug(&caller, start()).await.unwrap().run.id.clone();
    let open = server.service().start_debug(&caller, start()).await.unwrap().run.id.clone();
    let job = submit(server.service()).await.run.id.clone();
    for run in [&ended, &job] {
        server.service().cancel(&caller, run, crate::Force::Off).await.unwrap();
    }
    let is_ended =
        async |run| memory.run(run).await.unwrap().is_none_or(|run| run.state() == RunState::Cancelled);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !(is_ended(&ended).await && is_ended(&job).await) {
        assert!(tokio::time::Instant::now() < deadline, "the runs end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.stop().await;

    for (hours, is_kept) in [(23, true), (25, false)] {
        let server = server_at(hours, &memory).await;
        super::prune::prune_debug(&server.service().parts).await;
        assert_eq!(memory.run(&ended).await.unwrap().is_some(), is_kept, "after {hours} h");
        assert!(memory.run(&job).await.unwrap().is_some(), "the job's run is kept");
        // A command that has waited for more than an hour fails when a server takes it over.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while memory.run(&open).await.unwrap().is_some_and(|run| run.state() != RunState::Failed) {
            assert!(tokio::time::Instant::now() < deadline, "the command that waits fails");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let executions = memory.executions_of(&open).await.unwrap();
        let error = crate::testing::error_of(&executions[0]);
        assert_eq!(error.as_deref(), Some("not started within 1h"));
        server.stop().await;
    }
}
