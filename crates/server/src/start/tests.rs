//! A server without one of its vital tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::debug::DebugCommand;
use downbeat_core::ids::ServerId;
use downbeat_core::run::RunState;
use downbeat_core::{Change, Span, Timestamp, spec};
use downbeat_store::{Committed, Error, Executions, MemoryStore, Runs, Store, Wrapped, Wrapper};
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

    let stop = tokio_util::sync::CancellationToken::new();
    for (hours, is_kept) in [(23, true), (25, false)] {
        let server = server_at(hours, &memory).await;
        super::prune::prune_debug(&server.service().parts, &stop).await;
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
