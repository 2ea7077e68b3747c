//! Owns the renewal of leases: one heartbeat for all of them, and what its answer takes away.

use std::sync::Arc;

use downbeat_proto::message::{Fault, Heartbeat};
use tokio::time::Instant;

use crate::error::Error;
use crate::shared::Shared;

/// Beats until a server says that this node is no longer this agent's.
pub(crate) async fn heartbeat(shared: Arc<Shared>) -> Error {
    loop {
        tokio::select! {
            () = tokio::time::sleep(shared.heartbeat_interval) => {}
            () = shared.doubt.notified() => {}
        }
        loop {
            let link = shared.links.lend().await;
            let held = shared.holdings().held();
            let asked = Instant::now();
            let answer = link.heartbeat(Heartbeat { node: shared.node, session: shared.session, held }).await;
            shared.links.settle(&link, &answer).await;
            match answer {
                Ok(answer) => {
                    shared.renewed.send_replace(asked);
                    shared.refused(answer.refused);
                    shared.stop(&answer.stop);
                    break;
                }
                // The pause is in finding the next server.
                Err(Fault::Unavailable(_)) => {}
                Err(fault) => {
                    if let Some(error) = Error::from_session(&fault) {
                        return error;
                    }
                    tracing::error!(node = %shared.node, %fault, "the heartbeat was rejected");
                    break;
                }
            }
        }
    }
}
