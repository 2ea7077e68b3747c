//! A server without one of its vital tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::ServerId;
use downbeat_core::{Change, Span, spec};
use downbeat_store::{Committed, Error, MemoryStore, Runs, Store, Wrapped, Wrapper};
use serde_json::json;

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
