//! Nodes that are gone, and the maximum of nodes.

use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ServerId, SessionId};
use downbeat_core::{Span, spec};
use downbeat_proto::message::{Fault, Heartbeat};
use downbeat_store::{DirectWrites, MemoryStore, Nodes, ServerRecord};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{Caller, Server, Settings, Submit, Surroundings, start_within, testing};

const DEADLINE: Duration = Duration::from_secs(30);

async fn server(settings: Settings) -> (Arc<MemoryStore>, Server) {
    let store = Arc::new(MemoryStore::new());
    let settings = Settings {
        name: "one".to_owned(),
        heartbeat_interval: Span(Duration::from_millis(100)),
        lease_ttl: Span(Duration::from_millis(200)),
        node_stale_after: Span(Duration::from_millis(200)),
        node_offline_after: Span(Duration::from_millis(300)),
        ..settings
    };
    let server = start_within(settings, Arc::clone(&store) as _, Surroundings::default()).await.unwrap();
    (store, server)
}

async fn register(server: &Server, hostname: &str) -> Result<(NodeId, SessionId), Fault> {
    let register = testing::register(hostname);
    let (node, session) = (register.node, register.session);
    server.link().register(register).await.map(|_| (node, session))
}

/// Sends heartbeats of a node until it is dropped.
fn keep_alive(server: &Server, (node, session): (NodeId, SessionId)) -> tokio::task::JoinHandle<()> {
    let link = server.link();
    tokio::spawn(async move {
        loop {
            let beat = Heartbeat { node, session, held: Vec::new(), leaving: false, problems: Vec::new() };
            let _ = link.heartbeat(beat).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn nothing_remains_of_a_node_that_has_been_offline_for_long() {
    let forget_nodes_after = Span(Duration::from_millis(600));
    let (store, server) = server(Settings { forget_nodes_after, ..Settings::default() }).await;
    let alive = keep_alive(&server, register(&server, "web-1").await.unwrap());
    for number in 0..5 {
        register(&server, &format!("pod-{number}")).await.unwrap();
    }
    let parts = &server.service().parts;
    until("the pods are forgotten", || parts.dispatcher.board().nodes().count() == 1).await;
    assert_eq!(store.nodes(None).await.unwrap().len(), 1);
    assert_eq!(store.tombstones(None).await.unwrap().len(), 5);
    let figures = server.service().figures().await;
    assert!(figures.contains("web-1") && !figures.contains("pod-"), "{figures}");
    let job = json!({"target": "all", "tasks": [{"backend": "test", "action": "noop"}]}).to_string();
    let definition = spec::parse(&job, "job.json", &Catalogue::builtin()).unwrap();
    let submit = Submit { definition, params: None, no_cache: false, idempotency_key: None };
    let run = server.service().submit(&Caller::named("test"), submit).await.unwrap().run;
    assert_eq!(run.resolved.nodes.len(), 1, "the pods are not targets any more");
    register(&server, "pod-0").await.expect("a pod with the same name is a new node");
    alive.abort();
}

#[tokio::test]
async fn nodes_that_are_offline_do_not_count_against_the_maximum() {
    let settings = Settings { max_nodes: 2, forget_nodes_after: Span::default(), ..Settings::default() };
    let (_, server) = server(settings).await;
    let alive = keep_alive(&server, register(&server, "web-1").await.unwrap());
    register(&server, "pod-1").await.unwrap();
    let refused = register(&server, "pod-2").await.unwrap_err();
    assert!(matches!(&refused, Fault::Rejected(why) if why.contains("maximum of 2 nodes")), "{refused:?}");
    let offline = || {
        let board = server.service().parts.dispatcher.board();
        board.nodes().any(|node| node.status == NodeStatus::Offline)
    };
    until("a pod is offline", offline).await;
    let second = keep_alive(&server, register(&server, "pod-2").await.unwrap());
    let refused = register(&server, "pod-1").await.unwrap_err();
    assert!(matches!(refused, Fault::Rejected(_)), "a node that is back counts again: {refused:?}");
    assert_eq!(server.service().parts.dispatcher.board().nodes().count(), 3, "it is kept");
    alive.abort();
    second.abort();
}

#[tokio::test]
async fn a_server_without_the_setting_does_not_keep_others_from_forgetting() {
    let (store, server) =
        server(Settings { forget_nodes_after: Span(Duration::from_millis(600)), ..Settings::default() })
            .await;
    // The first of all servers: it is alive, and forgets nothing.
    let now = Timestamp::now();
    let other = ServerRecord {
        id: ServerId(uuid::Uuid::nil()),
        name: "other".to_owned(),
        http: String::new(),
        grpc: String::new(),
        version: String::new(),
        started_at: now,
        seen_at: now + SignedDuration::from_hours(1),
        level: downbeat_core::level::LEVEL,
    };
    store.put_server(&other).await.unwrap();
    register(&server, "pod-1").await.unwrap();
    let parts = &server.service().parts;
    until("the pod is forgotten", || parts.dispatcher.board().nodes().count() == 0).await;
}
