//! Replays the feed and keeps the state of every attempt after each event. It reads the changes with its own code, so
//! that it does not share a mistake with the tables.

use std::collections::BTreeMap;

use downbeat_core::execution::{Execution, Lease, State, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::plan::StepIx;
use downbeat_core::work::Parent;
use downbeat_core::{Change, Event};

/// One attempt, as of the last applied event.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) run: RunId,
    pub(super) step: StepIx,
    pub(super) pinned: Option<NodeId>,
    pub(super) item: Option<u32>,
    pub(super) number: u32,
    pub(super) status: Status,
    pub(super) lease: Option<Lease>,
    /// Its result was taken over from another run, or from the cache.
    pub(super) is_reused: bool,
    /// Its result was taken over from another run.
    pub(super) is_carried: bool,
    /// Its instance was recorded as failed for good.
    pub(super) is_final: bool,
}

/// An instance of a step: on a node, for an item, or placed.
pub(super) type Instance = (RunId, StepIx, Option<NodeId>, Option<u32>);

/// Returns the instance of an execution.
pub(super) fn instance_of(execution: &Execution) -> Instance {
    (execution.run().clone(), StepIx(execution.step()), execution.pinned, execution.item())
}

/// Returns the leases that a change grants.
pub(super) fn granted(change: &Change) -> Vec<(&RunId, ExecutionId, Lease)> {
    match change {
        Change::ExecutionLeased { of: Parent::Run(run), execution, lease } => vec![(run, *execution, *lease)],
        Change::ExecutionsAdded { run, executions, .. } => {
            let leased = |each: &Execution| match each.state {
                State::Leased { lease, .. } => Some((run, each.id, lease)),
                _ => None,
            };
            executions.iter().filter_map(leased).collect()
        }
        _ => Vec::new(),
    }
}

impl Attempt {
    pub(super) fn instance(&self) -> Instance {
        (self.run.clone(), self.step, self.pinned, self.item)
    }

    pub(super) fn is_open(&self) -> bool {
        self.status.is_open()
    }
}

#[derive(Debug, Default)]
pub(super) struct AttemptLog {
    pub(super) attempts: BTreeMap<ExecutionId, Attempt>,
    /// In the order in which they were added.
    pub(super) of_run: BTreeMap<RunId, Vec<ExecutionId>>,
}

impl AttemptLog {
    /// Returns all attempts of a run so far.
    pub(super) fn of<'a>(&'a self, run: &RunId) -> impl Iterator<Item = &'a Attempt> {
        self.of_run.get(run).into_iter().flatten().map(|id| &self.attempts[id])
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match &event.change {
            Change::ExecutionsAdded { run, executions, .. } => {
                for execution in executions {
                    self.add(run, execution);
                }
            }
            Change::ExecutionLeased { execution, lease, .. } => {
                self.alter(*execution, Status::Leased);
                if let Some(attempt) = self.attempts.get_mut(execution) {
                    attempt.lease = Some(*lease);
                }
            }
            Change::ExecutionStarted { execution, .. } => self.alter(*execution, Status::Running),
            Change::ExecutionFinished { execution, outcome, .. } => {
                self.alter(*execution, outcome.verdict.status());
            }
            Change::ExecutionLost { execution, .. } => self.alter(*execution, Status::Lost),
            Change::ExecutionGivenUp { execution, .. } => self.alter(*execution, Status::Failed),
            Change::ExecutionSkipped { execution, .. } => self.alter(*execution, Status::Skipped),
            Change::ExecutionCancelRequested { execution, .. } => {
                if self.attempts.get(execution).is_some_and(|attempt| attempt.status == Status::Pending) {
                    self.alter(*execution, Status::Cancelled);
                }
            }
            Change::InstanceFailed { execution, .. } => {
                if let Some(attempt) = self.attempts.get_mut(execution) {
                    attempt.is_final = true;
                }
            }
            _ => debug_assert!(event.change.execution().is_none(), "{:?} changes an execution", event.change),
        }
    }

    pub(super) fn add(&mut self, run: &RunId, execution: &Execution) {
        let lease = match &execution.state {
            State::Leased { lease, .. } => Some(*lease),
            _ => None,
        };
        let attempt = Attempt {
            run: run.clone(),
            step: StepIx(execution.step()),
            pinned: execution.pinned,
            item: execution.item(),
            number: execution.attempt,
            status: execution.state.status(),
            lease,
            is_reused: execution.reused.is_some(),
            is_carried: execution.is_carried(),
            is_final: false,
        };
        self.attempts.insert(execution.id, attempt);
        self.of_run.entry(run.clone()).or_default().push(execution.id);
    }

    fn alter(&mut self, execution: ExecutionId, status: Status) {
        if let Some(attempt) = self.attempts.get_mut(&execution) {
            attempt.status = status;
        }
    }
}
