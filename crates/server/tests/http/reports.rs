//! Reports of agents: limited in size, checked against the task's declared outputs, with clocks that differ
//! from the server's.

use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::Description;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{Fault, Heartbeat, InstanceId, LeaseRef, Register};
use downbeat_testbed::in_process::{Setup, outcome};
use jiff::SignedDuration;
use serde_json::{Value, json};
use uuid::Uuid;

/// Returns the only result of a run with one placed task.
async fn result(setup: &Setup, run: &str) -> Value {
    let run = setup.ended(run).await;
    let results = run["results"]["0"].as_object().expect("there is a step");
    let execution = results.values().next().expect("there is a result")["execution"].as_str().unwrap();
    setup.ok(&format!("/executions/{execution}")).await
}

fn time(value: &Value) -> Timestamp {
    value.as_str().expect("there is a time").parse().expect("it is a time")
}

#[tokio::test]
async fn a_result_is_as_old_as_the_server_says_whatever_its_agents_clock_says() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let years = 10 * 365 * 24;
    for (number, hours) in [(0, -2), (1, 2), (2, -200_000), (3, years), (4, -years)] {
        let begun = Timestamp::now() - Duration::from_millis(1);
        let job = json!({"tasks": [
            {"backend": "test", "action": "echo", "params": {"message": number.to_string()}, "cache": {"max_age": "1h"}},
        ]});
        let first = setup.submit(&job).await;
        let work = agent.take().await;
        let off = SignedDuration::from_hours(hours);
        let right = outcome(0);
        let (started_at, finished_at) = (right.started_at + off, right.finished_at + off);
        agent.finish_as(&work, Outcome { started_at, finished_at, ..right }).await;
        let kept = result(&setup, &first).await;
        let (leased, started, finished) =
            (time(&kept["leased_at"]), time(&kept["started_at"]), time(&kept["finished_at"]));
        assert!(leased <= started && started <= finished && finished <= Timestamp::now(), "{kept}");
        assert_eq!(kept["duration"], "1us");
        for event in setup.ok(&format!("/runs/{first}/events")).await["data"].as_array().unwrap() {
            let at = time(&event["at"]);
            assert!(begun <= at && at <= Timestamp::now(), "{hours} h: {event}");
        }
        // The cached result is recent, so it is used; no node gets work of this run.
        let second = setup.submit(&job).await;
        assert_eq!(result(&setup, &second).await["cached"], true, "{hours} h");
    }
}

#[tokio::test]
async fn times_that_make_no_sense_are_shown_as_ones_that_do() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    for (started_at, finished_at) in
        [(Timestamp::MAX, Timestamp::MIN), (Timestamp::MIN, Timestamp::MAX), (Timestamp::MIN, Timestamp::MIN)]
    {
        for exit_code in [0, 3] {
            let run = setup.submit(&json!({"tasks": [{"backend": "test", "action": "noop"}]})).await;
            let work = agent.take().await;
            agent.finish_as(&work, Outcome { started_at, finished_at, ..outcome(exit_code) }).await;
            let kept = result(&setup, &run).await;
            let (started, finished) = (time(&kept["started_at"]), time(&kept["finished_at"]));
            assert!(time(&kept["leased_at"]) <= started && finished <= Timestamp::now(), "{kept}");
            let day = SignedDuration::from_hours(24);
            assert!(started <= finished && finished.duration_since(started) < day, "{kept}");
        }
    }
}

#[tokio::test]
async fn outputs_are_held_against_what_the_task_declares() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let long = "x".repeat(limits::VALUES_BYTES);
    for (declared, set, expected) in [
        (json!(["a"]), json!({"a": "1", "b": "2"}), Ok(json!({"a": "1"}))),
        (json!([]), json!({"a": "1"}), Ok(json!({}))),
        (json!(["a", "b"]), json!({"a": "1"}), Err("did not set output `b`")),
        (json!(["a"]), json!({"a": long}), Err("larger than 64 KiB")),
        (json!(["a"]), json!({"a": long.repeat(16)}), Err("larger than 64 KiB")),
    ] {
        let mut task =
            json!({"name": "say", "backend": "exec", "action": "run", "params": {"command": "true"}});
        if declared != json!([]) {
            task["outputs"] = declared;
        }
        let run = setup.submit(&json!({"tasks": [task]})).await;
        let work = agent.take().await;
        let outputs = serde_json::from_value(set).unwrap();
        agent.finish_as(&work, Outcome { outputs, ..outcome(0) }).await;
        let kept = result(&setup, &run).await;
        match expected {
            Ok(outputs) => assert_eq!(kept.get("outputs").cloned().unwrap_or(json!({})), outputs, "{kept}"),
            Err(why) => {
                assert_eq!(kept["status"], "failed");
                assert!(kept["error"].as_str().unwrap().contains(why), "{}", kept["error"]);
            }
        }
    }
}

#[tokio::test]
async fn a_long_error_is_cut() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&json!({"tasks": [{"backend": "test", "action": "noop"}]})).await;
    let work = agent.take().await;
    let error = Some("ü".repeat(1_000_000));
    agent.finish_as(&work, Outcome { error, verdict: Verdict::Failed, ..outcome(1) }).await;
    let kept = result(&setup, &run).await;
    let error = kept["error"].as_str().unwrap();
    assert!(error.len() <= limits::REASON_BYTES && error.ends_with('…'), "{} bytes", error.len());
}

fn register(description: Description) -> Register {
    let cluster = ClusterId::DEFAULT;
    Register {
        cluster,
        node: NodeId::derive(cluster, &description.hostname),
        session: SessionId(Uuid::new_v4()),
        description,
        instance: InstanceId::default(),
        undelivered: Vec::new(),
        life: 0,
    }
}

#[tokio::test]
async fn a_node_that_says_too_much_or_has_an_odd_name_is_not_registered() {
    let setup = Setup::new().await;
    let link = Client::connect(&setup.server.grpc_addr().to_string()).await.unwrap();
    let plain: Description = serde_json::from_value(json!({"hostname": "web-01", "slots": 1})).unwrap();
    let labels = |count: usize, value: &str| {
        (0..count).map(|number| (format!("n{number}"), value.to_owned())).collect()
    };
    for (description, expected) in [
        (
            Description { hostname: "evil\u{1b}]0;owned\u{7}\n\"".to_owned(), ..plain.clone() },
            "`hostname`: `evil\\u{1b}]0;owned\\u{7}\\n\"` is not a valid name",
        ),
        (Description { labels: labels(65, ""), ..plain.clone() }, "`labels`: there are 65, more than 64"),
        (
            Description { labels: labels(1, &"x".repeat(9_500_000)), ..plain.clone() },
            "`description`: is 9500",
        ),
        (Description { groups: vec!["g".to_owned(); 50_000], ..plain.clone() }, "`groups`: there are 50000"),
        (Description { slots: u32::MAX, ..plain.clone() }, "`slots`: 4294967295 is more than 1024"),
    ] {
        match link.register(register(description)).await {
            Err(Fault::Rejected(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}, not {expected}"),
        }
    }
    assert_eq!(setup.ok("/nodes").await["data"], json!([]));
    link.register(register(plain)).await.unwrap();
}

#[tokio::test]
async fn a_heartbeat_lists_no_more_than_a_node_can_hold() {
    let setup = Setup::new().await;
    let agent = setup.agent("web-01", &[]).await;
    let link = Client::connect(&setup.server.grpc_addr().to_string()).await.unwrap();
    let held = |count: u128| {
        let one = |number| LeaseRef {
            execution: ExecutionId(Uuid::from_u128(number)),
            token: LeaseToken(Uuid::from_u128(number)),
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    let beat = |held| Heartbeat {
        node: agent.node,
        session: agent.session(),
        held,
        leaving: false,
        problems: Vec::new(),
    };
    let most = limits::HELD_PER_MESSAGE as u128;
    let beaten =
        tokio::time::timeout(Duration::from_secs(60), link.heartbeat(beat(held(most)))).await.unwrap();
    assert_eq!(beaten.unwrap().refused.len(), limits::HELD_PER_MESSAGE, "none of them is known");
    let refused = link.heartbeat(beat(held(most + 1))).await.unwrap_err();
    assert_eq!(refused, Fault::Rejected("`held` lists 14097, more than 14096".to_owned()));
}
