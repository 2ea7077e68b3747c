//! Owns what is told of a run that is watched, and that each thing is told once.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::execution::Status;
use downbeat_core::ids::ExecutionId;
use downbeat_core::run::again::has_failed;
use downbeat_core::spec::Definition;
use downbeat_server::http::view::{
    EdgeKind, InstanceResult, Plan, Rollout, Run, StepWaiting, Waiting, Wave, WaveStatus,
};
use jiff::{SignedDuration, Timestamp};

use super::progress::{Tally, step_line};
use super::rollout::begins;
use super::run::task_label;
use super::table::{Tone, one_line, painted};

/// What fits somewhere is taken sooner than this.
const WAIT_WORTH_TELLING: SignedDuration = SignedDuration::from_secs(1);
/// More nodes than this are only counted.
const MOST_NODES: usize = 5;

/// A run's plan, and what was told so far.
#[derive(Debug)]
pub(crate) struct Story {
    plan: Plan,
    steps: Vec<Rules>,
    told: BTreeSet<u32>,
    /// Placed executions that wait: since when, as far as it was seen.
    waiting: BTreeMap<ExecutionId, Wait>,
    waves: WavesTold,
    paused: bool,
    /// Why it has not begun.
    pending: Option<String>,
}

/// What was told of the waves of a roll-out.
#[derive(Debug, Default)]
struct WavesTold {
    begun: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    spent: bool,
}

/// What decides whether an instance that did not succeed has ended.
#[derive(Clone, Debug, Default)]
struct Rules {
    retries: bool,
    /// The steps that begin only when this one has ended, or its instance on their node.
    followers: Vec<(u32, EdgeKind)>,
    /// Of them, those beyond its entry: they begin when all of its items have ended.
    beyond: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    Since(Timestamp),
    Told,
}

impl Story {
    pub(crate) fn new(plan: Plan, definition: &Definition) -> Self {
        let tasks = definition.tasks.iter().flat_map(|entry| entry.leaves());
        let mut steps: Vec<Rules> =
            tasks.map(|task| Rules { retries: task.retry.is_some(), ..Rules::default() }).collect();
        steps.resize(plan.steps.len(), Rules::default());
        for step in &plan.steps {
            for edge in &step.after {
                let Some(former) = plan.steps.get(edge.step as usize) else { continue };
                let within = former.entry == step.entry && step.for_each.is_some();
                // An item walks the leaves of its branch at its own pace.
                let kind = if within { EdgeKind::PerNode } else { edge.kind };
                steps[edge.step as usize].followers.push((step.index, kind));
                if former.for_each.is_some() && !within {
                    let leaves = plan.steps.iter().filter(|leaf| leaf.entry == former.entry);
                    leaves.for_each(|leaf| steps[leaf.index as usize].beyond.push(step.index));
                }
            }
        }
        Self {
            plan,
            steps,
            told: BTreeSet::new(),
            waiting: BTreeMap::new(),
            waves: WavesTold::default(),
            paused: false,
            pending: None,
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Every step, as it stands.
    pub(crate) fn tallies(&self, run: &Run) -> Vec<Tally> {
        let steps = self.plan.steps.iter().zip(&self.steps);
        steps
            .map(|(step, rules)| {
                let is_over = run.summary.state.is_terminal() || rules.is_left_behind(run);
                Tally::of(step, run, is_over, |node, result| rules.may_come_back(node, result, run))
            })
            .collect()
    }

    /// A line for each step that has ended since the last time.
    pub(crate) fn ended(&mut self, tallies: &[Tally]) -> Vec<String> {
        // Of no items there is nothing to tell.
        let ended = tallies.iter().filter(|tally| tally.has_ended() && tally.wanted > 0);
        ended.filter(|tally| self.told.insert(tally.index)).map(step_line).collect()
    }

    /// Lines about waves that began or ended since the last time, about a pause, and about why it does not begin.
    pub(crate) fn news(&mut self, run: &Run) -> Vec<String> {
        let mut lines = Vec::new();
        if run.summary.pending_reason != self.pending {
            self.pending.clone_from(&run.summary.pending_reason);
            lines.extend(
                self.pending.as_ref().map(|reason| format!("{}: {reason}", painted("waits", Tone::Busy))),
            );
        }
        if run.summary.paused != self.paused && !run.summary.state.is_terminal() {
            self.paused = run.summary.paused;
            lines.push(if self.paused {
                let id = &run.summary.id;
                let paused = painted("paused", Tone::Busy);
                format!("{paused}: what runs ends, nothing more begins; `downbeat run resume {id}` goes on")
            } else {
                "the run goes on".to_owned()
            });
        }
        lines.extend(self.waves(run));
        lines
    }

    fn waves(&mut self, run: &Run) -> Vec<String> {
        let Some(rollout) = &run.rollout else { return Vec::new() };
        let mut lines = Vec::new();
        for wave in &rollout.waves {
            let begun = matches!(wave.status, WaveStatus::Running | WaveStatus::Ended);
            if begun && self.waves.begun.insert(wave.wave) {
                lines.push(begins(rollout, wave));
            }
            if wave.status == WaveStatus::Ended && !self.waves.ended.contains(&wave.wave) {
                let Some(failed) = self.failed_in(wave, run) else { continue };
                self.waves.ended.insert(wave.wave);
                let count = wave.nodes.len();
                let went = match failed {
                    0 => painted("ended well", Tone::Good),
                    failed => {
                        format!("ended, {}", painted(&format!("{failed} of {count} failed"), Tone::Bad))
                    }
                };
                lines.push(format!("wave {} of {} {went}", wave.wave, rollout.waves.len()));
            }
        }
        // Once the wave that it was spent in has ended: it does not change what that does.
        let ended = self.waves.ended.len() == self.waves.begun.len();
        if ended && rollout.failed > rollout.budget && !std::mem::replace(&mut self.waves.spent, true) {
            let Rollout { failed, budget, .. } = rollout;
            let spent = painted(&format!("{failed} failed, and {budget} may"), Tone::Bad);
            lines.push(format!("{spent}: no further wave begins"));
        }
        lines
    }

    /// How many nodes of a wave failed; nothing while one of them may yet come back.
    fn failed_in(&self, wave: &Wave, run: &Run) -> Option<usize> {
        let mut failed = BTreeSet::new();
        for (step, rules) in (0..).zip(&self.steps) {
            let Some(results) = run.results.get(&step) else { continue };
            for (node, result) in wave.nodes.iter().filter_map(|node| Some((node, results.get(node)?))) {
                if rules.may_come_back(node, result, run) {
                    return None;
                }
                if has_failed(result.status, result.attempts, run.summary.state) {
                    failed.insert(node);
                }
            }
        }
        Some(failed.len())
    }

    /// A line for each placed step that no node takes, once it has waited for a while.
    pub(crate) fn waits(&mut self, run: &Run, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let mut still = BTreeMap::new();
        for step in run.waiting.iter().filter(|step| !self.pauses(step, run)) {
            let wait = self.waiting.get(&step.execution).copied().unwrap_or(Wait::Since(now));
            let wait = match wait {
                Wait::Since(at) if now.duration_since(at) >= WAIT_WORTH_TELLING => {
                    lines.push(wait_line(step));
                    Wait::Told
                }
                other => other,
            };
            still.insert(step.execution, wait);
        }
        self.waiting = still;
        lines
    }

    /// The next attempt of what failed waits for its time, not for a node.
    fn pauses(&self, step: &StepWaiting, run: &Run) -> bool {
        let retries = self.steps.get(step.step as usize).is_some_and(|rules| rules.retries);
        let results = run.results.get(&step.step).into_iter().flatten();
        retries && results.into_iter().any(|(_, result)| result.attempts > 1 && result.item == step.item)
    }
}

impl Rules {
    /// An attempt that failed or was lost ends its instance only if no other follows. Whether one follows is the
    /// server's to decide: it shows when something that waited for the instance has begun, or when the run has ended.
    fn may_come_back(&self, node: &str, result: &InstanceResult, run: &Run) -> bool {
        let unsure = match result.status {
            Status::Failed => self.retries,
            Status::Lost | Status::Cancelled => true,
            Status::Pending | Status::Leased | Status::Running | Status::Succeeded | Status::Skipped => false,
        };
        unsure && !run.summary.state.is_terminal() && !self.has_followed(node, run)
    }

    fn is_left_behind(&self, run: &Run) -> bool {
        self.beyond.iter().any(|step| run.results.get(step).is_some_and(|results| !results.is_empty()))
    }

    fn has_followed(&self, node: &str, run: &Run) -> bool {
        self.followers.iter().any(|(step, kind)| {
            run.results.get(step).is_some_and(|results| match kind {
                EdgeKind::Barrier => !results.is_empty(),
                EdgeKind::PerNode => results.contains_key(node),
            })
        })
    }
}

/// `step 0 train waits: no node fits now (web-01: lacks label `gpu`)`.
fn wait_line(step: &StepWaiting) -> String {
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

/// `train`, or `train[3] and 12 others`.
pub(super) fn waiting_task(step: &StepWaiting) -> String {
    let others = match step.others {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    };
    format!("{}{others}", task_label(&step.task, step.item))
}

/// What holds whatever the node has no node before it.
pub(super) fn wait_reason(waiting: &Waiting) -> String {
    let reason = one_line(&waiting.reason);
    if waiting.node == "-" { reason } else { format!("{}: {reason}", waiting.node) }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn view<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn id(number: u64) -> String {
        format!("0198c0de-0000-7000-8000-{number:012}")
    }

    /// Two steps on two nodes, then a placed one; the first is tried again when it fails.
    fn story(kind: &str) -> Story {
        let step = |index: u32, place: Value, after: Value| {
            json!({"index": index, "name": format!("s{index}"), "backend": "test", "action": "noop", "branch": null,
                   "where": place, "condition": null, "after": after})
        };
        let plan = view(json!({"job": null, "strategy": "continue", "nodes": [], "steps": [
            step(0, json!(["a", "b"]), json!([])),
            step(1, json!(["a", "b"]), json!([{"step": 0, "kind": kind}])),
            step(2, json!("placed"), json!([{"step": 1, "kind": "barrier"}])),
        ]}));
        let task = json!({"backend": "test", "action": "noop"});
        let retry = json!({"max": 1, "delay": "1s", "factor": 2.0, "max_delay": "1s"});
        let definition: Definition = view(json!({"target": "all", "tasks": [
            {"backend": "test", "action": "noop", "retry": retry}, task, task]}));
        Story::new(plan, &definition)
    }

    fn run(state: &str, results: &[(u32, &str, &str, u32)]) -> Run {
        let mut by_step: BTreeMap<String, BTreeMap<&str, Value>> = BTreeMap::new();
        for (step, node, status, attempts) in results {
            let result = json!({"status": status, "attempts": attempts, "duration": "1s", "exit_code": null, "execution": id(5)});
            by_step.entry(step.to_string()).or_default().insert(node, result);
        }
        view(json!({
            "id": "r", "job": null, "cluster": id(9), "state": state, "status": state, "partial": false, "steps": 3,
            "nodes": 2, "by": "api", "created_at": "2025-06-01T10:00:00Z", "started_at": null, "finished_at": null,
            "duration": null, "cancel_requested_at": null, "error": null, "owner": id(8), "step": 0, "expected": ["a", "b"],
            "counts": {"pending": 0, "leased": 0, "running": 0, "succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0, "lost": 0},
            "results": by_step,
        }))
    }

    fn lines(story: &mut Story, run: &Run) -> Vec<String> {
        let tallies = story.tallies(run);
        story.ended(&tallies).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn a_step_that_may_be_tried_again_has_not_ended() {
        let mut story = story("barrier");
        let failed = run("running", &[(0, "a", "failed", 1), (0, "b", "failed", 1)]);
        assert_eq!(lines(&mut story, &failed), [""; 0]);
        assert_eq!(story.tallies(&failed)[0].ended(), 0);
        assert_eq!(
            lines(&mut story, &run("running", &[(0, "a", "pending", 2), (0, "b", "running", 2)])),
            [""; 0]
        );
        let again = run("running", &[(0, "a", "succeeded", 2), (0, "b", "succeeded", 2)]);
        assert_eq!(lines(&mut story, &again), ["step 0 s0: 2/2 succeeded in 1s after 2 attempts"]);
        assert_eq!(lines(&mut story, &again), [""; 0], "once");
    }

    #[test]
    fn a_failure_is_told_when_something_later_began_or_the_run_has_ended() {
        let failed = [(0, "a", "failed", 2), (0, "b", "succeeded", 1)];
        let told = ["step 0 s0: 1/2 succeeded, 1 failed in 1s after 2 attempts"];
        let with = |more| [&failed[..], &[more]].concat();
        let on_b = with((1, "b", "running", 1));
        assert_eq!(lines(&mut story("barrier"), &run("running", &on_b)), told);
        assert_eq!(lines(&mut story("per_node"), &run("running", &on_b)), [""; 0], "b says nothing of a");
        assert_eq!(lines(&mut story("per_node"), &run("running", &with((1, "a", "skipped", 1)))), told);
        assert_eq!(lines(&mut story("per_node"), &run("failed", &failed)), told);
    }

    #[test]
    fn without_retries_a_failure_is_the_end_and_a_loss_may_not_be() {
        let failed = run("running", &[(1, "a", "failed", 1), (1, "b", "succeeded", 1)]);
        assert_eq!(lines(&mut story("barrier"), &failed), ["step 1 s1: 1/2 succeeded, 1 failed in 1s"]);
        for status in ["lost", "cancelled"] {
            let lost = run("running", &[(1, "a", status, 1), (1, "b", "succeeded", 1)]);
            assert_eq!(lines(&mut story("barrier"), &lost), [""; 0], "{status}");
        }
    }

    #[test]
    fn a_placed_step_that_fits_nowhere_says_so_once_and_not_at_once() {
        let mut story = story("barrier");
        let mut run = run("running", &[(2, "-", "pending", 1)]);
        run.waiting = view(json!([{"step": 2, "task": "s2", "execution": id(5), "nodes": [
            {"node": "a", "reason": "lacks label `gpu`"}, {"node": "b", "reason": "is offline"}]}]));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(story.waits(&run, at(0)), [""; 0], "it may be taken the next moment");
        let told: Vec<String> = story.waits(&run, at(1));
        let told: Vec<String> =
            told.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
        assert_eq!(told, ["step 2 s2 waits: no node fits now (a: lacks label `gpu`; b: is offline)"]);
        assert_eq!(story.waits(&run, at(2)), [""; 0], "once");
    }
}
