//! Reports: results are applied once, however often they are sent.

use std::collections::HashMap;
use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::execution::{Execution, Outcome, State, cut_reason};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId, RunId};
use downbeat_core::plan::{Plan, StepIx};
use downbeat_proto::message::{Fault, Finished, Held, Receipt, Report, ReportAnswer};
use tracing::info;

use super::Host;
use super::host::unavailable;

/// The names of the outputs that an execution's task declares.
type Declared = HashMap<ExecutionId, Vec<String>>;

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
        let said: Vec<Held> = said.collect();
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
                run: started.run,
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
            let declared = declared.get(&finished.held.execution).map_or(&[][..], Vec::as_slice);
            changes.push(Change::ExecutionFinished {
                run: finished.run,
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
        let receipts = said.into_iter().zip(is_recorded).map(|(Held { execution, token }, is_recorded)| {
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
                match board.outputs(execution) {
                    Some([]) => {}
                    Some(names) => {
                        declared.insert(execution, names.to_vec());
                    }
                    None => unknown.push(execution),
                }
            }
        }
        let mut open: HashMap<RunId, Vec<Execution>> = HashMap::new();
        for execution in self.stored(&unknown).await?.into_values() {
            if execution.state.status().is_open() {
                open.entry(execution.run.clone()).or_default().push(execution);
            }
        }
        for (run, executions) in open {
            let Some(plan) = self.plan_of(&run).await? else { continue };
            let outputs =
                |execution: Execution| (execution.id, plan.task(StepIx(execution.step)).outputs.clone());
            declared.extend(executions.into_iter().map(outputs));
        }
        Ok(declared)
    }

    /// The plan of a run: the board's, or else one that is made again.
    async fn plan_of(&self, run: &RunId) -> Result<Option<Arc<Plan>>, Fault> {
        let known = self.parts.dispatcher.board().plan(run).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(run) = self.parts.store.run(run).await.map_err(unavailable)? else { return Ok(None) };
        let plan = Plan::compile(run.definition, run.resolved);
        plan.map(|plan| Some(Arc::new(plan))).map_err(|error| Fault::Unavailable(error.to_string()))
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
