//! Standing tasks over a take-over, and what a server remembers of deleted nodes and clusters.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Change;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::node::Registration;
use downbeat_core::standing::{StandingList, StandingTask};
use downbeat_core::work::Parent;
use downbeat_proto::message::{Finished, Free, LeaseRef, Poll, Register, Report};
use downbeat_store::conformance::make;
use downbeat_store::{Committed, Error, MemoryStore, Store, Wrapped, Wrapper};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::testing::register;
use crate::{Server, Settings, Surroundings, start_within};

/// A cluster with so many standing tasks, which are idempotent.
fn cluster_of(tasks: u32) -> ClusterRecord {
    let task = |number| StandingTask {
        backend: "test".to_owned(),
        action: "noop".to_owned(),
        params: Arc::default(),
        reruns: Vec::new(),
        ..make::standing_task(number)
    };
    make::cluster(1).edited(make::at(1), |cluster| {
        let (tasks, next_number) = ((1..=tasks).map(task).collect(), tasks + 1);
        cluster.list = Arc::new(StandingList { tasks, next_number, ..StandingList::default() });
    })
}

fn cluster() -> ClusterRecord {
    cluster_of(1)
}

fn id_of(on: u32) -> NodeId {
    NodeId::derive(make::cluster_id(1), &format!("web-{on}"))
}

/// Returns a node that lost its first attempts at the task.
fn losing(on: u32, losses: u32) -> Vec<Change> {
    let node = id_of(on);
    let registration = Registration {
        node,
        cluster: make::cluster_id(1),
        description: register(&format!("web-{on}")).description,
        ..make::registration(on, make::session(on), 5)
    };
    let mut changes = vec![Change::NodeRegistered { registration }];
    for attempt in 1..=losses {
        let number = 10 * on + attempt;
        let former = (attempt > 1).then_some(Status::Lost);
        let lease = Lease { node, ..make::lease(number, on) };
        let execution = make::standing(number, 1, 1, on, attempt, State::Leased { lease, stop: false });
        let pinned = Some(node);
        changes.push(make::standing_added(1, 2, vec![Execution { former, pinned, ..execution }]));
        changes.push(Change::ExecutionLost {
            of: Parent::Run(RunId::standing(make::cluster_id(1))),
            execution: make::execution_id(number),
            token: make::token(number),
            silence: None,
            reason: "the lease expired".to_owned(),
            at: make::at(20),
        });
    }
    changes
}

/// Returns a store with the cluster and these changes.
async fn stored(changes: impl IntoIterator<Item = Change>) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    make::apply(&store, &[make::cluster_created(1), make::standing_created(1)]).await;
    make::apply(&store, &[make::cluster_changed(cluster())]).await;
    for change in changes {
        make::apply(&store, &[change]).await;
    }
    store
}

/// A store that keeps the commit of a task that follows another one, and then refuses the task.
#[derive(Debug)]
struct Keeping {
    inner: Arc<dyn Store>,
    released: Notify,
}

#[async_trait]
impl Wrapper for Keeping {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let mut changes = changes.to_vec();
        for change in &mut changes {
            if let Change::ExecutionsAdded { after: Some(_), version: Some(version), .. } = change {
                *version += 1;
                self.released.notified().await;
            }
        }
        self.inner.commit(server, &changes).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_free_again_if_an_agent_gives_up_a_report_whose_next_task_is_refused() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    make::apply(&inner, &[make::cluster_created(1), make::standing_created(1)]).await;
    make::apply(&inner, &[make::cluster_changed(cluster_of(2))]).await;
    let keeping = Arc::new(Wrapped(Keeping { inner, released: Notify::new() }));
    let store: Arc<dyn Store> = keeping.clone();
    let server = started(&store).await;
    let (link, node) = (server.link(), id_of(1));
    let register = Register { cluster: make::cluster_id(1), node, ..register("web-1") };
    let session = register.session;
    link.register(register).await.unwrap();
    let free = Free { fleet: 1, placed: 0, debug: None };
    let poll = |poll| Poll { node, session, free, poll, resync: None, wait: Duration::from_secs(30) };
    let work = link.poll(poll(1)).await.unwrap().assignments.remove(0);
    let next = tokio::spawn({
        let (link, poll) = (server.link(), poll(2));
        async move { link.poll(poll).await.unwrap() }
    });
    let is_parked = async {
        while server.service().parts.dispatcher.board().parked() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_parked).await.expect("the poll is parked");
    let at = make::at(61);
    let outcome = Outcome {
        verdict: Verdict::Succeeded,
        exit_code: Some(0),
        error: None,
        started_at: at,
        finished_at: at,
        outputs: Default::default(),
        received_at: None,
    };
    let held = LeaseRef { execution: work.execution, token: work.token };
    let finished = vec![Finished { held, of: work.of.parent(), outcome, output: Vec::new() }];
    let report = Report { node, session, started: Vec::new(), finished, free, poll: 2, takes_work: true };
    let given_up = tokio::time::timeout(Duration::from_secs(1), link.report(report)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    keeping.0.released.notify_one();
    let next = next.await.unwrap().assignments;
    assert_eq!(next.len(), 1, "the walker decides again, and the node has a slot");
    server.stop().await;
}

async fn started(store: &Arc<dyn Store>) -> Server {
    let (began, wall_began) = (Instant::now(), make::at(60));
    let wall = Arc::new(move || wall_began + began.elapsed());
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    start_within(settings, Arc::clone(store), Surroundings { wall, seed: 1, ..Surroundings::default() })
        .await
        .unwrap()
}

/// Returns the last attempt at the task on a node, and its status.
async fn last(store: &Arc<dyn Store>, on: u32) -> (u32, Status) {
    let results = store.standing_results(None, None, 9).await.unwrap();
    let result = results.into_iter().find(|result| result.node == id_of(on)).unwrap();
    (result.attempt, result.status)
}

/// Waits until a node has this attempt.
async fn reaches(store: &Arc<dyn Store>, on: u32, attempt: u32) {
    let is_there = async {
        while last(store, on).await.0 != attempt {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_there).await.expect("the attempt is made");
}

#[tokio::test(start_paused = true)]
async fn losses_from_before_a_take_over_count() {
    let store = stored(losing(1, 3).into_iter().chain(losing(2, 2))).await;
    let server = started(&store).await;
    reaches(&store, 2, 3).await;
    // Both were decided at once.
    assert_eq!((last(&store, 2).await, last(&store, 1).await), ((3, Status::Pending), (3, Status::Lost)));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_numbers_of_attempts_go_on_when_a_deleted_node_returns() {
    let deleted = Change::NodeDeleted {
        node: id_of(1),
        session: make::session(1),
        by: "ada".to_owned(),
        silent_since: None,
        at: make::at(30),
    };
    let store = stored(losing(1, 3).into_iter().chain([deleted])).await;
    let server = started(&store).await;
    let register = Register { cluster: make::cluster_id(1), node: id_of(1), ..register("web-1") };
    server.link().register(register).await.unwrap();
    reaches(&store, 1, 4).await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_after_the_steps_of_a_server_whose_clock_is_ahead() {
    let step = Execution {
        id: make::execution_id_at(100),
        pinned: Some(id_of(1)),
        created_at: make::at(100),
        ..make::standing(1, 1, 1, 1, 1, make::pending())
    };
    let added = make::standing_added_for(1, 2, [(step, make::session(1))]);
    let store = stored(losing(1, 0).into_iter().chain([added])).await;
    let server = started(&store).await;
    let register = Register { cluster: make::cluster_id(1), node: id_of(1), ..register("web-1") };
    server.link().register(register).await.unwrap();
    let node = store.node(id_of(1)).await.unwrap().unwrap();
    assert!(node.registered_at > make::at(100), "{}", node.registered_at);
    // The step is withdrawn, and the new session starts the list.
    reaches(&store, 1, 2).await;
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_deleted_cluster_are_remembered_for_a_while() {
    let store = stored(losing(1, 1)).await;
    let server = started(&store).await;
    let parts = &server.service().parts;
    let at = parts.clock.now();
    let (cluster, name, by) = (make::cluster_id(1), "cluster-1".to_owned(), "ada".to_owned());
    parts.journal.commit(vec![Change::ClusterDeleted { cluster, name, by, at }]).await.unwrap();
    assert!(parts.standing.is_deleted(id_of(1)));
    tokio::time::sleep(Duration::from_secs(3_700)).await;
    assert!(!parts.standing.is_deleted(id_of(1)));
    server.stop().await;
}
