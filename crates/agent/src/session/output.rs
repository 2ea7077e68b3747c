//! Owns the sending of output while work runs: one message at a time, gathered from all executions.

use std::sync::Arc;

use downbeat_proto::message::{Chunk, Fault, Output};

use crate::error::Error;
use crate::output::Taken;
use crate::shared::Shared;

/// Sends for as long as the session lives.
pub(crate) async fn output(shared: Arc<Shared>) -> Error {
    loop {
        shared.outputs.written.notified().await;
        tokio::select! {
            biased;
            () = tokio::time::sleep(shared.tuning.output_interval) => {}
            () = shared.outputs.hurry.notified() => {}
        }
        while send_some(&shared).await {}
    }
}

/// Whether there may be more.
async fn send_some(shared: &Shared) -> bool {
    // The link comes first: while no server is there, nothing is under way and an end does not wait for it.
    let link = shared.links.lend().await;
    let taken = Batch(shared.outputs.take());
    let chunks: Vec<Chunk> = taken.0.iter().flat_map(Taken::chunks).cloned().collect();
    if chunks.is_empty() {
        return false;
    }
    let held = taken.0.iter().map(Taken::held).collect();
    let answer = link.output(Output { node: shared.node, session: shared.session, held, chunks }).await;
    shared.links.settle(&link, &answer).await;
    match answer {
        Ok(()) => taken.done(),
        Err(Fault::Rejected(why)) => {
            tracing::error!(node = %shared.node, %why, "output was rejected");
            taken.done();
        }
        Err(Fault::Unavailable(_)) => drop(taken),
        // The heartbeat is told the same, and does what follows from it.
        Err(Fault::NotFound(_) | Fault::Superseded(_) | Fault::Unknown(_) | Fault::Occupied(_)) => {
            drop(taken);
            return false;
        }
    }
    true
}

/// Goes back to its buffers unless it is known to be done: also when the session ends in the middle of a call, or
/// the results that wait for it would wait for ever.
struct Batch(Vec<Taken>);

impl Batch {
    fn done(mut self) {
        self.0.drain(..).for_each(Taken::done);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Taken::put_back);
    }
}
