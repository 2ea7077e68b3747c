//! Checks by the feed that nodes carry out standing tasks as `docs/clusters.md` says: in order, one at a time, nothing
//! after a blocking failure, and nothing twice without a recorded reason.

mod ledger;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use downbeat_core::cluster::{ClusterEdit, ClusterRecord, OnRegister};
use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId};
use downbeat_core::node::{NodeRecord, NodeStatus, Registration};
use downbeat_core::standing::{Rerun, RerunScope, StandingList, StandingTask};
use downbeat_core::{Change, Event, Timestamp};

use self::ledger::{Attempt, Ledger, Site};
use super::evidence::Evidence;
use super::{Checker, Findings};

/// How often a task whose action is idempotent is sent in a row without a report.
const SENDS: usize = 3;

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut follower = Follower::default();
    evidence.events.iter().for_each(|event| follower.follow(event));
    let mut findings = Findings::of(Checker::Standing);
    for what in std::mem::take(&mut follower.found).into_iter().chain(follower.unsettled()) {
        findings.add(what);
    }
    findings
}

/// Follows the feed and judges each step.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    ledger: Ledger,
    found: Vec<String>,
    /// The number of the last event.
    pub(crate) followed: u64,
    /// The number of standing executions so far.
    pub(crate) steps: u64,
    /// The number of edits of lists so far.
    pub(crate) edits: u64,
}

/// A task on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    NotSelected,
    Open,
    Succeeded,
    Failed,
    /// There is no result that counts, and why.
    Undone(&'static str),
}

impl Follower {
    pub(crate) fn follow(&mut self, event: &Event) {
        self.followed = event.seq;
        let mut found = Vec::new();
        self.judge(&event.change, &mut found);
        self.found.extend(found.into_iter().map(|what| format!("event {}: {what}", event.seq)));
        self.ledger.apply(&event.change);
    }

    fn judge(&mut self, change: &Change, found: &mut Vec<String>) {
        match change {
            Change::ClusterChanged { cluster, edit, at, .. } => {
                self.edits += 1;
                if let Some(site) = self.ledger.sites.get(&cluster.id) {
                    edited(site, cluster, edit, *at, found);
                }
            }
            Change::NodeRegistered { registration } => self.registered(registration, found),
            Change::ExecutionsAdded { run, executions, version, .. } => match run.standing_of() {
                Some(cluster) => self.added(cluster, executions, *version, found),
                None if version.is_some() => found.push(format!("{run} names a version of a cluster")),
                None => {}
            },
            Change::ExecutionLeased { execution, lease, .. } => self.starts(*execution, lease.node, found),
            Change::RunMoved { run, .. } if run.is_standing() => {
                found.push(format!("{run} moves, but a standing run never does"));
            }
            Change::InstanceFailed { run, .. } if run.is_standing() => {
                found.push(format!("{run} has an instance that failed for good"));
            }
            _ => {}
        }
    }

    fn registered(&self, registration: &Registration, found: &mut Vec<String>) {
        let (node, cluster) = (registration.node, registration.cluster);
        let Some(site) = self.ledger.sites.get(&cluster) else {
            found.push(format!("{node} registers in {cluster}, which does not exist"));
            return;
        };
        if let Some(former) = self.ledger.nodes.get(&node)
            && former.session != registration.session
            && former.registered_at >= registration.at
        {
            found.push(format!("{node} registers at {}, not after its last session", registration.at));
        }
        let resumes = site.versions.iter().any(|version| version.on_register == OnRegister::Resume);
        if registration.kept_since.is_some() && !resumes {
            found.push(format!("{node} keeps results, but {cluster} never had `resume`"));
        }
    }

    fn added(
        &mut self,
        cluster: ClusterId,
        executions: &[Execution],
        version: Option<u64>,
        found: &mut Vec<String>,
    ) {
        let Some(site) = self.ledger.sites.get(&cluster) else {
            found.push(format!("work is added to {cluster}, which does not exist"));
            return;
        };
        let current = site.current().version;
        if version != Some(current) {
            found.push(format!("work of version {version:?} is added to version {current} of {cluster}"));
        }
        for execution in executions {
            self.steps += 1;
            self.one(cluster, execution, found);
            self.ledger.add(cluster, execution, version.unwrap_or(current));
            if matches!(execution.state, State::Leased { .. })
                && let Some(node) = execution.pinned
            {
                self.starts(execution.id, node, found);
            }
        }
    }

    /// Checks an execution that is added, leased or not.
    fn one(&self, cluster: ClusterId, execution: &Execution, found: &mut Vec<String>) {
        let (id, number) = (execution.id, execution.step());
        let site = &self.ledger.sites[&cluster];
        let Some(node) = execution.pinned else {
            found.push(format!("{id} of task {number} belongs to no node"));
            return;
        };
        if !site.current().list.tasks.iter().any(|task| task.number == number) {
            found.push(format!("{id} is of task {number}, which is not in the list of {cluster}"));
        }
        if self.ledger.nodes.get(&node).is_some_and(|node| node.cluster != cluster) {
            found.push(format!("{id} is for {node}, which is not in {cluster}"));
        }
        for (other, open) in site.open(node) {
            let (other_id, status) = (open.id, open.status);
            found.push(format!(
                "{id} of task {number} is added on {node} while {other_id} of task {other} is {status}"
            ));
        }
        let last = site.of(node, number).iter().map(|attempt| attempt.number).max().unwrap_or(0);
        if execution.attempt != last + 1 {
            found.push(format!(
                "{id} is attempt {} of task {number} on {node} after {last}",
                execution.attempt
            ));
        }
    }

    /// Checks that an execution that a node gets is its next step: by the version of the list that it was decided by, and
    /// by the session that gets it.
    fn starts(&self, execution: ExecutionId, node: NodeId, found: &mut Vec<String>) {
        let Some((place, attempt)) = self.ledger.attempt(execution) else { return };
        if place.node != node {
            found.push(format!("{execution} is for {}, but {node} gets it", place.node));
        }
        let (Some(record), site) = (self.ledger.nodes.get(&node), &self.ledger.sites[&place.cluster]) else {
            found.push(format!("{node} gets {execution}, but does not exist"));
            return;
        };
        let Some(list) = site.version(attempt.version).map(|cluster| &cluster.list) else { return };
        let Some(at) = list.tasks.iter().position(|task| task.number == place.number) else { return };
        let (host, name) = (&record.description.hostname, &list.tasks[at].name);
        let before = |of: u32| -> Vec<&Attempt> {
            site.of(node, of).iter().filter(|each| each.id != execution).collect()
        };
        match cell(list, &list.tasks[at], record, &before(place.number)) {
            Cell::Undone(_) => {}
            Cell::NotSelected => found.push(format!("{host} gets {name}, which does not apply to it")),
            known => found.push(format!("{host} gets {name} again without a reason: it is {known:?}")),
        }
        for task in &list.tasks[..at] {
            let earlier = &task.name;
            match cell(list, task, record, &before(task.number)) {
                Cell::NotSelected | Cell::Succeeded => {}
                Cell::Failed if !task.blocking => {}
                Cell::Failed => {
                    found.push(format!("{host} gets {name} after {earlier}, which blocks, failed"));
                }
                Cell::Open => found.push(format!("{host} gets {name} while {earlier} has not ended")),
                Cell::Undone(why) => {
                    found.push(format!("{host} gets {name} before {earlier}, of which {why}"));
                }
            }
        }
    }

    /// Returns what is not finished although nothing is left to do: on each node that takes work everything has ended or a
    /// blocking task has failed, and nothing is open elsewhere.
    pub(crate) fn unsettled(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (cluster, site) in &self.ledger.sites {
            let nodes: BTreeSet<NodeId> = site.attempts.keys().map(|(node, _)| *node).collect();
            for node in nodes {
                let works = self.ledger.nodes.get(&node).is_some_and(takes_work);
                let is_known = self.ledger.nodes.contains_key(&node);
                for (number, open) in site.open(node) {
                    if works || !is_known || open.status != Status::Pending {
                        let (id, status) = (open.id, open.status);
                        found.push(format!("{id} of task {number} on {node} of {cluster} is {status}"));
                    }
                }
            }
        }
        for node in self.ledger.nodes.values().filter(|node| takes_work(node)) {
            let Some(site) = self.ledger.sites.get(&node.cluster) else { continue };
            let list = &site.current().list;
            for task in &list.tasks {
                let attempts: Vec<&Attempt> = site.of(node.id, task.number).iter().collect();
                match cell(list, task, node, &attempts) {
                    Cell::Failed if task.blocking => break,
                    Cell::NotSelected | Cell::Succeeded | Cell::Failed | Cell::Open => {}
                    Cell::Undone(why) => {
                        let (host, name) = (&node.description.hostname, &task.name);
                        found.push(format!("{host} has not done {name}: {why}"));
                        break;
                    }
                }
            }
        }
        found
    }

    /// Returns whether this node is online.
    pub(crate) fn is_online(&self, node: NodeId) -> bool {
        self.ledger.nodes.get(&node).is_some_and(|node| node.status == NodeStatus::Online)
    }
}

fn takes_work(node: &NodeRecord) -> bool {
    node.status == NodeStatus::Online && !node.draining
}

/// Returns what a task on a node is, by all attempts so far.
fn cell(list: &StandingList, task: &StandingTask, node: &NodeRecord, attempts: &[&Attempt]) -> Cell {
    if task.selector.as_ref().is_some_and(|selector| !selector.matches(node)) {
        return Cell::NotSelected;
    }
    let Some(last) = attempts.last() else { return Cell::Undone("nothing is recorded") };
    match last.status {
        Status::Pending | Status::Leased | Status::Running => Cell::Open,
        Status::Skipped => Cell::Undone("the last attempt was withdrawn"),
        Status::Succeeded => why_void(list, task, node, last).map_or(Cell::Succeeded, Cell::Undone),
        Status::Failed | Status::Cancelled => {
            why_void(list, task, node, last).map_or(Cell::Failed, Cell::Undone)
        }
        Status::Lost => {
            if let Some(why) = why_void(list, task, node, last) {
                return Cell::Undone(why);
            }
            let action = node.description.action(&task.backend, &task.action);
            let lost = attempts.iter().rev().take_while(|each| each.status == Status::Lost).count();
            if !action.is_some_and(|action| action.idempotent) || lost >= SENDS {
                Cell::Failed
            } else {
                Cell::Undone("the last attempt was lost")
            }
        }
    }
}

/// Returns why a result does not count (any more), if it does not.
fn why_void(
    list: &StandingList,
    task: &StandingTask,
    node: &NodeRecord,
    attempt: &Attempt,
) -> Option<&'static str> {
    let is_success = attempt.status == Status::Succeeded;
    let is_before = |at: Timestamp| attempt.created_at < at;
    let begin = match node.kept_since {
        Some(kept) if is_success => kept,
        _ => node.registered_at,
    };
    if is_before(begin) {
        return Some("the result is from before its session");
    }
    for rerun in &task.reruns {
        let concerns = match rerun.scope {
            RerunScope::All => true,
            RerunScope::Failed => !is_success,
            RerunScope::Node { node: of } => of == node.id,
        };
        if concerns && is_before(rerun.at) {
            return Some("somebody asked to do it again");
        }
    }
    let reset = list.resets.get(&node.id);
    reset.filter(|at| is_before(**at)).map(|_| "somebody reset the node")
}

/// Checks that a new version of a cluster follows from the last one by the edit that it names.
fn edited(site: &Site, next: &ClusterRecord, edit: &ClusterEdit, at: Timestamp, found: &mut Vec<String>) {
    let former = site.current();
    let (id, version) = (next.id, next.version);
    if version != former.version + 1 {
        found.push(format!("version {version} of {id} follows version {}", former.version));
    }
    if next.list.next_number < former.list.next_number {
        found.push(format!("version {version} of {id} uses numbers of tasks again"));
    }
    for task in &next.list.tasks {
        let known = former.list.tasks.iter().find(|known| known.number == task.number);
        if known.is_none() && task.number < former.list.next_number {
            found.push(format!("version {version} of {id} uses number {} again", task.number));
        }
        let before: &[Rerun] = known.map_or(&[], |known| &known.reruns);
        for rerun in task.reruns.iter().filter(|rerun| !before.contains(rerun)) {
            let expected = ClusterEdit::TaskRerun { task: task.id, scope: rerun.scope };
            if *edit != expected || rerun.at != at {
                found.push(format!("version {version} of {id} asks for {rerun:?}, but the edit is {edit:?}"));
            }
        }
    }
    for (node, reset) in &next.list.resets {
        let is_new = former.list.resets.get(node) != Some(reset);
        if is_new && (*edit != ClusterEdit::NodeReset { node: *node } || *reset != at) {
            found.push(format!("version {version} of {id} resets {node}, but the edit is {edit:?}"));
        }
    }
}
