//! A rolling restart of all servers under load: nothing is lost, nothing is done twice, and no client waits for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use downbeat_testbed::eventually;
use serde_json::json;

use crate::book::{Book, task};
use crate::cluster::{Cluster, Plan};
use crate::outage::assert_true;
use crate::watcher::Watcher;

/// Submits small runs, one after the other, until `stop`. Returns their keys and ids.
pub(crate) async fn submit_on(
    cluster: Arc<Cluster>,
    name: usize,
    stop: Arc<AtomicBool>,
) -> Vec<(String, String)> {
    let mut runs = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("client-{name}-{}", runs.len());
        let book = cluster.book();
        let tasks = json!([task(&book, "a", 0.1, 1), task(&book, "b", 0.05, 1)]);
        let mut definition = json!({"name": key, "tasks": tasks});
        if runs.len() % 2 == 0 {
            definition["target"] = json!("all");
        }
        let taken = eventually("a server takes it", || async {
            for offset in 0..cluster.servers.len() {
                let server = (name + offset) % cluster.servers.len();
                match cluster.client.post(server, "runs", &definition, Some(&key)).await {
                    Some(answer) if answer.status < 300 => {
                        return Some(answer.body["id"].as_str().unwrap().to_owned());
                    }
                    Some(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                    None => {}
                }
            }
            None
        })
        .await;
        cluster.ended(name % cluster.servers.len(), &taken).await;
        runs.push((key, taken));
    }
    runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_all_servers_under_load_loses_nothing() {
    let cluster = Arc::new(Cluster::start(Plan { servers: 3, agents: 3, special: false }).await);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..3).map(|name| tokio::spawn(submit_on(Arc::clone(&cluster), name, Arc::clone(&stop)))).collect();
    let watcher = Watcher::start(cluster.client.clone(), 0);
    let done = || Book::read(&cluster.book()).ends().count();
    eventually("there is load", || async { (done() > 10).then_some(()) }).await;
    for (index, server) in cluster.servers.iter().enumerate() {
        let before = done();
        assert!(server.stop().await, "server {index} stops when it gets the signal");
        server.start();
        cluster.ready(index).await;
        eventually("work goes on", || async { (done() > before + 5).then_some(()) }).await;
    }
    let pause = Book::read(&cluster.book()).longest_pause();
    stop.store(true, Ordering::Relaxed);
    let mut runs = Vec::new();
    for client in clients {
        runs.extend(client.await.unwrap());
    }
    let runs: Vec<(&str, &str)> = runs.iter().map(|(key, run)| (key.as_str(), run.as_str())).collect();
    let evidence = assert_true(&cluster, &runs).await;
    let executions = || evidence.runs.values().flat_map(|run| &run.executions);
    for execution in executions() {
        assert_eq!((execution.status.as_str(), execution.attempt), ("succeeded", 1), "{execution:?}");
    }
    let watched = watcher.finish(evidence.feeds[0].len() as u64, Duration::from_secs(30)).await;
    assert_eq!(watched.complaints, [""; 0]);
    assert!(watched.events.iter().map(|(seq, _)| *seq).eq(1..=evidence.feeds[0].len() as u64));
    let taken = evidence.feeds[0].iter().filter(|event| event.kind == "run_taken").count();
    println!(
        "rolling restart of 3 servers: {} runs, {} executions, {taken} take-overs, longest pause {pause:.1} s",
        runs.len(),
        executions().count()
    );
}
