//! Reports: results are applied once, however often they are sent.

use downbeat_core::Change;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{LeaseToken, NodeId};
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
        self.exists(node, session).await?;
        // A token says nothing when it is shown by a node that it was not given to.
        let said = started.iter().map(|started| started.held).chain(finished.iter().map(|one| one.held));
        let said: Vec<Held> = said.collect();
        let current = self.current(node, said.clone()).await?;
        // Output first: whoever sees the result finds all of it. Only of leases that count.
        let output = finished.iter_mut().flat_map(|finished| std::mem::take(&mut finished.output));
        self.parts.outputs.append(output.filter(|chunk| current.contains(&chunk.execution))).await?;
        let mut changes = Vec::with_capacity(said.len());
        for started in started.into_iter().filter(|one| current.contains(&one.held.execution)) {
            changes.push(Change::ExecutionStarted {
                run: started.run,
                execution: started.held.execution,
                token: started.held.token,
                at: started.at,
            });
        }
        for finished in finished.into_iter().filter(|one| current.contains(&one.held.execution)) {
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
        let mut outcomes = outcomes.into_iter();
        let mut receipts = Vec::with_capacity(said.len());
        for Held { execution, token } in said {
            // In the order of what was said, without what was not tried.
            let outcome = if current.contains(&execution) { outcomes.next() } else { None };
            receipts.push(match outcome {
                Some(Ok(())) => Receipt::Recorded,
                Some(Err(_)) | None => {
                    let stored = self.parts.store.execution(execution).await.map_err(unavailable)?;
                    let receipt = second_look(stored.as_ref(), node, token);
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
fn second_look(stored: Option<&Execution>, node: NodeId, token: LeaseToken) -> Receipt {
    let recorded = stored.is_some_and(|execution| {
        let lease = execution.state.lease();
        let same = lease.is_some_and(|lease| lease.token == token && lease.node == node);
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
