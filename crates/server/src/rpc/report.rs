//! Reports: results are applied once, however often they are sent.

use downbeat_core::Change;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ExecutionId, LeaseToken};
use downbeat_core::limits;
use downbeat_proto::message::{Fault, Held, Receipt, Report, ReportAnswer};
use tracing::info;

use super::Host;
use super::host::unavailable;

impl Host {
    pub(super) async fn record(&self, report: Report) -> Result<ReportAnswer, Fault> {
        let Report { node, session, started, mut finished, free, poll } = report;
        // Its slots are free whatever becomes of the commit. What is claimed for them may be written with what is said
        // here: one commit less to wait for.
        if self.parts.dispatcher.board().refresh(node, session, poll, free) {
            self.parts.dispatcher.wake();
        }
        // Output first: whoever sees the result finds all of it. Only of leases that count.
        let speaking: Vec<Held> = finished
            .iter()
            .filter(|finished| !finished.output.is_empty())
            .map(|finished| finished.held)
            .collect();
        let current = self.current(node, speaking).await?;
        let output = finished.iter_mut().flat_map(|finished| std::mem::take(&mut finished.output));
        self.parts.outputs.append(output.filter(|chunk| current.contains(&chunk.execution))).await?;
        let mut said: Vec<(ExecutionId, LeaseToken)> = Vec::with_capacity(started.len() + finished.len());
        let mut changes = Vec::with_capacity(said.capacity());
        for started in started {
            said.push((started.held.execution, started.held.token));
            changes.push(Change::ExecutionStarted {
                run: started.run,
                execution: started.held.execution,
                token: started.held.token,
                at: started.at,
            });
        }
        for finished in finished {
            said.push((finished.held.execution, finished.held.token));
            let mut outcome = finished.outcome;
            if let Some(error) = &mut outcome.error {
                shorten(error);
            }
            changes.push(Change::ExecutionFinished {
                run: finished.run,
                execution: finished.held.execution,
                token: finished.held.token,
                outcome,
            });
        }
        let outcomes = if changes.is_empty() { Vec::new() } else { self.parts.commit(changes).await? };
        let mut receipts = Vec::with_capacity(outcomes.len());
        for ((execution, token), outcome) in said.into_iter().zip(outcomes) {
            receipts.push(match outcome {
                Ok(()) => Receipt::Recorded,
                Err(_) => {
                    let stored = self.parts.store.execution(execution).await.map_err(unavailable)?;
                    let receipt = second_look(stored.as_ref(), token);
                    if receipt == Receipt::Refused {
                        info!(%execution, %node, "refused a report: its lease is no longer the current one");
                    }
                    receipt
                }
            });
        }
        Ok(ReportAnswer { receipts })
    }
}

/// A report that had no effect: because it had it before, or because its lease does not count?
fn second_look(stored: Option<&Execution>, token: LeaseToken) -> Receipt {
    let recorded = stored.is_some_and(|execution| {
        let same = execution.state.lease().is_some_and(|lease| lease.token == token);
        same && !matches!(execution.state, State::Lost { .. } | State::Leased { .. })
    });
    if recorded { Receipt::Recorded } else { Receipt::Refused }
}

fn shorten(text: &mut String) {
    if text.len() > limits::REASON_BYTES {
        let mut end = limits::REASON_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
}
