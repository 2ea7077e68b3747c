//! Runs that a store accepts only in part.

use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::Status;
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::run::RunState;
use downbeat_core::{Change, limits, spec};
use downbeat_store::{Committed, Error, MemoryStore, Store, Wrapped, Wrapper};
use serde_json::json;

use crate::{Caller, Settings, Submit, Surroundings, start_within};

/// A store that can never hold executions beyond the first portion of a run.
#[derive(Debug)]
struct Picky(MemoryStore);

fn is_too_much(change: &Change) -> bool {
    let is_beyond = |step: u32| step as usize >= limits::EXECUTIONS_PER_COMMIT;
    let Change::ExecutionsAdded { executions, .. } = change else { return false };
    executions.iter().any(|one| is_beyond(one.step()) && one.state.status() == Status::Pending)
}

#[async_trait]
impl Wrapper for Picky {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    async fn read<T, R>(&self, read: R) -> Result<T, Error>
    where
        T: Send,
        R: Future<Output = Result<T, Error>> + Send,
    {
        read.await
    }

    async fn write<T, R>(&self, write: R) -> Result<T, Error>
    where
        T: Send,
        R: Future<Output = Result<T, Error>> + Send,
    {
        write.await
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        if changes.iter().any(is_too_much) {
            return Err(Error::Corrupt("string or blob too big".to_owned()));
        }
        self.0.commit(server, changes).await
    }
}

fn job(tasks: usize) -> Submit {
    let task =
        |number| json!({"name": format!("t{number}"), "backend": "test", "action": "noop", "depends_on": []});
    let job = json!({"tasks": (0..tasks).map(task).collect::<Vec<_>>()});
    let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin());
    Submit { definition: definition.unwrap(), params: None, no_cache: false, idempotency_key: None }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_next_step_can_never_be_stored_fails_and_others_go_on() {
    let store: Arc<dyn Store> = Arc::new(Wrapped(Picky(MemoryStore::new())));
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let submit =
        async |tasks| server.service().submit(&Caller::API, job(tasks)).await.unwrap().run.id.clone();
    let ended = async |run: &RunId| loop {
        let run = store.run(run).await.unwrap().unwrap();
        if run.live.is_ended() {
            return run;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
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
