//! Backfills: their calls, and what they start.

use downbeat_testbed::eventually;
use downbeat_testbed::in_process::Setup;
use reqwest::StatusCode;
use serde_json::{Value, json};

async fn hourly(setup: &Setup, task: Value) {
    let job = json!({"name": "report", "schedule": "@hourly", "tasks": [task]});
    assert_eq!(setup.post("/jobs", &job).await.status, StatusCode::CREATED);
}

fn range(to: &str) -> Value {
    json!({"from": "2026-01-01T00:00:00Z", "to": to})
}

#[tokio::test]
async fn a_backfill_runs_the_oldest_time_first_and_each_run_knows_its_time() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let message = json!({"message": "report of {{ run.scheduled_at }}"});
    hourly(&setup, json!({"backend": "test", "action": "echo", "params": message})).await;
    let mut body = range("2026-01-01T03:00:00Z");
    body["dry_run"] = json!(true);
    let planned = setup.post("/jobs/report/backfill", &body).await;
    assert_eq!(planned.status, StatusCode::OK, "{}", planned.body);
    let times = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"];
    assert_eq!(planned.body["planned"], json!(times));
    assert_eq!(setup.ok("/jobs/report/backfills").await["data"], json!([]));
    let started = setup.post("/jobs/report/backfill", &range("2026-01-01T03:00:00Z")).await;
    assert_eq!(started.status, StatusCode::CREATED, "{}", started.body);
    let id = started.body["id"].as_str().unwrap();
    assert_eq!(started.headers["location"], format!("/api/v1/backfills/{id}"));
    for (number, time) in times.iter().enumerate() {
        let work = agent.take().await;
        assert_eq!(work.params["message"], format!("report of {time}"));
        let shown = setup.ok(&format!("/backfills/{id}")).await;
        assert_eq!(shown["open"], json!([format!("default:report:{time}")]), "{shown}");
        assert_eq!((&shown["succeeded"], &shown["running"]), (&json!(number), &json!(1)), "{shown}");
        agent.finish(&work, 0).await;
    }
    let over = eventually("the backfill ends", || async {
        Some(setup.ok(&format!("/backfills/{id}")).await).filter(|backfill| !backfill["ended_at"].is_null())
    })
    .await;
    assert_eq!(
        (&over["status"], &over["succeeded"], &over["left"]),
        (&json!("completed"), &json!(3), &json!(0))
    );
    assert_eq!(setup.ok("/jobs/report/backfills").await["data"], json!([over]));
    // The same range again finds all runs.
    let again = setup.post("/jobs/report/backfill", &range("2026-01-01T03:00:00Z")).await.body;
    let again = eventually("the second one ends", || async {
        let path = format!("/backfills/{}", again["id"].as_str().unwrap());
        Some(setup.ok(&path).await).filter(|backfill| !backfill["ended_at"].is_null())
    })
    .await;
    assert_eq!((&again["status"], &again["existing"]), (&json!("completed"), &json!(3)));
}

#[tokio::test]
async fn a_backfill_is_cancelled_as_one() {
    let setup = Setup::new().await;
    hourly(&setup, json!({"approve": {}})).await;
    let mut body = range("2026-01-02T00:00:00Z");
    body["parallel"] = json!(4);
    let started = setup.post("/jobs/report/backfill", &body).await.body;
    let path = format!("/backfills/{}", started["id"].as_str().unwrap());
    eventually("four runs are open", || async { (setup.ok(&path).await["running"] == 4).then_some(()) })
        .await;
    let cancelled = setup.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, StatusCode::OK, "{}", cancelled.body);
    let over = eventually("the backfill ends", || async {
        Some(setup.ok(&path).await).filter(|backfill| backfill["status"] == "cancelled")
    })
    .await;
    assert_eq!((&over["cancelled"], &over["left"]), (&json!(4), &json!(20)), "{over}");
    let again = setup.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
}

#[tokio::test]
async fn a_backfill_that_is_not_possible_is_refused() {
    let setup = Setup::new().await;
    hourly(&setup, json!({"approve": {}})).await;
    let manual = json!({"name": "manual", "tasks": [{"approve": {}}]});
    assert_eq!(setup.post("/jobs", &manual).await.status, StatusCode::CREATED);
    for (path, body, status, expected) in [
        ("/jobs/report/backfill", range("2027-12-31T00:00:00Z"), 422, "`to` is in the future"),
        ("/jobs/manual/backfill", range("2026-01-02T00:00:00Z"), 422, "it has no schedule"),
        ("/jobs/nobody/backfill", range("2026-01-02T00:00:00Z"), 404, "there is no job `nobody`"),
        ("/jobs/report/backfill", json!({"from": "2026-01-01T00:00:00Z"}), 400, "missing field `to`"),
        ("/backfills/x/cancel", json!({}), 404, "there is no backfill `x`"),
    ] {
        let refused = setup.post(path, &body).await;
        assert_eq!(refused.status.as_u16(), status, "{path}: {}", refused.body);
        assert!(refused.body.to_string().contains(expected), "{path}: {}", refused.body);
    }
}
