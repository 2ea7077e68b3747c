//! Waits until a stream of output may have something new to read.

use std::collections::BTreeSet;
use std::time::Duration;

use downbeat_core::change::Change;
use downbeat_core::ids::{ExecutionId, RunId};
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
    At(BTreeSet<ExecutionId>),
    /// The run's executions, and whether it has ended.
    AtRun,
    /// Everything: signals were missed, or none came for a while.
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

    pub(super) async fn run(&mut self, id: &RunId) -> Look {
        let wait = async {
            loop {
                tokio::select! {
                    grown = heard(&mut self.grown) => {
                        return grown.map_or(Look::AtAll, |execution| Look::At(self.more_grown(execution)));
                    }
                    batch = self.feed.next() => match batch {
                        None => return Look::AtAll,
                        Some(batch) if batch.iter().any(|record| record.change.run() == Some(id)) => {
                            return Look::AtRun;
                        }
                        Some(_) => {}
                    },
                }
            }
        };
        tokio::time::timeout(LOOK_AGAIN, wait).await.unwrap_or(Look::AtAll)
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

/// Returns whether the execution may have ended with this change.
fn concerns(change: &Change, id: ExecutionId) -> bool {
    let is_other = matches!(
        change,
        Change::ExecutionLeased { .. } | Change::ExecutionStarted { .. } | Change::InstanceFailed { .. }
    );
    change.execution() == Some(id) && !is_other
}
