//! Reports to a store that does not accept every result.

use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, ServerId, SessionId};
use downbeat_core::node::Description;
use downbeat_core::{Timestamp, spec};
use downbeat_proto::message::{Free, InstanceId, Poll, Register};
use downbeat_store::{Committed, Error, Executions as _, MemoryStore, Store, Wrapped, Wrapper};
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{Caller, Settings, Submit, Surroundings, start_within};

const POISON: &str = "poison";

/// A store that will never hold results with a certain error.
#[derive(Debug)]
struct Picky(Arc<MemoryStore>);

#[async_trait]
impl Wrapper for Picky {
    fn store(&self) -> &dyn Store {
        &*self.0
    }

    async fn read<T, R>(&self, read: R) -> std::result::Result<T, Error>
    where
        T: Send,
        R: Future<Output = std::result::Result<T, Error>> + Send,
    {
        read.await
    }

    async fn write<T, R>(&self, write: R) -> std::result::Result<T, Error>
    where
        T: Send,
        R: Future<Output = std::result::Result<T, Error>> + Send,
    {
        write.await
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> std::result::Result<Committed, Error> {
        let is_bad = |change: &Change| match change {
            Change::ExecutionFinished { outcome, .. } => outcome.error.as_deref() == Some(POISON),
            _ => false,
        };
        if changes.iter().any(is_bad) {
            return Err(Error::Corrupt("string or blob too big".to_owned()));
        }
        self.0.commit(server, changes).await
    }
}

/// A server with one node that can hold five executions.
struct Site {
    server: crate::Server,
    node: NodeId,
    session: SessionId,
}

async fn site(store: Arc<dyn Store>) -> Site {
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, store, Surroundings::default()).await.unwrap();
    let hostname = "web-01".to_owned();
    let (node, session) = (NodeId::derive(ClusterId::DEFAULT, &hostname), SessionId(Uuid::new_v4()));
    let description = Description {
        hostname,
        groups: Vec::new(),
        labels: [].into(),
        capabilities: [].into(),
        backends: Catalogue::builtin().backends().to_vec(),
        slots: 5,
        version: "test".to_owned(),
    };
    let (cluster, instance) = (ClusterId::DEFAULT, InstanceId(b"one".to_vec()));
    let register =
        Register { cluster, node, session, description, instance, undelivered: Vec::new(), life: 1 };
    server.link().register(register).await.unwrap();
    Site { server, node, session }
}

#[tokio::test]
async fn a_report_of_an_old_session_takes_no_work() {
    let Site { server, node, session } = site(Arc::new(MemoryStore::new())).await;
    let dispatcher = &server.service().parts.dispatcher;
    // It does not wait for itself either.
    assert!(TakesWork::begin(dispatcher, node, SessionId(Uuid::new_v4())).is_none());
    assert!(TakesWork::begin(dispatcher, node, session).is_some());
}

#[tokio::test]
async fn a_result_that_the_store_cannot_hold_is_a_failure_and_the_others_are_recorded() {
    const TASKS: usize = 5;
    let store = Arc::new(MemoryStore::new());
    let picky: Arc<dyn Store> = Arc::new(Wrapped(Picky(Arc::clone(&store))));
    let Site { server, node, session } = site(picky).await;
    let link = server.link();
    let task =
        |number| json!({"name": format!("t{number}"), "backend": "test", "action": "noop", "depends_on": []});
    let job = json!({"tasks": (0..TASKS).map(task).collect::<Vec<_>>()}).to_string();
    let definition = spec::parse(&job, "job.json", &Catalogue::builtin()).unwrap();
    let submit = Submit { definition, params: None, no_cache: false, idempotency_key: None };
    let run = server.service().submit(&Caller::API, submit).await.unwrap().run.id.clone();

    let mut work = Vec::new();
    for poll in 1.. {
        if work.len() == TASKS {
            break;
        }
        let free = Free { fleet: 0, placed: u32::try_from(TASKS - work.len()).unwrap(), debug: None };
        let wait = Duration::from_secs(5);
        work.extend(
            link.poll(Poll { node, session, free, poll, resync: None, wait }).await.unwrap().assignments,
        );
    }
    let now = Timestamp::now();
    let finished = work.iter().enumerate().map(|(index, work)| Finished {
        held: LeaseRef { execution: work.execution, token: work.token },
        of: work.of.parent(),
        outcome: Outcome {
            verdict: Verdict::Succeeded,
            exit_code: Some(0),
            error: (index == 2).then(|| POISON.to_owned()),
            started_at: now,
            finished_at: now,
            outputs: Default::default(),
            received_at: None,
        },
        output: Vec::new(),
    });
    let report = Report {
        node,
        session,
        started: Vec::new(),
        finished: finished.collect(),
        free: Free::default(),
        poll: 0,
        takes_work: false,
    };
    let answer = link.report(report.clone()).await.unwrap();
    assert_eq!(answer.receipts, [Receipt::Recorded; TASKS]);
    let executions = store.executions_of(&run).await.unwrap();
    for execution in &executions {
        let is_bad = execution.id == work[2].execution;
        let status = if is_bad { Status::Failed } else { Status::Succeeded };
        assert_eq!(execution.state.status(), status);
        let error = execution.state.outcome().and_then(|outcome| outcome.error.as_deref());
        assert_eq!(error, is_bad.then_some("the store cannot hold the result of this attempt"));
    }
    // The agent may not have received the receipts.
    assert_eq!(link.report(report).await.unwrap().receipts, [Receipt::Recorded; TASKS]);
    server.stop().await;
}
