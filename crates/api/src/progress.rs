//! Owns the progress of a run per step, without the results of every node and item: enough to watch a run.
//!
//! The engine decides whether a failed instance is retried. Until it has decided, the instance counts as undecided, so
//! that no end is shown too early.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::plan::EdgeKind;
use downbeat_core::run::RunState;
use downbeat_core::run::again::has_failed;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::plan::{Plan, Step, Where};
use crate::rollout::{Rollout, Wave};
use crate::run::{Counts, InstanceResult, Run, RunSummary, StepWaiting, Steps, is_zero};

/// A run without its results: its size depends on the plan, not on the number of nodes and items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunProgress {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// The lowest step that has not ended; null if all have.
    pub step: Option<u32>,
    /// Instances (step × node, step × item) by the status of their last attempt that counts.
    pub counts: Counts,
    /// The progress of its roll-out, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The first steps that wait, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<StepWaiting>,
}

/// The progress of one step over all of its nodes or items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepProgress {
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// Instances by the status of their last attempt that counts; statuses without instances are left out.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub counts: BTreeMap<Status, u64>,
    /// The number of instances, as far as it is known.
    #[serde(default)]
    pub instances: u64,
    /// The succeeded ones whose result came from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// The succeeded ones that an earlier run had done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reused: u64,
    /// The failed, lost and cancelled ones that may be retried.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undecided: u64,
    /// The highest number of attempts of an instance.
    #[serde(default)]
    pub attempts: u32,
    /// The duration of the slowest instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub longest: Option<Span>,
    /// The reason of the first instance that failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The rules of a plan that decide whether an unsuccessful instance has ended. They are computed once.
#[derive(Clone, Debug, Default)]
pub struct EndRules {
    steps: Vec<StepRules>,
}

#[derive(Clone, Debug, Default)]
struct StepRules {
    retries: bool,
    /// The steps that start only after this one has ended, or its instance on their node.
    followers: Vec<(u32, EdgeKind)>,
    /// The followers outside of its entry: they start when all of its items have ended.
    beyond: Vec<u32>,
}

impl EndRules {
    pub fn of(plan: &Plan) -> Self {
        let mut steps: Vec<StepRules> = plan
            .steps
            .iter()
            .map(|step| StepRules { retries: step.retries > 0, ..StepRules::default() })
            .collect();
        let mut leaves: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for step in &plan.steps {
            leaves.entry(step.entry).or_default().push(step.index);
        }
        for step in &plan.steps {
            for edge in &step.after {
                let Some(former) = plan.steps.get(edge.step as usize) else { continue };
                let within = former.entry == step.entry && step.for_each.is_some();
                // An item passes through the leaves of its branch independently of other items.
                let kind = if within { EdgeKind::PerNode } else { edge.kind };
                steps[edge.step as usize].followers.push((step.index, kind));
                if former.for_each.is_some() && !within {
                    let leaves = leaves.get(&former.entry).into_iter().flatten();
                    leaves.for_each(|leaf| steps[*leaf as usize].beyond.push(step.index));
                }
            }
        }
        Self { steps }
    }
}

impl StepRules {
    /// Returns whether another attempt may follow. The server records the decision; servers before level 5 did not: there
    /// it shows when a follower of the instance has started, or when the run has ended.
    fn may_be_retried(&self, node: &str, result: &InstanceResult, run: &Run) -> bool {
        if result.failed_for_good.is_some() {
            return false;
        }
        let is_open = match result.status {
            Status::Failed => self.retries,
            Status::Lost | Status::Cancelled => true,
            Status::Pending | Status::Leased | Status::Running | Status::Succeeded | Status::Skipped => false,
        };
        is_open && !run.summary.state.is_terminal() && !self.has_follower_started(node, run)
    }

    fn has_later_entry_started(&self, run: &Run) -> bool {
        self.beyond.iter().any(|step| run.results.get(step).is_some_and(|results| !results.is_empty()))
    }

    fn has_follower_started(&self, node: &str, run: &Run) -> bool {
        self.followers.iter().any(|(step, kind)| {
            run.results.get(step).is_some_and(|results| match kind {
                EdgeKind::Barrier => !results.is_empty(),
                EdgeKind::PerNode => results.contains_key(node),
            })
        })
    }
}

impl RunProgress {
    pub fn of(run: &Run, plan: &Plan, rules: &EndRules) -> Self {
        let none = StepRules::default();
        let rules_of = |step: &Step| rules.steps.get(step.index as usize).unwrap_or(&none);
        let over = run.summary.state.is_terminal();
        let steps = plan
            .steps
            .iter()
            .map(|step| {
                let rules = rules_of(step);
                let is_over = over || rules.has_later_entry_started(run);
                StepProgress::of(step, run, is_over, |node, result| rules.may_be_retried(node, result, run))
            })
            .collect();
        let rollout = run.rollout.as_ref().map(|rollout| Rollout {
            waves: rollout.waves.iter().map(|wave| wave_progress(wave, run, rules)).collect(),
            ..rollout.clone()
        });
        let summary = RunSummary { steps: Steps::Each(steps), ..run.summary.clone() };
        let (step, counts, waiting) = (run.step, run.counts, run.waiting.clone());
        Self { summary, step, counts, rollout, waiting }
    }

    pub fn steps(&self) -> &[StepProgress] {
        match &self.summary.steps {
            Steps::Each(steps) => steps,
            Steps::Count(_) => &[],
        }
    }
}

fn wave_progress(wave: &Wave, run: &Run, rules: &EndRules) -> Wave {
    Wave { nodes: Vec::new(), failed: failed_in(wave, run, rules), ..wave.clone() }
}

/// Returns how many nodes of a wave failed; nothing while one of them may be retried.
fn failed_in(wave: &Wave, run: &Run, rules: &EndRules) -> Option<u32> {
    let mut failed = BTreeSet::new();
    for (step, rules) in (0..).zip(&rules.steps) {
        let Some(results) = run.results.get(&step) else { continue };
        for (node, result) in wave.nodes.iter().filter_map(|node| Some((node, results.get(node)?))) {
            if rules.may_be_retried(node, result, run) {
                return None;
            }
            if result.has_failed(run.summary.state) {
                failed.insert(node);
            }
        }
    }
    Some(u32::try_from(failed.len()).unwrap_or(u32::MAX))
}

impl StepProgress {
    /// Returns how many instances have this status.
    pub fn count(&self, status: Status) -> u64 {
        self.counts.get(&status).copied().unwrap_or_default()
    }

    /// Returns the number of instances that a node has.
    pub fn running(&self) -> u64 {
        self.count(Status::Leased) + self.count(Status::Running)
    }

    pub fn failed(&self) -> u64 {
        self.count(Status::Failed) + self.count(Status::Lost)
    }

    /// Returns the number of instances whose result is final.
    pub fn ended(&self) -> u64 {
        let ended = [Status::Succeeded, Status::Skipped, Status::Cancelled].map(|status| self.count(status));
        (ended.iter().sum::<u64>() + self.failed()).saturating_sub(self.undecided)
    }

    /// Returns the number of instances whose result is not final.
    pub fn open(&self) -> u64 {
        self.instances.saturating_sub(self.ended())
    }

    /// Creates the progress of a step. `may_be_retried` tells whether an unsuccessful instance may be retried, and
    /// `is_over` whether all items are known.
    pub fn of(
        step: &Step,
        run: &Run,
        is_over: bool,
        may_be_retried: impl Fn(&str, &InstanceResult) -> bool,
    ) -> Self {
        let results = run.results.get(&step.index);
        let mut progress = Self {
            step: step.index,
            task: step.name.clone(),
            instances: instances(step, results, is_over),
            ..Self::default()
        };
        let mut longest: Option<Duration> = None;
        for (node, result) in results.into_iter().flatten() {
            *progress.counts.entry(result.status).or_default() += 1;
            progress.cached += u64::from(result.cached);
            progress.reused += u64::from(result.reused.is_some() && !result.cached);
            progress.undecided += u64::from(may_be_retried(node, result));
            progress.attempts = progress.attempts.max(result.attempts_made());
            if result.reused.is_none() {
                longest = longest.max(result.duration.map(|duration| duration.0));
            }
            if progress.why.is_none() {
                progress.why = match (&result.error, &result.reason) {
                    (Some(error), _) => Some(format!("{}: {error}", result.whose(node))),
                    (None, Some(reason)) => Some(reason.clone()),
                    (None, None) => None,
                };
            }
        }
        progress.longest = longest.map(Span);
        progress
    }
}

fn instances(step: &Step, results: Option<&BTreeMap<String, InstanceResult>>, is_over: bool) -> u64 {
    let there = results.map_or(0, |results| results.len() as u64);
    // Skipped as a whole, or its items could not be evaluated.
    let as_a_whole = results.is_some_and(|results| results.values().any(|result| result.item.is_none()));
    match (&step.place, step.for_each.as_ref().map(|each| &each.items)) {
        (Where::Nodes(nodes), _) => nodes.len() as u64,
        (Where::Placed(_), None) => 1,
        (Where::Placed(_), Some(_)) if as_a_whole => there,
        (Where::Placed(_), Some(Value::Array(items))) => items.len() as u64,
        // The number of items is known only when a follower starts.
        (Where::Placed(_), Some(_)) if is_over => there.max(1),
        (Where::Placed(_), Some(_)) => there + 1,
    }
}

impl InstanceResult {
    /// Returns whether the instance failed, as recorded, or as its last attempt shows.
    pub(crate) fn has_failed(&self, run: RunState) -> bool {
        self.failed_for_good.is_some() || has_failed(self.status, self.attempts, run)
    }

    /// Returns how many attempts were sent to a node: the last one was not if it is pending, was skipped, or failed
    /// before that.
    pub fn attempts_made(&self) -> u32 {
        if self.reused.is_some() {
            return 0;
        }
        let sent = match self.status {
            Status::Pending | Status::Skipped => false,
            Status::Failed => self.duration.is_some(),
            Status::Leased | Status::Running | Status::Succeeded | Status::Cancelled | Status::Lost => true,
        };
        if sent { self.attempts } else { self.attempts.saturating_sub(1) }
    }

    /// Returns `web-01`, or `item 3 on web-01`; `key` is its key among the results of its step.
    fn whose(&self, key: &str) -> String {
        match (self.item, &self.node) {
            (None, _) => key.to_owned(),
            (Some(item), Some(node)) => format!("item {item} on {node}"),
            (Some(item), None) => format!("item {item}"),
        }
    }
}
