//! Owns how a roll-out is shown: its waves, its progress, and the nodes that it never touched.

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::plan::Resolved;
use downbeat_core::run::RolloutProgress;
use downbeat_core::spec;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::outline::{Outline, RolloutOutline};
use crate::progress::{InstanceState, StepProgress};
use crate::run::{FewNodes, RunSummary};

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
    /// Nodes that it never touched; known after it has ended or exceeded its budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untouched: Option<FewNodes>,
}

/// A part of the nodes, which the plan names. It runs the whole list before the next wave starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wave {
    /// From 1.
    pub wave: u32,
    /// The number of its nodes.
    pub nodes: u32,
    pub status: WaveStatus,
    /// How many of its nodes failed; absent while one of them may be retried.
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

/// A wave of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedWave {
    /// From 1.
    pub wave: u32,
    pub nodes: WaveNodes,
}

/// The number of a wave's nodes: they are the next ones of the first set in the plan's `sets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum WaveNodes {
    Count(u32),
    /// Hostnames: the form of older servers.
    Names(Vec<String>),
}

impl PlannedRollout {
    pub(crate) fn of(rollout: &spec::Rollout, resolved: &Resolved) -> Self {
        let mut start = 0;
        let count = |&end: &u32| WaveNodes::Count(end - std::mem::replace(&mut start, end));
        let waves = (1..).zip(resolved.waves.iter().map(count));
        let waves = waves.map(|(wave, nodes)| PlannedWave { wave, nodes }).collect();
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
    fn add(&mut self, state: InstanceState) {
        self.ended += usize::from(!state.status.is_open());
        self.reused += usize::from(state.is_reused);
        self.started |= !state.is_reused && state.status != Status::Skipped;
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
    /// Returns the progress of a roll-out. `state_of` returns the state of a step on a node, if it has a result.
    pub fn of(
        outline: &Outline,
        run: &RunSummary,
        state_of: impl Fn(u32, &str) -> Option<InstanceState>,
    ) -> Option<Self> {
        let rollout = outline.rollout.as_ref()?;
        let waves = &rollout.waves;
        let (has_ended, state) = (run.state.is_terminal(), run.state_or_cancelled());
        let mut results = Vec::with_capacity(waves.len());
        let mut failures = Vec::with_capacity(waves.len());
        for nodes in waves {
            let mut of_wave = WaveResults::default();
            let (mut failed, mut is_undecided) = (0, false);
            for node in nodes {
                let mut has_failed = false;
                for (step, outline) in (0..).zip(&outline.steps) {
                    of_wave.wanted += usize::from(outline.in_waves);
                    let Some(found) = state_of(step, node) else { continue };
                    if outline.in_waves {
                        of_wave.add(found);
                    }
                    if !outline.handles_failure {
                        let may_be_retried = found.may_be_retried(outline.has_retries, has_ended);
                        is_undecided |= may_be_retried;
                        has_failed |= !may_be_retried && found.has_failed(state);
                    }
                }
                failed += u32::from(has_failed);
            }
            results.push(of_wave);
            failures.push((failed, is_undecided));
        }
        let failed = failures.iter().map(|(failed, _)| failed).sum();
        let of_waves = results.into_iter().zip(failures);
        Some(Self::of_waves(rollout, run, failed, of_waves))
    }

    /// Returns the progress of a roll-out as the server that executes it recorded it, for a run that is too large to read
    /// all its results. `steps` are the counts of its results, and `unsuccessful` those that failed, were lost or were
    /// cancelled: each with its step and the position of its node in the roll-out.
    pub fn kept(
        outline: &Outline,
        run: &RunSummary,
        progress: RolloutProgress,
        steps: &[StepProgress],
        unsuccessful: impl IntoIterator<Item = (u32, usize, InstanceState)>,
    ) -> Option<Self> {
        let rollout = outline.rollout.as_ref()?;
        let (has_ended, state) = (run.state.is_terminal(), run.state_or_cancelled());
        let ends: Vec<usize> = rollout
            .waves
            .iter()
            .scan(0, |end, nodes| {
                *end += nodes.len();
                Some(*end)
            })
            .collect();
        let wave_of = |node: usize| ends.partition_point(|end| *end <= node);
        let mut failed = vec![false; ends.last().copied().unwrap_or(0)];
        let mut is_undecided = vec![false; ends.len()];
        for (step, node, found) in unsuccessful {
            let Some(outline) = outline.steps.get(step as usize).filter(|step| !step.handles_failure) else {
                continue;
            };
            let may_be_retried = found.may_be_retried(outline.has_retries, has_ended);
            if let Some(failed) = failed.get_mut(node) {
                is_undecided[wave_of(node)] |= may_be_retried;
                *failed |= !may_be_retried && found.has_failed(state);
            }
        }
        let mut failures = vec![0; ends.len()];
        (0..).zip(&failed).filter(|(_, failed)| **failed).for_each(|(node, _)| failures[wave_of(node)] += 1);
        let in_waves = || outline.steps.iter().zip(steps).filter(|(outline, _)| outline.in_waves);
        let counts = || in_waves().flat_map(|(_, step)| &step.counts);
        let ended: u64 = counts().filter(|(status, _)| !status.is_open()).map(|(_, count)| count).sum();
        let is_open = counts().any(|(status, count)| status.is_open() && *count > 0);
        let begun = progress.wave as usize;
        let touched = begun.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
        let is_complete = !is_open && ended >= (in_waves().count() * touched) as u64;
        let results = (1..).zip(&rollout.waves).map(|(wave, nodes)| {
            let wanted = in_waves().count() * nodes.len();
            let ended = if wave < begun || (wave == begun && is_complete) { wanted } else { 0 };
            WaveResults { wanted, ended, reused: 0, started: wave <= begun }
        });
        let of_waves = results.zip(failures.into_iter().zip(is_undecided));
        Some(Self::of_waves(rollout, run, progress.failed, of_waves))
    }

    /// Returns the progress from the results of each wave, the number of its failed nodes, and whether that may be fewer.
    fn of_waves(
        RolloutOutline { waves, budget }: &RolloutOutline,
        run: &RunSummary,
        failed: u32,
        of_waves: impl Iterator<Item = (WaveResults, (u32, bool))>,
    ) -> Self {
        let has_ended = run.state.is_terminal();
        let over = has_ended || failed > *budget || run.cancel_requested_at.is_some();
        let mut untouched = FewNodes::default();
        let mut shown: Vec<Wave> = Vec::with_capacity(waves.len());
        for ((wave, nodes), (results, (failed, is_undecided))) in (1..).zip(waves).zip(of_waves) {
            let status = results.status(has_ended, over);
            if over && status == WaveStatus::Skipped {
                nodes.iter().for_each(|node| untouched.add(node));
            }
            let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
            shown.push(Wave { wave, nodes: count, status, failed: (!is_undecided).then_some(failed) });
        }
        let wave = current(&shown);
        let untouched = Some(untouched).filter(|nodes| nodes.count > 0);
        Self { waves: shown, wave, failed, budget: *budget, untouched }
    }
}

fn current(waves: &[Wave]) -> Option<u32> {
    let running = waves.iter().find(|wave| wave.status == WaveStatus::Running);
    let ended = || waves.iter().take_while(|wave| wave.status == WaveStatus::Ended).last();
    running.or_else(ended).map(|wave| wave.wave)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use downbeat_core::ids::{ClusterId, NodeId, RunId, ServerId};
    use downbeat_core::plan::{NodeIx, NodeRef, Plan as Compiled, SetIx};
    use downbeat_core::run::{RunEnd, RunMade, RunRecord, RunStage, RunState};
    use jiff::Timestamp;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::plan::Plan;

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
                retry: None,
            }),
            params: Default::default(),
            retry_of: None,
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: at,
            no_cache: false,
            job_version: None,
        };
        let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
        run.live.stage = RunStage::of(state, false, Some((at, RunEnd::default()))).unwrap();
        run
    }

    type States = Vec<Vec<Option<InstanceState>>>;

    /// States by step, then by node; `+` marks reused ones.
    fn states(steps: &[&[&str]]) -> States {
        let state = |text: &&str| {
            let status = Status::parse(text.trim_end_matches('+'))?;
            let is_reused = text.ends_with('+');
            Some(InstanceState { status, attempts: 1, is_reused, failed_for_good: false })
        };
        steps.iter().map(|nodes| nodes.iter().map(state).collect()).collect()
    }

    fn rollout(outline: &Outline, run: &RunRecord, states: &States) -> Rollout {
        let state_of = |step: u32, node: &str| {
            let number: usize = node.trim_start_matches("web-0").parse().unwrap();
            states.get(step as usize)?.get(number - 1).copied().flatten()
        };
        Rollout::of(outline, &RunSummary::of(&run.into()), state_of).unwrap()
    }

    fn rollout_of(state: RunState, steps: &[&[&str]]) -> Rollout {
        let run = run(state);
        rollout(&Outline::of_run(&run), &run, &states(steps))
    }

    /// Returns the same from what a server keeps: the wave, how many failed, and counts.
    fn kept(state: RunState, steps: &[&[&str]], wave: Option<u32>, failed: u32) -> Rollout {
        let (run, states) = (run(state), states(steps));
        let progress = RolloutProgress { wave: wave.unwrap_or(0), failed };
        let (mut counts, mut unsuccessful) = (vec![StepProgress::default(); 3], Vec::new());
        for (step, states) in (0..).zip(&states) {
            for (node, state) in (0..).zip(states).filter_map(|(node, state)| Some((node, (*state)?))) {
                *counts[step as usize].counts.entry(state.status).or_default() += 1;
                if matches!(state.status, Status::Failed | Status::Lost | Status::Cancelled) {
                    unsuccessful.push((step, node, state));
                }
            }
        }
        let (outline, summary) = (Outline::of_run(&run), RunSummary::of(&(&run).into()));
        Rollout::kept(&outline, &summary, progress, &counts, unsuccessful).unwrap()
    }

    fn shown(state: RunState, steps: &[&[&str]]) -> (Vec<WaveStatus>, Option<u32>, u32, u64) {
        let rollout = rollout_of(state, steps);
        assert_eq!(rollout.budget, 1);
        let statuses = rollout.waves.iter().map(|wave| wave.status).collect();
        let untouched = rollout.untouched.map_or(0, |nodes| nodes.count);
        (statuses, rollout.wave, rollout.failed, untouched)
    }

    /// State and results; then the waves, the current one, how many failed, and how many were never touched.
    type Case = (RunState, &'static [&'static [&'static str]], [WaveStatus; 3], Option<u32>, u32, u64);

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
            assert_eq!(kept(state, steps, wave, failed), rollout_of(state, steps), "{state} {steps:?}");
            assert_eq!(
                (shown.0.as_slice(), shown.1, shown.2),
                (&statuses[..], wave, failed),
                "{state} {steps:?}"
            );
            assert_eq!(shown.3, untouched, "{state} {steps:?}");
        }
    }

    #[test]
    fn a_plan_names_the_nodes_of_each_wave_once() {
        let run = run(RunState::Pending);
        let compiled = Compiled::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)).unwrap();
        let mut plan = Plan::of(&compiled);
        let named = [vec!["web-01"], vec!["web-02"], vec!["web-03", "web-04"]];
        assert_eq!(plan.waves(), named);
        let planned = plan.rollout.as_ref().unwrap();
        assert_eq!((planned.pause, planned.budget), (Span::default(), 1));
        assert_eq!(json!(plan).to_string().matches("web-03").count(), 1);

        let older = named.clone().map(|nodes| json!({"wave": 1, "nodes": nodes}));
        let older = json!({"waves": older, "pause": "0s", "budget": 1});
        plan.rollout = Some(serde_json::from_value(older).unwrap());
        assert_eq!(plan.waves(), named);
    }

    #[test]
    fn a_failed_attempt_that_may_be_retried_does_not_count_yet() {
        let run = run(RunState::Running);
        let mut outline = Outline::of_run(&run);
        outline.steps[0].has_retries = true;
        let mut states = states(&[&["failed", "failed", "lost"]]);
        let count = |states: &States| {
            let rollout = rollout(&outline, &run, states);
            (rollout.failed, rollout.waves.iter().map(|wave| wave.failed).collect::<Vec<_>>())
        };
        assert_eq!(count(&states), (0, vec![None, None, None]));
        for state in states.iter_mut().flatten().flatten().take(2) {
            state.failed_for_good = true;
        }
        assert_eq!(count(&states), (2, vec![Some(1), Some(1), None]));
    }
}
