//! The largest that is allowed of everything goes through every door: commit, feed, stream, pages, replica, take-over,
//! agent.

use downbeat_core::limits;
use downbeat_testbed::Database;
use downbeat_testbed::in_process::{Agent, Setup, outcome};
use serde_json::{Value, json};

use crate::site::{caught_up, replica, sqlite};

/// Room for the rest of a job file.
const REST: usize = 1_000;
/// A page has at most its bound, and one event: a job file and the frame around it.
const PAGE_BYTES: usize = limits::EVENTS_AT_ONCE_BYTES + limits::JOB_FILE_BYTES + 64 * 1024;
const ITEMS: usize = 5;

/// A job file of the largest size, whose task has params of the largest size.
fn job_file() -> Value {
    let stdin = "x".repeat(limits::JOB_FILE_BYTES.min(limits::PARAMS_BYTES) - REST);
    let params = json!({"command": ["cat"], "stdin": stdin});
    json!({"name": "job-file", "tasks": [{"backend": "exec", "action": "run", "params": params}]})
}

/// Evaluated params: each with about half of what a task may have, together more than one commit.
fn evaluated() -> Value {
    let big = "y".repeat(limits::PARAMS_BYTES / 2);
    json!({
        "name": "evaluated",
        "params": {"big": big},
        "tasks": [{
            "name": "each", "for_each": (0..ITEMS).collect::<Vec<_>>(), "backend": "exec", "action": "run",
            "params": {"command": ["cat"], "stdin": "{{ params.big }}{{ index }}"},
        }],
    })
}

fn outputs() -> Value {
    json!({"name": "outputs", "tasks": [{"backend": "test", "action": "noop", "outputs": ["v"]}]})
}

fn failing() -> Value {
    json!({"name": "error", "tasks": [{"backend": "test", "action": "noop"}]})
}

/// Steps that no node fits.
fn steps() -> Value {
    let task = json!({"backend": "test", "action": "noop", "placement": {"labels": ["nowhere"]}});
    json!({"name": "steps", "tasks": vec![task; limits::STEPS_PER_RUN]})
}

/// Runs the largest of everything. Returns the runs, the last of which has an item left to do.
async fn run_all(primary: &Setup, agent: &mut Agent) -> Vec<String> {
    let mut runs = vec![primary.submit(&job_file()).await];
    let work = agent.take().await;
    assert!(work.params["stdin"].as_str().unwrap().len() >= limits::PARAMS_BYTES - REST);
    agent.start(&work).await;
    let chunk = "o".repeat(limits::OUTPUT_CHUNK_BYTES);
    for number in 0..limits::OUTPUT_BYTES / limits::OUTPUT_CHUNK_BYTES {
        agent.write(&work, (number * chunk.len()) as u64, &chunk).await;
    }
    agent.finish(&work, 0).await;

    runs.push(primary.submit(&outputs()).await);
    let work = agent.take().await;
    let value = json!("v".repeat(limits::VALUES_BYTES - REST));
    agent
        .finish_as(
            &work,
            downbeat_core::execution::Outcome {
                outputs: [("v".to_owned(), value)].into_iter().collect(),
                ..outcome(0)
            },
        )
        .await;

    runs.push(primary.submit(&failing()).await);
    let work = agent.take().await;
    let error = Some("e".repeat(2 * limits::REASON_BYTES));
    agent.finish_as(&work, downbeat_core::execution::Outcome { error, ..outcome(1) }).await;

    runs.push(primary.submit(&steps()).await);
    primary.post(&format!("/runs/{}/cancel", runs[3]), &json!({})).await;
    for (run, state) in runs.iter().zip(["completed", "completed", "failed", "cancelled"]) {
        assert_eq!(primary.ended(run).await["state"], state, "{run}");
    }

    runs.push(primary.submit(&evaluated()).await);
    for _ in 1..ITEMS {
        let work = agent.take().await;
        assert!(work.params["stdin"].as_str().unwrap().len() > limits::PARAMS_BYTES / 2);
        agent.finish(&work, 0).await;
    }
    runs
}

/// Returns all events, page by page. No page is larger than its bound.
async fn events(setup: &Setup) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let since = all.last().map_or(0, |event: &Value| event["seq"].as_u64().unwrap());
        let page = setup.ok(&format!("/events?follow=0&limit=1000&since={since}")).await;
        let bytes = page.to_string().len();
        assert!(bytes <= PAGE_BYTES, "a page of {bytes} bytes");
        all.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["pagination"]["has_more"] == false {
            return all;
        }
    }
}

/// Returns what a person sees of the runs.
async fn views(setup: &Setup, runs: &[String]) -> Vec<Value> {
    let mut views = Vec::new();
    for run in runs {
        let view = setup.ok(&format!("/runs/{run}")).await;
        views.push(json!([view["state"], view["counts"]]));
        let executions = setup.ok(&format!("/runs/{run}/executions?limit=100")).await["data"].clone();
        let first = executions[0]["id"].as_str().unwrap().to_owned();
        views.push(executions);
        views.push(setup.ok(&format!("/executions/{first}")).await);
        views.push(setup.ok(&format!("/executions/{first}/output")).await);
    }
    views
}

/// `store`: where the primary keeps its data. It is started again if another server can find the data there.
async fn through_every_door(store: &str) {
    let primary = Setup::on(store).await;
    let groups: Vec<String> = (0..limits::GROUPS_PER_NODE)
        .map(|number| format!("{number:0>width$}", width = limits::NAME_BYTES))
        .collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let mut agent = primary.agent("web-1", &groups).await;
    let follower = replica(&primary, "memory:").await;
    let mut live = primary.follow("/events?since=0").await;
    let runs = run_all(&primary, &mut agent).await;

    let all = events(&primary).await;
    let seqs: Vec<u64> = all.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    // A stream from the store, and one that was live.
    let mut late = primary.follow("/events?since=0").await;
    for seq in &seqs {
        for stream in [&mut live, &mut late] {
            assert_eq!(stream.next().await.unwrap().id, Some(seq.to_string()));
        }
    }
    // A replica that followed, and one that begins with a snapshot.
    let newcomer = replica(&primary, "memory:").await;
    let expected = views(&primary, &runs).await;
    for replica in [&follower, &newcomer] {
        caught_up(&primary, replica).await;
        assert_eq!(views(replica, &runs).await, expected);
        assert_eq!(events(replica).await, all);
        assert_eq!(replica.root("/readyz").await.0, 200);
    }
    follower.server.stop().await;
    newcomer.server.stop().await;
    primary.server.stop().await;
    if store.starts_with("memory") {
        return;
    }
    // Another server goes on with the last run.
    let again = Setup::on(store).await;
    let mut agent = again.agent("web-1", &[]).await;
    let open = runs.last().unwrap();
    let work = agent.take().await;
    assert!(work.params["stdin"].as_str().unwrap().len() > limits::PARAMS_BYTES / 2);
    agent.finish(&work, 0).await;
    assert_eq!(again.ended(open).await["state"], "completed");
    again.server.stop().await;
}

#[tokio::test]
async fn the_largest_of_everything_goes_through_every_door_with_the_memory_store() {
    through_every_door("memory:").await;
}

#[tokio::test]
async fn the_largest_of_everything_goes_through_every_door_with_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    through_every_door(&sqlite(&dir, "largest.db")).await;
}

#[tokio::test]
async fn the_largest_of_everything_goes_through_every_door_with_postgres() {
    let database = Database::create().await;
    through_every_door(&database.url).await;
    database.drop().await;
}
