//! Standing tasks: the calls for lists and single tasks, and what nodes do with them.

use downbeat_core::Timestamp;
use downbeat_testbed::in_process::{Agent, Setup, send};
use downbeat_testbed::{DEADLINE, within};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

async fn add(setup: &Setup, body: &Value) -> Value {
    let answer = setup.post("/clusters/default/tasks", body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    answer.body
}

fn shell(name: &str) -> Value {
    json!({"name": name, "command": "true"})
}

async fn order(setup: &Setup) -> Vec<String> {
    let list = setup.ok("/clusters/default/tasks").await;
    let tasks = list["data"].as_array().unwrap();
    for (task, place) in tasks.iter().zip(1..) {
        assert_eq!(task["order"], json!(place));
    }
    tasks.iter().map(|task| task["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the status of the cluster is as wanted.
async fn status_until(setup: &Setup, wanted: impl Fn(&Value) -> bool) -> Value {
    let wanted = &wanted;
    let status = || async { Some(setup.ok("/clusters/default/status").await).filter(wanted) };
    match within(DEADLINE, status).await {
        Some(status) => status,
        None => panic!("{}", setup.ok("/clusters/default/status").await),
    }
}

/// Carries out one task, and returns its command.
async fn carry_out(agent: &mut Agent, exit_code: i32) -> String {
    let work = agent.take().await;
    assert_eq!((work.backend.as_str(), work.action.as_str()), ("exec", "shell"));
    agent.start(&work).await;
    agent.finish(&work, exit_code).await;
    work.params["command"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_bodies_of_the_source_are_accepted() {
    let setup = Setup::new().await;
    let body = json!({
        "name": "Install dependencies",
        "type": "exec",
        "blocking": true,
        "config": {
            "command": "apt-get update && apt-get install -y curl",
            "timeout_seconds": 1800,
            "working_dir": ""
        }
    });
    let task = add(&setup, &body).await;
    let id = task["id"].as_str().unwrap();
    for field in ["name", "type", "blocking", "config"] {
        assert_eq!(task[field], body[field], "{field}");
    }
    let cluster = setup.ok("/clusters/default").await;
    assert_eq!(
        (&task["cluster_id"], &task["order"], &cluster["tasks"]),
        (&cluster["id"], &json!(1), &json!(1))
    );
    assert_eq!((&task["backend"], &task["action"]), (&json!("exec"), &json!("shell")));
    assert_eq!((&task["timeout"], &task["timeout_seconds"]), (&json!("30m"), &json!(1800)));
    assert_eq!(setup.ok(&format!("/tasks/{id}")).await, task);
    let body = json!({
        "name": "Install dependencies v2",
        "blocking": false,
        "config": {"command": "apt-get install -y curl wget", "timeout_seconds": 3600}
    });
    let updated = setup.put(&format!("/tasks/{id}"), &body).await;
    assert_eq!(updated.status, StatusCode::OK, "{}", updated.body);
    assert_eq!((&updated.body["name"], &updated.body["order"]), (&body["name"], &json!(1)));
    assert_eq!(updated.body["config"]["command"], "apt-get install -y curl wget");
    assert_eq!((&updated.body["timeout"], &updated.body["blocking"]), (&json!("1h"), &json!(false)));
    assert_eq!(updated.body["created_at"], task["created_at"]);
    assert_eq!(setup.delete(&format!("/tasks/{id}")).await.status, StatusCode::NO_CONTENT);
    assert_eq!(setup.get(&format!("/tasks/{id}")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(order(&setup).await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_list_is_edited_reordered_and_listed_in_pages() {
    let setup = Setup::new().await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d"] {
        ids.push(add(&setup, &shell(name)).await["id"].as_str().unwrap().to_owned());
    }
    let first = setup.post("/clusters/default/tasks?position=1", &shell("x")).await;
    assert_eq!((first.status, &first.body["order"]), (StatusCode::CREATED, &json!(1)));
    assert_eq!(order(&setup).await, ["x", "a", "b", "c", "d"]);
    assert_eq!(setup.delete(&format!("/tasks/{}", ids[1])).await.status, StatusCode::NO_CONTENT);
    assert_eq!(order(&setup).await, ["x", "a", "c", "d"]);
    let new = json!({"task_ids": [ids[3], ids[2], ids[0], first.body["id"]]});
    let reordered = setup.put("/clusters/default/tasks/reorder", &new).await;
    assert_eq!((reordered.status, reordered.body), (StatusCode::NO_CONTENT, json!("")));
    assert_eq!(order(&setup).await, ["d", "c", "a", "x"]);
    let few = setup.put("/clusters/default/tasks/reorder", &json!({"task_ids": [ids[3]]})).await;
    assert_eq!(few.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(few.body["detail"].as_str().unwrap().contains("missing: "), "{}", few.body);
    let page = setup.ok("/clusters/default/tasks?limit=3").await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["pagination"]["total"]), (3, &json!(4)));
    let next = page["pagination"]["next"].as_str().unwrap();
    let rest = setup.ok(&format!("/clusters/default/tasks?cursor={next}")).await;
    assert_eq!(rest["data"][0]["name"], "x");
}

#[tokio::test]
async fn wrong_tasks_are_refused_with_every_reason() {
    let setup = Setup::new().await;
    add(&setup, &shell("a")).await;
    let cases = [
        (shell("a"), StatusCode::CONFLICT, "the name `a` is in use"),
        (json!({"name": "b"}), StatusCode::UNPROCESSABLE_ENTITY, "needs a `command`"),
        (
            json!({"name": "b", "command": "true", "timeout": "1s"}),
            StatusCode::UNPROCESSABLE_ENTITY,
            "timeout: must be from 10s to 1d",
        ),
        (
            json!({"name": "b", "config": {"command": "x", "working_dir": "relative"}}),
            StatusCode::UNPROCESSABLE_ENTITY,
            "config.working_dir: must be an absolute path",
        ),
        (
            json!({"name": "b", "command": "true", "selector": "group:"}),
            StatusCode::UNPROCESSABLE_ENTITY,
            "selector",
        ),
    ];
    for (body, status, text) in cases {
        let refused = setup.post("/clusters/default/tasks", &body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
        assert!(refused.body["detail"].as_str().unwrap().contains(text), "{}", refused.body);
    }
    let far = setup.post("/clusters/default/tasks?position=9", &shell("b")).await;
    assert_eq!(far.status, StatusCode::UNPROCESSABLE_ENTITY);
    let broken =
        setup.request(Method::POST, "/clusters/default/tasks").header("content-type", "application/json");
    assert_eq!(send(broken.body("{")).await.status, StatusCode::BAD_REQUEST);
    let unknown = "/tasks/00000000-0000-0000-0000-000000000000";
    for path in [unknown, "/tasks/nope", &format!("{unknown}/executions"), "/clusters/nope/tasks"] {
        assert_eq!(setup.get(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(setup.put(unknown, &json!({})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(setup.delete(unknown).await.status, StatusCode::NOT_FOUND);
    assert_eq!(setup.post("/clusters/nope/tasks", &shell("a")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_file_is_applied_and_a_dry_run_changes_nothing() {
    let setup = Setup::new().await;
    for name in ["a", "b", "c"] {
        add(&setup, &shell(name)).await;
    }
    let file =
        "tasks:\n- {name: c, command: 'true'}\n- {name: a, command: 'false'}\n- {name: x, command: 'true'}\n";
    let apply = |path: &'static str, text: &'static str| {
        send(setup.request(Method::PUT, path).header("content-type", "application/yaml").body(text))
    };
    let dry = apply("/clusters/default/tasks?dry_run=1", file).await;
    assert_eq!(dry.status, StatusCode::OK, "{}", dry.body);
    assert_eq!(order(&setup).await, ["a", "b", "c"]);
    let done = apply("/clusters/default/tasks", file).await;
    assert_eq!(done.body, dry.body);
    assert_eq!(
        done.body["changes"],
        json!([
            {"change": "move", "name": "c", "from": 3, "to": 1, "fields": []},
            {"change": "update", "name": "a", "from": 1, "to": 2, "fields": ["command"]},
            {"change": "add", "name": "x", "from": null, "to": 3, "fields": []},
            {"change": "delete", "name": "b", "from": 2, "to": null, "fields": []},
        ])
    );
    assert_eq!(order(&setup).await, ["c", "a", "x"]);
    let again = apply("/clusters/default/tasks", file).await;
    let kept = again.body["changes"].as_array().unwrap();
    assert!(kept.iter().all(|change| change["change"] == "keep"), "{}", again.body);
    let wrong = apply("/clusters/default/tasks", "tasks:\n- {name: a}\n").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (&wrong.body["errors"][0]["line"], &wrong.body["errors"][0]["path"]),
        (&json!(2), &json!("tasks[0]"))
    );
    let emptied = setup.put("/clusters/default/tasks", &json!({"tasks": []})).await;
    assert_eq!((emptied.status, order(&setup).await.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn a_node_carries_out_the_list_in_order_and_a_blocking_failure_stops_it() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let tasks = [
        json!({"name": "one", "command": "1"}),
        json!({"name": "two", "command": "2", "blocking": true}),
        json!({"name": "three", "command": "3"}),
        json!({"name": "none", "command": "4", "selector": "group:nobody"}),
    ];
    let mut ids = Vec::new();
    for task in &tasks {
        ids.push(add(&setup, task).await["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(carry_out(&mut agent, 1).await, "1");
    assert_eq!(carry_out(&mut agent, 7).await, "2");
    let status = status_until(&setup, |status| status["nodes_with_failed_tasks"] == 1).await;
    let cluster = setup.ok("/clusters/default").await;
    for (field, expected) in [
        ("cluster_id", cluster["id"].clone()),
        ("total_nodes", json!(1)),
        ("active_nodes", json!(1)),
        ("inactive_nodes", json!(0)),
        ("total_tasks", json!(4)),
        ("nodes_with_all_tasks_complete", json!(0)),
        ("nodes_with_pending_tasks", json!(0)),
        ("completion_percentage", json!(0.0)),
    ] {
        assert_eq!(status[field], expected, "{field}");
    }
    assert_eq!(status["tasks"][1]["counts"]["failed"], 1);
    assert_eq!(status["tasks"][2]["counts"]["skipped"], 1);
    assert_eq!(status["tasks"][3]["counts"]["not_selected"], 1);
    let walks = setup.ok("/clusters/default/walks?state=blocked").await;
    let walk = &walks["data"][0];
    assert_eq!((&walk["hostname"], &walk["state"]), (&json!("web-01"), &json!("blocked")));
    assert_eq!(walk["cells"], json!(["failed", "failed", "skipped", "not_selected"]));
    assert_eq!((&walk["stuck"]["task"], &walk["stuck"]["why"]), (&json!("two"), &json!("exit code 7")));
    assert_eq!(setup.ok("/clusters/default/walks?task=two").await["pagination"]["total"], 1);
    assert_eq!(setup.ok("/clusters/default/walks?task=one").await["data"], json!([]));
    assert_eq!(setup.ok("/clusters/default/walks?status=offline").await["data"], json!([]));
    assert_eq!(setup.get("/clusters/default/walks?task=zero").await.status, StatusCode::NOT_FOUND);
    // The executions have a task and no run.
    let executions = setup.ok("/clusters/default/executions").await;
    assert_eq!(executions["data"].as_array().unwrap().len(), 2);
    let of_second = |row: &&Value| row["task"] == "two";
    let second = executions["data"].as_array().unwrap().iter().find(of_second).unwrap();
    assert_eq!((&second["task_id"], &second["task"]), (&json!(ids[1]), &json!("two")));
    assert_eq!((&second["node"], &second["node_id"]), (&json!("web-01"), &json!(agent.node)));
    assert_eq!((&second["run"], &second["exit_code"]), (&Value::Null, &json!(7)));
    let shown = setup.ok(&format!("/executions/{}", second["id"].as_str().unwrap())).await;
    assert_eq!((&shown["task"], &shown["run"]), (&json!("two"), &Value::Null));
    for path in [
        format!("/clusters/default/executions?task_id={}", ids[1]),
        format!("/tasks/{}/executions?status=failed", ids[1]),
        format!("/tasks/{}/executions?node_id={}", ids[1], agent.node),
    ] {
        let list = setup.ok(&path).await;
        assert_eq!(list["data"], json!([second]), "{path}");
    }
    let of_node = setup.ok("/nodes/web-01/executions").await;
    let of_node = of_node["data"].as_array().unwrap().iter().find(of_second).unwrap();
    assert_eq!(of_node["task_id"], json!(ids[1]));
    // Nobody sees the run that carries the list out.
    assert_eq!(setup.ok("/runs").await["data"], json!([]));
    let run = format!("standing:{}", cluster["id"].as_str().unwrap());
    assert_eq!(setup.get(&format!("/runs/{run}")).await.status, StatusCode::NOT_FOUND);
    // Fixed, and done again where it failed: the rest follows.
    let rerun = setup.post(&format!("/tasks/{}/rerun", ids[1]), &json!({"failed": true})).await;
    assert_eq!((rerun.status, &rerun.body), (StatusCode::ACCEPTED, &json!({"nodes": 1})));
    assert_eq!(carry_out(&mut agent, 0).await, "2");
    assert_eq!(carry_out(&mut agent, 0).await, "3");
    let rerun = setup.post(&format!("/tasks/{}/rerun", ids[0]), &json!({"nodes": ["web-01"]})).await;
    assert_eq!((rerun.status, &rerun.body), (StatusCode::ACCEPTED, &json!({"nodes": 1})));
    assert_eq!(carry_out(&mut agent, 0).await, "1");
    let done = status_until(&setup, |status| status["nodes_with_all_tasks_complete"] == 1).await;
    assert_eq!(done["completion_percentage"], 100.0);
    // Executions of a deleted task are still shown with its name.
    setup.delete(&format!("/tasks/{}", ids[1])).await;
    let deleted = setup.ok(&format!("/tasks/{}/executions", ids[1])).await;
    assert_eq!((deleted["data"].as_array().unwrap().len(), &deleted["data"][0]["task"]), (2, &json!("two")));
}

#[tokio::test]
async fn a_node_that_is_reset_does_all_tasks_again() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    add(&setup, &shell("a")).await;
    carry_out(&mut agent, 0).await;
    status_until(&setup, |status| status["nodes_with_all_tasks_complete"] == 1).await;
    let before = setup.ok("/nodes/web-01").await["reset_at"].clone();
    let reset = setup.post("/nodes/web-01/reset", &json!(null)).await;
    assert_eq!(reset.status, StatusCode::ACCEPTED, "{}", reset.body);
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(time(&reset.body["reset_at"]) > time(&before), "{before} {}", reset.body["reset_at"]);
    carry_out(&mut agent, 0).await;
    status_until(&setup, |status| status["nodes_with_all_tasks_complete"] == 1).await;
    assert_eq!(setup.post("/nodes/nope/reset", &json!(null)).await.status, StatusCode::NOT_FOUND);
    let events = setup.ok("/events?follow=0&since=0&kind=cluster_changed").await;
    let texts: Vec<&str> =
        events["data"].as_array().unwrap().iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts[0], "cluster default: task `a` added");
    assert_eq!(texts[1], format!("cluster default: node {} does all tasks again", agent.node));
}

#[tokio::test]
async fn a_rerun_says_where_and_only_once() {
    let setup = Setup::new().await;
    let task = add(&setup, &shell("a")).await;
    let path = format!("/tasks/{}/rerun", task["id"].as_str().unwrap());
    for body in [json!({}), json!({"all": true, "failed": true}), json!({"nodes": [], "all": false})] {
        assert_eq!(setup.post(&path, &body).await.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }
    assert_eq!(setup.post(&path, &json!({"nodes": ["nope"]})).await.status, StatusCode::NOT_FOUND);
    let everywhere = setup.post(&path, &json!({"all": true})).await;
    assert_eq!((everywhere.status, everywhere.body), (StatusCode::ACCEPTED, json!({"nodes": 0})));
}

#[tokio::test]
async fn edits_at_the_same_time_all_take_effect() {
    const EDITS: usize = 60;
    let setup = Setup::new().await;
    let add = |number: usize| {
        let setup = &setup;
        async move { setup.post("/clusters/default/tasks", &shell(&format!("t{number}"))).await.status }
    };
    let statuses = futures_util::future::join_all((0..EDITS).map(add)).await;
    assert_eq!(statuses, [StatusCode::CREATED; EDITS]);
    assert_eq!(order(&setup).await.len(), EDITS);
}

#[tokio::test]
async fn nobody_cancels_or_pauses_the_run_that_carries_the_list_out() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    add(&setup, &json!({"name": "one", "command": "1"})).await;
    let work = agent.take().await;
    agent.start(&work).await;
    let cluster = setup.ok("/clusters/default").await["id"].as_str().unwrap().to_owned();
    let run = format!("/runs/standing:{cluster}");
    for call in ["cancel", "cancel?force=1", "pause", "resume", "retry"] {
        let answer = setup.post(&format!("{run}/{call}"), &json!({})).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{call}: {}", answer.body);
    }
    let events = setup.ok("/events?follow=0&kind=run_cancel_requested,run_pause_set,execution_lost").await;
    assert_eq!(events["data"], json!([]), "a call without effect leaves no trace");
    agent.finish(&work, 0).await;
    add(&setup, &json!({"name": "two", "command": "2"})).await;
    assert_eq!(carry_out(&mut agent, 0).await, "2", "the list goes on");
}

#[tokio::test]
async fn every_stuck_node_of_a_page_has_its_reason() {
    const NODES: usize = 110;
    let setup = Setup::new().await;
    add(&setup, &json!({"name": "one", "command": "1", "blocking": true})).await;
    add(&setup, &shell("two")).await;
    for number in 0..NODES {
        let mut agent = setup.agent(&format!("web-{number:03}"), &[]).await;
        assert_eq!(carry_out(&mut agent, 7).await, "1");
    }
    status_until(&setup, |status| status["nodes_with_failed_tasks"] == NODES).await;
    let walks = setup.ok("/clusters/default/walks?limit=1000").await;
    let reasons: Vec<&Value> =
        walks["data"].as_array().unwrap().iter().map(|walk| &walk["stuck"]["why"]).collect();
    assert_eq!(reasons, vec!["exit code 7"; NODES]);
}

#[tokio::test]
async fn a_page_of_a_long_list_has_fewer_nodes() {
    let setup = Setup::new().await;
    let task =
        |number: usize| json!({"name": format!("t{number}"), "command": "1", "selector": "group:nobody"});
    let tasks: Vec<Value> = (0..1000).map(task).collect();
    let applied = setup.put("/clusters/default/tasks", &json!({"tasks": tasks})).await;
    assert_eq!(applied.status, StatusCode::OK, "{}", applied.body);
    let page = setup.ok("/clusters/default/walks?limit=1000").await;
    assert_eq!(page["pagination"]["limit"], 250);
    assert_eq!(setup.ok("/clusters/default/walks?limit=20").await["pagination"]["limit"], 20);
}

#[tokio::test]
async fn requests_to_do_a_task_again_do_not_gather_in_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let setup = Setup::on(&format!("sqlite:{}", file.display())).await;
    let mut agent = setup.agent("web-01", &[]).await;
    let task = add(&setup, &json!({"name": "one", "command": "1"})).await;
    assert_eq!(carry_out(&mut agent, 0).await, "1");
    setup.agent("web-02", &[]).await;
    let rerun = format!("/tasks/{}/rerun", task["id"].as_str().unwrap());
    assert_eq!(setup.post(&rerun, &json!({"nodes": ["web-01"]})).await.status, StatusCode::ACCEPTED);
    assert_eq!(carry_out(&mut agent, 0).await, "1");
    assert_eq!(setup.post(&rerun, &json!({"nodes": ["web-02"]})).await.status, StatusCode::ACCEPTED);
    let list = stored_list(&file);
    assert_eq!(list["tasks"][0]["reruns"].as_array().unwrap().len(), 1, "that of web-02: {list}");
}

/// Returns the list of the only cluster as it is stored.
fn stored_list(file: &std::path::Path) -> Value {
    let stored = rusqlite::Connection::open(file).unwrap();
    let list: String = stored.query_row("SELECT list FROM clusters", [], |row| row.get(0)).unwrap();
    serde_json::from_str(&list).unwrap()
}

#[tokio::test]
async fn deleted_tasks_without_executions_leave_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let setup = Setup::on(&format!("sqlite:{}", file.display())).await;
    let mut agent = setup.agent("web-01", &[]).await;
    let nobody =
        |number: usize| json!({"name": format!("t{number}"), "command": "1", "selector": "group:nobody"});
    let mut tasks: Vec<Value> = (0..30).map(nobody).collect();
    tasks.insert(15, json!({"name": "done", "command": "1"}));
    assert_eq!(setup.put("/clusters/default/tasks", &json!({"tasks": tasks})).await.status, StatusCode::OK);
    assert_eq!(carry_out(&mut agent, 0).await, "1");
    assert_eq!(setup.put("/clusters/default/tasks", &json!({"tasks": []})).await.status, StatusCode::OK);
    assert_eq!(stored_list(&file)["deleted"].as_array().unwrap().len(), 31);
    add(&setup, &shell("new")).await;
    let list = stored_list(&file);
    let left: Vec<&Value> = list["deleted"].as_array().unwrap().iter().map(|task| &task["name"]).collect();
    assert_eq!(left, ["done"], "its execution is kept");
    assert_eq!(list["next_number"], 32, "numbers are never used again");
}

#[tokio::test]
async fn the_response_to_a_report_has_the_next_task() {
    let setup = &Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    for name in ["first", "second", "third"] {
        add(setup, &json!({"name": name, "blocking": true, "command": name})).await;
    }
    let polls = |count: u64| async move {
        let are_parked = || async { (setup.figure("downbeat_polls_parked").await == count).then_some(()) };
        within(DEADLINE, are_parked).await.expect("the polls are parked");
    };
    let mut work = agent.take().await;
    for expected in ["second", "third"] {
        polls(0).await;
        let next = agent.finish_and_take(&work, 0, polls(1)).await;
        assert_eq!(next.len(), 1, "{next:?}");
        assert_eq!(next[0].params["command"], expected);
        work = next.into_iter().next().unwrap();
    }
    // Nothing follows a blocking failure, and nothing follows the last task.
    polls(0).await;
    assert_eq!(agent.finish_and_take(&work, 1, polls(1)).await, []);
    status_until(setup, |status| status["nodes_with_failed_tasks"] == json!(1)).await;
    // Each end has the number before the task that follows it, in one commit.
    let events = setup.ok("/events?follow=0&since=0").await;
    let kinds: Vec<&str> =
        events["data"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let ends = kinds.iter().filter(|kind| **kind == "execution_finished").count();
    let followed =
        kinds.windows(2).filter(|pair| *pair == ["execution_finished", "executions_added"]).count();
    assert_eq!((ends, followed), (3, 2), "{kinds:?}");
}
