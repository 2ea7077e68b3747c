//! An agent that restarts while it holds many leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{State, Status};
use downbeat_core::ids::{ClusterId, LeaseToken, RunId, ServerId};
use downbeat_core::node::{Description, Former};
use downbeat_core::plan::resolve;
use downbeat_core::run::{RunMade, RunRecord};
use downbeat_core::spec;
use downbeat_core::work::Origin;
use downbeat_proto::message::InstanceId;
use downbeat_store::{Committed, Error, Executions as _, MemoryStore, Store, Wrapped, Wrapper};
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{Settings, Surroundings, start_within};

/// A store that remembers how many leases one commit ended at most.
#[derive(Debug)]
struct Watched {
    inner: Arc<MemoryStore>,
    most: Arc<AtomicUsize>,
}

#[async_trait]
impl Wrapper for Watched {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> std::result::Result<Committed, Error> {
        let lost = changes.iter().filter(|change| matches!(change, Change::ExecutionLost { .. })).count();
        self.most.fetch_max(lost, Ordering::Relaxed);
        self.inner.commit(server, changes).await
    }
}

fn description() -> Description {
    Description {
        hostname: "web-01".to_owned(),
        groups: Vec::new(),
        labels: [].into(),
        capabilities: [].into(),
        backends: Catalogue::builtin().backends().to_vec(),
        slots: 1,
        version: "test".to_owned(),
    }
}

/// Stores a node with this many leases of one run.
async fn store_leases(store: &MemoryStore, node: NodeId, session: SessionId, count: usize) -> RunId {
    let (run, at, server) = (RunId::from("run"), Timestamp::now(), ServerId(Uuid::from_u128(7)));
    let mut each = json!({"name": "each", "backend": "test", "action": "noop"});
    each["for_each"] = (0..count).collect();
    let definition =
        spec::parse(&json!({"tasks": [each]}).to_string(), "job.json", &Catalogue::builtin()).unwrap();
    let made = RunMade {
        id: run.clone(),
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
    let leased = |item: u32| Execution {
        id: ExecutionId(Uuid::from_u128(u128::from(item) + 1)),
        of: Origin::Step { run: run.clone(), step: 0, item: Some(item) },
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
        state: State::Leased {
            lease: Lease { token: LeaseToken(Uuid::new_v4()), node, session, granted_at: at },
            stop: false,
        },
    };
    let executions = (0..u32::try_from(count).unwrap()).map(leased).collect();
    let registration = Registration {
        node,
        cluster: ClusterId::DEFAULT,
        session,
        description: description(),
        installation: Some(Installation::new(b"one", 1)),
        undelivered: Default::default(),
        kept_since: None,
        attempts: Vec::new(),
        former: Former::Nobody,
        at,
    };
    let changes = [
        Change::NodeRegistered { registration },
        Change::RunCreated {
            run: RunRecord::new(made, server),
            max_pending: None,
            max_open: None,
            firing: None,
        },
        Change::ExecutionsAdded {
            run: run.clone(),
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at,
        },
    ];
    let committed = store.commit(server, &changes).await.unwrap();
    assert!(committed.outcomes.iter().all(std::result::Result::is_ok), "{:?}", committed.outcomes);
    run
}

#[tokio::test]
async fn the_leases_of_a_former_session_end_in_portions() {
    let (inner, most) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let node = NodeId::derive(ClusterId::DEFAULT, "web-01");
    let count = 2 * limits::EXECUTIONS_PER_COMMIT + 500;
    let run = store_leases(&inner, node, SessionId(Uuid::new_v4()), count).await;
    let store = Arc::new(Wrapped(Watched { inner: inner.clone(), most: Arc::clone(&most) }));
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let server = start_within(settings, store, Surroundings::default()).await.unwrap();
    let register = Register {
        cluster: ClusterId::DEFAULT,
        node,
        session: SessionId(Uuid::new_v4()),
        description: description(),
        instance: InstanceId(b"one".to_vec()),
        undelivered: Vec::new(),
        life: 2,
    };
    server.link().register(register).await.unwrap();
    let executions = inner.executions_of(&run).await.unwrap();
    let lost = executions.iter().filter(|execution| execution.state.status() == Status::Lost).count();
    assert_eq!(lost, count);
    assert_eq!(most.load(Ordering::Relaxed), limits::EXECUTIONS_PER_COMMIT);
    server.stop().await;
}
