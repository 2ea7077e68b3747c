//! Nodes: they register, send heartbeats, become silent, come back, and leave.

use downbeat_testbed::eventually;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::site;
use crate::site::Site;

async fn node(site: &Site, name: &str) -> Value {
    let path = format!("nodes/{name}");
    eventually("the node is shown", || site.get(&path)).await
}

async fn node_until(site: &Site, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let wanted = &wanted;
    eventually(what, || async { Some(node(site, name).await).filter(|node| wanted(node)) }).await
}

#[tokio::test]
async fn a_node_registers_with_what_it_can_do_and_its_heartbeats_are_recorded() {
    let mut site = Site::with_agents(&[]).await;
    site.start_agent_with("web-1", &["--label", "disk=ssd", "--capability", "gpu=nvidia"]);
    site.nodes_online(1).await;
    let registered = node(&site, "web-1").await;
    assert_eq!((&registered["groups"], &registered["slots"]), (&json!(["web"]), &json!(2)));
    assert_eq!(registered["labels"], json!({"disk": "ssd"}));
    assert_eq!(registered["capabilities"]["gpu"], "nvidia");
    assert!(registered["capabilities"]["cpu"].is_u64(), "found out by itself: {registered}");
    let backends: Vec<&str> =
        registered["backends"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert!(backends.contains(&"exec") && backends.contains(&"test"), "{backends:?}");
    let mut seen = registered["seen_at"].clone();
    for _ in 0..3 {
        let beaten = node_until(&site, "web-1", "a heartbeat", |node| node["seen_at"] != seen).await;
        assert_eq!((&beaten["session"], &beaten["status"]), (&registered["session"], &json!("online")));
        seen = beaten["seen_at"].clone();
    }
}

#[tokio::test]
async fn a_silent_node_becomes_stale_then_offline_and_is_back_with_its_next_heartbeat() {
    let site = site(&["web-1", "web-2"]).await;
    let before = node(&site, "web-1").await;
    site.agent("web-1").signal(Signal::SIGSTOP);
    node_until(&site, "web-1", "stale", |node| node["status"] == "stale").await;
    // It gets no new work in the meantime.
    let run = site.submit(&json!({"tasks": [site.entry("a", "0")]}), "k").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    assert_eq!(site.executions(&run).await[0]["node"], "web-2");
    node_until(&site, "web-1", "offline", |node| node["status"] == "offline").await;
    site.agent("web-1").signal(Signal::SIGCONT);
    let back = node_until(&site, "web-1", "online again", |node| node["status"] == "online").await;
    assert_eq!(back["session"], before["session"], "without registering");
    assert_eq!(back["registered_at"], before["registered_at"]);
    let pinned = json!({"target": "node:web-1", "tasks": [site.entry("b", "0")]});
    let run = site.submit(&pinned, "again").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn a_node_that_leaves_says_so_and_gets_nothing_more() {
    let site = site(&["web-1", "web-2"]).await;
    let run = site.submit(&json!({"target": "node:web-1", "tasks": [site.gated("a", "gate")]}), "k").await;
    site.have_begun(1).await;
    site.agent("web-1").signal(Signal::SIGTERM);
    eventually("it asks for nothing more", || async {
        (site.figure("downbeat_polls_parked").await == 1).then_some(())
    })
    .await;
    // It finishes its work and gets no new work.
    let more = json!({"tasks": [site.entry("b", "0"), site.entry("c", "0")]});
    let later = site.submit(&more, "later").await;
    assert_eq!(site.ended(&later).await["status"], "completed");
    assert!(site.executions(&later).await.iter().all(|each| each["node"] == "web-2"));
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    node_until(&site, "web-1", "the goodbye", |node| node["status"] == "stale").await;
    node_until(&site, "web-1", "offline", |node| node["status"] == "offline").await;
}
