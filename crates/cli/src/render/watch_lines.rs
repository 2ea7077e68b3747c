//! Owns the lines that are printed while a run is watched, each of them once.

use std::collections::BTreeSet;

use downbeat_api::{Plan, Rollout, Run, StepProgress, WaveStatus};
use downbeat_core::spec::budget_text;
use jiff::Timestamp;

use super::progress::step_line;
use super::rollout::{nodes_of, starts};
use super::table::{Tone, painted};
use super::waits::Waits;

/// The plan of a watched run, and which lines were printed.
#[derive(Debug)]
pub(crate) struct WatchLines {
    plan: Plan,
    printed: BTreeSet<u32>,
    waits: Waits,
    waves: PrintedWaves,
}

/// The waves of a roll-out that were printed.
#[derive(Debug, Default)]
struct PrintedWaves {
    started: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    spent: bool,
}

impl WatchLines {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, printed: BTreeSet::new(), waits: Waits::new(), waves: PrintedWaves::default() }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns a line for each step that has ended since the last call.
    pub(crate) fn ended(&mut self, steps: &[StepProgress]) -> Vec<String> {
        // A step without items gets no line.
        let ended = steps.iter().filter(|step| step.open() == 0 && step.instances > 0);
        ended.filter(|step| self.printed.insert(step.step)).map(step_line).collect()
    }

    /// Returns lines about waves that started or ended since the last call, and about reasons to wait.
    pub(crate) fn changes(&mut self, run: &Run, now: Timestamp) -> Vec<String> {
        let mut lines = self.waits.changes(run, now);
        lines.extend(self.waves(run));
        lines
    }

    fn waves(&mut self, run: &Run) -> Vec<String> {
        let Some(rollout) = &run.rollout else { return Vec::new() };
        let mut lines = Vec::new();
        let named = self.plan.waves();
        for wave in &rollout.waves {
            let started = matches!(wave.status, WaveStatus::Running | WaveStatus::Ended);
            let nodes = nodes_of(&named, wave.wave);
            if started && self.waves.started.insert(wave.wave) {
                lines.push(starts(wave.wave, rollout.waves.len(), nodes));
            }
            if wave.status == WaveStatus::Ended && !self.waves.ended.contains(&wave.wave) {
                // Older servers do not record which failures are final. Waves follow one another: a later one is not shown
                // before the end of this one.
                let Some(failed) = wave.failed else { break };
                let went = match failed {
                    0 => painted("ended without failures", Tone::Good),
                    failed => {
                        let count = nodes.len();
                        format!("ended, {}", painted(&format!("{failed} of {count} failed"), Tone::Bad))
                    }
                };
                self.waves.ended.insert(wave.wave);
                lines.push(format!("wave {} of {} {went}", wave.wave, rollout.waves.len()));
            }
        }
        // Printed after the wave that exceeded the budget has ended: the wave itself continues.
        let ended = self.waves.ended.len() == self.waves.started.len();
        if ended && rollout.failed > rollout.budget && !std::mem::replace(&mut self.waves.spent, true) {
            let Rollout { failed, budget, .. } = rollout;
            let spent = painted(&budget_text(*failed, *budget), Tone::Bad);
            lines.push(format!("{spent}; no further wave starts"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use downbeat_api::{EndRules, InstanceResult, WholeRun};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn view<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn id(number: u64) -> String {
        format!("0198c0de-0000-7000-8000-{number:012}")
    }

    /// Two steps on two nodes, then a placed one; the first has a retry.
    fn watch_lines(kind: &str) -> WatchLines {
        let step = |index: u32, place: Value, after: Value| {
            json!({"index": index, "entry": index, "name": format!("s{index}"), "backend": "test", "action": "noop",
                   "branch": null, "where": place, "condition": null, "after": after, "retries": u32::from(index == 0)})
        };
        let plan = view(json!({"job": null, "strategy": "continue", "nodes": [], "steps": [
            step(0, json!(["a", "b"]), json!([])),
            step(1, json!(["a", "b"]), json!([{"step": 0, "kind": kind}])),
            step(2, json!("placed"), json!([{"step": 1, "kind": "barrier"}])),
        ]}));
        WatchLines::new(plan)
    }

    fn run(state: &str, results: &[(u32, &str, &str, u32)]) -> WholeRun {
        let result = |(step, node, status, attempts): &(u32, &str, &str, u32)| -> InstanceResult {
            view(
                json!({"step": step, "task": "t", "node": node, "item": null, "status": status, "attempts": attempts,
                        "duration": "1s", "exit_code": null, "error": null, "execution": id(5)}),
            )
        };
        let run = view(json!({
            "id": "r", "job": null, "cluster": id(9), "state": state, "status": state, "partial": false, "steps": 3,
            "nodes": 2, "by": "api", "created_at": "2025-06-01T10:00:00Z", "started_at": null, "finished_at": null,
            "duration": null, "cancel_requested_at": null, "error": null, "owner": id(8), "step": 0,
            "counts": {"pending": 0, "leased": 0, "running": 0, "succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0, "lost": 0},
        }));
        WholeRun::new(run, results.iter().map(result))
    }

    fn steps(lines: &WatchLines, run: &WholeRun) -> Vec<StepProgress> {
        let plan = lines.plan();
        run.progress(plan, &EndRules::of(plan)).steps().to_vec()
    }

    fn ended_lines(lines: &mut WatchLines, run: &WholeRun) -> Vec<String> {
        let steps = steps(lines, run);
        lines.ended(&steps).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn a_step_that_may_be_tried_again_has_not_ended() {
        let mut lines = watch_lines("barrier");
        let failed = run("running", &[(0, "a", "failed", 1), (0, "b", "failed", 1)]);
        assert_eq!(ended_lines(&mut lines, &failed), [""; 0]);
        assert_eq!(steps(&lines, &failed)[0].ended(), 0);
        assert_eq!(
            ended_lines(&mut lines, &run("running", &[(0, "a", "pending", 2), (0, "b", "running", 2)])),
            [""; 0]
        );
        let again = run("running", &[(0, "a", "succeeded", 2), (0, "b", "succeeded", 2)]);
        assert_eq!(ended_lines(&mut lines, &again), ["step 0 s0: 2/2 succeeded in 1s after 2 attempts"]);
        assert_eq!(ended_lines(&mut lines, &again), [""; 0], "once");
    }

    #[test]
    fn a_failure_is_printed_when_a_later_step_began_or_the_run_has_ended() {
        let failed = [(0, "a", "failed", 2), (0, "b", "succeeded", 1)];
        let line = ["step 0 s0: 1/2 succeeded, 1 failed in 1s after 2 attempts"];
        let with = |more| [&failed[..], &[more]].concat();
        let on_b = with((1, "b", "running", 1));
        assert_eq!(ended_lines(&mut watch_lines("barrier"), &run("running", &on_b)), line);
        assert_eq!(
            ended_lines(&mut watch_lines("per_node"), &run("running", &on_b)),
            [""; 0],
            "b does not decide a"
        );
        assert_eq!(
            ended_lines(&mut watch_lines("per_node"), &run("running", &with((1, "a", "skipped", 1)))),
            line
        );
        assert_eq!(ended_lines(&mut watch_lines("per_node"), &run("failed", &failed)), line);
    }

    #[test]
    fn without_retries_a_failure_is_the_end_and_a_loss_may_not_be() {
        let failed = run("running", &[(1, "a", "failed", 1), (1, "b", "succeeded", 1)]);
        assert_eq!(
            ended_lines(&mut watch_lines("barrier"), &failed),
            ["step 1 s1: 1/2 succeeded, 1 failed in 1s"]
        );
        for status in ["lost", "cancelled"] {
            let lost = run("running", &[(1, "a", status, 1), (1, "b", "succeeded", 1)]);
            assert_eq!(ended_lines(&mut watch_lines("barrier"), &lost), [""; 0], "{status}");
        }
    }

    #[test]
    fn a_wave_starts_after_the_end_of_the_one_before_is_known() {
        let waves = json!([{"wave": 1, "nodes": ["a"]}, {"wave": 2, "nodes": ["b"]}]);
        let mut lines = watch_lines("barrier");
        lines.plan.rollout = Some(view(json!({"waves": waves, "pause": "0s", "budget": 1})));
        let mut tell = |failed: Value| {
            let waves = json!([{"wave": 1, "nodes": 1, "status": "ended", "failed": failed}, {"wave": 2, "nodes": 1, "status": "running"}]);
            let mut run = run("running", &[]).run;
            run.rollout = Some(view(json!({"waves": waves, "wave": 2, "failed": 0, "budget": 1})));
            lines.waves(&run)
        };
        // The failed step may be retried until the server has recorded that it failed for good.
        assert_eq!(tell(json!(null)), ["wave 1 of 2 starts: a"]);
        let ended = format!("wave 1 of 2 ended, {}", painted("1 of 1 failed", Tone::Bad));
        assert_eq!(tell(json!(1)), [ended.as_str(), "wave 2 of 2 starts: b"]);
    }

    #[test]
    fn a_step_that_an_earlier_run_did_is_reused() {
        let mut retried = run("running", &[(0, "a", "succeeded", 1), (0, "b", "succeeded", 1)]);
        for result in retried.results.get_mut(&0).unwrap().values_mut() {
            result.reused = Some(result.execution);
        }
        assert_eq!(ended_lines(&mut watch_lines("barrier"), &retried), ["step 0 s0: reused"]);
        retried.results.get_mut(&0).unwrap().get_mut("b").unwrap().reused = None;
        assert_eq!(
            ended_lines(&mut watch_lines("barrier"), &retried),
            ["step 0 s0: 2/2 succeeded (1 reused) in 1s"]
        );
    }
}
