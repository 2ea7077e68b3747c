//! A paused run starts nothing more.

use downbeat_testbed::in_process::Setup;
use reqwest::StatusCode;
use serde_json::json;

use crate::work::job;

#[tokio::test]
async fn a_paused_run_lets_what_runs_end_and_goes_on_when_it_is_resumed() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let run = setup.submit(&job("all", 3)).await;
    let (pause, resume) = (format!("/runs/{run}/pause"), format!("/runs/{run}/resume"));
    let answer = setup.post(&resume, &json!({})).await;
    assert_eq!(
        (answer.status, &answer.body["detail"]),
        (StatusCode::CONFLICT, &json!(format!("run `{run}` is not paused")))
    );
    let work = agent.take().await;
    let paused = setup.post(&pause, &json!({})).await;
    assert_eq!(paused.status, StatusCode::OK);
    assert!(paused.body["paused_at"].is_string(), "{}", paused.body);
    let answer = setup.post(&pause, &json!({})).await;
    assert_eq!(
        (answer.status, &answer.body["detail"]),
        (StatusCode::CONFLICT, &json!(format!("run `{run}` is already paused")))
    );
    agent.finish(&work, 0).await;
    setup.run_until(&run, |run| run["counts"]["succeeded"] == 1).await;
    assert_eq!(agent.take_soon().await, []);
    // Other runs are not delayed by it.
    let other = setup.submit(&job("all", 1)).await;
    let work = agent.take().await;
    assert_eq!(work.of.run().to_string(), other);
    agent.finish(&work, 0).await;
    let resumed = setup.post(&resume, &json!({})).await;
    assert_eq!((resumed.status, &resumed.body["paused_at"]), (StatusCode::OK, &json!(null)));
    for _ in 0..2 {
        let work = agent.take().await;
        assert_eq!(work.of.run().to_string(), run);
        agent.finish(&work, 0).await;
    }
    assert_eq!(setup.ended(&run).await["state"], "completed");
    let answer = setup.post(&pause, &json!({})).await;
    assert_eq!(
        (answer.status, &answer.body["detail"]),
        (StatusCode::CONFLICT, &json!(format!("run `{run}` has ended: it is completed")))
    );
    let answer = setup.post("/runs/nowhere/pause", &json!({})).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    setup.server.stop().await;
}

#[tokio::test]
async fn what_waits_for_a_node_is_not_given_out_while_its_run_is_paused() {
    let setup = Setup::new().await;
    // No node polls yet: it waits.
    let mut agent = setup.agent("web-01", &["web"]).await;
    let run = setup.submit(&job("all", 1)).await;
    setup.post(&format!("/runs/{run}/pause"), &json!({})).await;
    assert_eq!(agent.take_soon().await, []);
    let executions = setup.ok(&format!("/runs/{run}/executions")).await;
    let id = executions["data"][0]["id"].as_str().unwrap();
    assert_eq!(setup.ok(&format!("/executions/{id}")).await["waiting"][0]["reason"], "the run is paused");
    setup.post(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!(setup.ended(&run).await["state"], "cancelled");
    let again = setup.submit(&job("all", 1)).await;
    setup.post(&format!("/runs/{again}/pause"), &json!({})).await;
    setup.post(&format!("/runs/{again}/resume"), &json!({})).await;
    assert_eq!(agent.take().await.of.run().to_string(), again);
    setup.server.stop().await;
}

#[tokio::test]
async fn a_run_that_was_paused_is_paused_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/downbeat.db", dir.path().display());
    let setup = Setup::on(&store).await;
    setup.agent("web-01", &["web"]).await;
    let run = setup.submit(&job("all", 1)).await;
    setup.post(&format!("/runs/{run}/pause"), &json!({})).await;
    setup.server.stop().await;
    let setup = Setup::on(&store).await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    assert_eq!(agent.take_soon().await, []);
    setup.post(&format!("/runs/{run}/resume"), &json!({})).await;
    assert_eq!(agent.take().await.of.run().to_string(), run);
    setup.server.stop().await;
}
