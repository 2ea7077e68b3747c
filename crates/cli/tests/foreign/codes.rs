//! The gRPC code of each error.

use downbeat_testbed::{Site, SmallDisk, Store, until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::client::{Client, LATER_SESSION, Node, SESSION, register, with};

#[tokio::test]
async fn ids_that_are_missing_or_malformed_are_invalid_arguments() {
    let site = Site::build().start().await;
    let mut client = Client::connect(site.server.grpc());
    let node = client.node("web-01");
    let hello = json!({"cluster": "default", "version": "foreign", "protocol": 1});
    let register = register(&node, "web-01");
    let plain = json!({"node_id": node.id, "session_id": SESSION});
    let description =
        |hostname: &str| json!(json!({"hostname": hostname, "slots": 1, "version": "x"}).to_string());
    let finished = |verdict: &str, run: &str| {
        let one = json!({"execution_id": SESSION, "token": SESSION, "run_id": run, "verdict": verdict});
        with(plain.clone(), "finished", json!([one]))
    };
    let held =
        |execution: &str| with(plain.clone(), "held", json!([{"execution_id": execution, "token": SESSION}]));
    let mut cases = vec![
        ("Hello", with(hello.clone(), "cluster", Value::Null)),
        ("Hello", with(hello.clone(), "protocol", Value::Null)),
        ("Register", with(register.clone(), "cluster_id", Value::Null)),
        ("Register", with(register.clone(), "cluster_id", json!("AAAA"))),
        ("Register", with(register.clone(), "node_id", json!(SESSION))),
        ("Register", with(register.clone(), "description_json", Value::Null)),
        ("Register", with(register.clone(), "description_json", json!("{\"slots\": 1, \"version\": \"x\"}"))),
        ("Register", with(register.clone(), "description_json", description(""))),
        ("Register", with(register.clone(), "description_json", description("wéb-01"))),
        ("Register", with(register.clone(), "description_json", description(&"x".repeat(255)))),
        ("Heartbeat", held("AAAA")),
        ("Report", finished("VERDICT_UNSPECIFIED", "r")),
        ("Report", finished("VERDICT_SUCCEEDED", "")),
        ("Output", held("")),
    ];
    for call in ["Heartbeat", "Poll", "Report", "Output", "Register"] {
        let request = if call == "Register" { &register } else { &plain };
        for field in ["node_id", "session_id"] {
            cases.push((call, with(request.clone(), field, Value::Null)));
            cases.push((call, with(request.clone(), field, json!("AAAA"))));
        }
    }
    for (call, request) in cases {
        client.fails("INVALID_ARGUMENT", call, &request);
    }
}

#[tokio::test]
async fn clusters_and_nodes_that_do_not_exist_are_not_found_or_unknown() {
    let site = Site::build().start().await;
    let mut client = Client::connect(site.server.grpc());
    let hello = json!({"cluster": "east", "version": "foreign", "protocol": 1});
    let error = client.fails("NOT_FOUND", "Hello", &hello);
    assert_eq!(error["details"], "cluster `east` does not exist");
    assert_eq!(error["metadata"]["downbeat-fault"], "no-cluster");
    let id = client.ask(&json!({"derive": "web-01", "cluster_id": SESSION}));
    let elsewhere = Node { cluster: json!(SESSION), id };
    let error = client.fails("NOT_FOUND", "Register", &register(&elsewhere, "web-01"));
    assert_eq!(error["metadata"]["downbeat-fault"], "no-cluster");

    // A node that the store never heard of has to register.
    let node = client.node("web-01");
    let plain = json!({"node_id": node.id, "session_id": SESSION});
    for call in ["Heartbeat", "Poll", "Report", "Output"] {
        client.fails("FAILED_PRECONDITION", call, &plain);
    }
    client.ok("Register", &register(&node, "web-01"));
    client.ok("Heartbeat", &plain);
    assert_eq!(site.delete("nodes/web-01").await, Some(409), "it is online");
    assert_eq!(site.delete("nodes/web-01?force=1").await, Some(200));
    for call in ["Heartbeat", "Poll", "Report", "Output"] {
        let error = client.fails("NOT_FOUND", call, &plain);
        assert!(error["details"].as_str().unwrap().ends_with("was deleted"), "{error}");
        assert_eq!(error["metadata"]["downbeat-fault"], Value::Null, "{error}");
    }
    client.fails("NOT_FOUND", "Register", &register(&node, "web-01"));
}

#[tokio::test]
async fn an_agent_that_lost_its_node_learns_to_whom() {
    let site = Site::build().lease_ttl("60s").start().await;
    let mut client = Client::connect(site.server.grpc());
    let node = client.registered("web-01");
    let request = register(&node, "web-01");
    let other =
        with(with(request.clone(), "session_id", json!(LATER_SESSION)), "instance_id", json!("b3RoZXI="));
    let error = client.fails("RESOURCE_EXHAUSTED", "Register", &other);
    assert_eq!(error["metadata"]["downbeat-fault"], "occupied");
    let later = with(with(request, "session_id", json!(LATER_SESSION)), "life", json!("2"));
    client.ok("Register", &later);
    client.fails("ABORTED", "Heartbeat", &json!({"node_id": node.id, "session_id": SESSION}));
    client.ok("Heartbeat", &json!({"node_id": node.id, "session_id": LATER_SESSION}));
}

#[tokio::test]
async fn a_server_that_stops_is_unavailable_and_says_so_to_those_who_watch() {
    let site = Site::build().lease_ttl("60s").start().await;
    let mut client = Client::connect(site.server.grpc());
    let node = client.registered("web-01");
    for service in ["", "downbeat.agent.v1.Agent"] {
        assert_eq!(client.health(service), "SERVING", "{service}");
    }
    assert_eq!(client.health("downbeat.agent.v1.Other")["code"], "NOT_FOUND");
    client.ask(&json!({"watch": "downbeat.agent.v1.Agent"}));
    assert_eq!(client.ask(&json!({"next": true})), "SERVING");
    let poll = json!({"node_id": node.id, "session_id": SESSION, "poll": "1", "wait_ms": "60000",
                      "free": {"fleet": 1, "placed": 1}});
    client.ask(&json!({"call": "Poll", "request": poll, "as": "parked"}));
    // The server sees calls of one connection in order.
    client.ok("Heartbeat", &json!({"node_id": node.id, "session_id": SESSION}));
    site.server.signal(Signal::SIGTERM);
    let answer = client.ask(&json!({"collect": "parked"}));
    assert_eq!(answer["code"], "UNAVAILABLE", "{answer}");
    assert_eq!(client.ask(&json!({"next": true})), "NOT_SERVING");
    assert_eq!(client.ask(&json!({"next": true})), Value::Null, "the stream ends, and with it the server");
    assert_eq!(site.server.wait().code, 0);
    client.fails("UNAVAILABLE", "Heartbeat", &json!({"node_id": node.id, "session_id": SESSION}));
}

#[tokio::test]
async fn a_server_whose_store_is_full_is_unavailable_until_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&directory.path().join("disk"), 6);
    let store = Store::SqliteAt(disk.path.join("downbeat.db"));
    let site = Site::build().store(store).lease_ttl("60s").start().await;
    let mut client = Client::connect(site.server.grpc());
    let first = client.registered("web-01");
    disk.fill();
    let mut number = 1;
    // What is free inside of the store's file is used first.
    let refused = loop {
        number += 1;
        let hostname = format!("web-{number}");
        let node = Node {
            id: client.ask(&json!({"derive": hostname, "cluster_id": first.cluster})),
            ..first.clone()
        };
        let request = register(&node, &hostname);
        match client.call("Register", &request) {
            answer if answer["code"] == "OK" => assert!(number < 100_000, "the disk is never full"),
            answer => break (request, answer),
        }
    };
    assert_eq!(refused.1["code"], "UNAVAILABLE", "{}", refused.1);
    let mut health_is = |status: &str| {
        for service in ["", "downbeat.agent.v1.Agent"] {
            until(&format!("health is {status}"), || (client.health(service) == status).then_some(()));
        }
    };
    health_is("NOT_SERVING");
    assert_eq!(site.client.ask(0, "/readyz").await.unwrap().status, 503);
    disk.empty();
    health_is("SERVING");
    assert_eq!(site.client.ask(0, "/readyz").await.unwrap().status, 200);
    until("it registers", || (client.call("Register", &refused.0)["code"] == "OK").then_some(()));
}
