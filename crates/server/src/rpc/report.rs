//! Reports: results are applied once, however often they are sent.

use std::collections::HashMap;
use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::execution::{Execution, Outcome, State, cut_reason};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId};
use downbeat_core::work::Work;
use downbeat_proto::message::{Fault, Finished, LeaseRef, Receipt, Report, ReportAnswer};
use tracing::info;

use super::Host;
use super::host::unavailable;

/// The work of executions that are open. It names the outputs that they declare.
type Declared = HashMap<ExecutionId, Arc<Work>>;

impl Host {
    pub(super) async fn record(&self, report: Report) -> Result<ReportAnswer, Fault> {
        let Report { node, session, started, mut finished, free, poll } = report;
        // Its slots are free whatever becomes of the commit. What is claimed for them may be written with what is said
        // here: one commit less to wait for.
        if self.parts.dispatcher.board().refresh(node, session, poll, free) {
            self.parts.dispatcher.wake();
        }
        self.exists(node, session).await?;
        // A token says nothing when it is shown by a node that it was not given to.
        let said = started.iter().map(|started| started.held).chain(finished.iter().map(|one| one.held));
        let said: Vec<LeaseRef> = said.collect();
        let sighted = self.sight(node, said.clone()).await?;
        let current = &sighted.current;
        // Output first: whoever sees the result finds all of it. Only of leases that count.
        let output = finished.iter_mut().flat_map(|finished| std::mem::take(&mut finished.output));
        self.parts.outputs.append(output.filter(|chunk| current.contains(&chunk.execution))).await?;
        finished.retain(|one| current.contains(&one.held.execution));
        let declared = self.declared_outputs(&finished).await?;
        let received_at = Some(self.parts.clock.now());
        let mut changes = Vec::with_capacity(said.len());
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
            // What has no entry declares nothing, or has ended meanwhile and is refused.
            let declared =
                declared.get(&finished.held.execution).map_or(&[][..], |work| work.outputs.as_slice());
            changes.push(Change::ExecutionFinished {
                of: finished.of,
                execution: finished.held.execution,
                token: finished.held.token,
                outcome: outcome.with_declared_outputs(declared),
            });
        }
        let outcomes = if changes.is_empty() { Vec::new() } else { self.parts.commit(changes).await? };
        // What counts is recorded. A receipt for the rest would end it.
        sighted.all_heard_of()?;
        let mut outcomes = outcomes.into_iter();
        // In the order of what was said, without what was not tried.
        let is_recorded: Vec<bool> = said
            .iter()
            .map(|held| {
                current.contains(&held.execution) && outcomes.next().is_some_and(|outcome| outcome.is_ok())
            })
            .collect();
        let without_effect = said.iter().zip(&is_recorded).filter(|(_, is_recorded)| !**is_recorded);
        let without_effect: Vec<ExecutionId> = without_effect.map(|(held, _)| held.execution).collect();
        let stored = self.stored(&without_effect).await?;
        let receipts =
            said.into_iter().zip(is_recorded).map(|(LeaseRef { execution, token }, is_recorded)| {
                if is_recorded {
                    return Receipt::Recorded;
                }
                let receipt = second_look(stored.get(&execution), node, token);
                if receipt == Receipt::Refused {
                    info!(%execution, %node, "refused a report: its lease is no longer the current one");
                }
                receipt
            });
        Ok(ReportAnswer { receipts: receipts.collect() })
    }

    /// What the tasks of these executions declare. The store is asked only for open ones that the board does not know
    /// (yet): another server made them a moment ago.
    async fn declared_outputs(&self, finished: &[Finished]) -> Result<Declared, Fault> {
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
                let work = works.find(&execution.of, self.parts.store.as_ref()).await.map_err(unavailable)?;
                declared.extend(work.map(|work| (execution.id, work)));
            }
        }
        Ok(declared)
    }
}

/// A report that had no effect: because it had it before, or because its lease does not count?
fn second_look(stored: Option<&Execution>, node: NodeId, token: LeaseToken) -> Receipt {
    let recorded = stored.is_some_and(|execution| {
        let lease = execution.state.lease();
        let same = lease.is_some_and(|lease| lease.token == token && lease.node == node);
        same && !matches!(execution.state, State::Lost { .. } | State::Leased { .. })
    });
    if recorded { Receipt::Recorded } else { Receipt::Refused }
}
