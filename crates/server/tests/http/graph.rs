//! Graphs as they are shown: plans, items, cached results, and retries from a task on.

use downbeat_testbed::in_process::{Agent, Setup};
use reqwest::StatusCode;
use serde_json::{Value, json};

fn task(name: &str, more: &Value) -> Value {
    let mut task = json!({"name": name, "backend": "test", "action": "noop"});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

/// Three items, two at once, then a join.
fn fan_out() -> Value {
    json!({"name": "fan", "max_parallel": 5, "strategy": "continue", "limits": {"db": 4}, "tasks": [
        task("shard", &json!({"for_each": {"items": ["a", "b", "c"], "max_parallel": 2}, "limits": {"{{ item }}": "9/1m"}})),
        task("join", &json!({"depends_on": ["shard"], "cache": {"max_age": "1h"}, "placement_timeout": "5m"})),
    ]})
}

async fn work(agent: &mut Agent, exit_code: i32) {
    let work = agent.take().await;
    agent.finish(&work, exit_code).await;
}

#[tokio::test]
async fn a_plan_says_how_often_how_much_at_once_and_what_may_be_reused() {
    let setup = Setup::new().await;
    let plan = setup.post("/plan", &fan_out()).await.body;
    assert_eq!((&plan["shape"], &plan["max_parallel"]), (&json!("graph"), &json!(5)));
    let (shard, join) = (&plan["steps"][0], &plan["steps"][1]);
    assert_eq!(shard["for_each"], json!({"items": ["a", "b", "c"], "max_parallel": 2}));
    assert_eq!(shard["limits"], json!({"db": 4, "{{ item }}": "9/1m"}));
    assert_eq!((&join["cache"], &join["placement_timeout"]), (&json!({"max_age": "1h"}), &json!("5m")));
    assert_eq!((join.get("for_each"), &join["entry"]), (None, &json!(1)));
}

#[tokio::test]
async fn items_are_shown_by_their_number_and_listed_by_it() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&fan_out()).await;
    for exit_code in [0, 7, 0] {
        work(&mut agent, exit_code).await;
    }
    let run = setup.ended(&id).await;
    assert_eq!((&run["status"], &run["partial"]), (&json!("failed"), &json!(true)), "{run}");
    let shards = run["results"]["0"].as_object().unwrap();
    assert_eq!(shards.keys().collect::<Vec<_>>(), ["[0]", "[1]", "[2]"]);
    let failed = &shards["[1]"];
    assert_eq!(
        (&failed["item"], &failed["node"], &failed["exit_code"]),
        (&json!(1), &json!("web-01"), &json!(7))
    );
    let join = &run["results"]["1"]["-"];
    assert_eq!(join["status"], "skipped");
    assert!(join["reason"].as_str().unwrap().contains("shard"), "{join}");
    let counts = json!({"pending": 0, "leased": 0, "running": 0, "succeeded": 2, "failed": 1, "skipped": 1,
                        "cancelled": 0, "lost": 0});
    assert_eq!(run["counts"], counts);

    let listed = setup.ok(&format!("/runs/{id}/executions?item=1")).await;
    assert_eq!(listed["pagination"]["total"], 1);
    let second = &listed["data"][0];
    assert_eq!((&second["item"], &second["task"]), (&json!(1), &json!("shard")));
    assert_eq!(second["limits"], json!({"b": "9/1m", "db": 4}));
    let none = setup.ok(&format!("/runs/{id}/executions?item=1&status=succeeded")).await;
    assert_eq!(none["pagination"]["total"], 0);
    let all = setup.ok(&format!("/runs/{id}/executions?item=0&limit=1&offset=1")).await;
    assert_eq!((all["data"].as_array().unwrap().len(), &all["pagination"]["total"]), (0, &json!(1)));
    let events = setup.ok(&format!("/runs/{id}/events")).await;
    let added = events["data"].as_array().unwrap().iter().filter(|event| event["kind"] == "executions_added");
    let items: Vec<&Value> = added
        .flat_map(|event| event["data"]["executions"].as_array().unwrap())
        .map(|execution| &execution["item"])
        .collect();
    assert_eq!(items, [&json!(0), &json!(1), &json!(2), &Value::Null], "the join has none");
}

#[tokio::test]
async fn output_of_one_item_can_be_asked_for() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&fan_out()).await;
    for text in ["zero\n", "one\n", "two\n"] {
        let work = agent.take().await;
        agent.finish_with(&work, 0, Some((0, text))).await;
    }
    let mut stream = setup.follow(&format!("/runs/{id}/output?item=1")).await;
    let sent = stream.rest().await;
    let texts: Vec<(&Value, &Value)> = sent
        .iter()
        .filter(|sent| sent.name == "output")
        .map(|sent| (&sent.data["item"], &sent.data["text"]))
        .collect();
    assert_eq!(texts, [(&json!(1), &json!("one\n"))]);
}

#[tokio::test]
async fn a_result_that_is_used_again_says_so_and_no_cache_uses_none() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let job = json!({"tasks": [task("once", &json!({"cache": true}))]});
    let first = setup.submit(&job).await;
    work(&mut agent, 0).await;
    let first = setup.ended(&first).await;
    let done = &first["results"]["0"]["web-01"];
    assert_eq!((done.get("cached"), done.get("reused")), (None, None));

    let second = setup.submit(&job).await;
    let second = setup.ended(&second).await;
    let cached = &second["results"]["0"]["web-01"];
    assert_eq!((&cached["status"], &cached["cached"]), (&json!("succeeded"), &json!(true)), "{second}");
    assert_eq!(cached["reused"], done["execution"]);
    let execution = setup.ok(&format!("/executions/{}", cached["execution"].as_str().unwrap())).await;
    assert_eq!(execution["cached"], true);
    assert!(execution["cache_key"].is_string(), "{execution}");
    assert_eq!(second.get("no_cache"), None);

    let third = setup.post("/runs", &json!({"definition": job, "no_cache": true})).await;
    assert_eq!(
        (third.status, &third.body["no_cache"]),
        (StatusCode::CREATED, &json!(true)),
        "{}",
        third.body
    );
    work(&mut agent, 0).await;
    let third = setup.ended(third.body["id"].as_str().unwrap()).await;
    assert_eq!(third["results"]["0"]["web-01"].get("cached"), None, "{third}");
    let wrong = setup.post("/runs", &json!({"definition": job, "no_cache": "yes"})).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", wrong.body);
    assert_eq!(wrong.body["errors"][0]["path"], "no_cache");
}

#[tokio::test]
async fn a_run_is_tried_again_from_a_task_on_and_an_unknown_one_is_not_found() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let job = json!({"tasks": [
        task("build", &json!({})),
        task("unit", &json!({"depends_on": ["build"], "cache": true})),
        task("publish", &json!({"depends_on": ["unit"]})),
    ]});
    let first = setup.submit(&job).await;
    for _ in 0..3 {
        work(&mut agent, 0).await;
    }
    assert_eq!(setup.ended(&first).await["status"], "completed");
    let retry = format!("/runs/{first}/retry");
    let unknown = setup.post(&retry, &json!({"from": "biuld"})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "{}", unknown.body);
    let detail = unknown.body["detail"].as_str().unwrap();
    assert!(detail.contains("no task `biuld`; did you mean `build`?"), "{detail}");
    let both = setup.post(&retry, &json!({"from": "unit", "failed_only": true})).await;
    assert_eq!(both.status, StatusCode::BAD_REQUEST, "{}", both.body);

    // By name, and by step number.
    for from in ["unit", "1"] {
        let second = setup.post(&retry, &json!({"from": from})).await;
        assert_eq!(second.status, StatusCode::CREATED, "{}", second.body);
        let id = second.body["id"].as_str().unwrap().to_owned();
        for _ in 0..2 {
            work(&mut agent, 0).await;
        }
        let run = setup.ended(&id).await;
        assert_eq!(run["status"], "completed", "{run}");
        assert!(run["results"]["0"]["web-01"]["reused"].is_string(), "build is taken over: {run}");
        // The caller asks for it again, so an earlier result is not used.
        assert_eq!(run["results"]["1"]["web-01"].get("cached"), None, "{run}");
        assert_eq!(run["results"]["2"]["web-01"].get("reused"), None, "{run}");
    }
}

#[tokio::test]
async fn many_waiting_items_are_listed_once() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let items: Vec<u32> = (0..20).collect();
    let job = json!({"placement": {"labels": ["gpu"]}, "tasks": [
        task("shard", &json!({"for_each": items})), task("last", &json!({"depends_on": ["shard"]}))]});
    let id = setup.submit(&job).await;
    let run = setup.run_until(&id, |run| run["waiting"].is_array()).await;
    let waiting = run["waiting"].as_array().unwrap();
    assert_eq!(waiting.len(), 1, "{run}");
    let first = &waiting[0];
    assert_eq!((&first["task"], &first["item"], &first["others"]), (&json!("shard"), &json!(0), &json!(19)));
    assert!(first["nodes"][0]["reason"].as_str().unwrap().contains("gpu"), "{run}");
    assert_eq!(run["counts"]["pending"], 21);
}
