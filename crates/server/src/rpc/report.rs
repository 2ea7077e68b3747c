//! Records reports: each result is applied once, however often the agent sends it.

use std::collections::HashMap;
use std::sync::Arc;

use downbeat_core::change::EndOf;
use downbeat_core::execution::{Execution, Outcome, State, Verdict, cut_reason};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use downbeat_core::work::{Parent, Work};
use downbeat_core::{Applied, Change, Dice};
use downbeat_proto::message::{Assignment, Fault, Finished, LeaseRef, Receipt, Report, ReportAnswer};
use tracing::{Instrument as _, info};

use super::host::unavailable;
use super::{Host, Result};
use crate::dispatch::Dispatcher;
use crate::standing::follow_ups;

/// The work of open executions, which names their declared outputs.
type Declared = HashMap<ExecutionId, Arc<Work>>;

/// While it exists, new assignments of the node wait for the response to a report.
struct TakesWork<'a> {
    dispatcher: &'a Dispatcher,
    node: NodeId,
}

impl<'a> TakesWork<'a> {
    fn begin(dispatcher: &'a Dispatcher, node: NodeId, session: SessionId) -> Option<Self> {
        let has_begun = dispatcher.board().begin_report(node, session);
        has_begun.then(|| Self { dispatcher, node })
    }

    /// Takes what was assigned meanwhile.
    fn assignments(self) -> Vec<Assignment> {
        self.dispatcher.board().take_for_report(self.node)
    }
}

impl Drop for TakesWork<'_> {
    fn drop(&mut self) {
        self.dispatcher.board().end_report(self.node);
    }
}

impl Host {
    pub(super) async fn record(&self, report: Report) -> Result<ReportAnswer> {
        let Report { node, session, started, mut finished, free, poll, takes_work } = report;
        // The slots are free even if the commit fails. Claims for them can join the same batch, which saves one commit.
        if self.parts.dispatcher.board().refresh(node, session, poll, free) {
            self.parts.dispatcher.wake();
        }
        self.require_node(node, session).await?;
        // A token is valid only from the node that it was granted to.
        let leases = started.iter().map(|started| started.held).chain(finished.iter().map(|one| one.held));
        let leases: Vec<LeaseRef> = leases.collect();
        let checked = self.check_leases(node, leases.clone()).await?;
        let current = &checked.current;
        // Output is written first, so that it is complete when the result is visible. Only of current leases.
        let output = finished.iter_mut().flat_map(|finished| std::mem::take(&mut finished.output));
        self.parts.outputs.append(output.filter(|chunk| current.contains(&chunk.execution))).await?;
        finished.retain(|one| current.contains(&one.held.execution));
        let declared = self.declared_outputs(&finished).await?;
        let received_at = Some(self.parts.clock.now());
        let mut changes = Vec::with_capacity(leases.len());
        for started in started.into_iter().filter(|one| current.contains(&one.held.execution)) {
            changes.push(Change::ExecutionStarted {
                of: started.of,
                execution: started.held.execution,
                token: started.held.token,
                at: started.at,
                received_at,
            });
        }
        for finished in finished {
            let outcome = finished.outcome;
            let error = outcome.error.map(cut_reason);
            let outcome = Outcome { error, received_at, ..outcome };
            // An execution without an entry declares no outputs, or has ended and is refused.
            let declared =
                declared.get(&finished.held.execution).map_or(&[][..], |work| work.outputs.as_slice());
            changes.push(Change::ExecutionFinished {
                of: finished.of,
                execution: finished.held.execution,
                token: finished.held.token,
                outcome: outcome.with_declared_outputs(declared),
            });
        }
        let taking = takes_work.then(|| TakesWork::begin(&self.parts.dispatcher, node, session)).flatten();
        let outcomes = self.commit_results(node, changes).await?;
        // Reports of current leases are recorded. A receipt for the others would make the agent drop them.
        checked.require_known()?;
        let mut outcomes = outcomes.into_iter();
        // In the order of the report; outcomes exist only for current leases.
        let is_recorded: Vec<bool> = leases
            .iter()
            .map(|held| {
                current.contains(&held.execution) && outcomes.next().is_some_and(|outcome| outcome.is_ok())
            })
            .collect();
        let without_effect = leases.iter().zip(&is_recorded).filter(|(_, is_recorded)| !**is_recorded);
        let without_effect: Vec<ExecutionId> = without_effect.map(|(held, _)| held.execution).collect();
        let stored = self.stored(&without_effect).await?;
        let receipts =
            leases.into_iter().zip(is_recorded).map(|(LeaseRef { execution, token }, is_recorded)| {
                if is_recorded {
                    return Receipt::Recorded;
                }
                let receipt = receipt_of(stored.get(&execution), node, token);
                if receipt == Receipt::Refused {
                    info!(%execution, %node, "refused a report: its lease is no longer current");
                }
                receipt
            });
        let receipts = receipts.collect();
        Ok(ReportAnswer { receipts, assignments: taking.map(TakesWork::assignments).unwrap_or_default() })
    }

    /// Commits the changes of a report, together with the standing tasks that its node starts next. A result that the store
    /// will never accept becomes a failure, so that the agent does not send it again and again with all others.
    async fn commit_results(&self, node: NodeId, mut changes: Vec<Change>) -> Result<Vec<Applied>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let reported = changes.len();
        changes.extend(self.following(node, &changes));
        let committed = match changes.len() == reported {
            true => self.parts.journal.commit_apart(&changes).await?,
            false => self.commit_following(changes.clone(), reported).await?,
        };
        let mut outcomes = Vec::with_capacity(reported);
        for (change, outcome) in changes[..reported].iter().zip(committed) {
            outcomes.push(match outcome {
                Some(applied) => applied,
                None => self.parts.journal.commit_one(without_result(change)).await?,
            });
        }
        Ok(outcomes)
    }

    /// Commits the changes of a report and the tasks that follow them. In a task of its own: the agent may give up the
    /// call before the outcome is known, and the slots of tasks that were not added have to be free again.
    async fn commit_following(
        &self,
        mut changes: Vec<Change>,
        reported: usize,
    ) -> Result<Vec<Option<Applied>>> {
        let host = self.clone();
        let commit = async move {
            let committed = host.parts.journal.commit_apart(&changes).await;
            let following = &mut changes[reported..];
            match &committed {
                Ok(outcomes) => host.settle(following, &outcomes[reported..]),
                Err(_) => host.parts.dispatcher.release(following),
            }
            committed
        };
        let committed = tokio::spawn(commit.in_current_span()).await;
        Ok(committed
            .map_err(|error| Fault::Unavailable(format!("the commit of a report failed: {error}")))??)
    }

    /// Returns the standing tasks that a node starts after these ends, leased if it can take them.
    fn following(&self, node: NodeId, changes: &[Change]) -> Vec<Change> {
        let ends: Vec<(RunId, EndOf)> = changes.iter().filter_map(standing_end).collect();
        if ends.is_empty() {
            return Vec::new();
        }
        let mut dice = Dice::new(self.parts.chance.seed());
        let mut following = follow_ups(&self.parts, node, ends, &mut dice);
        self.parts.dispatcher.reserve(&mut following, self.parts.clock.now(), &mut dice);
        following
    }

    /// Takes back the leases of tasks that were not added. Their node is decided for again when its last end is seen.
    fn settle(&self, following: &mut [Change], outcomes: &[Option<Applied>]) {
        for (change, outcome) in following.iter_mut().zip(outcomes) {
            if let Some(Err(refusal)) = outcome {
                self.parts.dispatcher.refused(change, refusal);
            }
            if !matches!(outcome, Some(Ok(()))) {
                self.parts.dispatcher.release(std::slice::from_mut(change));
            }
        }
    }

    /// Returns the work of executions that declare outputs. Reads the store only for open executions that
    /// the board does not know yet: another server has just created them.
    async fn declared_outputs(&self, finished: &[Finished]) -> Result<Declared> {
        let mut declared = Declared::default();
        let mut unknown = Vec::new();
        {
            let board = self.parts.dispatcher.board();
            for execution in finished.iter().map(|finished| finished.held.execution) {
                match board.work(execution) {
                    Some(work) if work.outputs.is_empty() => {}
                    Some(work) => {
                        declared.insert(execution, Arc::clone(work));
                    }
                    None => unknown.push(execution),
                }
            }
        }
        let works = self.parts.dispatcher.works();
        for execution in self.stored(&unknown).await?.into_values() {
            if execution.state.status().is_open() {
                let work = works
                    .find(&execution.of, self.parts.store.as_ref(), &self.parts.heavy)
                    .await
                    .map_err(unavailable)?;
                declared.extend(work.map(|work| (execution.id, work)));
            }
        }
        Ok(declared)
    }
}

/// Returns the end of a standing task that a change reports, with its run.
fn standing_end(change: &Change) -> Option<(RunId, EndOf)> {
    let Change::ExecutionFinished { of: Parent::Run(run), execution, outcome, .. } = change else {
        return None;
    };
    let status = outcome.verdict.status();
    run.is_standing().then(|| (run.clone(), EndOf { execution: *execution, status }))
}

/// Returns the end of an execution without what its agent reported about it.
fn without_result(change: &Change) -> Change {
    let mut change = change.clone();
    if let Change::ExecutionFinished { outcome, .. } = &mut change {
        outcome.verdict = Verdict::Failed;
        outcome.error = Some("the store cannot hold the result of this attempt".to_owned());
        outcome.outputs.clear();
    }
    change
}

/// Returns the receipt of a report without effect: it was recorded before, or its lease is not current.
fn receipt_of(stored: Option<&Execution>, node: NodeId, token: LeaseToken) -> Receipt {
    let recorded = stored.is_some_and(|execution| {
        let lease = execution.state.lease();
        let same = lease.is_some_and(|lease| lease.token == token && lease.node == node);
        same && !matches!(execution.state, State::Lost { .. } | State::Leased { .. })
    });
    if recorded { Receipt::Recorded } else { Receipt::Refused }
}

#[cfg(test)]
mod tests;
