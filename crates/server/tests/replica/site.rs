//! Owns a primary and its replica for tests, and compares what both return.

use std::collections::BTreeMap;
use std::time::Duration;

use downbeat_server::Settings;
use downbeat_testbed::in_process::{Setup, noop, settings};
use downbeat_testbed::{DEADLINE, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) fn sqlite(dir: &TempDir, name: &str) -> String {
    format!("sqlite:{}", dir.path().join(name).display())
}

pub(crate) fn url(setup: &Setup) -> String {
    format!("http://{}", setup.server.http_addr())
}

pub(crate) fn replica_settings(of: &[String], store: &str) -> Settings {
    Settings { replica_of: of.to_vec(), ..settings(store, "replica") }
}

pub(crate) async fn replica(of: &Setup, store: &str) -> Setup {
    Setup::with(replica_settings(&[url(of)], store)).await
}

/// Returns the replica's own status.
pub(crate) async fn standing(replica: &Setup) -> Value {
    replica.ok("/status").await["replica"].clone()
}

/// Waits until the replica has all events of the primary. Returns how often it copied everything.
pub(crate) async fn caught_up(primary: &Setup, replica: &Setup) -> u64 {
    let last = primary.server.service().views().last_seq().await.unwrap();
    eventually("the replica catches up", async || {
        let standing = standing(replica).await;
        let whole = standing["connected"] == true && standing["seq"].as_u64() >= Some(last);
        whole.then(|| standing["copies"].as_u64().unwrap())
    })
    .await
}

/// Returns every read with its response, without the parts that differ per server.
async fn answers(setup: &Setup) -> BTreeMap<String, Value> {
    let mut paths: Vec<String> =
        ["/clusters", "/clusters/default", "/clusters/default/nodes", "/openapi.json", "/docs"]
            .map(str::to_owned)
            .to_vec();
    for sort in ["hostname", "status", "registered_at", "seen_at"] {
        paths.push(format!("/nodes?sort={sort}&order=desc"));
    }
    for node in setup.ok("/nodes?limit=1000").await["data"].as_array().unwrap() {
        let name = node["hostname"].as_str().unwrap();
        paths.extend(["", "/executions?limit=1000", "/workers"].map(|what| format!("/nodes/{name}{what}")));
    }
    for status in ["pending", "running", "completed", "failed,cancelled"] {
        paths.push(format!("/runs?status={status}&limit=7"));
    }
    let last = setup.server.service().views().last_seq().await.unwrap();
    paths
        .extend((0..=last / 1_000).map(|page| format!("/events?follow=0&limit=1000&since={}", page * 1_000)));
    for run in setup.ok("/runs?limit=1000").await["data"].as_array().unwrap() {
        let id = run["id"].as_str().unwrap();
        paths.push(format!("/runs/{id}?definition=1"));
        paths.extend(
            ["executions?limit=1000", "events?limit=1000", "plan", "output"]
                .map(|what| format!("/runs/{id}/{what}")),
        );
        // A replica may remove the run after it has listed it: it still has to learn of the pruning.
        let executions = setup.get(&format!("/runs/{id}/executions?limit=1000")).await;
        for execution in executions.body["data"].as_array().into_iter().flatten() {
            let id = execution["id"].as_str().unwrap();
            paths.extend([
                format!("/executions/{id}"),
                format!("/executions/{id}/output"),
                format!("/executions/{id}/output?format=text&offset=3"),
            ]);
        }
    }
    let mut answers = BTreeMap::new();
    for path in paths {
        let mut answer = setup.get(&path).await;
        // They depend on the time of the response.
        for held in answer.body.get_mut("held").and_then(Value::as_array_mut).into_iter().flatten() {
            (held["lease_age"], held["expires_in"]) = (Value::Null, Value::Null);
        }
        answers.insert(path, json!([answer.status.as_u16(), answer.content_type, answer.body]));
    }
    let mut status = setup.ok("/status").await;
    for own in ["server", "uptime", "role", "replica", "store", "servers"] {
        status.as_object_mut().unwrap().remove(own);
    }
    // A copy may be in another kind of store, and its server measures by itself. What the store holds is compared.
    let volume = status["volume"].as_object_mut().unwrap();
    assert!(volume["output_bytes"].is_u64() && volume["events"].is_u64(), "{volume:?}");
    for own in ["disk_bytes", "growth"] {
        volume.remove(own);
    }
    answers.insert("/status".to_owned(), status);
    let mut servers = setup.ok("/servers").await["data"].as_array().unwrap().clone();
    servers.retain(|server| server["role"] == "primary");
    // It changes all the time.
    servers.iter_mut().for_each(|server| server["seen_at"] = Value::Null);
    answers.insert("/servers".to_owned(), servers.into());
    let plan = setup.request(Method::POST, "/plan").json(&noop()).send().await.unwrap().text().await.unwrap();
    answers.insert("POST /plan".to_owned(), plan.into());
    answers
}

/// Waits until every read returns the same on both. Nothing else may change in this time.
pub(crate) async fn alike(primary: &Setup, replica: &Setup) -> usize {
    caught_up(primary, replica).await;
    let mut differ = Vec::new();
    let give_up_at = tokio::time::Instant::now() + DEADLINE;
    while tokio::time::Instant::now() < give_up_at {
        let (there, here) = (answers(primary).await, answers(replica).await);
        if there == here {
            return there.len();
        }
        let paths = there.keys().chain(here.keys().filter(|path| !there.contains_key(*path)));
        differ = paths
            .filter(|path| there.get(*path) != here.get(*path))
            .map(|path| format!("{path}\n  there {:?}\n  here  {:?}", there.get(path), here.get(path)))
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    differ.truncate(3);
    panic!("the replica answers otherwise:\n{}", differ.join("\n"));
}
