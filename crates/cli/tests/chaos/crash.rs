//! PostgreSQL dies in the middle of commits, again and again: acknowledged changes exist after its recovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use downbeat_testbed::{eventually, within};

use crate::book::Book;
use crate::cluster::{Cluster, Plan};
use crate::outage::assert_true;
use crate::rolling::submit_on;

const CRASHES: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_crashes_of_postgresql() {
    let cluster = Arc::new(Cluster::start(Plan { servers: 3, agents: 3, special: false }).await);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..6).map(|name| tokio::spawn(submit_on(Arc::clone(&cluster), name, Arc::clone(&stop)))).collect();
    let done = || Book::read(&cluster.book()).ends().count();
    for crash in 0..CRASHES {
        let before = done();
        eventually("there is load", || async { (done() > before + 5).then_some(()) }).await;
        if crash % 2 == 0 {
            cluster.postgres.crash().await;
        } else {
            cluster.postgres.kill().await;
        }
        let back = within(Duration::from_secs(60), || async { cluster.postgres.resume().await.ok() });
        back.await.expect("PostgreSQL comes back");
    }
    stop.store(true, Ordering::Relaxed);
    let mut runs = Vec::new();
    for client in clients {
        runs.extend(client.await.unwrap());
    }
    let runs: Vec<(&str, &str)> = runs.iter().map(|(key, run)| (key.as_str(), run.as_str())).collect();
    assert_true(&cluster, &runs).await;
    println!("PostgreSQL crashed {CRASHES} times; {} runs, {} executions", runs.len(), done());
}
