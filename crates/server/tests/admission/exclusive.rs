//! Exclusive runs hold their nodes for themselves.

use downbeat_testbed::in_process::{Setup, settings};
use serde_json::json;

use crate::work::{Entry, Log, Worker, job, with};

/// Asserts that only this run had work on the nodes between its first and its last execution.
pub(crate) fn check_alone(entries: &[Entry], run: &str) {
    let of_run = |entry: &Entry| entry.run == run;
    let first = entries.iter().position(of_run).expect("the run did something");
    let last = entries.iter().rposition(of_run).expect("the run did something");
    let others: Vec<_> = entries[first..=last].iter().filter(|entry| !of_run(entry)).collect();
    assert!(others.is_empty(), "meanwhile {others:?} in {entries:?}");
}

#[tokio::test]
async fn exclusive_runs_that_overlap_do_not_interleave() {
    let setup = Setup::new().await;
    let log = Log::default();
    let _workers = [Worker::at(&setup, "web-01", &log).await, Worker::at(&setup, "web-02", &log).await];
    let mut runs = Vec::new();
    let mut alone = Vec::new();
    for round in 0..6 {
        let exclusive = setup.submit(&with(job("all", 3), "exclusive", true)).await;
        alone.push(exclusive.clone());
        runs.push(exclusive);
        runs.push(setup.submit(&job(if round % 2 == 0 { "node:web-01" } else { "all" }, 2)).await);
    }
    for run in &runs {
        assert_eq!(setup.ended(run).await["state"], "completed");
    }
    let entries = log.entries();
    alone.iter().for_each(|run| check_alone(&entries, run));
    assert_eq!(entries.iter().filter(|entry| entry.began).count(), 6 * 6 + 3 * 2 + 3 * 4);
    assert_eq!(setup.server.service().views().holds().await.unwrap(), []);
    setup.server.stop().await;
}

#[tokio::test]
async fn an_exclusive_run_waits_for_a_step_and_holds_others_off() {
    let setup = Setup::with(settings("memory:", "one")).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let mut other = setup.agent("web-02", &["web"]).await;
    let plain = setup.submit(&job("node:web-01", 2)).await;
    let work = agent.take().await;
    let exclusive = setup.submit(&with(job("all", 1), "exclusive", true)).await;
    let reason = format!("waits for web-01, busy with run {plain}");
    let shown = setup.run_until(&exclusive, |run| run["pending_reason"] == reason).await;
    assert_eq!(shown["state"], "pending");
    // Kept free: new work waits, also on the idle node.
    let late = setup.submit(&job("all", 1)).await;
    assert_eq!(other.take_soon().await, []);
    let executions = setup.ok(&format!("/runs/{late}/executions")).await;
    let id = executions["data"][0]["id"].as_str().unwrap();
    let kept = format!("the node is kept free for run {exclusive} (exclusive), which starts next");
    assert_eq!(setup.ok(&format!("/executions/{id}")).await["waiting"][0]["reason"], kept);
    agent.finish(&work, 0).await;
    let (one, two) = (agent.take().await, other.take().await);
    assert_eq!((one.of.run().to_string(), two.of.run().to_string()), (exclusive.clone(), exclusive.clone()));
    let held = format!("the node is held by run {exclusive} (exclusive)");
    assert_eq!(setup.ok(&format!("/executions/{id}")).await["waiting"][0]["reason"], held);
    let (_, metrics) = setup.root("/metrics").await;
    assert!(metrics.contains("\ndownbeat_nodes_held 2\n"), "{metrics}");
    // One node is finished, and still held while the run continues elsewhere.
    other.finish(&two, 0).await;
    assert_eq!(other.take_soon().await, []);
    agent.finish(&one, 0).await;
    assert_eq!(setup.ended(&exclusive).await["state"], "completed");
    let log = Log::default();
    let _workers = [Worker::of(agent, "web-01", &log), Worker::of(other, "web-02", &log)];
    assert_eq!(setup.ended(&plain).await["state"], "completed");
    assert_eq!(setup.ended(&late).await["state"], "completed");
    setup.server.stop().await;
}

#[tokio::test]
async fn an_exclusive_run_that_is_cancelled_or_fails_gives_its_nodes_back() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let exclusive = || with(job("all", 1), "exclusive", true);
    let (first, second, third) = (
        setup.submit(&exclusive()).await,
        setup.submit(&exclusive()).await,
        setup.submit(&exclusive()).await,
    );
    let work = agent.take().await;
    assert_eq!(work.of.run().to_string(), first);
    let reason = format!("waits for web-01, held by run {first} (exclusive)");
    setup.run_until(&second, |run| run["pending_reason"] == reason).await;
    agent.finish(&work, 1).await;
    assert_eq!(setup.ended(&first).await["state"], "failed");
    let work = agent.take().await;
    assert_eq!(work.of.run().to_string(), second);
    setup.post(&format!("/runs/{second}/cancel"), &json!({})).await;
    agent.finish(&work, 0).await;
    setup.ended(&second).await;
    assert_eq!(agent.take().await.of.run().to_string(), third);
    setup.server.stop().await;
}
