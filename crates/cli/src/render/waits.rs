//! Owns what is told of a run and of steps that wait: each reason once, and again when it changes.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_api::{RunStanding, StepWaiting, Waiting};
use jiff::{SignedDuration, Timestamp};

use super::run::task_label;
use super::table::{Tone, one_line, painted};

/// What fits somewhere is taken sooner than this.
const WAIT_WORTH_TELLING: SignedDuration = SignedDuration::from_secs(1);
/// More nodes than this are only counted.
const MOST_NODES: usize = 5;

/// What was told of waiting.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// How long a step has to wait before it is told.
    worth_telling: SignedDuration,
    steps: BTreeMap<u32, Wait>,
    paused: bool,
    /// Why the run has not begun.
    pending: Option<String>,
}

/// A step that waits.
#[derive(Clone, Debug)]
struct Wait {
    /// The reasons, without what changes from moment to moment.
    signature: BTreeSet<String>,
    since: Timestamp,
    told: bool,
}

impl Waits {
    /// For those who look often.
    pub(crate) fn new() -> Self {
        Self { worth_telling: WAIT_WORTH_TELLING, ..Self::default() }
    }

    /// For those who look so rarely that whatever waits has waited for a while.
    pub(crate) fn patient() -> Self {
        Self::default()
    }

    /// Lines about why the run does not begin, about a pause, and about steps that wait.
    pub(crate) fn news(&mut self, run: &RunStanding, now: Timestamp) -> Vec<String> {
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
                format!("{paused}: what runs ends, nothing more begins; `downbeat run resume {id}` goes on")
            } else {
                "the run goes on".to_owned()
            });
        }
        lines.extend(self.steps(run, now));
        lines
    }

    fn steps(&mut self, run: &RunStanding, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let mut still = BTreeMap::new();
        for step in run.waiting.iter().filter(|step| is_worth_telling(step)) {
            let signature = signature(step);
            let before = self.steps.remove(&step.step).filter(|wait| wait.signature == signature);
            let mut wait = before.unwrap_or(Wait { signature, since: now, told: false });
            let lasts = is_lasting(step) || now.duration_since(wait.since) >= self.worth_telling;
            if !wait.told && lasts {
                wait.told = true;
                lines.push(wait_line(step));
            }
            still.insert(step.step, wait);
        }
        self.steps = still;
        lines
    }
}

/// The pause of a run is told by itself, and the next attempt of what failed waits for its time, not for a node.
fn is_worth_telling(step: &StepWaiting) -> bool {
    let is_told = |node: &Waiting| match node.cause.as_deref() {
        Some(cause) => matches!(cause, "paused" | "retry"),
        // A server from before names no causes.
        None => node.reason == "the run is paused" || node.reason.starts_with("it failed before"),
    };
    step.nodes.is_empty() || !step.nodes.iter().all(is_told)
}

/// A node that is silent or drained stays so for longer than anybody looks.
fn is_lasting(step: &StepWaiting) -> bool {
    let lasts = |node: &Waiting| matches!(node.cause.as_deref(), Some("silent" | "offline" | "drained"));
    step.bound && step.nodes.iter().any(lasts)
}

fn signature(step: &StepWaiting) -> BTreeSet<String> {
    let part = |node: &Waiting| match node.cause.as_deref() {
        // Which nodes are at work changes all the time, and does not matter.
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
        1 => "1 other node".to_owned(),
        others => format!("{others} other nodes"),
    };
    let nodes = if nodes.is_empty() { last } else { format!("{} and {last}", nodes.join(", ")) };
    shared.map_or_else(|| format!("for {nodes}"), |reason| format!("for {nodes}, {reason}"))
}

/// `train`, or `train[3] and 12 others`.
pub(super) fn waiting_task(step: &StepWaiting) -> String {
    let others = match step.others {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    };
    format!("{}{others}", task_label(&step.task, step.item))
}

/// A reason that holds for all nodes has no node before it.
pub(super) fn wait_reason(waiting: &Waiting) -> String {
    let reason = one_line(&waiting.reason);
    if waiting.node == "-" { reason } else { format!("{}: {reason}", waiting.node) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn standing(waiting: Value) -> RunStanding {
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

    fn told(waits: &mut Waits, run: &RunStanding, second: i64) -> Vec<String> {
        let lines = waits.news(run, Timestamp::from_second(second).unwrap());
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn a_placed_step_that_fits_nowhere_says_so_once_and_not_at_once() {
        let mut waits = Waits::new();
        let run = standing(json!([{"step": 2, "task": "s2", "nodes": [
            {"node": "a", "reason": "lacks label `gpu`"}, {"node": "b", "reason": "is offline"}]}]));
        assert_eq!(told(&mut waits, &run, 0), [""; 0], "it may be taken the next moment");
        assert_eq!(
            told(&mut waits, &run, 1),
            ["step 2 s2 waits: no node fits now (a: lacks label `gpu`; b: is offline)"]
        );
        assert_eq!(told(&mut waits, &run, 2), [""; 0], "once");
    }

    #[test]
    fn a_silent_node_is_told_at_once_and_again_only_when_the_reason_changes() {
        let mut waits = Waits::new();
        let run = |cause: &str, reason: &str| {
            standing(json!([{"step": 0, "task": "deploy", "bound": true,
                "nodes": [{"node": "web-30", "reason": reason, "cause": cause}]}]))
        };
        let silent = run("silent", "silent for 42s; fails when it is offline, in 58s");
        let line = "step 0 deploy waits for web-30, silent for 42s; fails when it is offline, in 58s";
        assert_eq!(told(&mut waits, &silent, 0), [line]);
        let later = run("silent", "silent for 43s; fails when it is offline, in 57s");
        assert_eq!(told(&mut waits, &later, 1), [""; 0], "only the times have changed");
        let drained = run("drained", "drained");
        assert_eq!(told(&mut waits, &drained, 2), ["step 0 deploy waits for web-30, drained"]);
    }

    #[test]
    fn nodes_that_are_at_work_are_told_once_however_they_change() {
        let mut waits = Waits::new();
        let run = |nodes: &[&str], others: u64| {
            let nodes: Vec<Value> = nodes
                .iter()
                .map(|node| json!({"node": node, "reason": "busy with run x", "cause": "busy"}))
                .collect();
            standing(json!([{"step": 0, "task": "t", "bound": true, "others": others, "nodes": nodes}]))
        };
        assert_eq!(told(&mut waits, &run(&["a", "b"], 2), 0), [""; 0]);
        assert_eq!(
            told(&mut waits, &run(&["b", "c"], 1), 1),
            ["step 0 t waits for b, c and 1 other node, busy with run x"]
        );
        assert_eq!(told(&mut waits, &run(&["c"], 0), 5), [""; 0]);
    }

    #[test]
    fn who_looks_rarely_is_told_at_the_first_look() {
        let run = standing(
            json!([{"step": 0, "task": "t", "nodes": [{"node": "a", "reason": "lacks backend `docker`"}]}]),
        );
        let line = "step 0 t waits: no node fits now (a: lacks backend `docker`)";
        assert_eq!(told(&mut Waits::patient(), &run, 0), [line]);
    }
}
