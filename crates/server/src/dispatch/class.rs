//! Owns the classes of placed work: executions that the same nodes fit share one, so that a node is asked once for
//! thousands of tasks.

use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::plan::{Plan, StepIx};
use downbeat_core::spec::Placement;

/// What the nodes of one class of work must satisfy.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub cluster: ClusterId,
    pub backend: String,
    pub action: String,
    pub placement: Placement,
    /// Set when the placement counts per run, or the run may have nodes that others have not.
    pub run: Option<RunId>,
}

impl Class {
    /// Of an execution of this step.
    pub(super) fn of(plan: &Plan, cluster: ClusterId, run: &RunId, step: StepIx) -> Self {
        let task = plan.task(step);
        Self {
            cluster,
            backend: task.backend.clone(),
            action: task.action.clone(),
            placement: plan.placement(step).cloned().unwrap_or_default(),
            run: is_own(plan, step).then(|| run.clone()),
        }
    }

    /// The same for executions of one class and no others.
    pub(super) fn write_text(text: &mut String, plan: &Plan, run: &RunId, step: StepIx) {
        let task = plan.task(step);
        let counted = if is_own(plan, step) { run.as_str() } else { "" };
        for part in [&task.backend, &task.action, counted] {
            text.push('\0');
            text.push_str(part);
        }
        text.push('\0');
        if let Some(placement) = plan.placement(step).filter(|placement| **placement != Placement::default())
        {
            text.push_str(&serde_json::to_string(placement).expect("a placement is plain data"));
        }
    }
}

fn is_own(plan: &Plan, step: StepIx) -> bool {
    let counts = |placement: &Placement| placement.max_per_node.is_some() || placement.spread.is_some();
    plan.definition.exclusive || plan.placement(step).is_some_and(counts)
}
