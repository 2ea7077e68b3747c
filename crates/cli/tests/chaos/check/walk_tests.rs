//! Checks the rules of standing tasks: a true history, forged in one place, is found.

use serde_json::{Value, json};

use super::{Findings, standing};
use crate::evidence::{Evidence, Stored};

const CLUSTER: &str = "c1";
const NODE: &str = "n1";

fn at(second: u32) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60)
}

fn stored(kind: &str, data: Value) -> Stored {
    Stored { seq: 0, kind: kind.to_owned(), data }
}

/// Three tasks, of which the second blocks.
fn list(version: u64) -> Stored {
    let task = |number: u64, blocking: bool| json!({"number": number, "name": format!("t{number}"), "blocking": blocking});
    let list = json!({"tasks": [task(0, false), task(1, true), task(2, false)]});
    stored("cluster_changed", json!({"cluster": {"id": CLUSTER, "version": version, "list": list}}))
}

fn registered(second: u32) -> Stored {
    let registration =
        json!({"node": NODE, "cluster": CLUSTER, "description": {"hostname": "web-1"}, "at": at(second)});
    stored("node_registered", json!({"registration": registration}))
}

fn added(id: &str, step: u64, attempt: u64, second: u32) -> Stored {
    let execution = json!({
        "id": id, "pinned": NODE, "step": step, "attempt": attempt, "created_at": at(second), "status": "pending",
    });
    let run = format!("standing:{CLUSTER}");
    stored("executions_added", json!({"run": run, "version": 2, "executions": [execution]}))
}

fn leased(id: &str) -> Stored {
    stored("execution_leased", json!({"execution": id}))
}

fn whole(id: &str, step: u64, attempt: u64, second: u32, verdict: &str) -> Vec<Stored> {
    let ended = stored("execution_finished", json!({"execution": id, "outcome": {"verdict": verdict}}));
    vec![added(id, step, attempt, second), leased(id), ended]
}

/// Returns evidence without violations: a node that did its whole list.
fn truth() -> Evidence {
    let mut stored = vec![list(2), registered(10)];
    for step in 0..3 {
        stored.extend(whole(&format!("e{step}"), step, 1, 20, "succeeded"));
    }
    Evidence { stored, ..Evidence::default() }
}

fn rules(forge: impl FnOnce(&mut Vec<Stored>)) -> Vec<&'static str> {
    let mut evidence = truth();
    forge(&mut evidence.stored);
    let mut findings = Findings::default();
    standing::walks(&evidence, &mut findings);
    standing::deleted(&evidence, &mut findings);
    findings.0.iter().map(|violation| violation.rule).collect()
}

#[track_caller]
fn finds(rule: &str, forge: impl FnOnce(&mut Vec<Stored>)) {
    let found = rules(forge);
    assert!(found.contains(&rule), "`{rule}` is not among {found:?}");
}

#[test]
fn a_node_that_did_its_list_is_found_to_be_right() {
    assert_eq!(rules(|_| {}), [""; 0]);
    // A new session starts over, a reset too.
    let again = |stored: &mut Vec<Stored>| {
        stored.push(registered(30));
        for step in 0..3 {
            stored.extend(whole(&format!("f{step}"), step, 2, 40, "succeeded"));
        }
    };
    assert_eq!(rules(again), [""; 0]);
}

#[test]
fn a_task_before_an_earlier_one_is_found() {
    finds("a node walks its list in order", |stored| {
        stored.drain(2..5);
    });
}

#[test]
fn two_standing_tasks_at_once_are_found() {
    finds("a node does one standing task at a time", |stored| {
        stored.remove(4);
    });
}

#[test]
fn a_task_after_a_blocking_failure_is_found() {
    finds("nothing follows a blocking failure", |stored| {
        stored[7].data["outcome"]["verdict"] = json!("failed");
    });
}

#[test]
fn a_task_that_is_done_again_without_a_reason_is_found() {
    finds("a standing task is done again for a reason", |stored| {
        stored.extend(whole("again", 1, 2, 50, "succeeded"));
    });
    finds("a standing task is done again for a reason", |stored| {
        stored[2].data["executions"][0]["attempt"] = json!(2);
    });
}

#[test]
fn work_of_an_outdated_list_is_found() {
    finds("standing work is of the current list", |stored| stored.insert(2, list(3)));
    finds("standing work is of the current list", |stored| {
        stored[2].data["executions"][0]["step"] = json!(7);
    });
}

#[test]
fn a_node_that_does_not_finish_its_list_is_found() {
    finds("every node reaches the end of its list", |stored| stored.truncate(8));
    finds("every node reaches the end of its list", |stored| stored.truncate(10));
}

#[test]
fn an_event_of_a_deleted_cluster_is_found() {
    finds("a deleted cluster is gone", |stored| {
        stored.push(Stored {
            kind: "cluster_deleted".to_owned(),
            data: json!({"cluster": CLUSTER}),
            ..Stored::default()
        });
    });
}
