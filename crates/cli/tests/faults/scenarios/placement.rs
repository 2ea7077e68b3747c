//! Placement: work goes only where it may.

use std::collections::BTreeSet;

use downbeat_core::Timestamp;
use downbeat_testbed::eventually;
use serde_json::{Value, json};

use super::{parallel, rows, site};
use crate::site::Site;

/// web-1 is like any other, web-2 as the flags say.
async fn unlike(flags: &[&str]) -> Site {
    let mut site = Site::with_agents(&["web-1"]).await;
    site.start_agent_with("web-2", flags);
    site.nodes_online(2).await;
    site
}

/// Six tasks with this placement; more than the slots of one node.
fn six(site: &Site, placement: &Value) -> Value {
    let mut definition = parallel((0..6).map(|index| site.entry(&format!("t{index}"), "0")).collect());
    for task in definition["tasks"].as_array_mut().unwrap().iter_mut().skip(1) {
        task["placement"] = placement.clone();
    }
    definition
}

/// Returns the nodes that executed a run, which succeeds.
async fn nodes_of(site: &Site, definition: &Value, key: &str) -> BTreeSet<String> {
    let run = site.submit(definition, key).await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    let rows = rows(&executions);
    assert_eq!(rows.len(), 6);
    rows.iter().map(|(_, _, _, node)| (*node).to_owned()).collect()
}

/// Why a placed task waits, per node.
async fn reasons(site: &Site, run: &str) -> Vec<(String, String)> {
    eventually("the reasons are shown", || async {
        let execution = site.executions(run).await.into_iter().find(|each| each["status"] == "pending")?;
        let shown = site.get(&format!("executions/{}", execution["id"].as_str()?)).await?;
        let reasons: Vec<(String, String)> = shown["waiting"]
            .as_array()?
            .iter()
            .map(|why| (why["node"].as_str().unwrap().to_owned(), why["reason"].as_str().unwrap().to_owned()))
            .collect();
        (!reasons.is_empty()).then_some(reasons)
    })
    .await
}

#[tokio::test]
async fn a_task_goes_only_where_its_backend_is() {
    let mut site = unlike(&["--only", "test"]).await;
    assert_eq!(nodes_of(&site, &six(&site, &json!({})), "k").await, ["web-1".to_owned()].into());
    site.agent("web-1").kill();
    let run = site.submit(&json!({"tasks": [site.entry("a", "0")]}), "waits").await;
    let why = reasons(&site, &run).await;
    assert!(
        why.contains(&(
            "web-2".to_owned(),
            "lacks backend `exec` (its agent runs without --allow exec)".to_owned()
        )),
        "{why:?}"
    );
    site.start_agent("web-1");
    assert_eq!(site.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn a_task_goes_only_where_the_capabilities_are() {
    let site = unlike(&["--capability", "gpu=nvidia", "--capability", "memory_gb=16"]).await;
    for (key, requires) in [("equal", json!({"gpu": "nvidia"})), ("at-least", json!({"memory_gb": 8}))] {
        let definition = six(&site, &json!({"requires": requires}));
        assert_eq!(nodes_of(&site, &definition, key).await, ["web-2".to_owned()].into(), "{key}");
    }
    let definition = six(&site, &json!({"requires": {"memory_gb": 32}}));
    let run = site.submit(&definition, "too-much").await;
    assert_eq!(
        reasons(&site, &run).await,
        [
            ("web-1".to_owned(), "lacks capability `memory_gb`".to_owned()),
            ("web-2".to_owned(), "capability `memory_gb` is 16, less than 32".to_owned()),
        ]
    );
}

#[tokio::test]
async fn a_task_goes_only_to_nodes_that_are_allowed() {
    let site = site(&["web-1", "web-2"]).await;
    let definition = six(&site, &json!({"allow": ["web-2"]}));
    assert_eq!(nodes_of(&site, &definition, "k").await, ["web-2".to_owned()].into());
}

#[tokio::test]
async fn a_task_goes_to_no_node_that_is_forbidden() {
    let site = site(&["web-1", "web-2"]).await;
    let definition = six(&site, &json!({"forbid": ["web-2"]}));
    assert_eq!(nodes_of(&site, &definition, "k").await, ["web-1".to_owned()].into());
}

#[tokio::test]
async fn a_node_holds_no_more_of_a_run_than_it_may() {
    let site = site(&["web-1", "web-2"]).await;
    let mut definition = parallel((0..6).map(|index| site.entry(&format!("t{index}"), "0.2")).collect());
    definition["placement"] = json!({"max_per_node": 1});
    let run = site.submit(&definition, "k").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    let nodes: BTreeSet<&str> = executions.iter().map(|each| each["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, BTreeSet::from(["web-1", "web-2"]));
    for node in nodes {
        let time = |each: &Value, name: &str| each[name].as_str().unwrap().parse::<Timestamp>().unwrap();
        let mut spans: Vec<(Timestamp, Timestamp)> = executions
            .iter()
            .filter(|each| each["node"] == node)
            .map(|each| (time(each, "leased_at"), time(each, "finished_at")))
            .collect();
        spans.sort_unstable();
        let apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "{node} has two slots, and had two of the run at once: {spans:?}");
    }
}
