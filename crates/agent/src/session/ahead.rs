//! Owns the output of results with much of it: it is sent ahead, piece by piece, over the bulk link. Then the result is
//! reported like any other. A server drops pieces that it has, so all of it may be sent again.

use std::sync::Arc;

use downbeat_proto::message::{Fault, Finished, OutputChunk};
use tokio::sync::mpsc::UnboundedReceiver;

use super::Outgoing;
use super::output::send;
use super::stuck::drop_output;
use crate::error::Error;
use crate::output::cost_bytes;
use crate::output::pace::{Pace, fitting};
use crate::shared::Shared;

/// Sends one result after the other until the session ends.
pub(crate) async fn send_ahead(shared: Arc<Shared>, mut large: UnboundedReceiver<Finished>) -> Error {
    let mut pace = Pace::of_bulk();
    while let Some(mut finished) = large.recv().await {
        if send_output(&shared, &mut pace, &mut finished).await {
            let _ = shared.outgoing.send(Outgoing::Finished(finished));
        }
    }
    Error::Bug("the queue of large results was closed".to_owned())
}

/// Sends all output of a result. Returns false if the result is no longer wanted.
async fn send_output(shared: &Shared, pace: &mut Pace, finished: &mut Finished) -> bool {
    let held = finished.held;
    loop {
        if !shared.holdings.lock().holds(held) {
            return false;
        }
        let mut count = 0;
        let sent = send(shared, pace, cost_bytes(&finished.output), |message_bytes| {
            count = fitting(&finished.output, message_bytes);
            (vec![held], finished.output[..count].to_vec())
        });
        match sent.await {
            None => return true,
            Some(Ok(())) => {
                let sent: Vec<OutputChunk> = finished.output.drain(..count).collect();
                shared.sent(held, cost_bytes(&sent));
            }
            // The pause is in connecting to the next server, or the call took long.
            Some(Err(Fault::Unavailable(_) | Fault::TimedOut(_))) => {}
            Some(Err(Fault::Rejected(why))) => {
                shared.sent(held, drop_output(finished, &why));
            }
            Some(Err(fault)) => shared.recheck_session("output", &fault).await,
        }
    }
}
