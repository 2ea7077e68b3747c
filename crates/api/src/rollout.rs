//! Owns how a roll-out is shown: its waves, its progress, and the nodes that it never touched.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::plan::Resolved;
use downbeat_core::run::RunState;
use downbeat_core::spec;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::outline::{Outline, RolloutOutline};
use crate::run::{InstanceResult, RunSummary};

/// The progress of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rollout {
    pub waves: Vec<Wave>,
    /// The running wave, or the last one that ran; from 1, null before the first.
    pub wave: Option<u32>,
    /// Nodes that failed, each counted once.
    pub failed: u32,
    /// How many nodes may fail. After one more failure, no further wave starts.
    pub budget: u32,
}

/// A part of the nodes. It runs the whole list before the next wave starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wave {
    /// From 1.
    pub wave: u32,
    /// Hostnames; left out with `results=0`, because the plan has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    pub status: WaveStatus,
    /// How many of its nodes failed; only with `results=0`, and not while one of them may be retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u32>,
}

/// The status of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaveStatus {
    Waiting,
    Running,
    Ended,
    /// It did not start and will not.
    Skipped,
}

/// The plan of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedRollout {
    pub waves: Vec<PlannedWave>,
    /// The time between the end of a wave and the start of the next.
    #[schema(value_type = String, example = "5m")]
    pub pause: Span,
    /// How many nodes may fail. After one more failure, no further wave starts.
    pub budget: u32,
}

/// The nodes of a wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedWave {
    /// From 1.
    pub wave: u32,
    pub nodes: Vec<String>,
}

impl PlannedRollout {
    pub(crate) fn of(rollout: &spec::Rollout, resolved: &Resolved) -> Self {
        let waves = (1..).zip(waves(resolved)).map(|(wave, nodes)| PlannedWave { wave, nodes }).collect();
        Self { waves, pause: rollout.pause, budget: resolved.budget(rollout) }
    }
}

/// Returns the hostnames of each wave. A roll-out has one set of nodes.
pub(crate) fn waves(resolved: &Resolved) -> Vec<Vec<String>> {
    let nodes = resolved.sets.first().map(Vec::as_slice).unwrap_or_default();
    let mut start = 0;
    let part = |&end: &u32| {
        let part = &nodes[start..end as usize];
        start = end as usize;
        part.iter().map(|index| resolved.nodes[*index].hostname.clone()).collect()
    };
    resolved.waves.iter().map(part).collect()
}

type Results = BTreeMap<u32, BTreeMap<String, InstanceResult>>;

/// The results of a wave's nodes in the steps of the wave.
#[derive(Default)]
struct WaveResults {
    wanted: usize,
    ended: usize,
    reused: usize,
    /// An execution of this run was started there.
    started: bool,
}

impl WaveResults {
    fn of(nodes: &[String], steps: &[u32], results: &Results) -> Self {
        let mut results_of_wave = Self { wanted: nodes.len() * steps.len(), ..Self::default() };
        for step in steps.iter().filter_map(|step| results.get(step)) {
            for result in nodes.iter().filter_map(|node| step.get(node)) {
                results_of_wave.ended += usize::from(!result.status.is_open());
                results_of_wave.reused += usize::from(result.reused.is_some());
                results_of_wave.started |= result.reused.is_none() && result.status != Status::Skipped;
            }
        }
        results_of_wave
    }

    /// Returns the status. `over`: no further wave starts.
    fn status(&self, has_ended: bool, over: bool) -> WaveStatus {
        let all = self.ended == self.wanted;
        let done = self.started || self.reused == self.wanted;
        match (done, all) {
            (true, true) => WaveStatus::Ended,
            (true, false) if has_ended => WaveStatus::Ended,
            (true, false) => WaveStatus::Running,
            (false, all) if all || over => WaveStatus::Skipped,
            (false, _) => WaveStatus::Waiting,
        }
    }
}

impl Rollout {
    /// Returns the progress of a roll-out, and the nodes that it never touched as soon as that is certain.
    pub(crate) fn of(outline: &Outline, run: &RunSummary, results: &Results) -> Option<(Self, Vec<String>)> {
        let RolloutOutline { waves, budget } = outline.rollout.as_ref()?;
        let failed = failed(outline, run, results);
        let has_ended = run.state.is_terminal();
        let over = has_ended || failed > *budget || run.cancel_requested_at.is_some();
        let steps: Vec<u32> =
            (0..).zip(&outline.steps).filter(|(_, step)| step.in_waves).map(|(step, _)| step).collect();
        let waves: Vec<Wave> = (1..)
            .zip(waves)
            .map(|(wave, nodes)| {
                let status = WaveResults::of(nodes, &steps, results).status(has_ended, over);
                Wave { wave, nodes: nodes.clone(), status, failed: None }
            })
            .collect();
        let skipped = waves.iter().filter(|wave| over && wave.status == WaveStatus::Skipped);
        let untouched = skipped.flat_map(|wave| wave.nodes.iter().cloned()).collect();
        let wave = current(&waves);
        Some((Self { waves, wave, failed, budget: *budget }, untouched))
    }
}

fn current(waves: &[Wave]) -> Option<u32> {
    let running = waves.iter().find(|wave| wave.status == WaveStatus::Running);
    let ended = || waves.iter().take_while(|wave| wave.status == WaveStatus::Ended).last();
    running.or_else(ended).map(|wave| wave.wave)
}

/// Returns how many nodes have a failure that counts. A failed attempt that may be retried does not count yet.
fn failed(outline: &Outline, run: &RunSummary, results: &Results) -> u32 {
    let state = if run.cancel_requested_at.is_some() { RunState::Cancelled } else { run.state };
    let is_over = run.state.is_terminal();
    let steps = results.iter().map(|(step, nodes)| (outline.steps.get(*step as usize), nodes));
    let counted = steps.filter(|(step, _)| step.is_none_or(|step| !step.handles_failure));
    let nodes: BTreeSet<&str> = counted
        .flat_map(|(step, nodes)| {
            let has_retries = step.is_some_and(|step| step.has_retries);
            let is_final = move |result: &InstanceResult| match result.status {
                Status::Failed => is_over || !has_retries,
                Status::Lost | Status::Cancelled => is_over,
                _ => true,
            };
            nodes.iter().filter(move |(_, result)| {
                result.failed_for_good.is_some() || (is_final(result) && result.has_failed(state))
            })
        })
        .map(|(node, _)| node.as_str())
        .collect();
    u32::try_from(nodes.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
    use downbeat_core::plan::{NodeIx, NodeRef, SetIx};
    use downbeat_core::run::{RunEnd, RunMade, RunRecord, RunStage};
    use jiff::Timestamp;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    /// Four nodes in three waves: one, one and two. Two steps, and an `on_failure` step. One node may fail.
    fn run(state: RunState) -> RunRecord {
        let task = json!({"backend": "test", "action": "noop"});
        let on_failure = json!({"backend": "test", "action": "noop", "condition": "on_failure"});
        let definition = json!({
            "target": "all", "rollout": {"batch": [1, 1, 2], "max_failures": 1}, "tasks": [task, task, on_failure],
        });
        let nodes = (1..=4).map(|number| NodeRef {
            id: NodeId(Uuid::from_u128(number)),
            hostname: format!("web-0{number}"),
        });
        let at = Timestamp::UNIX_EPOCH;
        let made = RunMade {
            id: RunId::from("r"),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition: Arc::new(serde_json::from_value(definition).unwrap()),
            resolved: Arc::new(Resolved {
                nodes: nodes.collect(),
                sets: vec![NodeIx::first(4).collect()],
                entries: vec![Some(SetIx(0)); 3],
                idempotent: Vec::new(),
                waves: vec![1, 2, 4],
                left_out: Vec::new(),
            }),
            params: Default::default(),
            retry_of: None,
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: at,
            no_cache: false,
        };
        let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
        run.live.stage = RunStage::of(state, false, Some((at, RunEnd::default()))).unwrap();
        run
    }

    /// Results by step, then by node; `+` marks reused ones.
    fn results(steps: &[&[&str]]) -> Results {
        let result = |text: &str| InstanceResult {
            status: Status::parse(text.trim_end_matches('+')).unwrap(),
            item: None,
            node: None,
            cached: false,
            attempts: 1,
            duration: None,
            exit_code: None,
            error: None,
            reason: None,
            failed_for_good: None,
            stderr: None,
            waits: None,
            reused: text.ends_with('+').then(|| ExecutionId(Uuid::nil())),
            outputs: Default::default(),
            execution: ExecutionId(Uuid::nil()),
        };
        let step = |nodes: &[&str]| {
            let named = (1..).zip(nodes).filter(|(_, text)| **text != "-");
            named.map(|(number, text)| (format!("web-0{number}"), result(text))).collect()
        };
        (0..).zip(steps).map(|(number, nodes)| (number, step(nodes))).collect()
    }

    fn shown(state: RunState, steps: &[&[&str]]) -> (Vec<WaveStatus>, Option<u32>, u32, Vec<String>) {
        let run = run(state);
        let (rollout, untouched) =
            Rollout::of(&Outline::of_run(&run), &RunSummary::of(&(&run).into()), &results(steps)).unwrap();
        assert_eq!(rollout.budget, 1);
        let statuses = rollout.waves.iter().map(|wave| wave.status).collect();
        (statuses, rollout.wave, rollout.failed, untouched)
    }

    /// State and results; then the waves, the current one, how many failed, and how many were never touched.
    type Case = (RunState, &'static [&'static [&'static str]], [WaveStatus; 3], Option<u32>, u32, usize);

    #[test]
    fn waves_are_shown_as_they_come_and_go() {
        use WaveStatus::{Ended, Running, Skipped, Waiting};
        let cases: [Case; 9] = [
            (RunState::Pending, &[], [Waiting, Waiting, Waiting], None, 0, 0),
            (RunState::Running, &[&["leased"]], [Running, Waiting, Waiting], Some(1), 0, 0),
            // Between two waves.
            (RunState::Running, &[&["succeeded"], &["succeeded"]], [Ended, Waiting, Waiting], Some(1), 0, 0),
            (
                RunState::Running,
                &[&["succeeded", "running"], &["failed"]],
                [Ended, Running, Waiting],
                Some(2),
                1,
                0,
            ),
            // The second failure exceeds the budget: it is certain that the other nodes are never touched.
            (
                RunState::Running,
                &[&["failed", "failed"], &["skipped", "skipped"]],
                [Ended, Ended, Skipped],
                Some(2),
                2,
                2,
            ),
            (
                RunState::Failed,
                &[
                    &["failed", "lost", "skipped", "skipped"],
                    &["skipped", "skipped", "skipped", "skipped"],
                    &["succeeded", "failed"],
                ],
                [Ended, Ended, Skipped],
                Some(2),
                2,
                2,
            ),
            // Cancelled before it started.
            (RunState::Cancelled, &[], [Skipped, Skipped, Skipped], None, 0, 4),
            // A retry: the first wave is done, and a part of the third; neither has started here.
            (
                RunState::Running,
                &[&["succeeded+", "running", "succeeded+", "-"], &["succeeded+"]],
                [Ended, Running, Waiting],
                Some(2),
                0,
                0,
            ),
            (
                RunState::Completed,
                &[&["succeeded"; 4], &["succeeded"; 4], &["skipped"; 4]],
                [Ended, Ended, Ended],
                Some(3),
                0,
                0,
            ),
        ];
        for (state, steps, statuses, wave, failed, untouched) in cases {
            let shown = shown(state, steps);
            assert_eq!(
                (shown.0.as_slice(), shown.1, shown.2),
                (&statuses[..], wave, failed),
                "{state} {steps:?}"
            );
            assert_eq!(shown.3.len(), untouched, "{state} {steps:?}");
        }
    }

    #[test]
    fn a_plan_names_the_nodes_of_each_wave() {
        let run = run(RunState::Pending);
        let planned = PlannedRollout::of(run.definition.rollout.as_ref().unwrap(), &run.resolved);
        let nodes: Vec<Vec<String>> = planned.waves.into_iter().map(|wave| wave.nodes).collect();
        assert_eq!(nodes, [vec!["web-01"], vec!["web-02"], vec!["web-03", "web-04"]]);
        assert_eq!((planned.pause, planned.budget), (Span::default(), 1));
    }

    #[test]
    fn a_failed_attempt_that_may_be_retried_does_not_count_yet() {
        let run = run(RunState::Running);
        let mut outline = Outline::of_run(&run);
        outline.steps[0].has_retries = true;
        let mut results = results(&[&["failed", "failed", "lost"]]);
        let count = |results: &Results| failed(&outline, &RunSummary::of(&(&run).into()), results);
        assert_eq!(count(&results), 0);
        for result in results.values_mut().flat_map(BTreeMap::values_mut).take(2) {
            result.failed_for_good = Some("no retries are left".to_owned());
        }
        assert_eq!(count(&results), 2);
    }
}
