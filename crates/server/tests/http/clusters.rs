//! Clusters: their calls, and that nothing in one sees or counts against another.

use std::path::Path;

use downbeat_core::backend::{ActionSchema, BackendSchema};
use downbeat_proto::message::Fault;
use downbeat_testbed::in_process::{Setup, noop, send};
use downbeat_testbed::{DEADLINE, within};
use reqwest::{Method, StatusCode};
use rusqlite::types::ValueRef;
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_cluster_is_created_shown_changed_and_deleted() {
    let setup = Setup::new().await;
    let body = json!({"name": "Production Cluster", "description": "Main production environment"});
    let created = setup.post("/clusters", &body).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let cluster = created.body;
    let id = cluster["id"].as_str().unwrap();
    assert_eq!(created.headers["location"], format!("/api/v1/clusters/{id}"));
    for (field, expected) in [
        ("name", json!("Production Cluster")),
        ("description", json!("Main production environment")),
        ("on_register", json!("reset")),
        ("nodes", json!(0)),
        ("tasks", json!(0)),
        ("updated_at", cluster["created_at"].clone()),
    ] {
        assert_eq!(cluster[field], expected, "{field}");
    }
    assert_eq!(setup.ok(&format!("/clusters/{id}")).await, cluster);
    assert_eq!(setup.ok("/clusters/Production%20Cluster").await, cluster);
    let changed =
        setup.patch(&format!("/clusters/{id}"), &json!({"name": "prod", "on_register": "resume"})).await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.body);
    assert_eq!(
        (&changed.body["name"], &changed.body["description"], &changed.body["on_register"]),
        (&json!("prod"), &json!("Main production environment"), &json!("resume"))
    );
    let described = setup.put("/clusters/prod", &json!({"description": ""})).await.body;
    assert_eq!((&described["name"], &described["description"]), (&json!("prod"), &json!("")));
    assert_eq!(setup.get("/clusters/Production%20Cluster").await.status, StatusCode::NOT_FOUND);
    assert_eq!(names(&setup.ok("/clusters").await), ["default", "prod"]);
    let deleted = setup.delete("/clusters/prod").await;
    assert_eq!((deleted.status, deleted.body), (StatusCode::NO_CONTENT, json!("")));
    assert_eq!(setup.get(&format!("/clusters/{id}")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(setup.delete("/clusters/prod").await.status, StatusCode::NOT_FOUND);
    // The name is free again.
    setup.cluster("prod").await;
}

#[tokio::test]
async fn clusters_are_listed_in_pages() {
    let setup = Setup::new().await;
    for name in ["b", "a", "c"] {
        setup.cluster(name).await;
    }
    let page = setup.ok("/clusters?limit=2").await;
    assert_eq!(names(&page), ["a", "b"]);
    assert_eq!((&page["pagination"]["total"], &page["pagination"]["has_more"]), (&json!(4), &json!(true)));
    let next = page["pagination"]["next"].as_str().unwrap();
    assert_eq!(names(&setup.ok(&format!("/clusters?cursor={next}")).await), ["c", "default"]);
    assert_eq!(names(&setup.ok("/clusters?limit=100&offset=3").await), ["default"]);
}

#[tokio::test]
async fn a_wrong_cluster_is_refused_with_the_reason() {
    let setup = Setup::new().await;
    setup.cluster("web").await;
    let twice = setup.post("/clusters", &json!({"name": "web"})).await;
    assert_eq!((twice.status, &twice.body["code"]), (StatusCode::CONFLICT, &json!("conflict")));
    assert_eq!(twice.body["detail"], "a cluster is named `web`; choose another name");
    setup.cluster("db").await;
    assert_eq!(setup.patch("/clusters/db", &json!({"name": "web"})).await.status, StatusCode::CONFLICT);
    let bad = [
        (json!({"name": "a:b"}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({"name": ""}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({"name": "x", "description": "d".repeat(5000)}), StatusCode::UNPROCESSABLE_ENTITY),
        (json!({"name": "x", "on_register": "never"}), StatusCode::BAD_REQUEST),
        (json!({"name": "x", "nodes": 3}), StatusCode::BAD_REQUEST),
        (json!([]), StatusCode::BAD_REQUEST),
    ];
    for (body, status) in bad {
        let refused = setup.post("/clusters", &body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
    }
    assert_eq!(setup.delete("/clusters/default").await.status, StatusCode::CONFLICT);
    assert_eq!(setup.patch("/clusters/default", &json!({"name": "x"})).await.status, StatusCode::CONFLICT);
    let unknown = setup.get("/clusters/wbe").await;
    assert_eq!(
        unknown.body["detail"],
        "there is no cluster `wbe`; did you mean `web`? (clusters: db, default, web)"
    );
}

/// Returns the metrics that are about what there is now, and all that name a node, a cluster or a job.
async fn gauges(setup: &Setup) -> Vec<String> {
    let names = ["runs", "nodes", "node_", "queue_depth", "polls_parked", "runs_waiting", "nodes_held"];
    let labels = ["cluster=", "node=", "job=", "\"web"];
    let (_, text) = setup.root("/metrics").await;
    let is_wanted = |line: &&str| {
        let name = line.strip_prefix("downbeat_");
        name.is_some_and(|rest| names.iter().any(|name| rest.starts_with(name)))
            || labels.iter().any(|label| line.contains(label))
    };
    text.lines().filter(is_wanted).map(str::to_owned).collect()
}

#[tokio::test]
async fn no_metric_has_anything_of_a_deleted_cluster() {
    let setup = Setup::new().await;
    setup.agent("one", &[]).await;
    let before = gauges(&setup).await;
    let web = setup.cluster("web").await;
    let mut there = setup.agent_in(web, "one", &[], &[]).await;
    let mut named = job("web");
    named["name"] = json!("web-nightly");
    let run = setup.submit(&named).await;
    let work = there.take().await;
    there.finish(&work, 0).await;
    setup.ended(&run).await;
    // One run has the node for itself, and the other one waits for it.
    for _ in 0..2 {
        let mut exclusive = job("web");
        exclusive["exclusive"] = json!(true);
        setup.submit(&exclusive).await;
    }
    there.take().await;
    let shown = gauges(&setup).await;
    for line in [
        r#"downbeat_runs{state="completed"} 1"#,
        "downbeat_runs_waiting 1",
        "downbeat_nodes_held 1",
        r#"downbeat_nodes{status="online"} 2"#,
        r#"downbeat_node_claims_total{cluster="web",node="one"} 2"#,
        r#"downbeat_node_claims_total{cluster="default",node="one"} 0"#,
        r#"downbeat_run_seconds_count{cluster="web",job="web-nightly"} 1"#,
    ] {
        assert!(shown.iter().any(|have| have == line), "no `{line}` in {shown:#?}");
    }
    assert_eq!(setup.delete("/clusters/web").await.status, StatusCode::NO_CONTENT);
    let is_gone = async {
        while gauges(&setup).await != before {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(DEADLINE, is_gone).await.is_err() {
        assert_eq!(gauges(&setup).await, before);
    }
}

/// A job of one task on every node of a cluster.
fn job(cluster: &str) -> Value {
    let mut job = noop();
    job["cluster"] = json!(cluster);
    job
}

#[tokio::test]
async fn targets_and_names_are_those_of_the_cluster() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let mut here = setup.agent("one", &[]).await;
    let mut there = setup.agent_in(web, "one", &[], &[]).await;
    setup.agent_in(web, "two", &[], &[]).await;
    assert_ne!(here.node, there.node);
    let run = setup.submit(&noop()).await;
    assert_eq!(setup.targets(&run).await, ["one"]);
    let work = here.take().await;
    here.finish(&work, 0).await;
    setup.ended(&run).await;
    let other = setup.submit(&job("web")).await;
    assert_eq!(setup.targets(&other).await, ["one", "two"]);
    let shown = setup.ok(&format!("/runs/{other}")).await;
    assert_eq!((&shown["cluster"], &shown["cluster_name"]), (&json!(web), &json!("web")));
    let work = there.take().await;
    there.finish(&work, 0).await;
    // Lists and feeds of one cluster.
    let runs = setup.ok("/runs?cluster=web").await;
    assert_eq!((runs["data"].as_array().unwrap().len(), &runs["data"][0]["id"]), (1, &json!(other)));
    assert_eq!(runs["data"][0]["cluster_name"], "web");
    assert_eq!(setup.ok("/runs?cluster=default").await["data"][0]["id"], json!(run));
    let events = setup.ok("/events?follow=0&since=0&limit=1000&cluster=default").await;
    for event in events["data"].as_array().unwrap() {
        assert_ne!(event["cluster"], json!(web), "{event}");
    }
    let nodes = setup.ok("/clusters/web/nodes").await;
    assert_eq!(nodes["pagination"]["total"], 2);
    assert_eq!(setup.ok("/nodes/one").await["id"], json!(here.node));
    assert_eq!(setup.ok("/nodes/one?cluster=web").await["id"], json!(there.node));
    assert_eq!(setup.get("/nodes/two").await.status, StatusCode::NOT_FOUND);
    assert_eq!(setup.ok("/clusters/web").await["nodes"], 2);
}

#[tokio::test]
async fn a_job_is_checked_against_the_catalogue_of_its_own_cluster() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let actions = vec![ActionSchema { name: "now".to_owned(), idempotent: true, params: Vec::new() }];
    let backup = BackendSchema { name: "backup".to_owned(), help: String::new(), actions };
    setup.agent("one", &[]).await;
    setup.agent_in(web, "two", &[], &[backup]).await;
    let job = json!({"target": "all", "tasks": [{"backend": "backup", "action": "now"}]});
    let mut named = job.clone();
    named["cluster"] = json!("web");
    for path in ["/plan", "/validate", "/runs"] {
        let refused = setup.post(path, &job).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {}", refused.body);
        for (path, body) in [(path.to_owned(), &named), (format!("{path}?cluster=web"), &job)] {
            let accepted = setup.post(&path, body).await;
            assert!(accepted.status.is_success(), "{path}: {}", accepted.body);
        }
        let with_params = setup.post(path, &json!({"definition": named, "params": {}})).await;
        assert!(with_params.status.is_success(), "{path}: {}", with_params.body);
        let yaml = "cluster: web\ntarget: all\ntasks: [{backend: backup, action: now}]\n";
        let request = setup.request(Method::POST, path).header("content-type", "application/yaml").body(yaml);
        assert!(send(request).await.status.is_success(), "{path}");
    }
    let offers = |cluster: &'static str| {
        let setup = &setup;
        async move {
            let list = setup.ok(&format!("/backends?cluster={cluster}&limit=1000")).await;
            names(&list).contains(&"backup")
        }
    };
    assert!(offers("web").await);
    assert!(!offers("default").await);
    let body = json!({"name": "backup", "backend": "backup", "action": "now"});
    assert_eq!(setup.post("/clusters/default/tasks", &body).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(setup.post("/clusters/web/tasks", &body).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_its_cluster() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    setup.agent("one", &[]).await;
    setup.agent_in(web, "one", &[], &[]).await;
    let post = |path: &'static str| {
        send(setup.request(Method::POST, path).header("idempotency-key", "k").json(&noop()))
    };
    let first = post("/runs").await;
    let other = post("/runs?cluster=web").await;
    assert_eq!((first.status, other.status), (StatusCode::CREATED, StatusCode::CREATED), "{}", other.body);
    assert_ne!(first.body["id"], other.body["id"]);
    let again = post("/runs?cluster=web").await;
    assert_eq!((again.status, &again.body["id"]), (StatusCode::OK, &other.body["id"]));
}

#[tokio::test]
async fn limits_and_placement_do_not_reach_into_another_cluster() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let mut here = setup.agent("one", &[]).await;
    let mut there = setup.agent_in(web, "one", &[], &[]).await;
    let placed = |cluster: &str| {
        json!({
            "cluster": cluster,
            "tasks": [{"backend": "test", "action": "noop", "limits": {"licence": 1}}]
        })
    };
    let first = setup.submit(&placed("default")).await;
    let held = here.take().await;
    // The limit of the other cluster has room, and only its own node gets the work.
    let second = setup.submit(&placed("web")).await;
    let work = there.take().await;
    assert!(here.take_soon().await.is_empty());
    assert_eq!(setup.ok("/limits?cluster=web").await["data"][0]["in_use"], 1);
    there.finish(&work, 0).await;
    setup.ended(&second).await;
    here.finish(&held, 0).await;
    setup.ended(&first).await;
}

#[tokio::test]
async fn live_frames_of_a_cluster_have_only_its_nodes() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let mut frames = setup.follow("/live?cluster=web&topics=runs,nodes").await;
    setup.agent("one", &[]).await;
    let there = setup.agent_in(web, "two", &[], &[]).await;
    let frame = frames.next().await.expect("the stream continues").data;
    assert_eq!(frame["nodes"].as_array().unwrap().len(), 1, "{frame}");
    assert_eq!(frame["nodes"][0]["node"], json!(there.node));
}

#[tokio::test]
async fn a_deleted_cluster_takes_everything_with_it() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let mut agent = setup.agent_in(web, "one", &[], &[]).await;
    let run = setup.submit(&job("web")).await;
    agent.take().await;
    assert_eq!(setup.delete("/clusters/web").await.status, StatusCode::NO_CONTENT);
    assert_eq!(setup.get("/runs?cluster=web").await.status, StatusCode::NOT_FOUND);
    assert_eq!(setup.ok("/runs").await["data"], json!([]));
    assert_eq!(setup.get("/nodes/one?cluster=web").await.status, StatusCode::NOT_FOUND);
    let gone = within(DEADLINE, || async {
        let status = setup.get(&format!("/runs/{run}")).await.status;
        (status == StatusCode::NOT_FOUND).then_some(())
    });
    assert_eq!(gone.await, Some(()), "the run is removed");
    let last = setup.ok("/events?follow=0&kind=cluster_deleted").await;
    assert_eq!(last["data"][0]["text"], "cluster web deleted");
}

#[tokio::test]
async fn an_edit_that_changes_nothing_makes_neither_a_version_nor_an_event() {
    let setup = Setup::new().await;
    setup.cluster("web").await;
    let body = json!({"name": "one", "command": "true"});
    let task = setup.post("/clusters/web/tasks", &body).await.body;
    let last = || async { setup.ok("/events?follow=0&cluster=web").await["data"].as_array().unwrap().len() };
    let before = last().await;
    let path = format!("/tasks/{}", task["id"].as_str().unwrap());
    let updated = setup.put(&path, &body).await;
    assert_eq!((updated.status, &updated.body), (StatusCode::OK, &task));
    assert_eq!(setup.patch("/clusters/web", &json!({"description": ""})).await.status, StatusCode::OK);
    let order = json!({"task_ids": [task["id"]]});
    assert_eq!(setup.put("/clusters/web/tasks/reorder", &order).await.status, StatusCode::NO_CONTENT);
    assert_eq!(last().await, before);
    assert_eq!(setup.patch("/clusters/web", &json!({"description": "x"})).await.status, StatusCode::OK);
    assert_eq!(last().await, before + 1);
}

#[tokio::test]
async fn streams_of_a_run_end_when_its_cluster_is_deleted() {
    let setup = Setup::new().await;
    let web = setup.cluster("web").await;
    let mut there = setup.agent_in(web, "one", &[], &[]).await;
    let run = setup.submit(&job("web")).await;
    let work = there.take().await;
    there.write(&work, 0, "begun\n").await;
    let mut output = setup.follow(&format!("/runs/{run}/output?follow=1")).await;
    assert_eq!(output.next().await.unwrap().data["text"], "begun\n");
    let mut events = setup.follow(&format!("/runs/{run}/events?follow=1")).await;
    while events.next().await.unwrap().name != "execution_leased" {}
    assert_eq!(setup.delete("/clusters/web").await.status, StatusCode::NO_CONTENT);
    // A client that asks again learns that there is no such run, at once and later.
    assert_eq!(setup.get(&format!("/runs/{run}")).await.status, StatusCode::NOT_FOUND);
    for mut stream in [output, events] {
        let rest = stream.rest().await;
        assert!(rest.iter().all(|sent| sent.name != "end"), "the run has not ended: {rest:?}");
    }
}

#[tokio::test]
async fn live_frames_say_that_a_cluster_is_gone() {
    let setup = Setup::new().await;
    let (web, db) = (setup.cluster("web").await, setup.cluster("db").await);
    setup.agent_in(web, "one", &[], &[]).await;
    let mut all = setup.follow("/live?topics=runs,nodes").await;
    let mut of_it = setup.follow("/live?cluster=web&topics=nodes").await;
    let mut of_other = setup.follow("/live?cluster=db&topics=runs,nodes").await;
    assert_eq!(setup.delete("/clusters/web").await.status, StatusCode::NO_CONTENT);
    // All its nodes and runs are gone: a page that shows them reads again.
    for stream in [&mut all, &mut of_it] {
        while stream.next().await.expect("the stream continues").name != "gap" {}
    }
    setup.agent_in(db, "two", &[], &[]).await;
    assert_eq!(of_other.next().await.expect("the stream continues").name, "frame");
}

/// Returns the values in all tables of a SQLite file that contain one of these, as `table: value`.
fn found_in(file: &Path, wanted: &[Vec<u8>]) -> Vec<String> {
    let store = rusqlite::Connection::open(file).unwrap();
    let mut tables = store.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").unwrap();
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let mut found = Vec::new();
    for table in tables {
        let mut rows = store.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                let value = row.get_ref(column).unwrap();
                let (ValueRef::Text(bytes) | ValueRef::Blob(bytes)) = value else { continue };
                if wanted.iter().any(|one| bytes.windows(one.len()).any(|part| part == one)) {
                    found.push(format!("{table}: {}", String::from_utf8_lossy(bytes)));
                }
            }
        }
    }
    found
}

#[tokio::test]
async fn a_cluster_is_deleted_while_100_nodes_work_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("downbeat.db");
    let setup = Setup::on(&format!("sqlite:{}", file.display())).await;
    setup.agent("one", &[]).await;
    let before = gauges(&setup).await;
    let web = setup.cluster("web").await;
    let names: Vec<String> = (0..100).map(|number| format!("webnode-{number}")).collect();
    let mut agents =
        futures_util::future::join_all(names.iter().map(|name| setup.agent_in(web, name, &[], &[]))).await;
    let body = json!({"name": "webtask", "command": "echo webcommand"});
    assert_eq!(setup.post("/clusters/web/tasks", &body).await.status, StatusCode::CREATED);
    let mut named = job("web");
    named["name"] = json!("webjob");
    let run = setup.submit(&named).await;
    let work = futures_util::future::join_all(agents.iter_mut().map(|agent| agent.take())).await;
    for (agent, work) in agents.iter().zip(&work) {
        agent.write(work, 0, "weboutput\n").await;
    }
    assert_eq!(setup.delete("/clusters/web").await.status, StatusCode::NO_CONTENT);
    // Each agent learns that its node is gone, and exits.
    for (agent, work) in agents.iter().zip(&work) {
        let fault = agent.beat(std::slice::from_ref(work)).await.unwrap_err();
        assert!(matches!(fault, Fault::NotFound(_) | Fault::Unknown(_)), "{fault:?}");
    }
    let wanted: Vec<Vec<u8>> =
        [run.as_bytes(), b"webnode-", b"webtask", b"webcommand", b"webjob", b"weboutput"]
            .into_iter()
            .chain([web.0.as_bytes().as_slice()])
            .map(<[u8]>::to_vec)
            .collect();
    let gone = within(DEADLINE, || async {
        (found_in(&file, &wanted).is_empty() && gauges(&setup).await == before).then_some(())
    });
    if gone.await.is_none() {
        assert_eq!(found_in(&file, &wanted), Vec::<String>::new());
        assert_eq!(gauges(&setup).await, before);
    }
}
