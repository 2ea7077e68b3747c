//! The sweep of a large cluster on a slow store, nodes that are gone during an outage, and a server whose users block their connections.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::execution::{Execution, Lease, Status};
use downbeat_core::ids::{NodeId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::run::RunState;
use downbeat_core::{Change, Span, Timestamp, limits};
use downbeat_proto::message::Heartbeat;
use downbeat_store::conformance::make;
use downbeat_store::{
    Committed, DirectWrites as _, Error, Executions as _, MemoryStore, Store, Wrapped, Wrapper,
};
use downbeat_testbed::Database;
use tokio::time::Instant;
use uuid::Uuid;

use crate::testing::{placed, registered};
use crate::{Settings, Surroundings, start_within};

const NODES: u32 = 9_000;
/// How long the store takes for the leases of silent nodes. A sweep of all nodes takes longer than the pause after which
/// a server counts as frozen.
const SLOW: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Slow {
    inner: MemoryStore,
    queries: Arc<AtomicUsize>,
}

#[async_trait]
impl Wrapper for Slow {
    fn store(&self) -> &dyn Store {
        &self.inner
    }

    async fn held_by(&self, nodes: &[NodeId]) -> Result<Vec<Execution>, Error> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(SLOW).await;
        self.inner.held_by(nodes).await
    }
}

#[tokio::test(start_paused = true)]
async fn many_silent_nodes_go_offline_with_few_queries_however_slow_they_are() {
    let (began, wall_began) = (Instant::now(), Timestamp::from_second(1_800_000_000).unwrap());
    let wall = Arc::new(move || wall_began + began.elapsed());
    let inner = MemoryStore::new();
    let registrations: Vec<_> = (1..=NODES).map(|number| registered(number, wall_began)).collect();
    assert!(
        inner.commit(ServerId(Uuid::nil()), &registrations).await.unwrap().outcomes.iter().all(Result::is_ok)
    );
    let queries = Arc::new(AtomicUsize::new(0));
    let store: Arc<dyn Store> = Arc::new(Wrapped(Slow { inner, queries: Arc::clone(&queries) }));
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let offline_after = settings.node_offline_after.0;
    let surroundings = Surroundings { wall, seed: 1, ..Surroundings::default() };
    let server = start_within(settings, Arc::clone(&store), surroundings).await.unwrap();
    let all_are_offline = async {
        while store.nodes(None).await.unwrap().iter().any(|node| node.status != NodeStatus::Offline) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(3 * offline_after, all_are_offline).await.expect("all nodes go offline");
    let queries = queries.load(Ordering::Relaxed);
    assert!(queries < 200, "{queries} queries for {NODES} nodes");
    server.stop().await;
}

/// A store that does not accept some changes until it is mended.
#[derive(Debug)]
struct Picky {
    inner: MemoryStore,
    is_bad: fn(&Change) -> bool,
    is_mended: Arc<AtomicBool>,
}

#[async_trait]
impl Wrapper for Picky {
    fn store(&self) -> &dyn Store {
        &self.inner
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        if !self.is_mended.load(Ordering::Relaxed) && changes.iter().any(self.is_bad) {
            return Err(Error::Corrupt("string or blob too big".to_owned()));
        }
        self.inner.commit(server, changes).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_store_cannot_move_keeps_no_other_from_going_offline() {
    let (began, wall_began) = (Instant::now(), Timestamp::from_second(1_800_000_000).unwrap());
    let wall = Arc::new(move || wall_began + began.elapsed());
    let inner = MemoryStore::new();
    let registrations: Vec<_> = (1..=10).map(|number| registered(number, wall_began)).collect();
    inner.commit(ServerId(Uuid::nil()), &registrations).await.unwrap();
    let is_bad = |change: &Change| matches!(change, Change::NodeMoved { node, .. } if *node == make::node(4));
    let store: Arc<dyn Store> = Arc::new(Wrapped(Picky { inner, is_bad, is_mended: Arc::default() }));
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let offline_after = settings.node_offline_after.0;
    let server =
        start_within(settings, Arc::clone(&store), Surroundings { wall, seed: 1, ..Surroundings::default() })
            .await
            .unwrap();
    let others_are_offline = async {
        let is_due = |node: &NodeRecord| node.id != make::node(4) && node.status != NodeStatus::Offline;
        while store.nodes(None).await.unwrap().iter().any(is_due) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(3 * offline_after, others_are_offline).await.expect("the others go offline");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_does_not_go_offline_before_the_ends_of_its_leases_are_stored() {
    let (began, wall_began) = (Instant::now(), make::at(60));
    let wall = Arc::new(move || wall_began + began.elapsed());
    let is_bad = |change: &Change| matches!(change, Change::ExecutionLost { execution, .. } if *execution == make::execution_id(1));
    let is_mended = Arc::new(AtomicBool::new(false));
    let store = Picky { inner: MemoryStore::new(), is_bad, is_mended: Arc::clone(&is_mended) };
    let store: Arc<dyn Store> = Arc::new(Wrapped(store));
    let mut changes: Vec<Change> = (1..=3).map(|number| registered(number, wall_began)).collect();
    for number in 1..=2 {
        changes.push(make::created_as(placed(number, 1, 1)));
        changes.push(make::moved(number, &[RunState::Starting, RunState::Running], 15));
        let of = make::origin(number, 0, Some(0));
        let execution = make::execution(number, number, make::leased(number, number));
        changes.push(make::added(number, vec![Execution { of, ..execution }]));
    }
    make::apply(&store, &changes).await;
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let offline_after = settings.node_offline_after.0;
    let server =
        start_within(settings, Arc::clone(&store), Surroundings { wall, seed: 1, ..Surroundings::default() })
            .await
            .unwrap();
    let status = async |number| store.node(make::node(number)).await.unwrap().unwrap().status;
    let execution = async |number| {
        let found = store.execution(make::execution_id(number)).await.unwrap();
        found.unwrap().state.status()
    };
    tokio::time::sleep(3 * offline_after).await;
    assert_eq!([status(2).await, status(3).await], [NodeStatus::Offline; 2]);
    assert_eq!((execution(2).await, execution(1).await), (Status::Lost, Status::Leased));
    assert_eq!(status(1).await, NodeStatus::Stale, "it is checked again");
    is_mended.store(true, Ordering::Relaxed);
    tokio::time::sleep(offline_after).await;
    assert_eq!((status(1).await, execution(1).await), (NodeStatus::Offline, Status::Lost));
    server.stop().await;
}

/// A node may get a lease after a long silence: its heartbeat was recorded late.
#[tokio::test(start_paused = true)]
async fn a_lease_lasts_for_its_term_although_its_node_was_silent_before() {
    let (began, wall_began) = (Instant::now(), make::at(60));
    let now = move || wall_began + began.elapsed();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    make::apply(&store, &[registered(1, wall_began), make::created_as(placed(1, 1, 1))]).await;
    make::apply(&store, &[make::moved(1, &[RunState::Starting, RunState::Running], 15)]).await;
    let waiting = Execution { of: make::origin(1, 0, Some(0)), ..make::execution(1, 1, make::pending()) };
    make::apply(&store, &[make::added(1, vec![waiting])]).await;
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let (offline_after, lease_ttl) = (settings.node_offline_after.0, settings.lease_ttl.0);
    let surroundings = Surroundings { wall: Arc::new(now), seed: 1, ..Surroundings::default() };
    let server = start_within(settings, Arc::clone(&store), surroundings).await.unwrap();
    tokio::time::sleep(offline_after - lease_ttl / 2).await;
    let lease = Lease { granted_at: now(), ..make::lease(1, 1) };
    make::apply(&store, &[make::granted(1, 1, lease)]).await;
    let both = async || {
        let execution = store.execution(make::execution_id(1)).await.unwrap().unwrap();
        (execution.state.status(), store.node(make::node(1)).await.unwrap().unwrap().status)
    };
    // A server makes up a difference between clocks by one part in a hundred.
    tokio::time::sleep(lease_ttl - lease_ttl / 50).await;
    assert_eq!(both().await, (Status::Leased, NodeStatus::Stale));
    tokio::time::sleep(lease_ttl / 2).await;
    assert_eq!(both().await, (Status::Lost, NodeStatus::Offline));
    server.stop().await;
}

/// A store that records heartbeats after a while.
#[derive(Debug)]
struct Late {
    inner: MemoryStore,
    late: Arc<Mutex<Duration>>,
}

#[async_trait]
impl Wrapper for Late {
    fn store(&self) -> &dyn Store {
        &self.inner
    }

    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error> {
        let late = *self.late.lock().unwrap();
        tokio::time::sleep(late).await;
        self.inner.touch_nodes(seen, at).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_was_recorded_late_does_not_end_a_silence() {
    let (began, wall_began) = (Instant::now(), make::at(60));
    let wall = Arc::new(move || wall_began + began.elapsed());
    let late = Arc::new(Mutex::new(Duration::ZERO));
    let store: Arc<dyn Store> =
        Arc::new(Wrapped(Late { inner: MemoryStore::new(), late: Arc::clone(&late) }));
    let (node, session) = (make::node(1), make::session(1));
    let stale = Change::NodeMoved {
        node,
        session,
        from: NodeStatus::Online,
        to: NodeStatus::Stale,
        silent_since: None,
        at: wall_began,
    };
    make::apply(&store, &[registered(1, wall_began), stale]).await;
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    let stale_after = settings.node_stale_after.0;
    let server =
        start_within(settings, Arc::clone(&store), Surroundings { wall, seed: 1, ..Surroundings::default() })
            .await
            .unwrap();
    for (takes, status) in [(stale_after, NodeStatus::Stale), (stale_after / 2, NodeStatus::Online)] {
        *late.lock().unwrap() = takes;
        let beat = Heartbeat { node, session, held: Vec::new(), leaving: false, problems: Vec::new() };
        server.link().heartbeat(beat).await.unwrap();
        assert_eq!(store.node(node).await.unwrap().unwrap().status, status, "it took {takes:?}");
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_silent_during_an_outage_has_a_few_minutes_to_return() {
    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let (began, wall_began) = (Instant::now(), Timestamp::from_second(1_800_000_000).unwrap());
    let wall = Arc::new(move || wall_began + began.elapsed());
    let (node, session, at) = (make::node(1), make::session(1), wall_began - 10 * DAY);
    let offline = Change::NodeMoved {
        node,
        session,
        from: NodeStatus::Online,
        to: NodeStatus::Offline,
        silent_since: Some(at),
        at,
    };
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let committed = store.commit(ServerId(Uuid::nil()), &[registered(1, at), offline]).await.unwrap();
    assert_eq!(committed.outcomes, [Ok(()), Ok(())]);
    let forget_nodes_after = Span(7 * DAY);
    let settings = Settings { name: "one".to_owned(), forget_nodes_after, ..Settings::default() };
    let server =
        start_within(settings, Arc::clone(&store), Surroundings { wall, seed: 1, ..Surroundings::default() })
            .await
            .unwrap();
    tokio::time::sleep(5 * MINUTE).await;
    assert!(store.node(node).await.unwrap().is_some());
    let is_forgotten = async {
        while store.node(node).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    };
    tokio::time::timeout(60 * MINUTE, is_forgotten).await.expect("the node is forgotten");
    server.stop().await;
}

/// Users' queries wait for a lock in PostgreSQL. The server still sends heartbeats, sweeps, and follows other servers.
#[tokio::test]
async fn slow_queries_of_users_do_not_stop_what_keeps_a_server_alive() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    let now = Timestamp::now();
    assert_eq!(store.commit(ServerId(Uuid::nil()), &[registered(1, now)]).await.unwrap().outcomes, [Ok(())]);
    let settings = Settings {
        name: "one".to_owned(),
        heartbeat_interval: Span::from_secs(1),
        node_stale_after: Span::from_secs(2),
        node_offline_after: Span::from_secs(3),
        server_stale_after: Span::from_secs(2),
        lease_ttl: Span::from_secs(2),
        ..Settings::default()
    };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let service = server.service();
    let mut other = database.client().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE definitions IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // A query ends after a while: users try again.
    let users: Vec<_> = (0..2 * limits::VIEWS_AT_ONCE)
        .map(|_| {
            let views = Arc::clone(service.views());
            tokio::spawn(async move { while views.run(&"none".to_owned().into()).await.is_err() {} })
        })
        .collect();
    let waiting = "SELECT count(*) = 4 FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.wait_until(waiting).await;

    let seen = store.servers().await.unwrap()[0].seen_at.as_microsecond();
    database.wait_until(&format!("SELECT bool_or(seen_at > {seen} + 1000000) FROM servers")).await;
    let offline = NodeStatus::Offline;
    while store.node(make::node(1)).await.unwrap().unwrap().status != offline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let elsewhere = downbeat_store::open(&database.url).await.unwrap();
    let committed = elsewhere.commit(ServerId(Uuid::nil()), &[registered(2, now)]).await.unwrap();
    service.parts.feed.reached(committed.seqs[0].unwrap()).await;
    assert_eq!(service.readiness().await, Ok(()));
    assert!(users.iter().all(|user| !user.is_finished()));

    lock.rollback().await.unwrap();
    for user in users {
        user.await.unwrap();
    }
    server.stop().await;
    elsewhere.close().await;
    database.drop().await;
}
