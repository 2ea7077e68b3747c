//! Owns the failures of a run, and decides by the strategy whether they trigger fail-fast.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::attempts::{End, Ended};
use super::outbox::Decided;
use super::passes::At;
use super::progress::{Progress, Turn};
use crate::ids::ExecutionId;
use crate::level;
use crate::plan::{NodeIx, PassIx, Plan, Shape, StepIx};
use crate::run::Instance;
use crate::spec::{Delivery, Strategy, budget_text};

#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    count: u64,
    first: Option<(StepIx, Option<NodeIx>)>,
    /// The lowest number of a step that failed.
    lowest: Option<StepIx>,
    /// Nodes that failed and left a list that continues without them, with the step that failed on each.
    left: HashMap<NodeIx, StepIx>,
    /// Nodes whose failure counts against the budget, each once.
    nodes: HashSet<NodeIx>,
    /// Failures of steps without a node of their own, which count against the budget too.
    placed: u32,
    /// The pass and step whose failure triggered fail-fast.
    fail_fast: Option<(PassIx, StepIx)>,
}

impl Failures {
    pub(super) fn any(&self) -> bool {
        self.count > 0
    }

    pub(super) fn first(&self) -> Option<StepIx> {
        self.first.map(|(step, _)| step)
    }

    pub(super) fn lowest(&self) -> Option<StepIx> {
        self.lowest
    }

    /// Returns the step that a node failed in, if the node has left the list.
    pub(super) fn left_in(&self, node: NodeIx) -> Option<StepIx> {
        self.left.get(&node).copied()
    }

    /// Returns the pass and step whose failure triggered fail-fast.
    pub(super) fn fail_fast(&self) -> Option<(PassIx, StepIx)> {
        self.fail_fast
    }

    /// Returns how many failures count against the budget.
    pub(super) fn spent(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("nodes are bounded") + self.placed
    }
}

/// An instance that failed for good, to be recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalFailure {
    pub instance: Instance,
    pub execution: ExecutionId,
    /// The execution is created in the same turn.
    pub is_new: bool,
    pub reason: &'static str,
}

/// Returns how many failures a run tolerates.
fn budget(plan: &Plan) -> u32 {
    plan.budget().unwrap_or(match plan.definition.strategy() {
        Strategy::FailFast => 0,
        Strategy::Continue => u32::MAX,
    })
}

impl Progress {
    /// Records that the last attempt of an instance failed.
    pub(super) fn instance_failed(&mut self, last: Ended, turn: &Turn<'_>) {
        self.record_failure(self.final_failure(last), turn);
        let at = last.at;
        let node = self.note_failure(at);
        if self.count_failure(at.pass, at.step, node) {
            self.withdraw(turn);
        }
    }

    /// Returns the failure to record. Must be called before the walk moves to its next leaf.
    pub(super) fn final_failure(&self, Ended { execution, at, end }: Ended) -> FinalFailure {
        let reason = match end {
            End::Failed if self.has_retries(at) => "the run starts no further attempts",
            End::Failed if self.plan.task(at.step).retry.is_some() => "no retries are left",
            End::Failed => "the task has no retries",
            End::Lost | End::Cancelled if self.is_stopped(at.step) => "the run timed out",
            End::Lost | End::Cancelled if self.has_resends(at) => "the run starts no further attempts",
            End::Lost | End::Cancelled if self.plan.steps[at.step].delivery == Delivery::AtLeastOnce => {
                "it was lost too often"
            }
            End::Lost | End::Cancelled => "the task is not sent again after a loss",
            End::Withdrawn => "its retry was withdrawn",
            End::Unsent | End::GivenUp | End::Succeeded => "it could not be sent",
        };
        FinalFailure { instance: self.instance(at), execution, is_new: end == End::Unsent, reason }
    }

    /// Records that an instance failed for good, if all servers know such records.
    pub(super) fn record_failure(&mut self, failure: FinalFailure, turn: &Turn<'_>) {
        if turn.level < level::FINAL {
            return;
        }
        if failure.is_new {
            self.emit(Decided::Failed(failure), turn);
        } else {
            self.emit_first(failure, turn);
        }
    }

    /// Marks the walk, the pass and the node as failed; returns the node.
    pub(super) fn note_failure(&mut self, at: At) -> Option<NodeIx> {
        let node = self.passes.mark_failed(at.pass, at.walk);
        let failures = &mut self.failures;
        failures.count += 1;
        failures.lowest = Some(failures.lowest.map_or(at.step, |lowest| lowest.min(at.step)));
        if let (Shape::List, Some(node)) = (self.plan.shape, node)
            && budget(&self.plan) > 0
        {
            failures.left.entry(node).or_insert(at.step);
        }
        node
    }

    /// Counts a failure and returns whether it triggers fail-fast. Must be called in the order in which failures happen.
    pub(super) fn count_failure(&mut self, pass: PassIx, step: StepIx, node: Option<NodeIx>) -> bool {
        let failures = &mut self.failures;
        failures.first.get_or_insert((step, node));
        if self.plan.runs_on_failure(step) {
            return false;
        }
        match node {
            Some(node) => {
                failures.nodes.insert(node);
            }
            None => failures.placed += 1,
        }
        if failures.fail_fast.is_some() || failures.spent() <= budget(&self.plan) {
            return false;
        }
        failures.fail_fast = Some((pass, step));
        true
    }

    /// Withdraws the attempts that were not sent yet, after fail-fast. Running attempts are left to end by
    /// themselves. In the pass that triggered it, each node gets its one attempt, however busy it is, but no retry.
    pub(super) fn withdraw(&mut self, turn: &Turn<'_>) {
        let Some((pass, step)) = self.failures.fail_fast else { return };
        let reason: Arc<str> = format!("{} failed", self.step_text(step)).into();
        let first_attempt = |at: At| self.passes.walk(at.pass, at.walk).attempt == 1;
        let pending = self.attempts.pending().map(|(execution, active)| (execution, active.at));
        let mut withdrawn: Vec<ExecutionId> = pending
            .filter(|(_, at)| !self.plan.runs_on_failure(at.step))
            .filter(|(_, at)| at.pass != pass || !first_attempt(*at))
            .map(|(execution, _)| execution)
            .collect();
        withdrawn.sort_unstable();
        for execution in withdrawn {
            self.emit(Decided::Skipped { execution, reason: Arc::clone(&reason) }, turn);
        }
    }

    pub(super) fn failure_text(&self) -> String {
        let failures = &self.failures;
        let Some((step, node)) = failures.first else { return "failed".to_owned() };
        let place = node.map(|node| format!(" on {}", self.plan.node(node).hostname)).unwrap_or_default();
        let others = match failures.count {
            0 | 1 => String::new(),
            n => format!(", and {} more", n - 1),
        };
        let budget = match (self.plan.budget(), failures.fail_fast) {
            (Some(budget), Some(_)) => format!("; {}", budget_text(failures.spent(), budget)),
            _ => String::new(),
        };
        format!("{} failed{place}{others}{budget}", self.step_text(step))
    }
}
