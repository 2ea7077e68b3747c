//! Owns the identity of a step instance.

use crate::execution::Execution;
use crate::ids::NodeId;
use crate::plan::{ItemIx, StepIx};

/// A step on a node, or for an item. Its attempts are executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub step: StepIx,
    pub node: Option<NodeId>,
    pub item: Option<ItemIx>,
}

impl Instance {
    pub fn of(execution: &Execution) -> Self {
        Self { step: StepIx(execution.step()), node: execution.pinned, item: execution.item().map(ItemIx) }
    }
}
