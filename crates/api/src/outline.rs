//! Owns the parts of a plan from which a run's view is derived. The server creates them from the record of a run, a
//! client from the plan that the server returns.

use downbeat_core::run::RunRecord;
use downbeat_core::run::again::on_failure_steps;
use downbeat_core::spec::Condition;
use serde_json::Value;

use crate::plan::{Plan, Step};
use crate::rollout::waves;
use crate::run::StepTotals;

/// The parts of a plan that a run's view needs; they never change.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    pub(crate) steps: Vec<StepOutline>,
    pub(crate) rollout: Option<RolloutOutline>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepOutline {
    /// The number of instances; unknown until the items are evaluated.
    pub(crate) instances: Option<u64>,
    pub(crate) has_items: bool,
    /// It runs in every wave of a roll-out.
    pub(crate) in_waves: bool,
    /// It runs after a failure (`on_failure`): its own failure does not count.
    pub(crate) handles_failure: bool,
    pub(crate) has_retries: bool,
}

impl StepOutline {
    /// Returns the number of instances that the step will have, if it is known.
    pub(crate) fn wanted(&self, totals: StepTotals) -> Option<u64> {
        if self.has_items && totals.as_a_whole { Some(totals.all) } else { self.instances }
    }

    /// Returns the number of instances, as far as it is known.
    pub(crate) fn known_instances(&self, totals: StepTotals) -> u64 {
        self.wanted(totals).unwrap_or(totals.all.max(1))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RolloutOutline {
    /// The hostnames of each wave.
    pub(crate) waves: Vec<Vec<String>>,
    pub(crate) budget: u32,
}

impl Outline {
    pub fn of_run(run: &RunRecord) -> Self {
        let on_failure = on_failure_steps(&run.definition);
        let mut steps = Vec::new();
        for (entry, set) in run.definition.tasks.iter().zip(&run.resolved.entries) {
            let nodes =
                set.and_then(|set| run.resolved.sets.get(set.get())).map_or(1, |set| set.len() as u64);
            let items = entry.for_each().map(|each| &each.items);
            for task in entry.leaves() {
                steps.push(StepOutline {
                    instances: instances(nodes, items),
                    has_items: items.is_some(),
                    in_waves: entry.condition() != Some(Condition::OnFailure),
                    handles_failure: on_failure
                        .contains(&u32::try_from(steps.len()).expect("plans are bounded")),
                    has_retries: task.retry.is_some_and(|retry| retry.max > 0),
                });
            }
        }
        let rollout = run.definition.rollout.as_ref().map(|rollout| RolloutOutline {
            waves: waves(&run.resolved),
            budget: run.resolved.budget(rollout),
        });
        Self { steps, rollout }
    }

    /// Creates the outline of a plan. A plan shows the condition of a branch at its first leaf.
    pub fn of_plan(plan: &Plan) -> Self {
        let handles_failure = |step: &Step| step.condition == Some(Condition::OnFailure);
        let first_of = |entry: u32| plan.steps.iter().find(|step| step.entry == entry);
        let outline = |step: &Step| {
            let entry_handles_failure = first_of(step.entry).is_some_and(handles_failure);
            let nodes = plan.node_count(step).unwrap_or(1);
            let items = step.for_each.as_ref().map(|each| &each.items);
            StepOutline {
                instances: instances(nodes, items),
                has_items: items.is_some(),
                in_waves: !entry_handles_failure,
                handles_failure: entry_handles_failure || handles_failure(step),
                has_retries: step.retries > 0,
            }
        };
        let rollout = plan.rollout.as_ref().map(|rollout| RolloutOutline {
            waves: plan.waves().iter().map(|wave| wave.iter().map(ToString::to_string).collect()).collect(),
            budget: rollout.budget,
        });
        Self { steps: plan.steps.iter().map(outline).collect(), rollout }
    }
}

fn instances(nodes: u64, items: Option<&Value>) -> Option<u64> {
    match items {
        None => Some(nodes),
        Some(Value::Array(items)) => Some(items.len() as u64),
        Some(_) => None,
    }
}
