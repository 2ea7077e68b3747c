//! Nodes carry out standing tasks in order, one at a time, nothing after a blocking failure, and nothing twice without a
//! recorded reason; a deleted cluster is gone.

use std::collections::BTreeMap;

use downbeat_core::Timestamp;
use serde_json::Value;

use super::Findings;
use crate::evidence::{Evidence, Stored};

const ORDER: &str = "a node walks its list in order";
const ONE: &str = "a node does one standing task at a time";
const BLOCKED: &str = "nothing follows a blocking failure";
const REASON: &str = "a standing task is done again for a reason";
const VERSION: &str = "standing work is of the current list";
const END: &str = "every node reaches the end of its list";
const GONE: &str = "a deleted cluster is gone";

/// An attempt at a task on a node.
#[derive(Debug)]
struct Attempt<'a> {
    id: &'a str,
    number: u64,
    status: &'a str,
    created_at: Timestamp,
    /// The version of the list that it was decided by.
    version: u64,
}

#[derive(Debug, Default)]
struct Site<'a> {
    /// The lists by version.
    lists: BTreeMap<u64, &'a Value>,
    /// By node and number of the task, in the order in which they were added.
    attempts: BTreeMap<(&'a str, u64), Vec<Attempt<'a>>>,
}

#[derive(Debug)]
struct Node<'a> {
    cluster: &'a str,
    hostname: &'a str,
    registered_at: Timestamp,
    kept_since: Option<Timestamp>,
    status: &'a str,
    is_draining: bool,
}

#[derive(Debug, Default)]
struct Ledger<'a> {
    sites: BTreeMap<&'a str, Site<'a>>,
    nodes: BTreeMap<&'a str, Node<'a>>,
    /// The cluster, the node and the task of each execution.
    places: BTreeMap<&'a str, (&'a str, &'a str, u64)>,
}

/// A task on a node.
#[derive(Debug, PartialEq, Eq)]
enum Cell {
    Undone,
    Open,
    Succeeded,
    Failed,
}

pub(super) fn walks(evidence: &Evidence, findings: &mut Findings) {
    let mut ledger = Ledger::default();
    for event in &evidence.stored {
        ledger.take(event, findings);
    }
    ledger.ends(findings);
}

/// Checks that nothing is left of deleted clusters.
pub(super) fn deleted(evidence: &Evidence, findings: &mut Findings) {
    for left in &evidence.left {
        findings.note(GONE, left.clone());
    }
    let is_deletion = |event: &&Stored| event.kind == "cluster_deleted";
    for deletion in evidence.stored.iter().filter(is_deletion) {
        let cluster = text(&deletion.data["cluster"]);
        for event in evidence.stored.iter().filter(|event| !is_deletion(event)) {
            if event.data.to_string().contains(cluster) {
                let (seq, kind) = (event.seq, &event.kind);
                findings.note(GONE, format!("event {seq} ({kind}) is about cluster {cluster}"));
            }
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(u64::MAX)
}

fn list_of<'a>(list: Option<&&'a Value>) -> &'a [Value] {
    list.and_then(|list| list["tasks"].as_array()).map_or(&[], Vec::as_slice)
}

fn is_open(status: &str) -> bool {
    matches!(status, "pending" | "leased" | "running")
}

impl<'a> Ledger<'a> {
    fn take(&mut self, event: &'a Stored, findings: &mut Findings) {
        let data = &event.data;
        match event.kind.as_str() {
            "cluster_created" | "cluster_changed" => {
                let cluster = &data["cluster"];
                let site = self.sites.entry(text(&cluster["id"])).or_default();
                site.lists.insert(number(&cluster["version"]), &cluster["list"]);
            }
            "node_registered" => {
                let registration = &data["registration"];
                let id = text(&registration["node"]);
                let is_draining = self.nodes.get(id).is_some_and(|node| node.is_draining);
                let node = Node {
                    cluster: text(&registration["cluster"]),
                    hostname: text(&registration["description"]["hostname"]),
                    registered_at: time(&registration["at"]).unwrap_or_default(),
                    kept_since: time(&registration["kept_since"]),
                    status: "online",
                    is_draining,
                };
                self.nodes.insert(id, node);
            }
            "node_moved" => {
                if let Some(node) = self.nodes.get_mut(text(&data["node"])) {
                    node.status = text(&data["to"]);
                }
            }
            "node_drain_set" => {
                if let Some(node) = self.nodes.get_mut(text(&data["node"])) {
                    node.is_draining = data["draining"] == true;
                }
            }
            "node_deleted" => {
                self.nodes.remove(text(&data["node"]));
            }
            "executions_added" => self.add(event, findings),
            "execution_leased" => {
                self.starts(text(&data["execution"]), findings);
                self.alter(text(&data["execution"]), "leased");
            }
            "execution_started" => self.alter(text(&data["execution"]), "running"),
            "execution_finished" => self.alter(text(&data["execution"]), text(&data["outcome"]["verdict"])),
            "execution_lost" => self.alter(text(&data["execution"]), "lost"),
            "execution_given_up" => self.alter(text(&data["execution"]), "failed"),
            "execution_skipped" => self.alter(text(&data["execution"]), "skipped"),
            _ => {}
        }
    }

    fn add(&mut self, event: &'a Stored, findings: &mut Findings) {
        let Some(cluster) = text(&event.data["run"]).strip_prefix("standing:") else { return };
        let site = self.sites.entry(cluster).or_default();
        let version = number(&event.data["version"]);
        let current = site.lists.keys().next_back().copied().unwrap_or(0);
        if version != current {
            findings.note(VERSION, format!("event {}: version {version}, not {current}", event.seq));
        }
        for execution in event.data["executions"].as_array().into_iter().flatten() {
            let (id, node) = (text(&execution["id"]), text(&execution["pinned"]));
            let step = number(&execution["step"]);
            let site = self.sites.entry(cluster).or_default();
            if !list_of(site.lists.get(&version)).iter().any(|task| number(&task["number"]) == step) {
                findings.note(VERSION, format!("{id} is of task {step}, which the list does not have"));
            }
            let open = site.attempts.iter().filter(|((of, _), _)| *of == node).flat_map(|(_, all)| all);
            for other in open.filter(|attempt| is_open(attempt.status)) {
                findings.note(ONE, format!("{id} is added on {node} while {} is {}", other.id, other.status));
            }
            let attempts = site.attempts.entry((node, step)).or_default();
            let (attempt, last) =
                (number(&execution["attempt"]), attempts.last().map_or(0, |last| last.number));
            if attempt != last + 1 {
                findings
                    .note(REASON, format!("{id} is attempt {attempt} of task {step} on {node} after {last}"));
            }
            attempts.push(Attempt {
                id,
                number: attempt,
                status: "pending",
                created_at: time(&execution["created_at"]).unwrap_or_default(),
                version,
            });
            self.places.insert(id, (cluster, node, step));
            if text(&execution["status"]) == "leased" {
                self.starts(id, findings);
                self.alter(id, "leased");
            }
        }
    }

    fn alter(&mut self, execution: &str, status: &'a str) {
        let Some(&(cluster, node, step)) = self.places.get(execution) else { return };
        let attempts = self.sites.get_mut(cluster).and_then(|site| site.attempts.get_mut(&(node, step)));
        let attempt = attempts.into_iter().flatten().find(|attempt| attempt.id == execution);
        if let Some(attempt) = attempt {
            attempt.status = status;
        }
    }

    /// Checks that what a node gets is its next step: by the list that it was decided by, and by its session.
    fn starts(&self, execution: &str, findings: &mut Findings) {
        let Some(&(cluster, id, step)) = self.places.get(execution) else { return };
        let (site, Some(node)) = (&self.sites[cluster], self.nodes.get(id)) else { return };
        let attempts = &site.attempts[&(id, step)];
        let version = attempts.iter().find(|attempt| attempt.id == execution).map_or(0, |one| one.version);
        let list = site.lists.get(&version);
        let host = node.hostname;
        for task in list_of(list) {
            let (of, name) = (number(&task["number"]), text(&task["name"]));
            let before = site.attempts.get(&(id, of)).into_iter().flatten();
            let last = before.rev().find(|attempt| attempt.id != execution);
            let cell = cell(list, task, id, node, last);
            if of == step {
                if cell != Cell::Undone {
                    findings.note(REASON, format!("{host} gets {name} ({execution}), which is {cell:?}"));
                }
                return;
            }
            match cell {
                Cell::Succeeded => {}
                Cell::Failed if task["blocking"] != true => {}
                Cell::Failed => {
                    findings.note(BLOCKED, format!("{host} gets {execution} after {name} failed"));
                }
                Cell::Undone | Cell::Open => {
                    findings.note(ORDER, format!("{host} gets {execution}, but {name} is {cell:?}"));
                }
            }
        }
    }

    /// Checks that nothing is left to do.
    fn ends(&self, findings: &mut Findings) {
        for (cluster, site) in &self.sites {
            for ((node, step), attempts) in &site.attempts {
                for open in attempts.iter().filter(|attempt| is_open(attempt.status)) {
                    let (id, status) = (open.id, open.status);
                    findings.note(END, format!("{id} of task {step} on {node} of {cluster} is {status}"));
                }
            }
        }
        let works = |(_, node): &(&&str, &Node<'_>)| node.status == "online" && !node.is_draining;
        for (id, node) in self.nodes.iter().filter(works) {
            let Some(site) = self.sites.get(node.cluster) else { continue };
            let list = site.lists.values().next_back();
            for task in list_of(list) {
                let attempts = site.attempts.get(&(*id, number(&task["number"])));
                match cell(list, task, id, node, attempts.and_then(|attempts| attempts.last())) {
                    Cell::Failed if task["blocking"] == true => break,
                    Cell::Undone => {
                        let (host, name) = (node.hostname, text(&task["name"]));
                        findings.note(END, format!("{host} has not done {name}"));
                        break;
                    }
                    Cell::Open | Cell::Succeeded | Cell::Failed => {}
                }
            }
        }
    }
}

fn cell(list: Option<&&Value>, task: &Value, id: &str, node: &Node<'_>, last: Option<&Attempt<'_>>) -> Cell {
    let Some(last) = last else { return Cell::Undone };
    if is_open(last.status) {
        return Cell::Open;
    }
    let is_success = last.status == "succeeded";
    let since = node.kept_since.filter(|_| is_success).unwrap_or(node.registered_at);
    let asked = task["reruns"].as_array().into_iter().flatten().filter(|rerun| match text(&rerun["scope"]) {
        "all" => true,
        "failed" => !is_success,
        _ => rerun["node"] == id,
    });
    let asked = asked.filter_map(|rerun| time(&rerun["at"]));
    let reset = list.and_then(|list| time(&list["resets"][id]));
    let is_void = asked.chain(reset).chain([since]).any(|at| last.created_at < at);
    match last.status {
        "skipped" => Cell::Undone,
        _ if is_void => Cell::Undone,
        "succeeded" => Cell::Succeeded,
        // The tasks here are commands: what was lost is not sent again.
        _ => Cell::Failed,
    }
}
