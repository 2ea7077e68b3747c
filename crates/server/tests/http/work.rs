//! The work of a node, and its counts.

use downbeat_core::Span;
use downbeat_core::ids::NodeId;
use downbeat_server::Settings;
use downbeat_testbed::DEADLINE;
use downbeat_testbed::in_process::{Setup, noop, settings};
use serde_json::{Value, json};

fn placed() -> Value {
    json!({"name": "placed", "tasks": [{"name": "only", "backend": "test", "action": "noop"}]})
}

/// Waits until the work of a node satisfies a condition.
async fn work_until(setup: &Setup, node: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/nodes/{node}/workers");
    let wait = async {
        loop {
            let work = setup.ok(&path).await;
            if wanted(&work) {
                return work;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(work) => work,
        Err(_) => panic!("never as wanted: {}", setup.ok(&path).await),
    }
}

#[tokio::test]
async fn a_node_shows_what_it_holds_and_has_done() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let idle = setup.ok("/nodes/web-01/workers").await;
    assert_eq!(idle["id"], json!(agent.node));
    assert_eq!((&idle["held"], &idle["slots"]), (&json!([]), &json!({"total": 2, "free": 2})));
    assert_eq!((&idle["claimed_at"], &idle["finished_at"]), (&Value::Null, &Value::Null));
    assert_eq!(idle["active_at"], idle["heartbeat_at"]);
    assert_eq!(idle["totals"].as_object().unwrap().len(), 8, "every status is there");

    let run = setup.submit(&placed()).await;
    let work = agent.take().await;
    let leased = setup.ok("/nodes/web-01/workers").await;
    let held = &leased["held"][0];
    assert_eq!(held["execution"], json!(work.execution));
    assert_eq!((&held["run"], &held["job"]), (&json!(run), &json!("placed")));
    assert_eq!((&held["step"], &held["task"], &held["attempt"]), (&json!(0), &json!("only"), &json!(1)));
    assert_eq!(
        (&held["status"], &held["placed"], &held["stopping"]),
        (&json!("leased"), &json!(true), &json!(false))
    );
    assert_eq!(held["name"], format!("{}.1", work.execution));
    assert_eq!((&held["leased_at"], &held["started_at"]), (&leased["claimed_at"], &Value::Null));
    assert_eq!(leased["slots"], json!({"total": 2, "free": 1}));
    assert_eq!((&leased["totals"]["leased"], &leased["expired_leases"]), (&json!(1), &json!(0)));
    // The lease's time starts with its grant, or with a later heartbeat.
    let time = |value: &Value| value.as_str().unwrap().parse::<downbeat_core::Timestamp>().unwrap();
    let term = time(&held["expires_at"]).duration_since(time(&held["leased_at"]));
    assert!(term.as_secs() >= 30, "{held}");
    let left: Span = held["expires_in"].as_str().unwrap().parse().unwrap();
    assert!(!left.is_zero() && left <= Span::from_secs(30), "{held}");

    agent.start(&work).await;
    let running = setup.ok("/nodes/web-01/workers").await;
    assert_eq!(running["held"][0]["status"], "running");
    assert!(running["held"][0]["started_at"].is_string());
    agent.finish(&work, 0).await;
    setup.ended(&run).await;
    let done = setup.ok(&format!("/nodes/{}/workers", agent.node)).await;
    assert_eq!((&done["held"], &done["slots"]["free"]), (&json!([]), &json!(2)));
    assert_eq!((&done["totals"]["succeeded"], &done["totals"]["leased"]), (&json!(1), &json!(0)));
    assert!(done["finished_at"].is_string());
}

#[tokio::test]
async fn pinned_work_takes_no_slot_and_a_cancel_shows() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.start(&work).await;
    let shown = setup.ok("/nodes/web-01/workers").await;
    assert_eq!((&shown["held"][0]["placed"], &shown["slots"]["free"]), (&json!(false), &json!(2)));
    setup.post(&format!("/runs/{run}/cancel"), &json!(null)).await;
    work_until(&setup, "web-01", |shown| shown["held"][0]["stopping"] == true).await;
}

#[tokio::test]
async fn an_unknown_node_has_no_work() {
    let setup = Setup::new().await;
    assert_eq!(setup.get("/nodes/web-77/workers").await.status, 404);
    assert_eq!(setup.get("/nodes/web-77/workers?all=1").await.status, 400);
}

async fn figure(setup: &Setup, name: &str) -> u64 {
    let (_, text) = setup.root("/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no `{name}` in\n{text}")).parse().unwrap()
}

#[tokio::test]
async fn claims_are_counted_per_node() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    setup.agent("web-02", &[]).await;
    assert_eq!(
        figure(&setup, r#"downbeat_node_claims_total{cluster="default",node="web-01"}"#).await,
        0,
        "from the start"
    );
    let to = |node: &str| json!({"tasks": vec![json!({"backend": "test", "action": "noop"}); 3], "target": format!("node:{node}")});
    let run = setup.submit(&to("web-01")).await;
    for _ in 0..3 {
        let work = agent.take().await;
        agent.finish(&work, 0).await;
    }
    setup.ended(&run).await;
    assert_eq!(figure(&setup, r#"downbeat_node_claims_total{cluster="default",node="web-01"}"#).await, 3);
    assert_eq!(figure(&setup, r#"downbeat_node_claims_total{cluster="default",node="web-02"}"#).await, 0);
    assert_eq!(
        figure(&setup, r#"downbeat_node_claim_contention_total{cluster="default",node="web-01"}"#).await,
        0
    );
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_is_counted_and_shown_as_expired() {
    let quick = Settings {
        heartbeat_interval: Span::from_millis(500),
        node_stale_after: Span::from_secs(2),
        node_offline_after: Span::from_secs(600),
        lease_ttl: Span::from_secs(3),
        ..settings("memory:", "one")
    };
    let setup = Setup::with(quick).await;
    let mut silent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&placed()).await;
    let work = silent.take().await;
    // Its agent sends no heartbeats. Another node takes over its work.
    let lost = work_until(&setup, "web-01", |work| work["expired_leases"] == 1).await;
    assert_eq!((&lost["held"], &lost["totals"]["lost"]), (&json!([]), &json!(1)));
    assert_eq!(lost["id"], json!(NodeId::derive(downbeat_core::ids::ClusterId::DEFAULT, "web-01")));
    let mut other = setup.agent("web-02", &[]).await;
    let again = other.take().await;
    assert_eq!((again.attempt, again.of.run(), again.of.step()), (2, work.of.run(), work.of.step()));
    assert_ne!((again.execution, again.token), (work.execution, work.token));
    other.finish(&again, 0).await;
    assert_eq!(setup.ended(&run).await["status"], "completed");
    assert_eq!(
        figure(&setup, r#"downbeat_node_leases_expired_total{cluster="default",node="web-01"}"#).await,
        1
    );
    assert_eq!(
        figure(&setup, r#"downbeat_node_leases_expired_total{cluster="default",node="web-02"}"#).await,
        0
    );
}
