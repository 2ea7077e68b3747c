//! Owns what of a run's plan its view is derived from. The server makes it from the record of a run, a client from the plan
//! that the server shows.

use downbeat_core::run::RunRecord;
use downbeat_core::run::again::answering_steps;
use downbeat_core::spec::Condition;
use serde_json::Value;

use crate::plan::{Plan, Step, Where};
use crate::rollout::waves;

/// The parts of a plan that never change while its run goes on.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    pub(crate) steps: Vec<StepOutline>,
    pub(crate) rollout: Option<RolloutOutline>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepOutline {
    /// How many instances it has; nothing where that shows only when its turn comes.
    pub(crate) instances: Option<u64>,
    pub(crate) has_items: bool,
    /// Every wave of a roll-out runs it.
    pub(crate) in_waves: bool,
    /// It runs when something failed: its own failure does not count.
    pub(crate) answers: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct RolloutOutline {
    /// The hostnames of each wave.
    pub(crate) waves: Vec<Vec<String>>,
    pub(crate) budget: u32,
}

impl Outline {
    pub(crate) fn of_run(run: &RunRecord) -> Self {
        let answering = answering_steps(&run.definition);
        let mut steps = Vec::new();
        for (entry, set) in run.definition.tasks.iter().zip(&run.resolved.entries) {
            let nodes =
                set.and_then(|set| run.resolved.sets.get(set.get())).map_or(1, |set| set.len() as u64);
            let items = entry.for_each().map(|each| &each.items);
            for _ in entry.leaves() {
                steps.push(StepOutline {
                    instances: instances(nodes, items),
                    has_items: items.is_some(),
                    in_waves: entry.condition() != Some(Condition::OnFailure),
                    answers: answering.contains(&u32::try_from(steps.len()).expect("plans are bounded")),
                });
            }
        }
        let rollout = run.definition.rollout.as_ref().map(|rollout| RolloutOutline {
            waves: waves(&run.resolved),
            budget: run.resolved.budget(rollout),
        });
        Self { steps, rollout }
    }

    /// A plan shows the condition of a branch at its first leaf.
    pub fn of_plan(plan: &Plan) -> Self {
        let answers = |step: &Step| step.condition == Some(Condition::OnFailure);
        let first_of = |entry: u32| plan.steps.iter().find(|step| step.entry == entry);
        let outline = |step: &Step| {
            let entry_answers = first_of(step.entry).is_some_and(answers);
            let nodes = match &step.place {
                Where::Nodes(nodes) => nodes.len() as u64,
                Where::Placed(_) => 1,
            };
            let items = step.for_each.as_ref().map(|each| &each.items);
            StepOutline {
                instances: instances(nodes, items),
                has_items: items.is_some(),
                in_waves: !entry_answers,
                answers: entry_answers || answers(step),
            }
        };
        let rollout = plan.rollout.as_ref().map(|rollout| RolloutOutline {
            waves: rollout.waves.iter().map(|wave| wave.nodes.clone()).collect(),
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
