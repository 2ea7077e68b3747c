//! The sweep of a large cluster on a slow store, and a server whose users block their connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, ServerId, SessionId};
use downbeat_core::node::{Former, NodeStatus, Registration};
use downbeat_core::{Change, Span, Timestamp, limits};
use downbeat_store::{Error, Executions as _, MemoryStore, Store, Wrapped, Wrapper};
use downbeat_testbed::Database;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

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

fn registered(number: u32, at: Timestamp) -> Change {
    let description = json!({"hostname": format!("web-{number:04}"), "slots": 1, "version": "1"});
    let id = Uuid::from_u128(number.into());
    Change::NodeRegistered {
        registration: Registration {
            node: NodeId(id),
            cluster: ClusterId::DEFAULT,
            session: SessionId(id),
            description: serde_json::from_value(description).unwrap(),
            installation: None,
            undelivered: Vec::new(),
            former: Former::Any,
            at,
        },
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
    let surroundings = Surroundings { wall, seed: 1 };
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
    while store.node(NodeId(Uuid::from_u128(1))).await.unwrap().unwrap().status != offline {
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
