//! Params, pauses, and retries of runs.

use downbeat_testbed::in_process::{Agent, Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

fn task(name: &str) -> Value {
    json!({"name": name, "backend": "test", "action": "noop"})
}

/// Two steps, each on every node.
fn two_steps() -> Value {
    json!({"name": "deploy", "target": "all", "strategy": "continue", "tasks": [task("first"), task("second")]})
}

/// Finishes the next execution. Returns its run and step.
async fn work(agent: &mut Agent, exit_code: i32) -> (String, u32) {
    let work = agent.take().await;
    agent.finish(&work, exit_code).await;
    (work.of.run().to_string(), work.of.step())
}

/// Creates a run that failed in its second step on web-02: both nodes finished the first step, and web-01
/// the second too.
async fn failed(setup: &Setup, one: &mut Agent, two: &mut Agent) -> String {
    let id = setup.submit(&two_steps()).await;
    let first = one.take().await;
    one.finish_with(&first, 0, Some((0, "said before\n"))).await;
    work(two, 0).await;
    work(one, 0).await;
    work(two, 7).await;
    assert_eq!(setup.ended(&id).await["status"], "failed");
    id
}

fn id(run: &Value) -> String {
    run["id"].as_str().expect("a run has an id").to_owned()
}

#[tokio::test]
async fn a_run_that_is_tried_again_does_only_what_did_not_succeed() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let first = failed(&setup, &mut one, &mut two).await;
    let answer = setup.post(&format!("/runs/{first}/retry"), &json!({})).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let second = id(&answer.body);
    assert_eq!(answer.headers["location"], format!("/api/v1/runs/{second}"));
    assert_eq!((&answer.body["retry_of"], &answer.body["nodes"]), (&json!(first), &json!(2)));
    let (former, again) = (setup.whole_run(&first).await, setup.whole_run(&second).await);
    for (step, node) in [("0", "web-01"), ("0", "web-02"), ("1", "web-01")] {
        let (own, former) = (&again["results"][step][node], &former["results"][step][node]);
        assert_eq!(
            (&own["status"], &own["reused"]),
            (&json!("succeeded"), &former["execution"]),
            "{step} {node}"
        );
        assert_eq!((&own["duration"], &own["exit_code"]), (&json!("1us"), &json!(0)));
    }
    let taken = again["results"]["0"]["web-01"]["execution"].as_str().unwrap();
    assert_eq!(setup.ok(&format!("/executions/{taken}/output")).await["text"], "said before\n");
    assert_eq!(work(&mut two, 0).await, (second.clone(), 1));
    let run = setup.ended(&second).await;
    assert_eq!((&run["status"], &run["counts"]["succeeded"]), (&json!("completed"), &json!(4)), "{run}");
    assert_eq!(run["results"]["1"]["web-02"].get("reused"), None);
    assert_eq!(one.take_soon().await, [], "web-01 had nothing to do");

    let again = setup.post(&format!("/runs/{second}/retry"), &json!({})).await;
    assert_eq!((again.status, &again.body["code"]), (StatusCode::CONFLICT, &json!("conflict")));
    assert!(again.body["detail"].as_str().unwrap().contains("nothing failed in it"), "{}", again.body);
}

#[tokio::test]
async fn a_job_with_retry_does_everything_again_after_a_failure() {
    let setup = Setup::new().await;
    let mut one = setup.agent("web-01", &[]).await;
    let mut job = two_steps();
    job["retry"] = json!({"max": 1, "delay": "10ms", "max_delay": "10ms"});
    let run = setup.submit(&job).await;
    assert_eq!(setup.ok(&format!("/runs/{run}")).await["round"], json!({"number": 1, "most": 2}));
    assert_eq!(work(&mut one, 0).await, (run.clone(), 0));
    assert_eq!(work(&mut one, 7).await, (run.clone(), 1));
    // The second round begins with the first step.
    let again = one.take().await;
    assert_eq!((again.of.run().as_str(), again.of.step()), (run.as_str(), 0));
    let shown = setup.whole_run(&run).await;
    assert_eq!((&shown["state"], &shown["round"]), (&json!("running"), &json!({"number": 2, "most": 2})));
    assert_eq!(
        (&shown["counts"]["succeeded"], &shown["counts"]["failed"]),
        (&json!(0), &json!(0)),
        "{shown}"
    );
    assert_eq!(shown["results"].get("1"), None, "{shown}");
    one.finish(&again, 0).await;
    assert_eq!(work(&mut one, 0).await, (run.clone(), 1));
    let ended = setup.ended(&run).await;
    assert_eq!(
        (&ended["status"], &ended["counts"]["succeeded"]),
        (&json!("completed"), &json!(2)),
        "{ended}"
    );
    assert_eq!(setup.ok(&format!("/runs/{run}")).await["metrics"]["attempts"], 2);
    let all = setup.ok(&format!("/runs/{run}/executions")).await;
    let rounds = all["data"].as_array().unwrap().iter().map(|each| each["round"].as_u64().unwrap_or(1));
    let mut rounds: Vec<u64> = rounds.collect();
    rounds.sort_unstable();
    assert_eq!(rounds, [1, 1, 2, 2]);
}

#[tokio::test]
async fn a_run_that_waits_for_its_next_round_says_when_it_begins_and_can_be_cancelled() {
    let setup = Setup::new().await;
    let mut one = setup.agent("web-01", &[]).await;
    let mut job = two_steps();
    job["retry"] = json!({"max": 3, "delay": "24h", "max_delay": "24h"});
    let run = setup.submit(&job).await;
    work(&mut one, 7).await;
    let path = format!("/runs/{run}");
    downbeat_testbed::eventually("the round ends", || async {
        (setup.ok(&path).await["state"] == "retrying").then_some(())
    })
    .await;
    let shown = setup.ok(&path).await;
    assert_eq!((&shown["status"], &shown["round"]["number"]), (&json!("pending"), &json!(1)), "{shown}");
    assert!(shown["round"]["next_at"].is_string(), "{shown}");
    let events = setup.ok(&format!("/runs/{run}/events")).await;
    let text = events.to_string();
    assert!(text.contains("run is retrying: ") && text.contains("; round 2 of 4 begins in "), "{text}");
    setup.post(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!(setup.ended(&run).await["state"], "cancelled");
}

#[tokio::test]
async fn the_failed_nodes_alone_are_a_run_of_their_own() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let first = failed(&setup, &mut one, &mut two).await;
    let answer = setup.post(&format!("/runs/{first}/retry"), &json!({"failed_only": true})).await;
    let second = id(&answer.body);
    assert_eq!(setup.targets(&second).await, ["web-02"]);
    assert_eq!(work(&mut two, 7).await, (second.clone(), 1));
    let run = setup.ended(&second).await;
    assert_eq!((&run["status"], &run["counts"]["succeeded"]), (&json!("failed"), &json!(1)), "{run}");
    // A result that was reused twice refers to the original execution.
    let original = setup.whole_run(&first).await["results"]["0"]["web-02"]["execution"].clone();
    let third = setup.post(&format!("/runs/{second}/retry"), &json!(null)).await;
    let third = setup.whole_run(&id(&third.body)).await;
    assert_eq!(third["results"]["0"]["web-02"]["reused"], original);
}

#[tokio::test]
async fn what_a_remedy_may_have_undone_is_done_again() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let mut undo = task("undo");
    undo["condition"] = json!("on_failure");
    let first =
        setup.submit(&json!({"target": "all", "tasks": [task("install"), task("start"), undo]})).await;
    for (well, ill) in [(0, 0), (0, 7), (0, 0)] {
        work(&mut one, well).await;
        work(&mut two, ill).await;
    }
    assert_eq!(setup.ended(&first).await["status"], "failed");
    let second = id(&setup.post(&format!("/runs/{first}/retry"), &json!({})).await.body);
    assert_eq!(
        (work(&mut one, 0).await, work(&mut two, 0).await),
        ((second.clone(), 0), (second.clone(), 0))
    );
    assert_eq!(
        (work(&mut one, 0).await, work(&mut two, 0).await),
        ((second.clone(), 1), (second.clone(), 1))
    );
    assert_eq!(setup.ended(&second).await["status"], "completed");
}

#[tokio::test]
async fn what_cannot_be_tried_again_says_why() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let retry = |id: String, body: Value| {
        let request = setup.request(Method::POST, &format!("/runs/{id}/retry")).json(&body);
        async move { send(request).await }
    };
    let missing = retry("nowhere".to_owned(), json!({})).await;
    assert_eq!((missing.status, &missing.body["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    let open = setup.submit(&noop()).await;
    let refused = retry(open.clone(), json!({})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(
        refused.body["detail"].as_str().unwrap().contains("has not ended: it is running"),
        "{}",
        refused.body
    );
    work(&mut one, 0).await;
    work(&mut two, 0).await;
    setup.ended(&open).await;

    let first = failed(&setup, &mut one, &mut two).await;
    for body in [json!({"only": true}), json!([]), json!([true]), json!(true), json!("all")] {
        let wrong = retry(first.clone(), body.clone()).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(wrong.body["code"], "malformed", "{body}");
    }
    setup.post("/nodes/web-02/drain", &json!(null)).await;
    let drained = retry(first.clone(), json!({})).await;
    assert_eq!((drained.status, &drained.body["code"]), (StatusCode::CONFLICT, &json!("refused")));
    assert_eq!(drained.body["nodes"], json!([{"node": "web-02", "reason": "is drained"}]));
    assert_eq!(setup.ok("/runs").await["pagination"]["total"], 2, "nothing was started");
}

#[tokio::test]
async fn asking_twice_with_one_key_tries_again_once() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let first = failed(&setup, &mut one, &mut two).await;
    let retry = || {
        let request = setup.request(Method::POST, &format!("/runs/{first}/retry"));
        send(request.header("Idempotency-Key", "again"))
    };
    let created = retry().await;
    // The key is looked up before the plan is made, which would be refused here.
    setup.post("/nodes/web-02/drain", &json!(null)).await;
    let same = retry().await;
    assert_eq!((created.status, same.status), (StatusCode::CREATED, StatusCode::OK));
    assert_eq!(created.body["id"], same.body["id"]);
    assert_eq!(same.body["steps"][0]["counts"], json!({"succeeded": 2}));
}

#[tokio::test]
async fn carried_over_executions_do_not_count_as_work() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let first = failed(&setup, &mut one, &mut two).await;
    let succeeded = |text: &str| {
        let line = text.lines().find(|line| line.contains("executions_total") && line.contains("succeeded"));
        line.expect("it is counted").rsplit(' ').next().unwrap().to_owned()
    };
    let before = succeeded(&setup.root("/metrics").await.1);
    let answer = setup.post(&format!("/runs/{first}/retry"), &json!({})).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(succeeded(&setup.root("/metrics").await.1), before);
}

#[tokio::test]
async fn a_paused_run_begins_nothing_more_until_it_is_resumed() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&two_steps()).await;
    let first = agent.take().await;
    let post = |what: &str| send(setup.request(Method::POST, &format!("/runs/{id}/{what}")));
    let paused = post("pause").await;
    assert_eq!((paused.status, &paused.body["paused"]), (StatusCode::OK, &json!(true)), "{}", paused.body);
    assert!(paused.body["paused_at"].is_string());
    let again = post("pause").await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert!(again.body["detail"].as_str().unwrap().ends_with("is already paused"), "{}", again.body);
    agent.finish(&first, 0).await;
    let run = setup.run_until(&id, |run| run["counts"]["succeeded"] == 1).await;
    assert_eq!((&run["status"], &run["paused"]), (&json!("running"), &json!(true)));
    assert_eq!(agent.take_soon().await, []);
    assert_eq!(setup.ok("/runs").await["data"][0]["paused"], true);
    let resumed = post("resume").await;
    assert_eq!(
        (resumed.status, &resumed.body["paused"]),
        (StatusCode::OK, &json!(false)),
        "{}",
        resumed.body
    );
    assert_eq!(work(&mut agent, 0).await, (id.clone(), 1));
    assert_eq!(setup.ended(&id).await["status"], "completed");
    let late = post("resume").await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(late.body["detail"].as_str().unwrap().ends_with("has ended: it is completed"), "{}", late.body);
    assert_eq!(send(setup.request(Method::POST, "/runs/nowhere/pause")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_definition_comes_alone_or_beside_its_params() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let text = "target: all\ntasks:\n  - backend: test\n    action: noop\n";
    for definition in [noop(), json!(text)] {
        for path in ["/plan", "/validate"] {
            let answer = setup.post(path, &json!({"definition": definition, "params": {}})).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        }
        let answer = setup.post("/runs", &json!({"definition": definition})).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
    let unknown = json!({"definition": noop(), "params": {"version": "1"}});
    for path in ["/plan", "/validate", "/runs"] {
        let answer = setup.post(path, &unknown).await;
        assert_eq!((answer.status.as_u16(), &answer.body["code"]), (422, &json!("invalid_params")), "{path}");
        assert_eq!(answer.body["errors"][0]["path"], "params.version", "{}", answer.body);
    }
    for (body, path, word) in [
        (json!({"definition": noop(), "parms": {}}), "parms", "did you mean `params`?"),
        (json!({"definition": noop(), "params": [1]}), "params", "must be an object"),
        (json!({"definition": {"tasks": []}}), "tasks", ""),
    ] {
        let answer = setup.post("/runs", &body).await;
        assert_eq!(answer.status.as_u16(), 422, "{}", answer.body);
        let error = &answer.body["errors"][0];
        assert_eq!(error["path"], path, "{}", answer.body);
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
    // The parser of the text reports lines.
    let answer =
        setup.post("/runs", &json!({"definition": "target: all\ntasks:\n  - backend: nope\n"})).await;
    assert_eq!(answer.body["errors"][0]["line"], 3, "{}", answer.body);
}
