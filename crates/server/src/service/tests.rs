//! Runs that are submitted while no slot for large plans is free.

use std::sync::{Arc, mpsc};

use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_core::{Change, Portion, limits, spec};
use downbeat_proto::message::{InstanceId, Register};
use downbeat_store::MemoryStore;
use serde_json::json;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::patience::PATIENCE;
use super::{Service, Submit, Submitted};
use crate::caller::Caller;
use crate::error::Error;
use crate::heavy::HeavyWork;
use crate::{Server, Settings, Surroundings, start_within};

const TASKS: usize = 100;

/// A server with so many nodes that a job of [`TASKS`] on all of them is a large plan.
async fn server() -> Server {
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, Arc::new(MemoryStore::new()), Surroundings::default()).await.unwrap();
    for number in 0..=limits::PLAN_SMALL_INSTANCES / TASKS {
        let hostname = format!("web-{number}");
        let register = Register {
            cluster: ClusterId::DEFAULT,
            node: NodeId::derive(ClusterId::DEFAULT, &hostname),
            session: SessionId(Uuid::new_v4()),
            description: Description {
                hostname,
                groups: Vec::new(),
                labels: [].into(),
                capabilities: [].into(),
                backends: Catalogue::builtin().backends().to_vec(),
                slots: 1,
                version: "test".to_owned(),
            },
            instance: InstanceId(b"one".to_vec()),
            undelivered: Vec::new(),
            life: 1,
        };
        server.link().register(register).await.unwrap();
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
