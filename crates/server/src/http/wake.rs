//! Waits until a stream of output may have something new to read.

use std::collections::BTreeSet;
use std::time::Duration;

use downbeat_core::change::Change;
use downbeat_core::execution::Status;
use downbeat_core::ids::ExecutionId;
use downbeat_core::run::RunRecord;
use tokio::sync::broadcast::Receiver;

use crate::journal::Batches;
use crate::service::Service;
use crate::signal::heard;

/// How often to check without a signal: another server may have received the output.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The signals that output has grown or ended.
#[derive(Debug)]
pub(super) struct Wake {
    grown: Receiver<ExecutionId>,
    feed: Batches,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Output of these executions has grown.
    At(BTreeSet<ExecutionId>),
    /// These executions of the run have changed, and `waiting` are new and have no lease yet; `moved` if the run itself
    /// has changed too.
    Changed { executions: BTreeSet<ExecutionId>, waiting: BTreeSet<ExecutionId>, moved: bool },
    /// No signal came for a while.
    AtOpen,
    /// Signals were missed.
    AtAll,
}

impl Wake {
    /// Create it before the first read, so that no signal is missed.
    pub(super) fn new(service: &Service) -> Self {
        Self { grown: service.parts.outputs.grown(), feed: service.parts.feed.subscribe() }
    }

    pub(super) async fn execution(&mut self, id: ExecutionId) {
        let wait = async {
            loop {
                tokio::select! {
                    grown = heard(&mut self.grown) => if grown.is_none_or(|grown| grown == id) { return },
                    batch = self.feed.next() => {
                        if batch.is_none_or(|batch| batch.iter().any(|record| concerns(&record.change, id))) {
                            return;
                        }
                    }
                }
            }
        };
        // A timeout is also a reason to check.
        let _ = tokio::time::timeout(LOOK_AGAIN, wait).await;
    }

    pub(super) async fn run(&mut self, run: &RunRecord) -> Look {
        let wait = async {
            loop {
                tokio::select! {
                    grown = heard(&mut self.grown) => {
                        return grown.map_or(Look::AtAll, |execution| Look::At(self.more_grown(execution)));
                    }
                    batch = self.feed.next() => match batch {
                        None => return Look::AtAll,
                        Some(batch) => {
                            let changes = batch.iter().map(|record| &record.change);
                            if let Some(look) = changed(changes.filter(|change| is_about(change, run))) {
                                return look;
                            }
                        }
                    },
                }
            }
        };
        tokio::time::timeout(LOOK_AGAIN, wait).await.unwrap_or(Look::AtOpen)
    }

    /// Returns all executions that have grown by now, so that a busy system wakes a stream once and not once per chunk.
    fn more_grown(&mut self, first: ExecutionId) -> BTreeSet<ExecutionId> {
        let mut grown = BTreeSet::from([first]);
        while let Ok(execution) = self.grown.try_recv() {
            grown.insert(execution);
        }
        grown
    }
}

/// Returns whether a change is one of the run, or deletes it with its cluster.
fn is_about(change: &Change, run: &RunRecord) -> bool {
    match change {
        Change::ClusterDeleted { cluster, .. } => *cluster == run.cluster,
        change => change.run() == Some(&run.id),
    }
}

/// Returns where changes of a run require a look, if anywhere.
fn changed<'a>(changes: impl Iterator<Item = &'a Change>) -> Option<Look> {
    let (mut executions, mut waiting, mut moved) = (BTreeSet::new(), BTreeSet::new(), false);
    for change in changes {
        match change {
            Change::RunMoved { .. } | Change::ClusterDeleted { .. } => moved = true,
            Change::ExecutionsAdded { executions: added, .. } => {
                for execution in added {
                    if execution.state.status() == Status::Pending {
                        waiting.insert(execution.id);
                    } else if execution.state.lease().is_some() {
                        executions.insert(execution.id);
                    }
                }
            }
            change => executions.extend(change.execution()),
        }
    }
    let any = moved || !executions.is_empty() || !waiting.is_empty();
    any.then_some(Look::Changed { executions, waiting, moved })
}

/// Returns whether the execution may have ended with this change.
fn concerns(change: &Change, id: ExecutionId) -> bool {
    let is_other = matches!(
        change,
        Change::ExecutionLeased { .. } | Change::ExecutionStarted { .. } | Change::InstanceFailed { .. }
    );
    change.execution() == Some(id) && !is_other
}
