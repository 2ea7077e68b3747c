//! Runs of containers when nothing goes wrong, and their early end.

use downbeat_testbed::{eventually, example};
use serde_json::json;

use crate::engine::{IMAGE, Yard};

#[tokio::test]
async fn a_container_runs_once_and_is_removed() {
    let yard = Yard::with_agents(&["web-1"]).await;
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.task()]}), "k").await;
    let names = yard.begun(1).await;
    yard.runs("web-1", &names).await;
    yard.go();
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(yard.containers("web-1"), []);
    let id = yard.executions(&run).await[0]["id"].as_str().unwrap().to_owned();
    let output = yard.get(&format!("executions/{id}/output")).await.unwrap();
    assert!(output.to_string().contains("done"), "{output}");
    assert_eq!(yard.book().len(), 1);
}

#[tokio::test]
async fn a_container_that_lasts_for_several_terms_of_its_lease_keeps_it() {
    let yard = Yard::with_agents(&["web-1", "web-2"]).await;
    // The lease lasts two seconds.
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.script("sleep 7")]}), "k").await;
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let attempts = yard.attempts(&run).await;
    assert_eq!((attempts.len(), attempts[0].0, attempts[0].2.as_str()), (1, 1, "succeeded"), "{attempts:?}");
    assert_eq!(yard.book().len(), 1);
}

#[tokio::test]
async fn cancel_and_timeout_stop_and_remove_the_container() {
    let yard = Yard::with_agents(&["web-1"]).await;
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.task()]}), "cancelled").await;
    yard.begun(1).await;
    let (status, answer) = yard.post(&format!("runs/{run}/cancel"), &json!({}), None).await.unwrap();
    assert!(status < 300, "{answer}");
    assert_eq!(yard.ended(&run).await["status"], "cancelled");
    yard.none_left("web-1").await;

    let mut task = yard.task();
    task["timeout"] = json!("1s");
    let run = yard.submit(&json!({"placement": {}, "tasks": [task]}), "timed out").await;
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    let executions = yard.executions(&run).await;
    assert_eq!(executions[0]["error"], "timed out after 1s", "{executions:#?}");
    // The result is reported after the container was stopped, not before.
    assert_eq!(yard.containers("web-1"), []);
}

#[tokio::test]
async fn the_example_passes_a_value_from_container_to_container() {
    let yard = Yard::with_agents(&["web-1"]).await;
    let run = yard.server.run(&[
        "job",
        "run",
        "-f",
        &example("container.yaml"),
        "--param",
        &format!("image={IMAGE}"),
        "--wait",
        "-o",
        "json",
    ]);
    let run = run.json();
    let executions = yard.executions(run["id"].as_str().unwrap()).await;
    let last = executions.iter().find(|execution| execution["step"] == 1).unwrap();
    let path = format!("executions/{}/output", last["id"].as_str().unwrap());
    let output = eventually("its output is there", || yard.get(&path)).await;
    assert!(output.to_string().contains("3 words were counted"), "{output}");
}

#[tokio::test]
async fn an_agent_whose_engine_is_away_starts_and_says_what_is_wrong() {
    let mut yard = Yard::with_agents(&[]).await;
    let nowhere = yard.directory.path().join("nowhere.sock");
    yard.start_agent_at("web-1", nowhere.to_str().unwrap());
    yard.nodes_online(1).await;
    let run = yard.submit(&json!({"target": "all", "tasks": [yard.task()]}), "k").await;
    assert_eq!(yard.ended(&run).await["status"], "failed");
    let executions = yard.executions(&run).await;
    let error = executions[0]["error"].as_str().unwrap();
    assert!(error.contains("nowhere.sock (the socket does not exist)"), "{error}");
}
