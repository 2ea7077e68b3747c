//! What a look at a large run reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use downbeat_core::Change;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, RunId, ServerId, SessionId};
use downbeat_core::plan::{NodeIx, NodeRef, Resolved, SetIx};
use downbeat_core::run::{RolloutProgress, RunEnd, RunMade, RunState};
use downbeat_core::work::Origin;
use downbeat_core::{Portion, Timestamp, limits};
use downbeat_store::{
    Error, Executions as _, InstanceFilter, MemoryStore, Runs as _, Store, Wrapped, Wrapper,
};
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::http::run_view;
use crate::{Settings, Surroundings, start_within};

/// A store that counts the executions and the facts about instances that are read.
#[derive(Debug)]
struct Counting {
    store: Arc<MemoryStore>,
    rows: Arc<AtomicUsize>,
}

impl Counting {
    fn count<T>(&self, rows: Vec<T>) -> Vec<T> {
        self.rows.fetch_add(rows.len(), Ordering::Relaxed);
        rows
    }
}

#[async_trait]
impl Wrapper for Counting {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error> {
        Ok(self.count(self.store.executions_of(run).await?))
    }

    async fn instances(
        &self,
        run: &RunId,
        filter: &InstanceFilter,
        portion: Portion,
    ) -> Result<Vec<Execution>, Error> {
        Ok(self.count(self.store.instances(run, filter, portion).await?))
    }

    async fn instance_facts(&self, run: &RunId) -> Result<Vec<InstanceFacts>, Error> {
        Ok(self.count(self.store.instance_facts(run).await?))
    }

    async fn instance_facts_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<InstanceFacts>, Error> {
        Ok(self.count(self.store.instance_facts_on(run, nodes).await?))
    }
}

const NODES: u32 = 300;
const STEPS: u32 = 40;
const AT: Timestamp = Timestamp::UNIX_EPOCH;

fn node(number: u32) -> NodeId {
    NodeId(Uuid::from_u128(u128::from(number) + 1))
}

/// Stores a roll-out that has ended: the first step failed on the nodes 7 and 20 of 300, and the rest was skipped there.
async fn store_rollout(store: &MemoryStore) -> RunId {
    let (id, server) = (RunId::from("large"), ServerId(Uuid::from_u128(7)));
    let task = json!({"backend": "test", "action": "noop"});
    let rollout = json!({"batch": [10, "50%", "100%"], "max_failures": 5});
    let definition = json!({"target": "all", "rollout": rollout, "tasks": vec![task; STEPS as usize]});
    let nodes = (0..NODES).map(|number| NodeRef { id: node(number), hostname: format!("web-{number:03}") });
    let resolved = Resolved {
        nodes: nodes.collect(),
        sets: vec![NodeIx::first(NODES).collect()],
        entries: vec![Some(SetIx(0)); STEPS as usize],
        waves: vec![10, 160, 300],
        ..Resolved::default()
    };
    let made = RunMade {
        id: id.clone(),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: Arc::new(serde_json::from_value(definition).unwrap()),
        resolved: Arc::new(resolved),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
        by: "ada".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: AT,
    };
    let execution = |step: u32, number: u32| {
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: None,
            error: None,
            started_at: AT,
            finished_at: AT,
            outputs: Default::default(),
            received_at: None,
        };
        let lease = Lease {
            token: LeaseToken(Uuid::from_u128(1)),
            node: node(number),
            session: SessionId(Uuid::from_u128(2)),
            granted_at: AT,
        };
        let state = match (step, number) {
            (0, 7 | 20) => State::Failed { lease: None, outcome: None, error: Some("no".to_owned()), at: AT },
            (_, 7 | 20) => State::Skipped { reason: "the node failed".to_owned(), at: AT },
            _ => State::Succeeded { lease: Some(lease), outcome },
        };
        Execution {
            id: ExecutionId(Uuid::from_u128(u128::from(step * NODES + number) + 1)),
            of: Origin::Step { run: id.clone(), step, item: None },
            pinned: Some(node(number)),
            round: 1,
            attempt: 1,
            former: None,
            params: None,
            reused: None,
            limits: None,
            cache_key: None,
            failed_for_good: (step == 0 && matches!(number, 7 | 20)).then(|| "no retries".into()),
            created_at: AT,
            state,
        }
    };
    let executions = (0..STEPS).flat_map(|step| (0..NODES).map(move |number| (step, number)));
    let executions = executions.map(|(step, number)| execution(step, number)).collect();
    let path = vec![RunState::Starting, RunState::Running, RunState::Terminating, RunState::Completed];
    let rollout = Some(RolloutProgress { wave: 3, failed: 2 });
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
            rollout,
            version: None,
            sessions: Vec::new(),
            after: None,
            at: AT,
        },
        Change::RunMoved {
            room: None,
            run: id.clone(),
            epoch: 1,
            path,
            stop: None,
            end: Some(RunEnd::default()),
            at: AT,
        },
    ];
    let committed = store.commit(server, &changes).await.unwrap();
    assert!(committed.outcomes.iter().all(Result::is_ok), "{:?}", committed.outcomes);
    id
}

#[tokio::test]
async fn a_look_at_a_large_roll_out_reads_what_it_shows() {
    let (inner, rows) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let run = store_rollout(&inner).await;
    let run = inner.run(&run).await.unwrap().unwrap();
    assert!((NODES * STEPS) as usize > limits::PLAN_SMALL_INSTANCES, "it is large");
    let store = Arc::new(Wrapped(Counting { store: inner, rows: Arc::clone(&rows) }));
    let server = start_within(Settings::default(), store, Surroundings::default()).await.unwrap();
    let service = server.service();

    rows.store(0, Ordering::Relaxed);
    let cut = Cut { limit: 10, offset: 5, times: true, ..Cut::default() };
    let first = matrix(service, &run, cut).await.unwrap();
    assert_eq!((first.total, first.nodes[0].as_str(), first.nodes.len()), (300, "web-005", 10));
    assert_eq!(first.cells[0], "s".repeat(STEPS as usize));
    assert_eq!(first.cells[2], format!("f{}", "k".repeat(STEPS as usize - 1)));
    assert_eq!(first.times.unwrap()[0][0], [Some(0), Some(0)]);
    assert_eq!(rows.swap(0, Ordering::Relaxed), 10 * STEPS as usize, "the cells of ten nodes");

    let cut = Cut { order: Order::Failed, limit: 3, ..Cut::default() };
    assert_eq!(matrix(service, &run, cut).await.unwrap().nodes, ["web-007", "web-020", "web-000"]);
    assert_eq!(rows.swap(0, Ordering::Relaxed), 3 * STEPS as usize, "the cells of three nodes");

    let shown = run_view::summary(service, &run).await.unwrap();
    let rollout = shown.rollout.unwrap();
    let failed: Vec<_> = rollout.waves.iter().map(|wave| wave.failed).collect();
    assert_eq!((rollout.wave, rollout.failed, rollout.budget), (Some(3), 2, 5));
    assert_eq!(failed, [Some(1), Some(1), Some(0)]);
    assert_eq!(
        rows.load(Ordering::Relaxed),
        3,
        "the failed instances, and the first of them for its exit code"
    );
    server.stop().await;
}
