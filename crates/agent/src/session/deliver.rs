//! Owns the delivery of results of an earlier run to a server that ends their leases when a new session registers (a
//! release without `undelivered`): they have to be delivered first.

use std::collections::VecDeque;

use downbeat_core::ids::{NodeId, SessionId};
use downbeat_proto::message::{Fault, Finished, Free, LeaseRef, Receipt, Report};
use tokio::time::Instant;

use super::report::{BATCH, batch_length};
use super::stuck::drop_output;
use crate::links::Links;
use crate::outbox::Outbox;
use crate::output::pace::Pace;

/// Returns the results that no server accepted. They stay in the outbox.
pub(super) async fn deliver(
    links: &Links,
    outbox: &Outbox,
    former: Vec<Finished>,
    node: NodeId,
    session: SessionId,
) -> Vec<Finished> {
    let mut left = VecDeque::from(former);
    let mut undelivered = Vec::new();
    if !left.is_empty() {
        tracing::info!(%node, results = left.len(), "delivering results of the previous session");
    }
    let (mut most, mut pace) = (BATCH, Pace::of_bulk());
    while !left.is_empty() {
        let (count, bytes) = batch_length(left.make_contiguous(), most, pace.bytes());
        let finished: Vec<Finished> = left.range(..count).cloned().collect();
        let held: Vec<LeaseRef> = finished.iter().map(|finished| finished.held).collect();
        let (started, free, poll, takes_work) = (Vec::new(), Free::default(), 0, false);
        let report = Report { node, session, started, finished, free, poll, takes_work };
        let link = links.control_link().await;
        let asked = Instant::now();
        let answer = link.report(report).await;
        links.note_result(&link, &answer).await;
        match answer {
            Ok(answer) if answer.receipts.len() == count => {
                let refused = answer.receipts.iter().filter(|receipt| **receipt == Receipt::Refused).count();
                if refused > 0 {
                    tracing::warn!(%node, refused, "results of the previous session arrived too late");
                }
                most = (most * 2).min(BATCH);
                pace.answered(bytes, asked.elapsed());
                outbox.forget(held);
                left.drain(..count);
            }
            Ok(answer) => {
                let receipts = answer.receipts.len();
                tracing::error!(%node, receipts, facts = count, "invalid response to a report; keeping its results");
                undelivered.extend(left.drain(..count));
            }
            Err(Fault::Unavailable(_)) => {}
            Err(Fault::TimedOut(_)) => {
                most = (count / 2).max(1);
                pace.slower();
            }
            Err(Fault::Rejected(_)) if count > 1 => most = count / 2,
            Err(Fault::Rejected(why)) if !left[0].output.is_empty() => {
                drop_output(&mut left[0], &why);
            }
            Err(fault) => {
                tracing::error!(%node, results = count, %fault, "the server refused results of the previous session; keeping them");
                undelivered.extend(left.drain(..count));
            }
        }
    }
    undelivered
}
