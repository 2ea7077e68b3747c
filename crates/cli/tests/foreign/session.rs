//! A whole session: from hello to the result of a task.

use downbeat_testbed::{Site, eventually};
use serde_json::{Value, json};

use crate::client::{Client, SESSION};

#[tokio::test]
async fn a_foreign_agent_takes_a_task_of_a_fleet_and_delivers_its_result() {
    let site = Site::build().lease_ttl("60s").start().await;
    let mut client = Client::connect(site.server.grpc());
    let node = client.registered("web-01");
    let named = |more: Value| {
        let mut request = json!({"node_id": node.id, "session_id": SESSION});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    assert_eq!(client.ok("Heartbeat", &named(json!({}))), json!({}));
    site.nodes_online(1).await;

    let task = json!({"name": "hi", "backend": "foreign", "action": "greet", "params": {"who": "Zoë"}});
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    let poll = named(json!({"free": {"fleet": 1, "placed": 1}, "poll": "1", "wait_ms": "60000"}));
    let work = client.ok("Poll", &poll)["assignments"][0].clone();
    assert_eq!((&work["backend"], &work["action"]), (&json!("foreign"), &json!("greet")), "{work}");
    assert_eq!((&work["run_id"], &work["placed"]), (&json!(run), &Value::Null), "{work}");
    let params: Value = serde_json::from_str(work["params_json"].as_str().unwrap()).unwrap();
    assert_eq!(params, json!({"who": "Zoë"}));

    let (execution, token) = (&work["execution_id"], &work["token"]);
    let held = json!([{"execution_id": execution, "token": token}]);
    let started = json!({"execution_id": execution, "token": token, "run_id": run, "at_us": "1"});
    let response = client.ok("Report", &named(json!({"started": [started]})));
    assert_eq!(response["receipts"], json!(["RECEIPT_RECORDED"]));
    assert_eq!(client.ok("Heartbeat", &named(json!({"held": held}))), json!({}), "the lease is current");

    let chunk = |offset: &str, text: &str| json!({"execution_id": execution, "offset": offset, "text": text, "at_us": "1"});
    client.ok("Output", &named(json!({"chunks": [chunk("0", "hello ")], "held": held})));
    let finished = json!({"execution_id": execution, "token": token, "run_id": run, "verdict": "VERDICT_SUCCEEDED",
                          "exit_code": 0, "started_at_us": "1", "finished_at_us": "2", "output": [chunk("6", "Zoë\n")]});
    for _ in 0..2 {
        let response = client.ok("Report", &named(json!({"finished": [finished]})));
        assert_eq!(
            response["receipts"],
            json!(["RECEIPT_RECORDED"]),
            "a repeated report has the same receipt"
        );
    }
    assert_eq!(site.ended(&run).await["status"], "completed");
    let id = site.executions(&run).await[0]["id"].as_str().unwrap().to_owned();
    let path = format!("executions/{id}/output");
    let output = eventually("output is shown", || site.get(&path)).await;
    assert_eq!(output["text"], "hello Zoë\n");

    let wrong =
        json!({"execution_id": execution, "token": SESSION, "run_id": run, "verdict": "VERDICT_FAILED"});
    let response = client.ok("Report", &named(json!({"finished": [wrong]})));
    assert_eq!(response["receipts"], json!(["RECEIPT_REFUSED"]), "a token that is not current");
    client.ok("Heartbeat", &named(json!({"leaving": true})));
    eventually("the node has left", || async {
        (site.get("nodes/web-01").await?["status"] == "stale").then_some(())
    })
    .await;
}
