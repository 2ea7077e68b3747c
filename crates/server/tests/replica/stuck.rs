//! A replica that cannot go on: it is not ready, and says so.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use downbeat_core::{Timestamp, limits};
use downbeat_testbed::eventually;
use downbeat_testbed::in_process::Setup;
use futures_util::stream;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::site::{replica_settings, standing};

const LAST: u64 = 50;
const COPIED: u64 = 7;

fn line(frame: &Value) -> Bytes {
    format!("{frame}\n").into()
}

/// The start of a stream; a snapshot for the first connection only.
fn begin(is_first: bool) -> Vec<Bytes> {
    let at = Timestamp::now();
    let hello = json!({"version": 1, "server": "fake", "output_max_bytes": 1024, "seq": LAST, "at": at});
    let mut lines = vec![line(&json!({"hello": hello}))];
    if is_first {
        lines.push(line(&json!("reset")));
        lines.push(line(&json!({"part": {"end": {"seq": COPIED}}})));
        lines.push(line(&json!({"beat": {"seq": COPIED, "at": at}})));
    }
    lines
}

/// A primary with an event that is too long for one line.
async fn fake_primary() -> SocketAddr {
    let connections = Arc::new(AtomicU32::new(0));
    let send = move || {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
        let long = std::iter::repeat_n(piece, limits::REPLICA_LINE_BYTES / (1024 * 1024) + 1);
        let lines = begin(is_first).into_iter().chain(long).map(Ok::<_, std::io::Error>);
        async move { Body::from_stream(stream::iter(lines)) }
    };
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/api/v1/replication", get(send));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test]
async fn a_replica_that_fails_at_the_same_event_again_is_not_ready_and_says_why() {
    let primary = format!("http://{}", fake_primary().await);
    let replica = Setup::with(replica_settings(&[primary], "memory:")).await;
    let why = eventually("the replica notices that it cannot go on", async || {
        let (status, why) = replica.root("/readyz").await;
        (status == StatusCode::SERVICE_UNAVAILABLE && why.contains("cannot go on")).then_some(why)
    })
    .await;
    assert!(why.contains(&format!("after event {COPIED}")), "{why}");
    assert!(why.contains("a line of more than"), "{why}");
    let standing = standing(&replica).await;
    assert_eq!(standing["lag_events"], LAST - COPIED, "{standing}");
    assert!(standing["error"].as_str().unwrap().contains("a line of more than"), "{standing}");
}
