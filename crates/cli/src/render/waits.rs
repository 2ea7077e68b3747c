//! Owns the lines about a run and steps that wait: each reason is printed once, and again when it changes.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_api::{Run, StepWaiting, Waiting};
use jiff::{SignedDuration, Timestamp};

use super::hosts::plural;
use super::run::task_label;
use super::table::{Tone, one_line, painted};

/// A placed execution that fits a node is leased sooner than this.
const LEAST_WAIT: SignedDuration = SignedDuration::from_secs(1);
/// More nodes than this are only counted.
const MOST_NODES: usize = 5;

/// The reasons that were already printed.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// How long a step has to wait before it is printed.
    least_wait: SignedDuration,
    steps: BTreeMap<u32, Wait>,
    paused: bool,
    /// Why the run has not started.
    pending: Option<String>,
}

#[derive(Clone, Debug)]
struct Wait {
    /// The reasons, without values that change all the time.
    signature: BTreeSet<String>,
    since: Timestamp,
    printed: bool,
}

impl Waits {
    /// For callers that update often.
    pub(crate) fn new() -> Self {
        Self { least_wait: LEAST_WAIT, ..Self::default() }
    }

    /// For callers that update so rarely that every wait has lasted for a while.
    pub(crate) fn patient() -> Self {
        Self::default()
    }

    /// Returns the lines about a pending run, a pause, and waiting steps.
    pub(crate) fn changes(&mut self, run: &Run, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let summary = &run.summary;
        if summary.pending_reason != self.pending {
            self.pending.clone_from(&summary.pending_reason);
            lines.extend(self.pending.as_ref().map(|reason| painted(&one_line(reason), Tone::Busy)));
        }
        if summary.paused != self.paused && !summary.state.is_terminal() {
            self.paused = summary.paused;
            lines.push(if self.paused {
                let id = &summary.id;
                let paused = painted("paused", Tone::Busy);
                format!("{paused}: running tasks finish, no new ones start; `downbeat run resume {id}` continues it")
            } else {
                "the run continues".to_owned()
            });
        }
        lines.extend(self.steps(run, now));
        lines
    }

    fn steps(&mut self, run: &Run, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let mut still = BTreeMap::new();
        for step in run.waiting.iter().filter(|step| needs_line(step)) {
            let signature = signature(step);
            let before = self.steps.remove(&step.step).filter(|wait| wait.signature == signature);
            let mut wait = before.unwrap_or(Wait { signature, since: now, printed: false });
            let lasts = is_lasting(step) || now.duration_since(wait.since) >= self.least_wait;
            if !wait.printed && lasts {
                wait.printed = true;
                lines.push(wait_line(step));
            }
            still.insert(step.step, wait);
        }
        self.steps = still;
        lines
    }
}

/// Returns whether a step needs a line. A pause has its own line, and a retry waits for its time, not for a node.
fn needs_line(step: &StepWaiting) -> bool {
    let is_covered = |node: &Waiting| match node.cause.as_deref() {
        Some(cause) => matches!(cause, "paused" | "retry"),
        // An older server sends no causes.
        None => node.reason == "the run is paused" || node.reason.starts_with("it failed before"),
    };
    step.nodes.is_empty() || !step.nodes.iter().all(is_covered)
}

/// Returns whether a node is silent or drained: that usually lasts, so the line is printed at once.
fn is_lasting(step: &StepWaiting) -> bool {
    let lasts = |node: &Waiting| matches!(node.cause.as_deref(), Some("silent" | "offline" | "drained"));
    step.bound && step.nodes.iter().any(lasts)
}

fn signature(step: &StepWaiting) -> BTreeSet<String> {
    let part = |node: &Waiting| match node.cause.as_deref() {
        // Which nodes are busy changes all the time and does not matter.
        Some("busy") => "busy".to_owned(),
        Some(cause) => format!("{}: {cause}", node.node),
        None => format!("{}: {}", node.node, node.reason),
    };
    step.nodes.iter().map(part).collect()
}

/// `step 0 train waits: no node fits now (web-01: lacks label `gpu`)`, or
/// `step 0 deploy waits for web-30, silent for 42s; fails when it is offline, in 58s`.
fn wait_line(step: &StepWaiting) -> String {
    if step.bound {
        let waits = painted("waits", Tone::Busy);
        return format!("step {} {} {waits} {}", step.step, step.task, awaited(step));
    }
    let nodes = &step.nodes;
    let mut why: Vec<String> = nodes.iter().take(MOST_NODES).map(wait_reason).collect();
    if nodes.is_empty() {
        why.push("no node has registered".to_owned());
    }
    if nodes.len() > MOST_NODES {
        why.push(format!("{} others", nodes.len() - MOST_NODES));
    }
    let waits = if step.others > 0 { "wait" } else { "waits" };
    let waits = painted(&format!("{waits}: no node fits now"), Tone::Busy);
    format!("step {} {} {waits} ({})", step.step, waiting_task(step), why.join("; "))
}

/// `for web-30, silent for 42s`, `for web-30, web-31 and 3 other nodes, drained`, or
/// `for web-30 (silent for 42s) and web-31 (drained)`.
pub(super) fn awaited(step: &StepWaiting) -> String {
    let reasons: BTreeSet<String> = step.nodes.iter().map(|node| one_line(&node.reason)).collect();
    let shared = reasons.first().filter(|_| reasons.len() == 1);
    let name = |node: &Waiting| match shared {
        Some(_) => node.node.clone(),
        None => format!("{} ({})", node.node, one_line(&node.reason)),
    };
    let mut nodes: Vec<String> = step.nodes.iter().map(name).collect();
    let last = match step.others {
        0 => nodes.pop().unwrap_or_default(),
        others => plural(others, "other node"),
    };
    let nodes = if nodes.is_empty() { last } else { format!("{} and {last}", nodes.join(", ")) };
    shared.map_or_else(|| format!("for {nodes}"), |reason| format!("for {nodes}, {reason}"))
}

/// `train`, or `train[3] and 12 others`.
pub(super) fn waiting_task(step: &StepWaiting) -> String {
    let others = match step.others {
        0 => String::new(),
        others => format!(" and {}", plural(others, "other")),
    };
    format!("{}{others}", task_label(&step.task, step.item))
}

/// A reason that applies to every node is shown without a node name.
pub(super) fn wait_reason(waiting: &Waiting) -> String {
    let reason = one_line(&waiting.reason);
    match (waiting.node.as_str(), waiting.others) {
        ("-", _) => reason,
        (node, 0) => format!("{node}: {reason}"),
        (node, others) => format!("{node} and {}: {reason}", plural(others, "other node")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn waiting_run(waiting: Value) -> Run {
        let id = "0198c0de-0000-7000-8000-000000000005";
        let mut waiting = waiting;
        for step in waiting.as_array_mut().unwrap() {
            step["execution"] = json!(id);
        }
        serde_json::from_value(json!({
            "id": "r", "job": null, "cluster": id, "state": "running", "status": "running", "partial": false, "steps": [],
            "nodes": 2, "by": "api", "created_at": "2025-06-01T10:00:00Z", "started_at": null, "finished_at": null,
            "duration": null, "cancel_requested_at": null, "error": null, "owner": id, "step": 0,
            "counts": {"pending": 0, "leased": 0, "running": 0, "succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0, "lost": 0},
            "waiting": waiting,
        }))
        .unwrap()
    }

    fn printed(waits: &mut Waits, run: &Run, second: i64) -> Vec<String> {
        let lines = waits.changes(run, Timestamp::from_second(second).unwrap());
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn a_placed_step_that_fits_nowhere_says_so_once_and_not_at_once() {
        let mut waits = Waits::new();
        let run = waiting_run(json!([{"step": 2, "task": "s2", "nodes": [
            {"node": "a", "reason": "lacks label `gpu`"}, {"node": "b", "reason": "is offline"}]}]));
        assert_eq!(printed(&mut waits, &run, 0), [""; 0], "it may be taken the next moment");
        assert_eq!(
            printed(&mut waits, &run, 1),
            ["step 2 s2 waits: no node fits now (a: lacks label `gpu`; b: is offline)"]
        );
        assert_eq!(printed(&mut waits, &run, 2), [""; 0], "once");
    }

    #[test]
    fn a_silent_node_is_printed_at_once_and_again_only_when_the_reason_changes() {
        let mut waits = Waits::new();
        let run = |cause: &str, reason: &str| {
            waiting_run(json!([{"step": 0, "task": "deploy", "bound": true,
                "nodes": [{"node": "web-30", "reason": reason, "cause": cause}]}]))
        };
        let silent = run("silent", "silent for 42s; fails when it is offline, in 58s");
        let line = "step 0 deploy waits for web-30, silent for 42s; fails when it is offline, in 58s";
        assert_eq!(printed(&mut waits, &silent, 0), [line]);
        let later = run("silent", "silent for 43s; fails when it is offline, in 57s");
        assert_eq!(printed(&mut waits, &later, 1), [""; 0], "only the times have changed");
        let drained = run("drained", "drained");
        assert_eq!(printed(&mut waits, &drained, 2), ["step 0 deploy waits for web-30, drained"]);
    }

    #[test]
    fn busy_nodes_are_printed_once_however_they_change() {
        let mut waits = Waits::new();
        let run = |nodes: &[&str], others: u64| {
            let nodes: Vec<Value> = nodes
                .iter()
                .map(|node| json!({"node": node, "reason": "busy with run x", "cause": "busy"}))
                .collect();
            waiting_run(json!([{"step": 0, "task": "t", "bound": true, "others": others, "nodes": nodes}]))
        };
        assert_eq!(printed(&mut waits, &run(&["a", "b"], 2), 0), [""; 0]);
        assert_eq!(
            printed(&mut waits, &run(&["b", "c"], 1), 1),
            ["step 0 t waits for b, c and 1 other node, busy with run x"]
        );
        assert_eq!(printed(&mut waits, &run(&["c"], 0), 5), [""; 0]);
    }

    #[test]
    fn a_slow_client_prints_at_its_first_look() {
        let run = waiting_run(
            json!([{"step": 0, "task": "t", "nodes": [{"node": "a", "reason": "lacks backend `docker`"}]}]),
        );
        let line = "step 0 t waits: no node fits now (a: lacks backend `docker`)";
        assert_eq!(printed(&mut Waits::patient(), &run, 0), [line]);
    }
}
