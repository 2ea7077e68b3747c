//! Jobs that are started by the ends of runs and by events.

use downbeat_testbed::eventually;
use downbeat_testbed::in_process::{Agent, Setup};
use reqwest::StatusCode;
use serde_json::{Value, json};

async fn apply(setup: &Setup, name: &str, triggers: Value) {
    let job = json!({
        "name": name, "target": "all", "params": {"from": ""}, "triggers": triggers,
        "tasks": [{"backend": "test", "action": "echo", "params": {"message": "{{ params.from }}"}}],
    });
    let applied = setup.post("/jobs", &job).await;
    assert!(applied.status.is_success(), "{}", applied.body);
}

async fn runs(setup: &Setup, job: &str) -> Vec<Value> {
    setup.ok(&format!("/runs?job={job}")).await["data"].as_array().unwrap().clone()
}

/// Waits for the only run of a job.
async fn run_of(setup: &Setup, job: &str) -> Value {
    let id = eventually("the job is started", || async {
        runs(setup, job).await.first().map(|run| run["id"].as_str().unwrap().to_owned())
    });
    setup.ok(&format!("/runs/{}", id.await)).await
}

async fn finish(agent: &mut Agent, exit_code: i32) {
    let work = agent.take().await;
    agent.finish(&work, exit_code).await;
}

fn after(name: &str, on: &str) -> Value {
    json!([{"job": {"name": name, "on": on, "params": {"from": "{{ trigger.job }} {{ trigger.status }}"}}}])
}

#[tokio::test]
async fn jobs_start_each_other_in_a_chain() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let first = json!({"name": "a", "target": "all", "tasks": [{"backend": "test", "action": "noop"}]});
    setup.post("/jobs", &first).await;
    apply(&setup, "b", after("a", "success")).await;
    apply(&setup, "c", after("b", "failure")).await;
    apply(&setup, "d", after("b", "success")).await;
    let begun = setup.post("/jobs/a/runs", &json!({})).await;
    assert_eq!(begun.status, StatusCode::CREATED);
    finish(&mut agent, 0).await;
    let b = run_of(&setup, "b").await;
    assert_eq!((&b["by"], &b["params"]["from"]), (&json!("trigger:job:a"), &json!("a completed")));
    finish(&mut agent, 3).await;
    let c = run_of(&setup, "c").await;
    assert_eq!((&c["by"], &c["params"]["from"]), (&json!("trigger:job:b"), &json!("b failed")));
    finish(&mut agent, 0).await;
    setup.ended(c["id"].as_str().unwrap()).await;
    assert_eq!(runs(&setup, "d").await.len(), 0);
    assert_eq!((runs(&setup, "b").await.len(), runs(&setup, "c").await.len()), (1, 1));
}

#[tokio::test]
async fn a_run_of_a_file_and_a_paused_job_start_nothing() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let first = json!({"name": "a", "target": "all", "tasks": [{"backend": "test", "action": "noop"}]});
    setup.post("/jobs", &first).await;
    apply(&setup, "paused", after("a", "always")).await;
    apply(&setup, "b", after("a", "always")).await;
    setup.post("/jobs/paused/pause", &json!({})).await;
    let inline = setup.submit(&first).await;
    finish(&mut agent, 0).await;
    setup.ended(&inline).await;
    setup.post("/jobs/a/runs", &json!({})).await;
    finish(&mut agent, 0).await;
    run_of(&setup, "b").await;
    assert_eq!(runs(&setup, "b").await.len(), 1, "the run of the file started nothing");
    setup.post("/jobs/paused/resume", &json!({})).await;
    finish(&mut agent, 0).await;
    // Another run starts both: those of the pause are skipped.
    setup.post("/jobs/a/runs", &json!({})).await;
    finish(&mut agent, 0).await;
    run_of(&setup, "paused").await;
    assert_eq!(runs(&setup, "paused").await.len(), 1);
}

#[tokio::test]
async fn a_fleet_reacts_to_its_nodes_and_to_failed_runs() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("db-01", &["db"]).await;
    let of_node = json!([{"event": {"kind": "node_registered", "group": "web", "params": {"from": "{{ trigger.node }}"}}}]);
    apply(&setup, "welcome", of_node).await;
    let of_run = json!([{"event": {"kind": "run_failed", "params": {"from": "{{ trigger.job }} {{ trigger.event }}"}}}]);
    apply(&setup, "repair", of_run).await;
    drop(setup.agent("db-02", &["db"]).await);
    setup.delete("/nodes/db-02?force=1").await;
    let mut web = setup.agent("web-01", &["web"]).await;
    let welcome = run_of(&setup, "welcome").await;
    assert_eq!(
        (&welcome["by"], &welcome["params"]["from"]),
        (&json!("trigger:event:node_registered"), &json!("web-01"))
    );
    finish(&mut agent, 0).await;
    finish(&mut web, 1).await;
    let repair = run_of(&setup, "repair").await;
    assert_eq!(repair["params"]["from"], "welcome run_failed");
    finish(&mut agent, 0).await;
    finish(&mut web, 1).await;
    let failed = setup.ended(repair["id"].as_str().unwrap()).await;
    assert_eq!(failed["status"], "failed");
    // Its own failure does not start it again: a later event is followed, and starts nothing else.
    let mut again = setup.agent("web-02", &["web"]).await;
    eventually("the next node is welcomed", || async {
        (runs(&setup, "welcome").await.len() == 2).then_some(())
    })
    .await;
    drop(again.take().await);
    assert_eq!(runs(&setup, "repair").await.len(), 1);
}
