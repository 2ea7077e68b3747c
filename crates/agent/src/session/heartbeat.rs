//! Owns the renewal of leases: one heartbeat for all of them, and what its answer takes away.

use std::sync::Arc;
use std::time::Duration;

use downbeat_proto::message::{Fault, Heartbeat, Held};
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::shared::Shared;

/// An agent that stops does not wait longer than this to be heard.
const GOODBYE: Duration = Duration::from_secs(1);

fn beat(shared: &Shared, held: Vec<Held>, leaving: bool) -> Heartbeat {
    Heartbeat { node: shared.node, session: shared.session, held, leaving, problems: shared.problems() }
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

/// The server does not have this session: it registers again, as the same one and with all of its work. Leases say what
/// of that counts.
async fn rejoin(shared: &Shared, fault: &Fault) -> Result<(), Error> {
    tracing::warn!(node = %shared.node, session = %shared.session, %fault, "registering again");
    if matches!(fault, Fault::Occupied(_)) {
        // Whoever took the node over while this agent was silent has ended its leases.
        let held = shared.holdings().held();
        shared.refused(held);
    }
    let joined = shared.joining.join(&shared.links).await?;
    if joined.node != shared.node {
        // The cluster has another id there: it is another fleet's server, and this session is none of its nodes.
        tracing::error!(node = %shared.node, there = %joined.node, "the server is another fleet's; trying on");
        tokio::time::sleep(shared.tuning.refused_most).await;
        return Ok(());
    }
    tracing::info!(node = %shared.node, session = %shared.session, "registered again");
    // What was on its way here may be lost.
    shared.ask_anew.notify_one();
    Ok(())
}

/// Beats until a server says that this node is no longer this agent's.
pub(crate) async fn heartbeat(shared: Arc<Shared>) -> Error {
    // How often it registered again since a heartbeat was taken.
    let mut rejoined = 0;
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
                    rejoined = 0;
                    shared.renewed(&held, asked);
                    shared.refused(answer.refused);
                    shared.stop(&answer.stop);
                    shared.links.close_idle(Instant::now());
                    break;
                }
                // The pause is in finding the next server.
                Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
                Err(fault @ (Fault::Unknown(_) | Fault::Occupied(_))) => {
                    // Servers that disagree about this node must not make a storm of it.
                    if rejoined > 0 {
                        tokio::time::sleep(shared.joining.pause(rejoined)).await;
                    }
                    rejoined += 1;
                    if let Err(error) = rejoin(&shared, &fault).await {
                        return error;
                    }
                    // The next one says what of the work still counts.
                }
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
