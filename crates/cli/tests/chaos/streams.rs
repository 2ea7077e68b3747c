//! A live stream that one server ended is resumed at another, from the last event.

use std::time::Duration;

use downbeat_testbed::Client;
use serde_json::json;

use crate::book::task;
use crate::cluster::{Cluster, Plan};
use crate::outage::assert_true;
use crate::watcher::Watcher;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_through_one_server_resumes_on_another_from_the_last_event() {
    let cluster = Cluster::start(Plan { servers: 2, agents: 2, special: false }).await;
    let book = cluster.book();
    let definition = |key: &str| {
        let tasks: Vec<_> = (0..3).map(|step| task(&book, &format!("t{step}"), 0.1, 1)).collect();
        json!({"name": key, "target": "all", "tasks": tasks})
    };
    // Only the first server, until it dies; commits of the second reach the stream of the first.
    let alone = Client::new(vec![cluster.client.servers[0].clone()]);
    let first = Watcher::start(alone, 0);
    let both = Watcher::start(cluster.client.clone(), 0);
    let mut runs = Vec::new();
    for (server, key) in [(0, "a"), (1, "b")] {
        let run = cluster.submit(server, &definition(key), key).await;
        cluster.ended(server, &run).await;
        runs.push((key, run));
    }
    let so_far = cluster.direct.events(1).await.unwrap().len() as u64;
    let seen = first.finish(so_far, Duration::from_secs(30)).await;
    assert!(seen.events.iter().map(|(seq, _)| *seq).eq(1..=seen.events.len() as u64));
    assert_eq!((seen.complaints, seen.events.len() as u64 >= so_far), (Vec::new(), true));
    cluster.servers[0].kill();
    let run = cluster.submit(1, &definition("c"), "c").await;
    cluster.ended(1, &run).await;
    runs.push(("c", run));
    cluster.heal().await;
    let runs: Vec<(&str, &str)> = runs.iter().map(|(key, run)| (*key, run.as_str())).collect();
    let evidence = assert_true(&cluster, &runs).await;
    let last = evidence.feeds[0].len() as u64;
    let seen = both.finish(last, Duration::from_secs(30)).await;
    assert!(seen.reconnects > 0, "the stream went on elsewhere");
    let kinds: Vec<(u64, String)> =
        evidence.feeds[0].iter().map(|event| (event.seq, event.kind.clone())).collect();
    assert_eq!((seen.complaints, seen.events), (Vec::new(), kinds));
}
