//! Owns the progress of a run per step: counts of its results, enough to watch a run.
//!
//! The engine decides whether a failed instance is retried. Until it has decided, the instance counts as undecided, so
//! that no end is shown too early.

use std::collections::BTreeMap;
use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::plan::EdgeKind;
use downbeat_core::run::RunState;
use downbeat_core::run::again::has_failed;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::plan::{Plan, Step};
use crate::run::{InstanceResult, Results, Run, Steps, UNBOUND, WholeRun, is_zero};

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
    pub instances: u64,
    /// The succeeded ones whose result came from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// The succeeded ones that an earlier run had done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reused: u64,
    /// The highest number of attempts of an instance; only in the view that a client builds from events.
    #[serde(skip)]
    pub attempts: u32,
    /// The failed, lost and cancelled ones that may be retried; as above.
    #[serde(skip)]
    pub undecided: u64,
    /// The duration of the slowest instance; as above.
    #[serde(skip)]
    pub longest: Option<Span>,
    /// The reason of the first instance that failed or was skipped; as above.
    #[serde(skip)]
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
    fn may_be_retried(&self, node: &str, result: &InstanceResult, whole: &WholeRun) -> bool {
        let is_over = whole.run.summary.state.is_terminal();
        InstanceState::from(result).may_be_retried(self.retries, is_over)
            && !self.has_follower_started(node, &whole.results)
    }

    fn has_later_entry_started(&self, results: &Results) -> bool {
        self.beyond.iter().any(|step| results.get(step).is_some_and(|results| !results.is_empty()))
    }

    fn has_follower_started(&self, node: &str, results: &Results) -> bool {
        self.followers.iter().any(|(step, kind)| {
            results.get(step).is_some_and(|results| match kind {
                EdgeKind::Barrier => !results.is_empty(),
                EdgeKind::PerNode => results.contains_key(node),
            })
        })
    }
}

/// The facts about an instance that decide whether it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceState {
    pub status: Status,
    pub attempts: u32,
    pub is_reused: bool,
    pub failed_for_good: bool,
}

impl From<&InstanceResult> for InstanceState {
    fn from(result: &InstanceResult) -> Self {
        Self {
            status: result.status,
            attempts: result.attempts,
            is_reused: result.reused.is_some(),
            failed_for_good: result.failed_for_good.is_some(),
        }
    }
}

impl InstanceState {
    /// Returns whether another attempt may follow, as far as the instance itself shows it. `is_over`: the run has ended.
    pub(crate) fn may_be_retried(self, has_retries: bool, is_over: bool) -> bool {
        let is_open = match self.status {
            Status::Failed => has_retries,
            Status::Lost | Status::Cancelled => true,
            Status::Pending | Status::Leased | Status::Running | Status::Succeeded | Status::Skipped => false,
        };
        is_open && !is_over && !self.failed_for_good
    }

    /// Returns whether the instance failed, as recorded, or as its last attempt shows.
    pub(crate) fn has_failed(self, run: RunState) -> bool {
        self.failed_for_good || has_failed(self.status, self.attempts, run)
    }
}

impl WholeRun {
    /// Returns the run with the progress of each step.
    pub fn progress(&self, plan: &Plan, rules: &EndRules) -> Run {
        let none = StepRules::default();
        let over = self.run.summary.state.is_terminal();
        let steps = plan.steps.iter().map(|step| {
            let rules = rules.steps.get(step.index as usize).unwrap_or(&none);
            let is_over = over || rules.has_later_entry_started(&self.results);
            let may_be_retried =
                |node: &str, result: &InstanceResult| rules.may_be_retried(node, result, self);
            StepProgress::of(plan, step, self.results.get(&step.index), is_over, may_be_retried)
        });
        let mut run = self.run.clone();
        run.summary.steps = Steps::Each(steps.collect());
        run
    }
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
        plan: &Plan,
        step: &Step,
        results: Option<&BTreeMap<String, InstanceResult>>,
        is_over: bool,
        may_be_retried: impl Fn(&str, &InstanceResult) -> bool,
    ) -> Self {
        let mut progress = Self {
            step: step.index,
            task: step.name.clone(),
            instances: instances(plan, step, results, is_over),
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
                    (Some(error), _) => Some(format!("{}: {error}", result.whose())),
                    (None, Some(reason)) => Some(reason.clone()),
                    (None, None) => None,
                };
            }
        }
        progress.longest = longest.map(Span);
        progress
    }
}

fn instances(
    plan: &Plan,
    step: &Step,
    results: Option<&BTreeMap<String, InstanceResult>>,
    is_over: bool,
) -> u64 {
    let there = results.map_or(0, |results| results.len() as u64);
    // Skipped as a whole, or its items could not be evaluated.
    let as_a_whole = results.is_some_and(|results| results.values().any(|result| result.item.is_none()));
    match (plan.node_count(step), step.for_each.as_ref().map(|each| &each.items)) {
        (Some(nodes), _) => nodes,
        (None, None) => 1,
        (None, Some(_)) if as_a_whole => there,
        (None, Some(Value::Array(items))) => items.len() as u64,
        // The number of items is known only when a follower starts.
        (None, Some(_)) if is_over => there.max(1),
        (None, Some(_)) => there + 1,
    }
}

impl InstanceResult {
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

    /// Returns `web-01`, or `item 3 on web-01`.
    fn whose(&self) -> String {
        match (self.item, &self.node) {
            (None, node) => node.clone().unwrap_or_else(|| UNBOUND.to_owned()),
            (Some(item), Some(node)) => format!("item {item} on {node}"),
            (Some(item), None) => format!("item {item}"),
        }
    }
}
