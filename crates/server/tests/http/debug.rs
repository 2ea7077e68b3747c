//! Debug commands.

use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{Free, InstanceId, Register, WorkKind};
use downbeat_server::Settings;
use downbeat_testbed::in_process::{Agent, Setup, noop, send, settings};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

const IDLE: Free = Free { fleet: 1, placed: 2, debug: Some(4) };
const BUSY: Free = Free { fleet: 0, placed: 0, debug: Some(4) };

async fn agent(setup: &Setup, hostname: &str, groups: &[&str]) -> Agent {
    let mut agent = setup.agent(hostname, groups).await;
    agent.free = IDLE;
    agent
}

async fn start(setup: &Setup, path: &str, body: &Value) -> Value {
    let answer = setup.post(path, body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.headers["location"], format!("/api/v1/debug/{}", answer.body["id"].as_str().unwrap()));
    answer.body
}

/// Registers a node without `exec`.
async fn without_exec(setup: &Setup, hostname: &str) {
    let link = Client::connect(&setup.server.grpc_addr().to_string()).await.unwrap();
    let backends = Catalogue::builtin().backends().to_vec();
    let description = Description {
        hostname: hostname.to_owned(),
        groups: vec!["web".to_owned()],
        labels: [].into(),
        capabilities: [].into(),
        backends: backends.into_iter().filter(|backend| backend.name != "exec").collect(),
        slots: 1,
        version: String::new(),
    };
    let register = Register {
        cluster: ClusterId::DEFAULT,
        node: NodeId::derive(ClusterId::DEFAULT, hostname),
        session: SessionId(Uuid::new_v4()),
        description,
        instance: InstanceId::default(),
        undelivered: Vec::new(),
        life: 0,
    };
    link.register(register).await.unwrap();
}

#[tokio::test]
async fn a_debug_command_is_not_counted_as_a_run() {
    let setup = Setup::new().await;
    let mut agent = agent(&setup, "web-01", &[]).await;
    let started = start(&setup, "/nodes/web-01/debug", &json!({"command": "true"})).await;
    let counted = async || {
        let status = setup.ok("/status").await;
        let runs: u64 = status["runs"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let (_, metrics) = setup.root("/metrics").await;
        let shown =
            metrics.lines().filter(|line| line.starts_with("downbeat_runs{") && !line.ends_with(" 0"));
        (runs, status["servers"][0]["runs"].clone(), shown.count())
    };
    assert_eq!(counted().await, (0, json!(0), 0), "while it is open");
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(started["id"].as_str().unwrap()).await;
    assert_eq!(counted().await, (0, json!(0), 0), "after its end");
}

#[tokio::test]
async fn a_command_on_one_node_has_the_fields_of_a_debug_task() {
    let setup = Setup::new().await;
    let mut agent = agent(&setup, "web-01", &[]).await;
    let body = json!({"command": "docker ps --format '{{.Names}}'", "timeout_seconds": 30});
    let started = start(&setup, "/nodes/web-01/debug", &body).await;
    let id = started["id"].as_str().unwrap();
    assert!(id.starts_with("debug:"), "{id}");
    assert_eq!(started["node_id"], json!(agent.node));
    assert_eq!(started["command"], body["command"]);
    assert!(["pending", "leased"].contains(&started["status"].as_str().unwrap()), "{started}");
    assert_eq!((&started["executed_at"], &started["exit_code"]), (&Value::Null, &Value::Null));

    let work = agent.take().await;
    assert_eq!(work.kind, WorkKind::Debug);
    assert_eq!(work.timeout, std::time::Duration::from_secs(30));
    assert_eq!(work.params["command"], body["command"], "braces are not an expression");
    agent.start(&work).await;
    agent.write(&work, 0, "one\n").await;
    agent.finish_with(&work, 3, Some((4, "two\n"))).await;
    setup.ended(id).await;
    let listed = setup.ok("/nodes/web-01/debug").await;
    let result = &listed["data"][0];
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("failed"), &json!(3)));
    assert_eq!((&result["output"], &result["error"]), (&json!("one\ntwo\n"), &json!("exit code 3")));
    assert!(result["executed_at"].is_string(), "{result}");
    let shown = setup.ok(&format!("/debug/{id}")).await;
    assert_eq!(&shown["data"][0], result);
    assert_eq!(
        (&shown["command"], &shown["timeout"], &shown["nodes"]),
        (&body["command"], &json!("30s"), &json!(1))
    );

    // It is a run, but not of a job.
    assert_eq!(setup.ok("/runs").await["data"], json!([]));
    assert_eq!(setup.ok(&format!("/runs/{id}")).await["status"], "failed");
    let retried = setup.post(&format!("/runs/{id}/retry"), &Value::Null).await;
    assert_eq!(retried.status, StatusCode::CONFLICT, "{}", retried.body);
}

#[tokio::test]
async fn a_busy_and_drained_node_runs_a_command() {
    let setup = Setup::new().await;
    let mut agent = agent(&setup, "web-01", &[]).await;
    setup.submit(&noop()).await;
    let fleet = agent.take().await;
    agent.start(&fleet).await;
    setup.post("/nodes/web-01/drain", &Value::Null).await;
    agent.free = BUSY;
    start(&setup, "/nodes/web-01/debug", &json!({"command": "uptime"})).await;
    let command = agent.take().await;
    assert_eq!(command.kind, WorkKind::Debug);
    agent.finish(&command, 0).await;
}

#[tokio::test]
async fn a_command_needs_no_room_among_the_runs() {
    let setup = Setup::with(Settings {
        max_concurrent_runs: Some(1),
        max_pending_runs: 1,
        ..settings("memory:", "one")
    })
    .await;
    let mut agent = agent(&setup, "web-01", &[]).await;
    let first = setup.submit(&noop()).await;
    let _running = agent.take().await;
    agent.free = BUSY;
    let started = start(&setup, "/nodes/web-01/debug", &json!({"command": "uptime"})).await;
    let command = agent.take().await;
    agent.start(&command).await;
    // The command is active and takes no room either.
    let second = setup.submit(&noop()).await;
    let waits = setup.ok(&format!("/runs/{second}")).await;
    assert!(waits["pending_reason"].as_str().unwrap().contains("1 of 1 runs active"), "{waits}");
    agent.finish(&command, 0).await;
    setup.ended(started["id"].as_str().unwrap()).await;
    assert_eq!(setup.ok(&format!("/runs/{first}")).await["status"], "running");
}

#[tokio::test]
async fn a_selector_has_one_result_for_each_node() {
    let setup = Setup::new().await;
    let mut agents = Vec::new();
    for number in 1..=3 {
        agents.push(agent(&setup, &format!("web-0{number}"), &["web"]).await);
    }
    let _other = agent(&setup, "db-01", &["db"]).await;
    let body = json!({"selector": "group:web", "command": "hostname", "timeout": "1m"});
    let started = start(&setup, "/clusters/default/debug", &body).await;
    assert_eq!(
        (&started["nodes"], &started["selector"], &started["timeout"]),
        (&json!(3), &json!("group:web"), &json!("1m"))
    );
    for (number, agent) in agents.iter_mut().enumerate() {
        let work = agent.take().await;
        agent.finish_with(&work, i32::from(number == 1), Some((0, "me\n"))).await;
    }
    let id = started["id"].as_str().unwrap();
    setup.ended(id).await;
    let mut found = Vec::new();
    let mut path = format!("/debug/{id}?limit=2");
    loop {
        let page = setup.ok(&path).await;
        for row in page["data"].as_array().unwrap() {
            found.push((row["node"].clone(), row["status"].clone(), row["output"].clone()));
        }
        let Some(next) = page["pagination"]["next"].as_str() else { break };
        path = format!("/debug/{id}?limit=2&cursor={next}");
    }
    found.sort_by_key(|(node, ..)| node.to_string());
    let row = |node: &str, status: &str| (json!(node), json!(status), json!("me\n"));
    assert_eq!(found, [row("web-01", "succeeded"), row("web-02", "failed"), row("web-03", "succeeded")]);
    assert_eq!(setup.ok("/nodes/db-01/debug").await["data"], json!([]));
    assert_eq!(setup.ok("/nodes/web-03/debug").await["data"][0]["id"], json!(id));
}

#[tokio::test]
async fn the_newest_command_of_a_node_is_the_first_on_its_list() {
    let setup = Setup::new().await;
    let _agent = agent(&setup, "web-01", &[]).await;
    for number in 0..3 {
        start(&setup, "/nodes/web-01/debug", &json!({"command": format!("echo {number}")})).await;
    }
    let mut commands = Vec::new();
    let mut path = "/nodes/web-01/debug?limit=2".to_owned();
    loop {
        let page = setup.ok(&path).await;
        commands.extend(page["data"].as_array().unwrap().iter().map(|row| row["command"].clone()));
        let Some(next) = page["pagination"]["next"].as_str() else { break };
        path = format!("/nodes/web-01/debug?limit=2&cursor={next}");
    }
    assert_eq!(commands, [json!("echo 2"), json!("echo 1"), json!("echo 0")]);
}

#[tokio::test]
async fn nodes_without_exec_are_refused_before_anything_starts() {
    let setup = Setup::new().await;
    let mut agent = agent(&setup, "web-01", &["web"]).await;
    without_exec(&setup, "web-02").await;
    let one = setup.post("/nodes/web-02/debug", &json!({"command": "uptime"})).await;
    assert_eq!(one.status, StatusCode::CONFLICT, "{}", one.body);
    assert!(one.body["detail"].as_str().unwrap().contains("--allow exec"), "{}", one.body);
    let all =
        setup.post("/clusters/default/debug", &json!({"selector": "group:web", "command": "uptime"})).await;
    assert_eq!((all.status, &all.body["code"]), (StatusCode::CONFLICT, &json!("refused")), "{}", all.body);
    assert_eq!(all.body["nodes"][0]["node"], "web-02", "{}", all.body);
    assert!(agent.take_soon().await.is_empty());
    let nobody =
        setup.post("/clusters/default/debug", &json!({"selector": "group:db", "command": "uptime"})).await;
    assert_eq!(nobody.status, StatusCode::CONFLICT, "{}", nobody.body);
}

#[tokio::test]
async fn a_wrong_request_says_what_is_wrong() {
    let setup = Setup::new().await;
    let _agent = agent(&setup, "web-01", &[]).await;
    let cases = [
        (json!({"command": ""}), 422, "`command` is empty"),
        (
            json!({"command": "x", "timeout_seconds": 0}),
            422,
            "`0s` is not a valid timeout; it is from 1s to 1d",
        ),
        (json!({"command": "x", "timeout": "25h"}), 422, "is not a valid timeout"),
        (json!({"command": "x", "timeout": "1m", "timeout_seconds": 1}), 400, "cannot be used together"),
        (json!({"command": "x", "comand": "y"}), 400, "unknown field `comand`"),
        (json!({}), 400, "missing field `command`"),
    ];
    for (body, status, text) in cases {
        let answer = setup.post("/nodes/web-01/debug", &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.body);
        assert!(answer.body["detail"].as_str().unwrap().contains(text), "{}", answer.body);
    }
    let selector = setup.post("/clusters/default/debug", &json!({"selector": "((", "command": "x"})).await;
    assert_eq!(selector.status, StatusCode::BAD_REQUEST, "{}", selector.body);
    assert_eq!(
        setup.post("/nodes/nobody/debug", &json!({"command": "x"})).await.status,
        StatusCode::NOT_FOUND
    );
    let run = setup.submit(&noop()).await;
    for id in [run.as_str(), "debug:nothing", "debug:0197f3c0-0000-7000-8000-00000000000a"] {
        assert_eq!(setup.get(&format!("/debug/{id}")).await.status, StatusCode::NOT_FOUND, "{id}");
    }
}

#[tokio::test]
async fn a_repeated_request_with_the_same_key_starts_nothing() {
    let setup = Setup::new().await;
    let _agent = agent(&setup, "web-01", &[]).await;
    let sent = |command: &str| {
        let request = setup.request(Method::POST, "/nodes/web-01/debug").header("idempotency-key", "k");
        send(request.json(&json!({"command": command})))
    };
    let first = sent("uptime").await;
    let again = sent("uptime").await;
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::OK));
    assert_eq!(first.body["id"], again.body["id"]);
    assert_eq!(sent("reboot").await.body["code"], "idempotency_key_reused");
}

#[tokio::test]
async fn a_cancelled_command_is_stopped_on_its_node() {
    let setup = Setup::new().await;
    let mut agent = agent(&setup, "web-01", &[]).await;
    let started = start(&setup, "/nodes/web-01/debug", &json!({"command": "sleep 600"})).await;
    let id = started["id"].as_str().unwrap();
    let work = agent.take().await;
    agent.start(&work).await;
    let answer = setup.post(&format!("/debug/{id}/cancel"), &Value::Null).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
    let stopped = downbeat_core::execution::Outcome {
        verdict: downbeat_core::execution::Verdict::Cancelled,
        exit_code: None,
        ..downbeat_testbed::in_process::outcome(1)
    };
    agent.finish_as(&work, stopped).await;
    assert_eq!(setup.ended(id).await["status"], "cancelled");
    assert_eq!(setup.ok(&format!("/debug/{id}")).await["data"][0]["status"], "cancelled");
}

#[tokio::test]
async fn a_parameter_that_does_not_exist_is_refused() {
    let setup = Setup::new().await;
    let body = json!({"selector": "all", "command": "true"});
    for path in ["/clusters/default/debug?dry_run=1", "/debug/debug:1/cancel?force=1"] {
        let answer = setup.post(path, &body).await;
        assert_eq!((answer.status, &answer.body["code"]), (StatusCode::BAD_REQUEST, &json!("bad_query")));
    }
}
