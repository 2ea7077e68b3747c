//! Owns what is told of a run that is watched, and that each thing is told once.

use std::collections::BTreeSet;

use downbeat_api::{Plan, Rollout, RunStanding, WaveStatus};
use downbeat_core::spec::budget_text;
use jiff::Timestamp;

use super::progress::{Tally, step_line};
use super::rollout::begins;
use super::table::{Tone, painted};
use super::waits::Waits;

/// A run's plan, and what was told so far.
#[derive(Debug)]
pub(crate) struct Story {
    plan: Plan,
    told: BTreeSet<u32>,
    waits: Waits,
    waves: WavesTold,
}

/// What was told of the waves of a roll-out.
#[derive(Debug, Default)]
struct WavesTold {
    begun: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    spent: bool,
}

impl Story {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, told: BTreeSet::new(), waits: Waits::new(), waves: WavesTold::default() }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Every step, as it stands.
    pub(crate) fn tallies(&self, run: &RunStanding) -> Vec<Tally> {
        run.steps().iter().map(Tally::from).collect()
    }

    /// A line for each step that has ended since the last time.
    pub(crate) fn ended(&mut self, tallies: &[Tally]) -> Vec<String> {
        // Of no items there is nothing to tell.
        let ended = tallies.iter().filter(|tally| tally.has_ended() && tally.wanted > 0);
        ended.filter(|tally| self.told.insert(tally.index)).map(step_line).collect()
    }

    /// Lines about waves that began or ended since the last time, and about what the run and its steps wait for.
    pub(crate) fn news(&mut self, run: &RunStanding, now: Timestamp) -> Vec<String> {
        let mut lines = self.waits.news(run, now);
        lines.extend(self.waves(run));
        lines
    }

    fn waves(&mut self, run: &RunStanding) -> Vec<String> {
        let Some(rollout) = &run.rollout else { return Vec::new() };
        let mut lines = Vec::new();
        for wave in &rollout.waves {
            let begun = matches!(wave.status, WaveStatus::Running | WaveStatus::Ended);
            let nodes = nodes_of(&self.plan, wave.wave);
            if begun && self.waves.begun.insert(wave.wave) {
                lines.push(begins(wave.wave, rollout.waves.len(), nodes));
            }
            if wave.status == WaveStatus::Ended && !self.waves.ended.contains(&wave.wave) {
                let Some(failed) = wave.failed else { continue };
                let went = match failed {
                    0 => painted("ended well", Tone::Good),
                    failed => {
                        let count = nodes.len();
                        format!("ended, {}", painted(&format!("{failed} of {count} failed"), Tone::Bad))
                    }
                };
                self.waves.ended.insert(wave.wave);
                lines.push(format!("wave {} of {} {went}", wave.wave, rollout.waves.len()));
            }
        }
        // Once the wave that it was spent in has ended: it does not change what that does.
        let ended = self.waves.ended.len() == self.waves.begun.len();
        if ended && rollout.failed > rollout.budget && !std::mem::replace(&mut self.waves.spent, true) {
            let Rollout { failed, budget, .. } = rollout;
            let spent = painted(&budget_text(*failed, *budget), Tone::Bad);
            lines.push(format!("{spent}: no further wave begins"));
        }
        lines
    }
}

fn nodes_of(plan: &Plan, wave: u32) -> &[String] {
    let waves = plan.rollout.iter().flat_map(|rollout| &rollout.waves);
    let mut named = waves.filter(|planned| planned.wave == wave);
    named.next().map(|planned| planned.nodes.as_slice()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use downbeat_api::{Rules, Run};
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
            json!({"index": index, "entry": index, "name": format!("s{index}"), "backend": "test", "action": "noop",
                   "branch": null, "where": place, "condition": null, "after": after, "retries": u32::from(index == 0)})
        };
        let plan = view(json!({"job": null, "strategy": "continue", "nodes": [], "steps": [
            step(0, json!(["a", "b"]), json!([])),
            step(1, json!(["a", "b"]), json!([{"step": 0, "kind": kind}])),
            step(2, json!("placed"), json!([{"step": 1, "kind": "barrier"}])),
        ]}));
        Story::new(plan)
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

    fn tallies(story: &Story, run: &Run) -> Vec<Tally> {
        let plan = story.plan();
        story.tallies(&RunStanding::of(run, plan, &Rules::of(plan)))
    }

    fn lines(story: &mut Story, run: &Run) -> Vec<String> {
        let tallies = tallies(story, run);
        story.ended(&tallies).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn a_step_that_may_be_tried_again_has_not_ended() {
        let mut story = story("barrier");
        let failed = run("running", &[(0, "a", "failed", 1), (0, "b", "failed", 1)]);
        assert_eq!(lines(&mut story, &failed), [""; 0]);
        assert_eq!(tallies(&story, &failed)[0].ended(), 0);
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
    fn a_step_that_an_earlier_run_did_is_reused() {
        let mut retried = run("running", &[(0, "a", "succeeded", 1), (0, "b", "succeeded", 1)]);
        for result in retried.results.get_mut(&0).unwrap().values_mut() {
            result.reused = Some(result.execution);
        }
        assert_eq!(lines(&mut story("barrier"), &retried), ["step 0 s0: reused"]);
        retried.results.get_mut(&0).unwrap().get_mut("b").unwrap().reused = None;
        assert_eq!(lines(&mut story("barrier"), &retried), ["step 0 s0: 2/2 succeeded (1 reused) in 1s"]);
    }
}
