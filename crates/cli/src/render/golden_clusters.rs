//! The look of clusters and standing tasks, held against golden files.

use downbeat_api::{Cluster, ClusterStatus, Execution, ListChange, StandingTask, Walk};
use downbeat_core::ids::ClusterId;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2025-06-01T10:05:00Z".parse().unwrap()
}

fn view<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn id(number: usize) -> String {
    format!("0198c0de-0000-7000-8000-{number:012}")
}

fn changed(mut view: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("changes are an object") };
    view.as_object_mut().unwrap().extend(changes);
    view
}

/// Checks that no line is wider than a terminal, and returns the text without colours.
fn within(width: usize, text: &str) -> String {
    let text = plain(text);
    for line in text.lines() {
        assert!(unicode_width::UnicodeWidthStr::width(line) <= width, "{line}\n{text}");
    }
    text
}

fn cluster(changes: Value) -> Value {
    let cluster = json!({
        "id": id(9), "name": "prod", "description": "web servers in Frankfurt and Dublin, and their databases",
        "on_register": "reset", "created_at": "2025-05-30T10:00:00Z", "updated_at": "2025-06-01T10:00:00Z",
        "nodes": 9000, "tasks": 4,
    });
    changed(cluster, changes)
}

pub(crate) fn a_standing_task(id: &str, name: &str, order: usize) -> StandingTask {
    view(task(json!({"id": id, "name": name, "order": order})))
}

fn task(changes: Value) -> Value {
    let task = json!({
        "id": id(1), "cluster_id": id(9), "name": "install", "type": "exec", "order": 1, "blocking": true,
        "backend": "exec", "action": "shell", "params": {"command": "apt-get install -y nginx", "working_dir": "/opt"},
        "config": {"command": "apt-get install -y nginx", "timeout_seconds": 600, "working_dir": "/opt"},
        "timeout": "10m", "timeout_seconds": 600, "selector": null,
        "created_at": "2025-05-30T10:00:00Z", "updated_at": "2025-06-01T10:00:00Z",
    });
    changed(task, changes)
}

fn tasks() -> Vec<StandingTask> {
    view(json!([
        task(json!({})),
        task(
            json!({"id": id(2), "name": "configure", "order": 2, "timeout": "30m", "params": {"command": "./configure.sh"}})
        ),
        task(
            json!({"id": id(3), "name": "restart the web server", "order": 3, "blocking": false, "timeout": "1h30m",
                    "type": "systemd", "backend": "systemd", "action": "restart", "config": null,
                    "params": {"unit": "nginx.service"}, "selector": "group:web and not label:zone=b"})
        ),
        task(json!({"id": id(4), "name": "check", "order": 4, "blocking": false,
                    "params": {"command": "curl --fail http://127.0.0.1/healthz && echo a long line that does not fit"}})),
    ]))
}

#[test]
fn a_list_of_clusters() {
    let clusters: Vec<Cluster> = view(json!([
        cluster(json!({"id": ClusterId::DEFAULT, "name": "default", "description": "", "tasks": 0,
                       "nodes": 0, "created_at": "1970-01-01T00:00:00Z"})),
        cluster(json!({})),
        cluster(json!({"name": "Production Cluster of the south", "on_register": "resume"})),
    ]));
    insta::assert_snapshot!(within(80, &cluster_table(&clusters, now(), Some(80))));
}

#[test]
fn a_cluster() {
    let page = |changes: Value| within(80, &cluster_page(&view(cluster(changes)), now(), Some(80)));
    insta::assert_snapshot!(format!("{}\n{}", page(json!({})), page(json!({"on_register": "resume"}))));
}

fn counts(pairs: &[(&str, u64)]) -> Value {
    let zero = ["succeeded", "failed", "lost", "running", "pending", "skipped", "not_selected"];
    let zero = zero.iter().map(|name| ((*name).to_owned(), json!(0))).collect();
    changed(
        Value::Object(zero),
        Value::Object(pairs.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect()),
    )
}

fn status() -> ClusterStatus {
    view(json!({
        "cluster_id": id(9), "total_nodes": 9000, "active_nodes": 8990, "inactive_nodes": 10, "total_tasks": 4,
        "nodes_with_all_tasks_complete": 8000, "nodes_with_pending_tasks": 997, "nodes_with_failed_tasks": 14,
        "completion_percentage": 88.888_888,
        "tasks": [
            {"id": id(1), "name": "install", "order": 1, "blocking": true,
             "counts": counts(&[("succeeded", 8_987), ("failed", 12), ("lost", 1)])},
            {"id": id(2), "name": "configure", "order": 2, "blocking": true,
             "counts": counts(&[("succeeded", 8_000), ("running", 900), ("pending", 87), ("skipped", 13)])},
            {"id": id(3), "name": "restart the web server", "order": 3, "blocking": false,
             "counts": counts(&[("succeeded", 4_000), ("not_selected", 4_987), ("skipped", 13)])},
            {"id": id(4), "name": "check", "order": 4, "blocking": false,
             "counts": counts(&[("succeeded", 8_000), ("failed", 1), ("pending", 986), ("skipped", 13)])},
        ],
    }))
}

fn walk(changes: Value) -> Value {
    let walk = json!({
        "node_id": id(1), "hostname": "web-01", "status": "online", "state": "complete", "reset_at": "2025-06-01T08:00:00Z",
        "cells": ["succeeded", "succeeded", "succeeded", "succeeded"], "stuck": null,
    });
    changed(walk, changes)
}

fn stuck(hostname: &str, task: &str, why: &str) -> Value {
    walk(json!({
        "hostname": hostname, "state": "blocked", "cells": ["failed", "skipped", "skipped", "skipped"],
        "stuck": {"task_id": id(1), "task": task, "why": why, "execution": id(5)},
    }))
}

#[test]
fn the_status_of_a_cluster_names_the_stuck_nodes_and_the_commands_that_help() {
    let cluster: Cluster = view(cluster(json!({})));
    let nodes = view(json!([
        stuck(
            "web-07",
            "install",
            "exit code 100: E: Unable to locate package nginxx, and a long text about it"
        ),
        stuck("web-08.eu-west-1.example.internal", "install", "lost: the node was silent for 30s"),
        stuck("db-01", "pre flight", "exit code 1"),
    ]));
    let stuck = StuckNodes { nodes, total: 13 };
    insta::assert_snapshot!(within(80, &cluster_status_page(&cluster, &status(), &stuck, Some(80))));
}

#[test]
fn the_status_of_a_cluster_without_tasks() {
    let default: Cluster = view(cluster(json!({"id": ClusterId::DEFAULT, "name": "default"})));
    let status: ClusterStatus = view(json!({
        "cluster_id": id(9), "total_nodes": 0, "active_nodes": 0, "inactive_nodes": 0, "total_tasks": 0,
        "nodes_with_all_tasks_complete": 0, "nodes_with_pending_tasks": 0, "nodes_with_failed_tasks": 0,
        "completion_percentage": 100.0, "tasks": [],
    }));
    let none = StuckNodes { nodes: Vec::new(), total: 0 };
    insta::assert_snapshot!(within(80, &cluster_status_page(&default, &status, &none, Some(80))));
}

fn walks() -> Vec<Walk> {
    view(json!([
        walk(json!({})),
        walk(
            json!({"hostname": "web-02", "state": "running", "cells": ["succeeded", "running", "pending", "pending"]})
        ),
        walk(
            json!({"hostname": "web-03", "state": "failed", "cells": ["succeeded", "lost", "not_selected", "failed"]})
        ),
        stuck("web-08.eu-west-1.example.internal", "install", "exit code 1"),
        walk(json!({"hostname": "web-09", "status": "offline", "state": "pending",
                    "cells": ["pending", "pending", "pending", "pending"]})),
    ]))
}

#[test]
fn the_matrix_of_nodes_and_tasks() {
    insta::assert_snapshot!(within(80, &walk_page(&tasks(), &walks(), Some(80))));
    assert_eq!(walk_page(&tasks(), &[], None), "no nodes\n");
}

#[test]
fn the_matrix_of_many_tasks_is_wrapped_between_groups() {
    let tasks: Vec<StandingTask> = (1..=64).map(|number| a_standing_task(&id(number), "t", number)).collect();
    let cells: Vec<&str> = (0..64).map(|number| if number < 40 { "succeeded" } else { "pending" }).collect();
    let walks: Vec<Walk> = vec![view(walk(json!({"state": "pending", "cells": cells})))];
    insta::assert_snapshot!(within(80, &walk_page(&tasks, &walks, Some(80))));
}

#[test]
fn a_list_of_standing_tasks_is_numbered_from_1() {
    insta::assert_snapshot!(within(80, &standing_task_table(&tasks(), Some(80))));
    assert!(standing_task_table(&[], None).starts_with("no standing tasks; "));
}

#[test]
fn a_standing_task_page_shows_its_params() {
    let pages: Vec<String> =
        tasks().iter().map(|task| within(80, &standing_task_page(task, now(), Some(80)))).collect();
    insta::assert_snapshot!(pages[..3].join("\n"));
}

#[test]
fn executions_of_a_standing_task() {
    let execution = |changes: Value| {
        let execution = json!({
            "id": id(5), "run": "standing:x", "step": 1, "task": "install", "task_id": id(1), "node": "web-01",
            "node_id": id(1), "attempt": 1, "status": "succeeded", "exit_code": 0, "error": null, "reason": null,
            "created_at": "2025-06-01T10:00:00Z", "not_before": null, "leased_at": "2025-06-01T10:00:00Z",
            "started_at": "2025-06-01T10:00:00Z", "finished_at": "2025-06-01T10:00:02Z", "duration": "2.3s",
        });
        changed(execution, changes)
    };
    let executions: Vec<Execution> = view(json!([
        execution(json!({})),
        execution(
            json!({"node": "web-08.eu-west-1.example.internal", "attempt": 12, "status": "failed", "exit_code": 100,
                         "error": "exit code 100: E: Unable to locate package nginxx"})
        ),
        execution(
            json!({"node": "web-03", "status": "running", "duration": null, "exit_code": null, "finished_at": null})
        ),
        execution(json!({"node": "web-04", "status": "skipped", "duration": null, "exit_code": null,
                         "reason": "the standing task was deleted"})),
    ]));
    insta::assert_snapshot!(within(80, &attempt_table(&executions, now(), Some(80))));
    assert_eq!(attempt_table(&[], now(), None), "no executions\n");
}

#[test]
fn differences_to_a_file() {
    let changes: Vec<ListChange> = view(json!([
        {"change": "keep", "name": "users", "from": 1, "to": 1, "fields": []},
        {"change": "add", "name": "install", "from": null, "to": 2, "fields": []},
        {"change": "update", "name": "configure", "from": 2, "to": 3, "fields": ["command", "timeout"]},
        {"change": "move", "name": "check", "from": 5, "to": 4, "fields": []},
        {"change": "update", "name": "restart", "from": 5, "to": 5, "fields": ["selector"]},
        {"change": "delete", "name": "clean-up", "from": 3, "to": null, "fields": []},
    ]));
    let done = within(80, &list_changes(&changes, "prod", Applied::Done, Some(80)));
    let dry = within(80, &list_changes(&changes, "prod", Applied::DryRun, Some(80)));
    let same = within(80, &list_changes(&changes[..1], "prod", Applied::Done, Some(80)));
    insta::assert_snapshot!(format!("{done}\n{dry}\n{same}"));
}
