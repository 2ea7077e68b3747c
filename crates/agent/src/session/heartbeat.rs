//! Owns the renewal of leases: one heartbeat for all of them, and what its answer takes away.

use std::sync::Arc;
use std::time::Duration;

use downbeat_proto::message::{Fault, Heartbeat, Held};
use tokio::time::timeout;

use crate::error::Error;
use crate::shared::Shared;

/// An agent that stops does not wait longer than this to be heard.
const GOODBYE: Duration = Duration::from_secs(1);

fn beat(shared: &Shared, held: Vec<Held>, leaving: bool) -> Heartbeat {
    Heartbeat { node: shared.node, session: shared.session, held, leaving, problems: Vec::new() }
}

/// Says goodbye, once and if a server answers: silence says the same, only later.
pub(crate) async fn leave(shared: &Shared) {
    let said = async {
        let link = shared.links.lend().await;
        let held = shared.holdings().held();
        link.heartbeat(beat(shared, held, true)).await
    };
    if !matches!(timeout(GOODBYE, said).await, Ok(Ok(_))) {
        tracing::debug!(node = %shared.node, "nobody heard the goodbye");
    }
}

/// Beats until a server says that this node is no longer this agent's.
pub(crate) async fn heartbeat(shared: Arc<Shared>) -> Error {
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep(shared.heartbeat_interval) => {}
            () = shared.doubt.notified() => {}
        }
        loop {
            let link = shared.links.lend().await;
            let held = shared.holdings().held();
            let asked = shared.clock.now();
            let answer = link.heartbeat(beat(&shared, held.clone(), false)).await;
            shared.links.settle(&link, &answer).await;
            match answer {
                Ok(answer) => {
                    shared.renewed(&held, asked);
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
