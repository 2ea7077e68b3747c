//! Runs beyond the limit wait, and start in order.

use std::time::Duration;

use downbeat_server::Settings;
use downbeat_testbed::in_process::{Setup, send, settings};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::work::{Log, Worker, job, with};

fn limited(store: &str, most: u32) -> Settings {
    Settings { max_concurrent_runs: Some(most), ..settings(store, "one") }
}

#[tokio::test]
async fn runs_begin_by_priority_then_age_and_say_what_they_wait_for() {
    let setup = Setup::with(limited("memory:", 1)).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let first = setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    assert_eq!(work.of.run().to_string(), first);
    let low = setup.submit(&with(job("all", 1), "priority", -1)).await;
    let early = setup.submit(&job("all", 1)).await;
    let late = setup.submit(&job("all", 1)).await;
    let high = setup.submit(&with(job("all", 1), "priority", 5)).await;
    let shown = setup.ok(&format!("/runs/{late}")).await;
    assert_eq!((&shown["state"], &shown["started_at"]), (&json!("pending"), &json!(null)));
    let reason = "waits for its turn: 1 of 1 runs active, 2 runs before it";
    assert_eq!(shown["pending_reason"], reason);
    let (_, metrics) = setup.root("/metrics").await;
    assert!(metrics.contains("\ndownbeat_runs_waiting 4\n"), "{metrics}");
    assert!(metrics.contains("\ndownbeat_runs{state=\"pending\"} 4\n"), "{metrics}");
    agent.finish(&work, 0).await;
    let log = Log::default();
    let worker = Worker::of(agent, "web-01", &log);
    for run in [&high, &early, &late, &low] {
        let ended = setup.ended(run).await;
        assert_eq!((&ended["state"], &ended["pending_reason"]), (&json!("completed"), &json!(null)));
    }
    assert_eq!(log.runs(), [high, early, late, low]);
    let (_, metrics) = setup.root("/metrics").await;
    assert!(metrics.contains("\ndownbeat_runs{state=\"pending\"} 0\n"), "{metrics}");
    assert!(metrics.contains("\ndownbeat_runs{state=\"completed\"} 5\n"), "{metrics}");
    drop(worker);
    setup.server.stop().await;
}

#[tokio::test]
async fn a_submission_beyond_the_queue_is_refused_until_there_is_room() {
    let setup = Setup::with(Settings { max_pending_runs: 1, ..limited("memory:", 1) }).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let first = setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    let second = setup.submit(&job("all", 1)).await;
    let answer = setup.post("/runs", &job("all", 1)).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.body["code"], "too_many_runs");
    assert_eq!(answer.headers["retry-after"], "5");
    let detail = "1 runs are pending (max_pending_runs: 1); try again later";
    assert_eq!(answer.body["detail"], detail);
    agent.finish(&work, 0).await;
    assert_eq!(setup.ended(&first).await["state"], "completed");
    let work = agent.take().await;
    assert_eq!(work.of.run().to_string(), second);
    setup.submit(&job("all", 1)).await;
    setup.server.stop().await;
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_ends_and_does_nothing() {
    let setup = Setup::with(limited("memory:", 1)).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let first = setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    let (second, third) = (setup.submit(&job("all", 2)).await, setup.submit(&job("all", 1)).await);
    let answer = setup.post(&format!("/runs/{second}/cancel"), &json!({})).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let ended = setup.ended(&second).await;
    assert_eq!((&ended["state"], &ended["started_at"]), (&json!("cancelled"), &json!(null)));
    assert_eq!((&ended["counts"]["skipped"], &ended["counts"]["pending"]), (&json!(2), &json!(0)));
    // It was not admitted before the one in front of it.
    assert_eq!(setup.ok(&format!("/runs/{third}")).await["state"], "pending");
    agent.finish(&work, 0).await;
    assert_eq!(agent.take().await.of.run().to_string(), third);
    assert_eq!(setup.ended(&first).await["state"], "completed");
    setup.server.stop().await;
}

#[tokio::test]
async fn a_runs_timeout_counts_from_its_start() {
    let setup = Setup::with(limited("memory:", 1)).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    let second = setup.submit(&with(job("all", 1), "timeout", "1s")).await;
    // It waits for longer than its time limit.
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    assert_eq!(setup.ok(&format!("/runs/{second}")).await["state"], "pending");
    agent.finish(&work, 0).await;
    assert_eq!(agent.take().await.of.run().to_string(), second);
    setup.server.stop().await;
}

#[tokio::test]
async fn what_waits_when_a_server_stops_waits_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/downbeat.db", dir.path().display());
    let setup = Setup::with(limited(&store, 1)).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let first = setup.submit(&job("all", 1)).await;
    agent.take().await;
    let (second, third) = (setup.submit(&job("all", 1)).await, setup.submit(&job("all", 1)).await);
    let cancelled = setup.submit(&job("all", 1)).await;
    setup.server.stop().await;

    let setup = Setup::with(limited(&store, 1)).await;
    let shown = setup.ok(&format!("/runs/{second}")).await;
    assert_eq!(shown["pending_reason"], "waits for its turn: 1 of 1 runs active, next in line");
    setup.post(&format!("/runs/{cancelled}/cancel"), &json!({})).await;
    assert_eq!(setup.ended(&cancelled).await["state"], "cancelled");
    // A new session: the executions of the former one are lost, and the run ends.
    let log = Log::default();
    let _worker = Worker::at(&setup, "web-01", &log).await;
    setup.ended(&first).await;
    assert_eq!(setup.ended(&second).await["state"], "completed");
    assert_eq!(setup.ended(&third).await["state"], "completed");
    let runs: Vec<String> = log.runs().into_iter().filter(|run| *run != first).collect();
    assert_eq!(runs, [second, third]);
    setup.server.stop().await;
}

#[tokio::test]
async fn open_runs_are_bounded_without_a_limit_on_active_ones() {
    let setup = Setup::with(Settings { max_pending_runs: 2, ..settings("memory:", "one") }).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let first = setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    let keyed =
        || setup.request(Method::POST, "/runs").header("Idempotency-Key", "second").json(&job("all", 1));
    let second = send(keyed()).await;
    assert_eq!(second.status, StatusCode::CREATED);
    let answer = setup.post("/runs", &job("all", 1)).await;
    assert_eq!(
        (answer.status, &answer.body["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("too_many_runs"))
    );
    let detail = "2 runs are open (max_pending_runs: 2); try again when some have ended";
    assert_eq!(
        (&answer.body["detail"], &answer.headers["retry-after"]),
        (&json!(detail), &"5".parse().unwrap())
    );
    // A repeated submission still returns its first run.
    assert_eq!(send(keyed()).await.body["id"], second.body["id"]);
    agent.finish(&work, 0).await;
    assert_eq!(setup.ended(&first).await["state"], "completed");
    setup.submit(&job("all", 1)).await;
    setup.server.stop().await;
}
