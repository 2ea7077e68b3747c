//! Waits until there may be something new to read for a stream of output.

use std::collections::BTreeSet;
use std::time::Duration;

use downbeat_core::change::Change;
use downbeat_core::ids::{ExecutionId, RunId};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::journal::Batches;
use crate::service::Service;

/// How often is looked without being told: another server may have taken the output.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Both signs that output may have grown or ended.
#[derive(Debug)]
pub(super) struct Wake {
    grown: Receiver<ExecutionId>,
    feed: Batches,
}

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// At these executions.
    At(BTreeSet<ExecutionId>),
    /// At the run's executions, and whether it has ended.
    AtRun,
    /// At everything: signs were missed, or none came for a while.
    AtAll,
}

impl Wake {
    /// Must be made before the first read, so that nothing falls in between.
    pub(super) fn new(service: &Service) -> Self {
        Self { grown: service.output_grown(), feed: service.feed().subscribe() }
    }

    /// Waits for one execution.
    pub(super) async fn execution(&mut self, id: ExecutionId) {
        let wait = async {
            loop {
                tokio::select! {
                    grown = self.grown.recv() => match grown {
                        Ok(grown) if grown != id => {}
                        Ok(_) | Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => std::future::pending().await,
                    },
                    batch = self.feed.recv() => match batch {
                        Ok(batch) if !batch.iter().any(|record| concerns(&record.change, id)) => {}
                        Ok(_) | Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => std::future::pending().await,
                    },
                }
            }
        };
        // Running out of time is a reason to look as well.
        let _ = tokio::time::timeout(LOOK_AGAIN, wait).await;
    }

    /// Waits for a run.
    pub(super) async fn run(&mut self, id: &RunId) -> Look {
        let wait = async {
            loop {
                tokio::select! {
                    grown = self.grown.recv() => match grown {
                        Ok(execution) => return Look::At(self.more_grown(execution)),
                        Err(RecvError::Lagged(_)) => return Look::AtAll,
                        Err(RecvError::Closed) => std::future::pending().await,
                    },
                    batch = self.feed.recv() => match batch {
                        Ok(batch) if !batch.iter().any(|record| record.change.run() == Some(id)) => {}
                        Ok(_) => return Look::AtRun,
                        Err(RecvError::Lagged(_)) => return Look::AtAll,
                        Err(RecvError::Closed) => std::future::pending().await,
                    },
                }
            }
        };
        tokio::time::timeout(LOOK_AGAIN, wait).await.unwrap_or(Look::AtAll)
    }

    /// Whatever else has grown by now, so that a busy system wakes a stream once and not once per chunk.
    fn more_grown(&mut self, first: ExecutionId) -> BTreeSet<ExecutionId> {
        let mut grown = BTreeSet::from([first]);
        while let Ok(execution) = self.grown.try_recv() {
            grown.insert(execution);
        }
        grown
    }
}

/// Whether the execution may have ended with this change.
fn concerns(change: &Change, id: ExecutionId) -> bool {
    let goes_on = matches!(change, Change::ExecutionLeased { .. } | Change::ExecutionStarted { .. });
    change.execution() == Some(id) && !goes_on
}
