//! Requests that change many runs or nodes at once.

use downbeat_testbed::in_process::{Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

fn named(name: &str) -> Value {
    let mut job = noop();
    job["name"] = json!(name);
    job
}

#[tokio::test]
async fn runs_are_cancelled_by_filter_and_counted_without_effect_by_a_dry_run() {
    let setup = Setup::new().await;
    let _agent = setup.agent("web-01", &[]).await;
    let ours = [setup.submit(&named("ours")).await, setup.submit(&named("ours")).await];
    let other = setup.submit(&named("other")).await;
    let cancel = async |body: Value| setup.post("/runs/cancel", &body).await;
    let counted = cancel(json!({"job": "ours", "dry_run": true})).await;
    assert_eq!(counted.status, StatusCode::OK);
    assert_eq!(counted.body, json!({"dry_run": true, "matched": 2, "changed": 0, "names": ours}));
    assert_eq!(setup.ok(&format!("/runs/{}", ours[0])).await["status"], "running");
    let done = cancel(json!({"job": "ours", "status": "pending,running"})).await.body;
    assert_eq!((&done["matched"], &done["changed"]), (&json!(2), &json!(2)));
    for run in &ours {
        setup
            .run_until(run, |run| run["cancel_requested_at"] != json!(null) || run["state"] == "cancelled")
            .await;
    }
    assert_eq!(setup.ok(&format!("/runs/{other}")).await["status"], "running");
    assert_eq!(cancel(json!({"ids": [ours[0]]})).await.body["matched"], 0, "once is enough");
    for (body, detail) in [
        (json!({}), "name the runs: `ids`, `status` or `job`"),
        (json!({"ids": vec!["x"; 1_001]}), "ids: 1001 are given; at most 1000 are allowed in one request"),
    ] {
        let answer = cancel(body).await;
        assert_eq!(
            (answer.status, &answer.body["detail"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(detail))
        );
    }
    assert_eq!(cancel(json!({"jobs": "ours"})).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn failed_runs_are_retried_by_filter_once_per_key() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let mut failed = Vec::new();
    for _ in 0..2 {
        failed.push(setup.submit(&named("ours")).await);
        let work = agent.take().await;
        agent.finish(&work, 1).await;
        setup.ended(failed.last().unwrap()).await;
    }
    let body = json!({"job": "ours", "status": "failed"});
    let retry =
        || send(setup.request(Method::POST, "/runs/retry").header("Idempotency-Key", "k").json(&body));
    let counted = setup.post("/runs/retry", &json!({"job": "ours", "dry_run": true})).await.body;
    assert_eq!(counted, json!({"dry_run": true, "matched": 2, "changed": 0, "names": failed}));
    for round in 0..3 {
        let done = retry().await;
        assert_eq!((done.status, &done.body["changed"]), (StatusCode::OK, &json!(2)), "{}", done.body);
        assert_eq!(done.body["names"], json!(failed));
        let runs = setup.ok("/runs").await["data"].as_array().unwrap().clone();
        assert_eq!(runs.len(), 4);
        // The new runs fail as well: the request does not retry them when it is sent once more.
        if round == 1 {
            for _ in 0..2 {
                let work = agent.take().await;
                agent.finish(&work, 1).await;
            }
            for run in &runs[..2] {
                setup.ended(run["id"].as_str().unwrap()).await;
            }
        }
    }
    assert_eq!(setup.post("/runs/retry", &json!({"status": "completed"})).await.body["matched"], 0);
}

#[tokio::test]
async fn ids_without_a_run_are_refused_by_name_and_the_other_runs_are_changed() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let failed = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 1).await;
    setup.ended(&failed).await;
    let open = setup.submit(&noop()).await;
    for (path, matched) in [("/runs/retry", &failed), ("/runs/cancel", &open)] {
        for dry_run in [true, false] {
            let body = json!({"ids": ["typo", open, failed], "dry_run": dry_run});
            let answer = setup.post(path, &body).await;
            assert!(answer.status.is_success(), "{path}: {}", answer.body);
            let expected = json!({
                "dry_run": dry_run, "matched": 1, "changed": u8::from(!dry_run), "names": [matched],
                "refused": [{"name": "typo", "reason": "there is no run `typo`"}],
            });
            assert_eq!(answer.body, expected, "{path}");
        }
    }
}

#[tokio::test]
async fn nodes_are_drained_by_selector() {
    let setup = Setup::new().await;
    let _agents = [setup.agent("web-01", &["web"]).await, setup.agent("db-01", &["db"]).await];
    let draining = async || {
        let nodes = setup.ok("/nodes").await;
        let nodes = nodes["data"].as_array().unwrap().iter();
        nodes.filter(|node| node["draining"] == true).map(|node| node["hostname"].clone()).collect::<Vec<_>>()
    };
    let web = json!({"selector": "group:web"});
    let counted = setup.post("/nodes/drain", &json!({"selector": "group:web", "dry_run": true})).await.body;
    assert_eq!(counted, json!({"dry_run": true, "matched": 1, "changed": 0, "names": ["web-01"]}));
    assert_eq!(draining().await, [json!(null); 0]);
    assert_eq!(setup.post("/nodes/drain", &web).await.body["changed"], 1);
    assert_eq!(draining().await, ["web-01"]);
    assert_eq!(setup.post("/nodes/drain", &web).await.body["matched"], 0);
    assert_eq!(setup.post("/nodes/undrain", &json!({"nodes": ["web-01", "db-01"]})).await.body["changed"], 1);
    assert_eq!(draining().await, [json!(null); 0]);
    let answer = setup.post("/nodes/drain", &json!({"selector": "group:"})).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer.body["detail"].as_str().unwrap().starts_with("selector: "), "{}", answer.body);
}

#[tokio::test]
async fn failures_of_a_run_are_grouped_by_like_error() {
    let setup = Setup::new().await;
    let mut agents = Vec::new();
    for (number, line) in [(1, "order 17 is duplicated"), (2, "order 4021 is duplicated"), (3, "disk full")] {
        agents.push((setup.agent(&format!("web-0{number}"), &["web"]).await, line));
    }
    let id = setup.submit(&json!({"target": "all", "tasks": [{"backend": "test", "action": "noop"}]})).await;
    for (agent, line) in &mut agents {
        let work = agent.take().await;
        agent.finish_with_stderr(&work, 1, line).await;
    }
    setup.ended(&id).await;
    let failures = setup.ok(&format!("/runs/{id}/failures")).await;
    assert_eq!((&failures["failed"], &failures["has_more"]), (&json!(3), &json!(false)));
    let groups = failures["groups"].as_array().unwrap();
    let shown: Vec<_> =
        groups.iter().map(|group| (&group["text"], &group["count"], &group["nodes"])).collect();
    assert_eq!(
        shown,
        [
            (&json!("order … is duplicated"), &json!(2), &json!(["web-01", "web-02"])),
            (&json!("disk full"), &json!(1), &json!(["web-03"])),
        ]
    );
    assert_eq!(groups[0]["stderr"], "order 17 is duplicated");
}
