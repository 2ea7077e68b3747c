//! Owns the shape of work: the action that a node runs, and the rules by which a node is chosen. Work is derived from the
//! job definition and is never stored.

use std::sync::Arc;
use std::time::Duration;

use super::Origin;
use crate::backend::Params;
use crate::ids::{ClusterId, ExecutionId, RunId};
use crate::plan::{Plan, StepIx};
use crate::spec::{OnDisconnect, Placement};
use crate::standing::StandingTask;

/// A piece of work. All executions of one step of a run share it.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub cluster: ClusterId,
    pub backend: String,
    pub action: String,
    /// The params of the job file. An execution has its own params if these contain expressions.
    pub params: Arc<Params>,
    pub timeout: Duration,
    /// Whether an agent ends the work if it cannot reach a server for a lease's term, so that two attempts never overlap.
    pub stop_on_disconnect: bool,
    /// The names of the outputs that an attempt must set to succeed.
    pub outputs: Vec<String>,
    /// Whether any fitting node may take the work. Otherwise each execution is pinned to its node.
    pub is_placed: bool,
    /// Whether the work is a debug command, which a node runs in addition to its other work.
    pub is_debug: bool,
    /// The nodes that fit, for placed work.
    pub placement: Placement,
    pub priority: i32,
    pub lane: Lane,
    /// Whether the run is exclusive: it has its nodes for itself.
    pub is_exclusive: bool,
    /// What a person is asked who approves it.
    pub question: Option<String>,
}

/// A lane is a queue of work that waits for nodes in one order. Lanes of equal priority take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    /// All runs of a job with this name.
    Job(String),
    /// A run of a job without a name.
    Run(RunId),
}

/// One attempt at a piece of work: the data of an execution that an agent needs in addition to the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub execution: ExecutionId,
    pub of: Origin,
    /// From 1.
    pub number: u32,
    /// The params of this attempt, if those of the work contain expressions.
    pub params: Option<Arc<Params>>,
}

impl Work {
    /// Returns the work of one step of a run.
    pub fn of_step(plan: &Plan, cluster: ClusterId, run: &RunId, step: StepIx) -> Self {
        let (task, definition) = (plan.task(step), &plan.definition);
        Self {
            cluster,
            backend: task.backend.clone(),
            action: task.action.clone(),
            params: Arc::new(task.params.clone()),
            timeout: task.timeout_or_default().0,
            stop_on_disconnect: task.on_disconnect == Some(OnDisconnect::Stop),
            outputs: task.outputs.clone(),
            is_placed: plan.is_placed(step),
            is_debug: run.is_debug(),
            placement: plan.placement(step).cloned().unwrap_or_default(),
            priority: definition.priority,
            lane: definition.name.clone().map_or_else(|| Lane::Run(run.clone()), Lane::Job),
            is_exclusive: definition.exclusive,
            question: task.approve.as_ref().and_then(|approve| approve.message.clone()),
        }
    }

    /// Returns the work of a standing task of a cluster.
    pub fn of_standing(cluster: ClusterId, task: &StandingTask) -> Self {
        Self {
            cluster,
            backend: task.backend.clone(),
            action: task.action.clone(),
            params: Arc::clone(&task.params),
            timeout: task.timeout.0,
            stop_on_disconnect: false,
            outputs: Vec::new(),
            is_placed: false,
            placement: Placement::default(),
            priority: 0,
            lane: Lane::Run(RunId::standing(cluster)),
            is_exclusive: false,
            question: None,
            is_debug: false,
        }
    }

    /// Returns whether a person decides it, and no node gets it.
    pub fn is_approval(&self) -> bool {
        self.backend.is_empty()
    }

    /// Returns whether executions of equal work in other runs may fit other nodes: the placement counts per run, or the
    /// run is exclusive.
    pub fn is_placed_per_parent(&self) -> bool {
        self.is_exclusive || self.placement.max_per_node.is_some() || self.placement.spread.is_some()
    }
}
