//! Submitting, listing, showing and cancelling runs.

use downbeat_core::Change;
use downbeat_core::run::{RunMade, RunRecord};
use downbeat_testbed::in_process::{Agent, Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test]
async fn a_run_shows_the_result_of_every_step_on_every_node() {
    let setup = Setup::new().await;
    let mut one = setup.agent("web-01", &["web"]).await;
    let mut two = setup.agent("web-02", &["web"]).await;
    let definition = json!({
        "name": "deploy", "target": "group:web",
        "tasks": [{"backend": "test", "action": "noop"}, {"name": "second", "backend": "test", "action": "noop"}],
    });
    let id = setup.submit(&definition).await;
    let (first, other) = (one.take().await, two.take().await);
    one.finish(&first, 0).await;
    let half = setup.run_until(&id, |run| run["counts"]["succeeded"] == 1).await;
    assert_eq!(half["status"], "running");
    assert_eq!(half["step"], 0);
    assert_eq!(setup.targets(&id).await, ["web-01", "web-02"]);
    assert_eq!(
        half["counts"]["pending"], 2,
        "the second step has no executions yet, and is still to come: {half}"
    );
    assert_eq!(half["results"]["0"]["web-01"]["status"], "succeeded");
    assert_eq!(half["results"]["0"]["web-01"]["attempts"], 1);
    assert_eq!(half["results"]["0"]["web-01"]["duration"], "1us");
    assert_eq!(half["results"]["0"]["web-01"]["exit_code"], 0);
    two.finish(&other, 0).await;
    let (first, other) = (one.take().await, two.take().await);
    one.finish(&first, 0).await;
    two.finish(&other, 3).await;
    let run = setup.ended(&id).await;
    assert_eq!(run["status"], "failed");
    assert_eq!(run["state"], "failed");
    assert_eq!(run["step"], Value::Null);
    assert_eq!(run["job"], "deploy");
    assert_eq!(run["counts"]["succeeded"], 3);
    assert_eq!(run["counts"]["failed"], 1);
    assert_eq!(run["results"]["1"]["web-02"]["exit_code"], 3);
    assert_eq!(run["results"]["1"]["web-02"]["error"], "exit code 3");
    assert!(run["owner"].as_str().is_some_and(|owner| owner.len() == 36));

    let executions = setup.ok(&format!("/runs/{id}/executions")).await;
    assert_eq!(
        executions["pagination"],
        json!({"limit": 100, "offset": 0, "total": 4, "has_more": false, "next": null})
    );
    let failed = setup.ok(&format!("/runs/{id}/executions?status=failed,lost&node=web-02&step=1")).await;
    let failed = &failed["data"][0];
    assert_eq!(
        (&failed["node"], &failed["task"], &failed["attempt"]),
        (&json!("web-02"), &json!("second"), &json!(1))
    );
    assert_eq!(failed["duration"], "1us");
    for time in ["created_at", "leased_at", "started_at", "finished_at"] {
        assert!(failed[time].as_str().is_some_and(|text| text.ends_with('Z')), "{time} in {failed}");
    }
    let alone = setup.ok(&format!("/executions/{}", failed["id"].as_str().unwrap())).await;
    assert_eq!(&alone, failed);
}

#[tokio::test]
async fn an_idempotency_key_returns_the_first_run_of_the_same_request_only() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let submit = |path: &str, definition: &Value| {
        send(setup.request(Method::POST, path).header("Idempotency-Key", "k1").json(definition))
    };
    let first = submit("/runs", &noop()).await;
    assert_eq!(first.status, StatusCode::CREATED);
    let location = format!("/api/v1/runs/{}", first.body["id"].as_str().unwrap());
    assert_eq!(first.headers["location"], location);
    let again = submit("/runs", &noop()).await;
    assert_eq!((again.status, &again.body["id"]), (StatusCode::OK, &first.body["id"]));
    let mut another = noop();
    another["name"] = json!("another");
    for (path, definition) in [("/runs", &another), ("/runs?target=all", &noop())] {
        let refused = submit(path, definition).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        assert_eq!(refused.body["code"], "idempotency_key_reused");
        assert!(refused.body["detail"].as_str().unwrap().contains(first.body["id"].as_str().unwrap()));
    }
    // The key is looked up before the targets are resolved, which would fail here.
    setup.post("/nodes/web-01/drain", &json!(null)).await;
    let again = submit("/runs", &noop()).await;
    assert_eq!((again.status, &again.body["id"]), (StatusCode::OK, &first.body["id"]), "{}", again.body);
    assert_eq!(setup.ok("/runs").await["pagination"]["total"], 1);
}

#[tokio::test]
async fn the_keys_of_retries_are_not_those_of_submissions() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let keyed = |path: &str, body: &Value| {
        send(setup.request(Method::POST, path).header("Idempotency-Key", "k1").json(body))
    };
    let first = keyed("/runs", &noop()).await.body["id"].as_str().unwrap().to_owned();
    let work = agent.take().await;
    agent.finish(&work, 1).await;
    setup.ended(&first).await;
    let path = format!("/runs/{first}/retry");
    let retried = keyed(&path, &json!({})).await;
    assert_eq!(retried.status, StatusCode::CREATED, "{}", retried.body);
    assert_eq!(retried.body["retry_of"], json!(first));
    let again = keyed(&path, &json!({})).await;
    assert_eq!((again.status, &again.body["id"]), (StatusCode::OK, &retried.body["id"]));
    let other = keyed(&path, &json!({"failed_only": true})).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(other.body["code"], "idempotency_key_reused");
}

#[tokio::test]
async fn a_key_that_an_older_server_recorded_returns_its_run_for_any_request() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let submit = |definition: Value| {
        send(setup.request(Method::POST, "/runs").header("Idempotency-Key", "k1").json(&definition))
    };
    let first = submit(noop()).await.body["id"].as_str().unwrap().to_owned();
    // As an older server would have written it: without a hash.
    let run = setup.server.service().views().run(&first.as_str().into()).await.unwrap().unwrap();
    let id = format!("{first}-older").as_str().into();
    let made =
        RunMade { id, idempotency_key: Some("k2".to_owned()), request_hash: None, ..(*run.made).clone() };
    let older = Change::RunCreated {
        run: RunRecord::new(made, run.live.owner),
        max_pending: None,
        max_open: None,
        firing: None,
    };
    let committed = setup.server.service().views().commit(run.live.owner, &[older]).await.unwrap();
    assert_eq!(committed.outcomes, [Ok(())]);
    let request = setup.request(Method::POST, "/runs").header("Idempotency-Key", "k2").json(&noop());
    let found = send(request).await;
    assert_eq!((found.status, &found.body["id"]), (StatusCode::OK, &json!(format!("{first}-older"))));
}

/// Older servers did not tell the keys of retries from those of submissions.
#[tokio::test]
async fn the_key_of_a_retry_that_an_older_server_recorded_returns_its_run_for_that_retry_only() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let fail = async |agent: &mut Agent| {
        let id = setup.submit(&noop()).await;
        let work = agent.take().await;
        agent.finish(&work, 1).await;
        setup.ended(&id).await;
        id
    };
    let (first, other) = (fail(&mut agent).await, fail(&mut agent).await);
    let store = setup.server.service().views();
    let run = store.run(&first.as_str().into()).await.unwrap().unwrap();
    let made = RunMade {
        id: "older".into(),
        idempotency_key: Some("k".to_owned()),
        request_hash: None,
        retry_of: Some(run.id.clone()),
        ..(*run.made).clone()
    };
    let older = Change::RunCreated {
        run: RunRecord::new(made, run.live.owner),
        max_pending: None,
        max_open: None,
        firing: None,
    };
    assert_eq!(store.commit(run.live.owner, &[older]).await.unwrap().outcomes, [Ok(())]);

    let keyed =
        |path: &str| send(setup.request(Method::POST, path).header("Idempotency-Key", "k").json(&json!({})));
    let again = keyed(&format!("/runs/{first}/retry")).await;
    assert_eq!((again.status, &again.body["id"]), (StatusCode::OK, &json!("older")), "{}", again.body);
    let second = keyed(&format!("/runs/{other}/retry")).await;
    assert_eq!((second.status, &second.body["retry_of"]), (StatusCode::CREATED, &json!(other)));
    let submitted =
        send(setup.request(Method::POST, "/runs").header("Idempotency-Key", "k").json(&noop())).await;
    assert_eq!(submitted.body["code"], "idempotency_key_reused", "{}", submitted.body);
}

#[tokio::test]
async fn a_definition_is_json_or_yaml() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let yaml = "name: from-yaml\ntarget: all\ntasks:\n  - backend: test\n    action: noop\n";
    for content_type in ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"] {
        let request = setup.request(Method::POST, "/runs").header("Content-Type", content_type).body(yaml);
        let answer = send(request).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        assert_eq!(answer.body["job"], "from-yaml");
    }
    let undeclared = setup.request(Method::POST, "/validate").body(yaml);
    assert_eq!(send(undeclared).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn the_target_of_the_query_replaces_that_of_the_definition() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    setup.agent("db-01", &["db"]).await;
    let answer = setup.post("/runs?target=group:db", &noop()).await;
    assert_eq!(setup.targets(answer.body["id"].as_str().unwrap()).await, ["db-01"]);
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_filtered() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let done = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(&done).await;
    let mut named = noop();
    named["name"] = json!("later");
    let open = setup.submit(&named).await;
    let ids = |list: Value| -> Vec<String> {
        let data = list["data"].as_array().unwrap();
        data.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(setup.ok("/runs").await), [open.as_str(), &done]);
    assert_eq!(ids(setup.ok("/runs?status=completed").await), [done.as_str()]);
    assert_eq!(ids(setup.ok("/runs?status=pending,running").await), [open.as_str()]);
    assert_eq!(ids(setup.ok("/runs?job=later&cluster=default").await), [open.as_str()]);
    let page = setup.ok("/runs?limit=1&offset=1").await;
    assert_eq!(
        page["pagination"],
        json!({"limit": 1, "offset": 1, "total": 2, "has_more": false, "next": null})
    );
    assert_eq!(page["data"][0].get("results"), None, "a list is short");
    assert_eq!(ids(page), [done.as_str()]);
    let first = setup.ok("/runs?limit=1").await;
    let next = first["pagination"]["next"].as_str().unwrap().to_owned();
    assert_eq!(ids(first), [open.as_str()]);
    assert_eq!(ids(setup.ok(&format!("/runs?cursor={next}")).await), [done.as_str()]);
    let narrow =
        "/runs?node=web-01&paused=0&by=api&q=LATER&from=2020-01-01T00:00:00Z&to=2999-01-01T00:00:00Z";
    assert_eq!(ids(setup.ok(narrow).await), [open.as_str()]);
    for nothing in ["node=web-02", "paused=1", "by=eve", "q=latest", "from=2999-01-01T00:00:00Z"] {
        assert_eq!(ids(setup.ok(&format!("/runs?{nothing}")).await), Vec::<String>::new(), "{nothing}");
    }
    let both = setup.get(&format!("/runs?cursor={next}&offset=1")).await;
    assert_eq!((both.status.as_u16(), &both.body["code"]), (400, &json!("bad_query")));
}

#[tokio::test]
async fn a_run_that_is_cancelled_by_force_does_not_wait_for_its_agents() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    // Lost attempts of this task are sent again, but not in a cancelled run.
    let task = json!({"backend": "test", "action": "noop", "delivery": "at_least_once"});
    for requested_before in [false, true] {
        let id = setup.submit(&json!({"target": "all", "tasks": [task, task]})).await;
        let work = agent.take().await;
        if requested_before {
            setup.post(&format!("/runs/{id}/cancel"), &json!(null)).await;
            assert_eq!(
                setup.ok(&format!("/runs/{id}")).await["status"],
                "running",
                "its agent has not confirmed"
            );
        }
        let answer = setup.post(&format!("/runs/{id}/cancel?force=1"), &json!(null)).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
        assert_eq!(setup.ended(&id).await["status"], "cancelled");
        let executions = setup.ok(&format!("/runs/{id}/executions?status=lost")).await;
        let lost = &executions["data"][0];
        assert!(lost["error"].as_str().unwrap().contains("by force"), "{lost}");
        // The late result is refused.
        agent.finish(&work, 0).await;
        assert_eq!(setup.ok(&format!("/runs/{id}")).await["status"], "cancelled");
        assert_eq!(setup.ok(&format!("/runs/{id}/executions?status=lost")).await["data"][0], *lost);
    }
}

#[tokio::test]
async fn a_cancelled_run_ends_cancelled_and_cannot_be_cancelled_again() {
    let setup = Setup::new().await;
    let id = setup
        .submit(
            &json!({"placement": {"labels": ["nowhere"]}, "tasks": [{"backend": "test", "action": "noop"}]}),
        )
        .await;
    let answer = setup.post(&format!("/runs/{id}/cancel"), &json!(null)).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
    let run = setup.ended(&id).await;
    assert_eq!(run["status"], "cancelled");
    assert!(run["cancel_requested_at"].is_string());
    let again = setup.post(&format!("/runs/{id}/cancel"), &json!(null)).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert_eq!(again.body["code"], "conflict");
}

#[tokio::test]
async fn a_placed_step_that_waits_says_why_each_node_does_not_fit() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let definition = json!({
        "placement": {"requires": {"gpu": "nvidia"}},
        "tasks": [{"name": "train", "backend": "test", "action": "noop"}],
    });
    let id = setup.submit(&definition).await;
    let run = setup.run_until(&id, |run| run["results"]["0"]["-"]["status"] == "pending").await;
    assert_eq!(run["nodes"], 0);
    let waiting = &run["waiting"][0];
    assert_eq!((&waiting["step"], &waiting["task"]), (&json!(0), &json!("train")));
    assert_eq!(waiting["nodes"][0]["node"], "web-01");
    assert!(waiting["nodes"][0]["reason"].as_str().is_some_and(|why| why.contains("gpu")), "{waiting}");
    let execution = setup.ok(&format!("/executions/{}", waiting["execution"].as_str().unwrap())).await;
    assert_eq!(execution["waiting"], waiting["nodes"]);
    assert_eq!(execution["node"], Value::Null);
}

#[tokio::test]
async fn a_run_says_how_each_step_stands_and_does_not_grow_with_its_nodes() {
    let setup = Setup::new().await;
    let mut agents = Vec::new();
    for number in 0..20 {
        agents.push(setup.agent(&format!("web-{number:02}"), &[]).await);
    }
    let task = |name: &str| json!({"name": name, "backend": "test", "action": "noop"});
    let definition =
        json!({"target": "all", "strategy": "continue", "tasks": [task("fetch"), task("switch")]});
    let id = setup.submit(&definition).await;
    let path = format!("/runs/{id}");
    for agent in &mut agents {
        let work = agent.take().await;
        agent.finish(&work, 0).await;
    }
    setup.run_until(&id, |run| run["results"]["1"].is_object()).await;
    let run = setup.ok(&path).await;
    assert_eq!(run["results"], Value::Null);
    assert_eq!((&run["nodes"], &run["step"]), (&json!(20), &json!(1)));
    let steps = run["steps"].as_array().unwrap();
    assert_eq!((&steps[0]["step"], &steps[0]["task"]), (&json!(0), &json!("fetch")));
    assert_eq!((&steps[0]["counts"], &steps[0]["instances"]), (&json!({"succeeded": 20}), &json!(20)));
    assert_eq!(steps[1]["task"], "switch");
    for agent in &mut agents {
        let work = agent.take().await;
        agent.finish(&work, 3).await;
    }
    setup.ended(&id).await;
    let run = setup.ok(&path).await;
    assert_eq!(run["steps"][1]["counts"], json!({"failed": 20}));
    assert_eq!(run["counts"]["failed"], 20);
    assert!(run.to_string().len() < 2_000, "{run}");
}

/// Returns the step and node of each result on a page.
fn places(page: &Value) -> Vec<(u64, String)> {
    let place = |row: &Value| (row["step"].as_u64().unwrap(), row["node"].as_str().unwrap_or("-").to_owned());
    page["data"].as_array().unwrap().iter().map(place).collect()
}

#[tokio::test]
async fn results_are_listed_in_pages_and_filtered() {
    let setup = Setup::new().await;
    let (mut one, mut two) = (setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await);
    let task = |name: &str| json!({"name": name, "backend": "test", "action": "noop"});
    let definition =
        json!({"target": "all", "strategy": "continue", "tasks": [task("fetch"), task("switch")]});
    let id = setup.submit(&definition).await;
    for code in [0, 3] {
        let (first, second) = (one.take().await, two.take().await);
        one.finish(&first, 0).await;
        two.finish(&second, code).await;
    }
    setup.ended(&id).await;
    let path = format!("/runs/{id}/results");
    let all = setup.ok(&path).await;
    assert_eq!(all["data"].as_array().unwrap().len(), 4);
    assert_eq!(
        all["pagination"],
        json!({"limit": 100, "offset": 0, "total": null, "has_more": false, "next": null})
    );
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = setup.ok(&format!("{path}?limit=1{cursor}")).await;
        paged.extend(places(&page));
        let Some(next) = page["pagination"]["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, places(&all));
    let failed = setup.ok(&format!("{path}?status=failed,lost")).await;
    let row = &failed["data"][0];
    assert_eq!(places(&failed), [(1, "web-02".to_owned())]);
    assert_eq!(
        (&row["task"], &row["item"], &row["attempts"], &row["exit_code"], &row["error"]),
        (&json!("switch"), &Value::Null, &json!(1), &json!(3), &json!("exit code 3"))
    );
    assert!(row["execution"].is_string() && row["duration"].is_string());
    assert_eq!(places(&setup.ok(&format!("{path}?step=0&node=web-01")).await), [(0, "web-01".to_owned())]);
    for bad in ["status=broken", "limit=0", "limit=1001", "cursor=x", "offset=1"] {
        assert_eq!(setup.get(&format!("{path}?{bad}")).await.status, StatusCode::BAD_REQUEST, "{bad}");
    }
    assert_eq!(setup.get("/runs/none/results").await.status, StatusCode::NOT_FOUND);

    let matrix = setup.ok(&format!("/runs/{id}/matrix")).await;
    assert_eq!(
        (&matrix["nodes"], &matrix["steps"], &matrix["cells"], &matrix["total"]),
        (&json!(["web-01", "web-02"]), &json!(["fetch", "switch"]), &json!(["ss", "sf"]), &json!(2))
    );
    assert!(matrix["seq"].as_u64().is_some_and(|seq| seq > 0) && matrix.get("times").is_none());
    let matrix = setup.ok(&format!("/runs/{id}/matrix?order=failed&limit=1&times=1")).await;
    assert_eq!((&matrix["nodes"], &matrix["cells"]), (&json!(["web-02"]), &json!(["sf"])));
    assert!(matrix["times"][0][1][1].is_i64(), "{matrix}");
    let matrix = setup.ok(&format!("/runs/{id}/matrix?selector=node:web-01")).await;
    assert_eq!((&matrix["nodes"], &matrix["total"]), (&json!(["web-01"]), &json!(1)));
    assert_eq!(setup.get(&format!("/runs/{id}/matrix?selector=(")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_plan_lists_a_set_of_nodes_once_and_is_sent_once() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    setup.agent("db-01", &["db"]).await;
    let task = |target: &str| json!({"backend": "test", "action": "noop", "target": target});
    let id = setup.submit(&json!({"tasks": [task("all"), task("group:db"), task("all")]})).await;
    let path = format!("/runs/{id}/plan");
    let answer = setup.get(&path).await;
    let place = |step: usize| &answer.body["steps"][step]["where"];
    assert_eq!(answer.body["sets"].as_array().unwrap().len(), 2);
    assert_eq!(place(0), place(2));
    let of = |place: &Value| answer.body["sets"][usize::try_from(place.as_u64().unwrap()).unwrap()].clone();
    assert_eq!(of(place(1)), json!([0]), "db-01 is first by name: {}", answer.body["nodes"]);
    assert_eq!(answer.body["steps"][0].get("condition"), None);
    let again = |tag: &str| send(setup.request(Method::GET, &path).header("If-None-Match", tag));
    let tag = answer.headers["etag"].to_str().unwrap();
    assert_eq!(again(tag).await.status, StatusCode::NOT_MODIFIED);
    assert_eq!(again("\"other\"").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_step_that_waits_for_a_drained_or_busy_node_says_so() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let definition =
        json!({"target": "all", "tasks": [{"name": "fetch", "backend": "test", "action": "noop"}]});
    let first = setup.submit(&definition).await;
    let held = agent.take().await;
    let second = setup.submit(&definition).await;
    let waits = |run: &Value| run["results"]["0"]["web-01"]["waits"].as_str().unwrap_or_default().to_owned();
    let busy = format!("waits for web-01, busy with run {first}");
    let run = setup.run_until(&second, |run| waits(run) == busy).await;
    let waiting = &run["waiting"][0];
    assert_eq!((&waiting["bound"], &waiting["nodes"][0]["cause"]), (&json!(true), &json!("busy")), "{run}");
    setup.post("/nodes/web-01/drain", &json!(null)).await;
    agent.finish(&held, 0).await;
    let drained = "waits for web-01, drained; `downbeat node undrain web-01` ends that";
    setup.run_until(&second, |run| waits(run) == drained).await;
}

#[tokio::test]
async fn a_placed_step_is_shown_under_the_node_that_ran_it() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let definition = json!({"placement": {}, "tasks": [{"backend": "test", "action": "noop"}]});
    let id = setup.submit(&definition).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    let run = setup.ended(&id).await;
    assert_eq!(run["results"]["0"]["web-01"]["status"], "succeeded");
    assert_eq!(run["results"]["0"].as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn plans_show_steps_places_and_edges_without_starting_anything() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    setup.agent("web-02", &["web"]).await;
    let definition = json!({
        "name": "roll", "target": "group:web", "strategy": "continue",
        "tasks": [
            {"name": "prepare", "backend": "test", "action": "noop"},
            {"name": "walk", "tasks": [
                {"name": "down", "backend": "test", "action": "noop"},
                {"name": "up", "backend": "test", "action": "noop", "condition": "on_success"},
            ]},
            {"name": "once", "backend": "ping", "action": "ping", "placement": {}},
        ],
    });
    let planned = setup.post("/plan", &definition).await;
    assert_eq!(planned.status, StatusCode::OK, "{}", planned.body);
    let plan = planned.body;
    assert_eq!(plan["strategy"], "continue");
    assert_eq!(plan["nodes"][1]["hostname"], "web-02");
    assert_eq!(
        plan["steps"][0],
        json!({
            "index": 0, "entry": 0, "name": "prepare", "backend": "test", "action": "noop", "branch": null,
            "where": 0, "after": [], "params": {}, "timeout": "30m", "retries": 0, "delivery": "at_least_once",
            "idempotent": true,
        })
    );
    assert_eq!(plan["sets"], json!([[0, 1]]));
    assert_eq!(plan["steps"][1]["after"], json!([{"step": 0, "kind": "barrier"}]));
    assert_eq!(plan["steps"][2]["after"], json!([{"step": 1, "kind": "per_node"}]));
    assert_eq!(
        (&plan["steps"][2]["branch"], &plan["steps"][2]["condition"]),
        (&json!("walk"), &json!("on_success"))
    );
    assert_eq!(plan["steps"][3]["where"], "placed");
    assert_eq!((&plan["shape"], &plan["steps"][2]["entry"]), (&json!("list"), &json!(1)));
    assert_eq!(setup.ok("/runs").await["pagination"]["total"], 0, "nothing was started");

    let id = setup.submit(&definition).await;
    assert_eq!(setup.ok(&format!("/runs/{id}/plan")).await, plan);
    let shown = setup.ok(&format!("/runs/{id}?definition=1")).await;
    assert_eq!(shown["definition"]["tasks"][1]["tasks"][0]["name"], "down");
    assert_eq!(setup.ok(&format!("/runs/{id}")).await.get("definition"), None);
}

#[tokio::test]
async fn a_list_of_runs_shows_their_progress() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &["web"]).await;
    let small = json!({"target": "group:web", "tasks": [{"backend": "test", "action": "noop"}]});
    let small = setup.submit(&small).await;
    let work = agent.take().await;
    agent.finish(&work, 3).await;
    setup.ended(&small).await;
    let items: Vec<u32> = (0..40).collect();
    let task = json!({"backend": "test", "action": "noop", "for_each": {"items": items}});
    let large = setup.submit(&json!({"placement": {"labels": ["none"]}, "tasks": [task]})).await;
    let counts = async || {
        let list = setup.ok("/runs").await;
        list["data"].as_array().unwrap().iter().map(|run| run["counts"].clone()).collect::<Vec<_>>()
    };
    let [of_large, of_small] = &counts().await[..] else { panic!("there are two runs") };
    assert_eq!((&of_large["pending"], &of_large["failed"]), (&json!(40), &json!(0)));
    assert_eq!((&of_small["pending"], &of_small["failed"]), (&json!(0), &json!(1)));
    let shown = setup.ok(&format!("/runs/{large}")).await;
    assert_eq!(&shown["counts"], of_large, "the same as of the run itself");
    setup.post(&format!("/runs/{large}/cancel"), &json!(null)).await;
    setup.ended(&large).await;
    assert_eq!(counts().await[0]["cancelled"], 40);
}

#[tokio::test]
async fn runs_are_sorted_by_creation_or_by_their_end() {
    let setup = Setup::new().await;
    let never = json!({"placement": {"labels": ["none"]}, "tasks": noop()["tasks"]});
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(setup.submit(&never).await);
    }
    for run in [&runs[1], &runs[0]] {
        setup.post(&format!("/runs/{run}/cancel"), &json!(null)).await;
        setup.ended(run).await;
    }
    let ids = |list: &Value| -> Vec<String> {
        let data = list["data"].as_array().unwrap();
        data.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    for (query, expected) in [
        ("", vec![&runs[2], &runs[1], &runs[0]]),
        ("?order=asc", vec![&runs[0], &runs[1], &runs[2]]),
        ("?sort=finished", vec![&runs[0], &runs[1]]),
        ("?sort=finished&order=asc", vec![&runs[1], &runs[0]]),
    ] {
        assert_eq!(
            ids(&setup.ok(&format!("/runs{query}")).await).iter().collect::<Vec<_>>(),
            expected,
            "{query}"
        );
    }
    let first = setup.ok("/runs?sort=finished&limit=1").await;
    let next = first["pagination"]["next"].as_str().unwrap();
    let second = setup.ok(&format!("/runs?sort=finished&limit=1&cursor={next}")).await;
    assert_eq!((ids(&first), ids(&second)), (vec![runs[0].clone()], vec![runs[1].clone()]));
    let other = setup.get(&format!("/runs?cursor={next}")).await;
    assert_eq!(other.status, StatusCode::BAD_REQUEST);
    assert_eq!(setup.get("/runs?sort=size").await.status, StatusCode::BAD_REQUEST);
}
