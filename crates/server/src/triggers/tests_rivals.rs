//! Two servers that apply jobs with triggers at the same moment.

use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use downbeat_core::Change;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::ServerId;
use downbeat_core::spec::{self, Definition};
use downbeat_store::{Committed, Error, Store, Wrapped, Wrapper};
use downbeat_testbed::Database;
use serde_json::{Value, json};

use crate::service::Mode;
use crate::{Caller, Server, Settings, Surroundings, start_within};

/// A store that lets another server apply a job between the check and the commit of this server's next job with triggers.
#[derive(Debug)]
struct Overtaken {
    inner: Arc<dyn Store>,
    rival: Arc<OnceLock<Server>>,
    job: Mutex<Option<Definition>>,
}

#[async_trait]
impl Wrapper for Overtaken {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let applies = |change: &Change| matches!(change, Change::JobApplied { .. });
        let job = if changes.iter().any(applies) { self.job.lock().unwrap().take() } else { None };
        if let Some(job) = job {
            let rival = self.rival.get().unwrap().service();
            rival.apply_job(&Caller::API, job, Mode::Commit).await.unwrap();
        }
        self.inner.commit(server, changes).await
    }
}

fn job(name: &str, trigger: &Value) -> Definition {
    let tasks = json!([{"backend": "test", "action": "noop"}]);
    let job = json!({"name": name, "triggers": [trigger], "tasks": tasks});
    spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap()
}

/// Applies `theirs` at a second server while the first one is about to commit `ours`. Returns the first server's error.
async fn refusal(ours: Definition, theirs: Definition) -> String {
    let database = Database::create().await;
    let open = || downbeat_store::open(&database.url);
    let rival = Arc::new(OnceLock::new());
    let inner: Arc<dyn Store> = open().await.unwrap();
    let store = Overtaken { inner, rival: Arc::clone(&rival), job: Mutex::new(Some(theirs)) };
    let named = |name: &str| Settings { name: name.to_owned(), ..Settings::default() };
    let second = start_within(named("two"), open().await.unwrap(), Surroundings::default()).await.unwrap();
    assert!(rival.set(second).is_ok());
    let store: Arc<dyn Store> = Arc::new(Wrapped(store));
    let first = start_within(named("one"), Arc::clone(&store), Surroundings::default()).await.unwrap();
    let refused = first.service().apply_job(&Caller::API, ours, Mode::Commit).await.unwrap_err();
    let text = format!("{refused:?}");
    first.stop().await;
    drop(store);
    if let Some(second) = Arc::try_unwrap(rival).ok().and_then(OnceLock::into_inner) {
        second.stop().await;
    }
    database.drop().await;
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_apply_the_same_hook_path_one_refuses_it() {
    let hook = json!({"http": {"path": "deploy", "auth": "none"}});
    let text = refusal(job("ours", &hook), job("theirs", &hook)).await;
    assert!(text.contains("HookPath") && text.contains("theirs"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_close_a_circle_one_refuses_it() {
    let after = |name: &str| json!({"job": {"name": name}});
    let text = refusal(job("ours", &after("theirs")), job("theirs", &after("ours"))).await;
    assert!(text.contains("in a circle"), "{text}");
}
