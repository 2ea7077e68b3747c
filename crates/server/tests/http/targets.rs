//! Messages about nodes that a run cannot use, and about names that do not exist.

use downbeat_core::ids::ClusterId;
use downbeat_testbed::DEADLINE;
use downbeat_testbed::in_process::{Setup, noop, settings};
use std::time::Duration;

use downbeat_core::Span;
use downbeat_server::Settings;
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Waits until a node has this status.
async fn until(setup: &Setup, hostname: &str, status: &str) {
    let path = format!("/nodes/{hostname}");
    let wait = async {
        while setup.ok(&path).await["status"] != status {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the node's status moves with its silence");
}

fn of(answer: &Value, list: &str) -> Vec<(String, String)> {
    let rows = answer[list].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, "node"), text(row, "reason"))).collect()
}

#[tokio::test]
async fn a_plan_and_a_run_name_the_nodes_that_are_left_out() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    setup.agent("web-02", &["web"]).await;
    setup.post("/nodes/web-02/drain", &json!(null)).await;
    let drained = [("web-02".to_owned(), "is drained".to_owned())];
    let plan = setup.post("/plan", &noop()).await.body;
    assert_eq!(of(&plan, "left_out"), drained);
    let run = setup.post("/runs", &noop()).await.body;
    let id = run["id"].as_str().unwrap();
    let drained_group = json!([{"reason": "is drained", "count": 1, "nodes": ["web-02"]}]);
    assert_eq!(run["left_out"], drained_group);
    assert_eq!(setup.targets(id).await, ["web-01"]);
    setup.post("/nodes/web-02/undrain", &json!(null)).await;
    let left_out = &setup.ok(&format!("/runs/{id}")).await["left_out"];
    assert_eq!(*left_out, drained_group, "as it was when the run was created");
    assert_eq!(of(&setup.ok(&format!("/runs/{id}/plan")).await, "left_out"), drained);
}

#[tokio::test]
async fn a_plan_and_a_run_name_the_nodes_that_are_silent() {
    let short = |milliseconds| Span(Duration::from_millis(milliseconds));
    let setup = Setup::with(Settings {
        heartbeat_interval: short(20),
        node_stale_after: short(60),
        node_offline_after: short(120),
        ..settings("memory:", "one")
    })
    .await;
    setup.agent("web-01", &["web"]).await;
    until(&setup, "web-01", "offline").await;
    let why = "is offline: its steps fail unless it is online when they start";
    let offline = [("web-01".to_owned(), why.to_owned())];
    assert_eq!(of(&setup.post("/plan", &noop()).await.body, "silent"), offline);
    let run = setup.post("/runs", &noop()).await.body;
    assert_eq!(run["silent"], json!([{"reason": why, "count": 1, "nodes": ["web-01"]}]));
    let ended = setup.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["silent"], Value::Null, "of a run that has ended nobody asks any more");
}

#[tokio::test]
async fn a_plan_notes_what_is_valid_and_probably_not_meant() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    let task = json!({"backend": "exec", "action": "run", "params": {"command": "ls | wc -l"}});
    let plan = setup.post("/plan", &json!({"target": "all", "tasks": [task]})).await.body;
    assert_eq!(
        plan["notes"],
        json!([
            "tasks[0].params.command: no shell reads `|` here, the program gets it as it is; `exec shell` runs a command in \
                a shell"
        ])
    );
    assert_eq!(setup.post("/plan", &noop()).await.body["notes"], Value::Null);
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_answered_with_the_one_that_was_meant() {
    let setup = Setup::new().await;
    assert_eq!(setup.get("/nodes/web-1").await.body["detail"], "there is no node `web-1`");
    setup.agent("web-01", &["web"]).await;
    setup.agent("db-01", &["db"]).await;
    for (path, expected) in [
        ("/nodes/web-1", "there is no node `web-1`; did you mean `web-01`? (nodes: db-01, web-01)"),
        ("/nodes/web-1/workers", "there is no node `web-1`; did you mean `web-01`? (nodes: db-01, web-01)"),
        ("/nodes/frontend", "there is no node `frontend`; nodes: db-01, web-01"),
        ("/clusters/defualt", "there is no cluster `defualt`; did you mean `default`? (clusters: default)"),
        ("/nodes/web-01?cluster=x", "there is no cluster `x`; clusters: default"),
    ] {
        let answer = setup.get(path).await;
        assert_eq!(
            (answer.status, answer.body["detail"].as_str()),
            (StatusCode::NOT_FOUND, Some(expected)),
            "{path}"
        );
    }
    let refused = setup.post("/runs?target=group:wbe", &noop()).await;
    assert_eq!(
        (refused.status, refused.body["detail"].as_str()),
        (
            StatusCode::CONFLICT,
            Some("no node is in group `wbe`; did you mean `web`? (groups: db, web); nothing was started")
        )
    );
}

#[tokio::test]
async fn the_cluster_of_a_request_is_for_a_definition_that_names_none() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    let mut named = noop();
    named["cluster"] = json!("default");
    for path in ["/plan?cluster=default", "/runs?cluster=default"] {
        assert!(setup.post(path, &noop()).await.status.is_success(), "{path}");
        assert!(setup.post(path, &named).await.status.is_success(), "{path}");
    }
    let by_id = format!("/plan?cluster={}", ClusterId::DEFAULT);
    let same = setup.post(&by_id, &named).await;
    assert_eq!(same.status, StatusCode::OK, "{}", same.body);
    for path in ["/plan?cluster=other", "/runs?cluster=other"] {
        let missing = setup.post(path, &noop()).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}: {}", missing.body);
        let both = setup.post(path, &named).await;
        assert_eq!(
            (both.status, both.body["detail"].as_str()),
            (
                StatusCode::BAD_REQUEST,
                Some(
                    "the job names cluster `default`, but the request names cluster `other`; remove one of them"
                )
            )
        );
    }
}
