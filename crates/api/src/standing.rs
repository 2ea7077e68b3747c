//! Owns how a run stands, step by step, without the results of every node and item: what somebody who watches it needs.
//!
//! Whether an instance that failed is retried is the engine's to decide. Until it has decided, such an instance counts as
//! undecided, so that nobody is told of an end that was none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::plan::EdgeKind;
use downbeat_core::run::again::has_failed;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::plan::{Plan, Step, Where};
use crate::rollout::{Rollout, Wave};
use crate::run::{Counts, InstanceResult, Run, RunSummary, StepWaiting, Steps, is_zero};

/// A run without its results: as large as its plan, whatever the number of its nodes and items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunStanding {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// The lowest step that has not ended; null when all have.
    pub step: Option<u32>,
    /// Instances (step × node, step × item) by the status of their last attempt.
    pub counts: Counts,
    /// How far its roll-out is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Steps that wait, and why; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<StepWaiting>,
}

/// How one step stands, over all of its nodes or items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepStanding {
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// Instances by the status of their last attempt; statuses that none has are left out.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub counts: BTreeMap<Status, u64>,
    /// How many instances it has in all, as far as that is known.
    #[serde(default)]
    pub instances: u64,
    /// Of the succeeded ones, those whose result came from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// Of the succeeded ones, those that an earlier run had done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reused: u64,
    /// Of the failed, lost and cancelled ones, those that may be retried.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undecided: u64,
    /// The most attempts that an instance took.
    #[serde(default)]
    pub attempts: u32,
    /// How long the slowest instance took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub longest: Option<Span>,
    /// Why the first instance that went wrong or was left out did or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What decides whether an instance that did not succeed has ended: worked out once for a plan.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    steps: Vec<StepRules>,
}

#[derive(Clone, Debug, Default)]
struct StepRules {
    retries: bool,
    /// The steps that begin only when this one has ended, or its instance on their node.
    followers: Vec<(u32, EdgeKind)>,
    /// Of them, those beyond its entry: they begin when all of its items have ended.
    beyond: Vec<u32>,
}

impl Rules {
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
                // An item walks the leaves of its branch at its own pace.
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
    /// An attempt that failed or was lost ends its instance only if no other follows. Whether one follows shows when
    /// something that waited for the instance has begun, or when the run has ended.
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

impl RunStanding {
    pub fn of(run: &Run, plan: &Plan, rules: &Rules) -> Self {
        let none = StepRules::default();
        let rules_of = |step: &Step| rules.steps.get(step.index as usize).unwrap_or(&none);
        let over = run.summary.state.is_terminal();
        let steps = plan
            .steps
            .iter()
            .map(|step| {
                let rules = rules_of(step);
                let is_over = over || rules.is_left_behind(run);
                StepStanding::of(step, run, is_over, |node, result| rules.may_come_back(node, result, run))
            })
            .collect();
        let rollout = run.rollout.as_ref().map(|rollout| Rollout {
            waves: rollout.waves.iter().map(|wave| wave_standing(wave, run, rules)).collect(),
            ..rollout.clone()
        });
        let summary = RunSummary { steps: Steps::Each(steps), ..run.summary.clone() };
        let (step, counts, waiting) = (run.step, run.counts, run.waiting.clone());
        Self { summary, step, counts, rollout, waiting }
    }

    pub fn steps(&self) -> &[StepStanding] {
        match &self.summary.steps {
            Steps::Each(steps) => steps,
            Steps::Count(_) => &[],
        }
    }
}

fn wave_standing(wave: &Wave, run: &Run, rules: &Rules) -> Wave {
    Wave { nodes: Vec::new(), failed: failed_in(wave, run, rules), ..wave.clone() }
}

/// How many nodes of a wave failed; nothing while one of them may be retried.
fn failed_in(wave: &Wave, run: &Run, rules: &Rules) -> Option<u32> {
    let mut failed = BTreeSet::new();
    for (step, rules) in (0..).zip(&rules.steps) {
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
    Some(u32::try_from(failed.len()).unwrap_or(u32::MAX))
}

impl StepStanding {
    /// How many instances have this status.
    pub fn count(&self, status: Status) -> u64 {
        self.counts.get(&status).copied().unwrap_or_default()
    }

    /// `may_come_back` says whether an instance that did not succeed may be retried, and `is_over` whether more items may
    /// come than are there.
    pub fn of(
        step: &Step,
        run: &Run,
        is_over: bool,
        may_come_back: impl Fn(&str, &InstanceResult) -> bool,
    ) -> Self {
        let results = run.results.get(&step.index);
        let mut standing = Self {
            step: step.index,
            task: step.name.clone(),
            instances: instances(step, results, is_over),
            ..Self::default()
        };
        let mut longest: Option<Duration> = None;
        for (node, result) in results.into_iter().flatten() {
            *standing.counts.entry(result.status).or_default() += 1;
            standing.cached += u64::from(result.cached);
            standing.reused += u64::from(result.reused.is_some() && !result.cached);
            standing.undecided += u64::from(may_come_back(node, result));
            standing.attempts = standing.attempts.max(result.attempts_made());
            if result.reused.is_none() {
                longest = longest.max(result.duration.map(|duration| duration.0));
            }
            if standing.why.is_none() {
                standing.why = match (&result.error, &result.reason) {
                    (Some(error), _) => Some(format!("{}: {error}", result.whose(node))),
                    (None, Some(reason)) => Some(reason.clone()),
                    (None, None) => None,
                };
            }
        }
        standing.longest = longest.map(Span);
        standing
    }
}

fn instances(step: &Step, results: Option<&BTreeMap<String, InstanceResult>>, is_over: bool) -> u64 {
    let there = results.map_or(0, |results| results.len() as u64);
    // Skipped as a whole, or its items could not be worked out.
    let as_a_whole = results.is_some_and(|results| results.values().any(|result| result.item.is_none()));
    match (&step.place, step.for_each.as_ref().map(|each| &each.items)) {
        (Where::Nodes(nodes), _) => nodes.len() as u64,
        (Where::Placed(_), None) => 1,
        (Where::Placed(_), Some(_)) if as_a_whole => there,
        (Where::Placed(_), Some(Value::Array(items))) => items.len() as u64,
        // How many there are shows only when what follows them begins.
        (Where::Placed(_), Some(_)) if is_over => there.max(1),
        (Where::Placed(_), Some(_)) => there + 1,
    }
}

impl InstanceResult {
    /// Attempts that a node was asked to make: the last one was not if it waits, was withdrawn, or failed without
    /// being sent.
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

    /// `web-01`, or `item 3 on web-01`; `key` is its key among the results of its step.
    fn whose(&self, key: &str) -> String {
        match (self.item, &self.node) {
            (None, _) => key.to_owned(),
            (Some(item), Some(node)) => format!("item {item} on {node}"),
            (Some(item), None) => format!("item {item}"),
        }
    }
}
