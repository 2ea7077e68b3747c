//! Owns the sending of output while work runs: one message at a time, with output of all executions.

use std::sync::Arc;

use downbeat_proto::message::{Fault, LeaseRef, Output, OutputChunk};
use tokio::time::Instant;

use crate::error::Error;
use crate::links::Purpose;
use crate::output::pace::{self, Pace};
use crate::output::{InFlight, cost_bytes};
use crate::shared::Shared;

/// Sends until the session ends.
pub(crate) async fn output(shared: Arc<Shared>) -> Error {
    let mut pace = Pace::of_bulk();
    loop {
        shared.outputs.written.notified().await;
        tokio::select! {
            biased;
            () = tokio::time::sleep(shared.tuning.output_interval) => {}
            () = shared.outputs.hurry.notified() => {}
        }
        while send_some(&shared, &mut pace).await {}
    }
}

/// Sends one message. Returns whether there may be more output.
async fn send_some(shared: &Shared, pace: &mut Pace) -> bool {
    let waiting_bytes = shared.outputs.waiting_bytes(pace::LEAST_BYTES);
    if waiting_bytes == 0 {
        return false;
    }
    let mut taken = Batch(Vec::new());
    let answer = send(shared, pace, waiting_bytes, |message_bytes| {
        taken.0 = shared.outputs.take(message_bytes);
        let chunks = taken.0.iter().flat_map(|taken| &taken.chunks).cloned().collect();
        (taken.0.iter().map(InFlight::held).collect(), chunks)
    });
    match answer.await {
        Some(Ok(())) => taken.done(),
        None => return false,
        Some(Err(Fault::Rejected(why))) => {
            tracing::error!(node = %shared.node, %why, "output was rejected");
            taken.done();
        }
        Some(Err(Fault::Unavailable(_) | Fault::TimedOut(_))) => drop(taken),
        // The heartbeat gets the same fault and handles it.
        Some(Err(
            Fault::NotFound(_)
            | Fault::NoCluster(_)
            | Fault::Superseded(_)
            | Fault::Unknown(_)
            | Fault::Occupied(_),
        )) => {
            drop(taken);
            return false;
        }
    }
    true
}

/// Sends one message with the chunks that `take` returns for a size. Returns `None` if there were none.
pub(super) async fn send(
    shared: &Shared,
    pace: &mut Pace,
    waiting_bytes: usize,
    take: impl FnOnce(usize) -> (Vec<LeaseRef>, Vec<OutputChunk>),
) -> Option<Result<(), Fault>> {
    // The link first: while no server responds, no chunks are being sent and closing a buffer does not wait for them.
    let link = shared.links.link_for_output(waiting_bytes).await;
    let message_bytes = match link.purpose {
        Purpose::Bulk => pace.bytes(),
        Purpose::Control => pace::LEAST_BYTES,
    };
    let (held, chunks) = take(message_bytes);
    if chunks.is_empty() {
        return None;
    }
    let (sent_bytes, asked) = (cost_bytes(&chunks), Instant::now());
    let answer = link.output(Output { node: shared.node, session: shared.session, held, chunks }).await;
    shared.links.note_result(&link, &answer).await;
    match &answer {
        Ok(()) => pace.answered(sent_bytes, asked.elapsed()),
        Err(Fault::TimedOut(_)) => pace.slower(),
        Err(_) => {}
    }
    Some(answer)
}

/// Returns chunks to their buffers unless they are done: also if the session ends during a call, or results that wait
/// for them would wait forever.
struct Batch(Vec<InFlight>);

impl Batch {
    fn done(mut self) {
        self.0.drain(..).for_each(InFlight::done);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.0.drain(..).for_each(InFlight::put_back);
    }
}
