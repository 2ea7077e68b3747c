//! Leases: acquired, held, renewed, and never given twice.

use downbeat_core::Timestamp;
use downbeat_testbed::eventually;
use downbeat_testbed::processes::is_alive;
use serde_json::{Value, json};

use super::{name_of, rows, site};
use crate::site::Site;

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_lease_is_acquired_with_the_work_and_ends_with_its_result() {
    let site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    let work = site.work_until("web-1", |work| work["held"][0]["status"] == "running").await;
    let held = &work["held"][0];
    assert_eq!((&held["run"], &held["task"], &held["attempt"]), (&json!(run), &json!("a"), &json!(1)));
    assert_eq!(work["slots"], json!({"total": 2, "free": 1}));
    let name = held["name"].as_str().unwrap();
    assert_eq!(site.have_begun(1).await, [name], "what runs has the lease's name");
    assert!(is_alive(site.pid_of(name)));
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let work = site.work("web-1").await;
    assert_eq!((&work["held"], &work["totals"]["succeeded"]), (&json!([]), &json!(1)));
    assert_eq!(site.figure(r#"downbeat_node_claims_total{cluster="default",node="web-1"}"#).await, 1);
}

#[tokio::test]
async fn what_one_node_holds_no_other_is_given() {
    let site = site(&["web-1", "web-2"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    site.have_begun(1).await;
    let executions = site.executions(&run).await;
    let holder = executions[0]["node"].as_str().unwrap();
    let other = if holder == "web-1" { "web-2" } else { "web-1" };
    // Both go on asking, over several renewals.
    let mut renewed = site.work(holder).await["held"][0]["expires_at"].clone();
    for _ in 0..3 {
        let work = site.work_until(holder, |work| work["held"][0]["expires_at"] != renewed).await;
        renewed = work["held"][0]["expires_at"].clone();
        assert_eq!(site.work(other).await["held"], json!([]));
    }
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    assert_eq!((site.executions(&run).await.len(), site.begun().len()), (1, 1));
    let claims = |node: &str| format!("downbeat_node_claims_total{{cluster=\"default\",node=\"{node}\"}}");
    assert_eq!((site.figure(&claims(holder)).await, site.figure(&claims(other)).await), (1, 0));
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_its_work_takes() {
    let site = Site::start(Site::build().lease_ttl("3s").agents(&["web-1", "web-2"])).await;
    let run = site.submit(&json!({"tasks": [site.gated("long", "gate")]}), "k").await;
    let begun = site.have_begun(1).await;
    let holder = site.executions(&run).await[0]["node"].as_str().unwrap().to_owned();
    // Without renewal it would have ended twice over.
    site.work_until(&holder, |work| {
        let held = &work["held"][0];
        let term = time(&held["expires_at"]).duration_since(time(&held["leased_at"]));
        term.as_secs() >= 9
    })
    .await;
    assert!(is_alive(site.pid_of(&begun[0])));
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    assert_eq!(rows(&site.executions(&run).await), [(0, 1, "succeeded", holder.as_str())]);
    assert_eq!(site.begun(), begun);
    assert_eq!(site.work(&holder).await["expired_leases"], 0);
}

#[tokio::test]
async fn a_retry_is_a_new_attempt_with_a_name_of_its_own_and_the_first_stays_as_it_was() {
    let site = site(&["web-1"]).await;
    let mut task = site.gated("a", "gate");
    let script = task["params"]["command"].as_str().unwrap();
    task["params"]["command"] = json!(format!("{script}; test ${{DOWNBEAT_EXECUTION##*.}} -ge 2"));
    task["retry"] = json!({"max": 1, "delay": "10ms"});
    site.open("gate");
    let definition = json!({"tasks": [task]});
    let run = site.submit(&definition, "k").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    assert_eq!(rows(&executions), [(0, 1, "failed", "web-1"), (0, 2, "succeeded", "web-1")]);
    assert_eq!(site.begun(), executions.iter().map(name_of).collect::<Vec<_>>(), "each once, in order");
    // The same submission is the same run, and nothing is done again.
    assert_eq!(site.submit(&definition, "k").await, run);
    assert_eq!(site.begun().len(), 2);
}

#[tokio::test]
async fn an_expired_lease_is_found_and_what_follows_has_the_next_attempt() {
    let site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    let begun = site.have_begun(1).await;
    site.agent("web-1").kill();
    // The next attempt is a commit of its own.
    let executions = eventually("the lease is found to have ended", || async {
        let executions = site.executions(&run).await;
        (executions.len() == 2).then_some(executions)
    })
    .await;
    let lost = &executions[0];
    assert_eq!((name_of(lost), &lost["error"]), (begun[0].clone(), &json!("the lease expired")));
    assert_eq!(site.figure(r#"downbeat_node_leases_expired_total{cluster="default",node="web-1"}"#).await, 1);
    assert_eq!(site.work("web-1").await["expired_leases"], 1);
    assert_eq!(rows(&executions), [(0, 1, "lost", "web-1"), (0, 2, "pending", "-")], "it waits for a node");
}
