//! Owns the renewal of leases: one heartbeat for all of them, and what its answer takes away.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::collections::HashSet;
use downbeat_core::ids::NodeId;
use downbeat_proto::message::{Fault, Heartbeat, LeaseRef, Welcome};
use tokio::time::{Instant, timeout};

use super::join::Came;
use crate::error::Error;
use crate::shared::Shared;

/// An agent that stops does not wait longer than this to be heard.
const GOODBYE: Duration = Duration::from_secs(1);

fn beat(shared: &Shared, held: Vec<LeaseRef>, leaving: bool) -> Heartbeat {
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

/// Why an agent does not register again with a server.
enum Unwanted {
    /// It would end the leases of results that it does not have yet.
    LosesResults,
    Ends(Error),
}

/// The server does not have this session: it registers again, as the same one. What runs goes on, and the next heartbeats
/// say which of its leases count. Only when another installation has the node does all work end here.
async fn rejoin(shared: &Shared, fault: &Fault) -> Result<(), Error> {
    tracing::warn!(node = %shared.node, session = %shared.session, %fault, "registering again");
    let end_work = || {
        // Whoever took the node over while this agent was silent has ended its leases.
        let held = shared.holdings().held();
        shared.refused(held);
    };
    if matches!(fault, Fault::Occupied(_)) {
        end_work();
    }
    let decline = |welcome: &Welcome, there: NodeId| {
        if there != shared.node {
            let (node, cluster) = (shared.node, shared.joining.cluster.clone());
            return Some(Unwanted::Ends(Error::OtherCluster { cluster, node, there }));
        }
        match fault {
            _ if welcome.keeps_undelivered => None,
            // The newest registration wins there, so this one must not be made.
            Fault::Superseded(why) => Some(Unwanted::Ends(Error::Superseded(why.clone()))),
            _ => shared.joining.has_undelivered().then_some(Unwanted::LosesResults),
        }
    };
    let refused = |refusal: &Fault| {
        if matches!((fault, refusal), (Fault::Superseded(_), Fault::Occupied(_))) {
            end_work();
        }
    };
    match shared.joining.join(&shared.links, decline, refused).await? {
        Came::Joined(_) => {
            tracing::info!(node = %shared.node, session = %shared.session, "registered again");
            // What was on its way here may be lost.
            shared.ask_anew.notify_one();
            Ok(())
        }
        Came::Declined(Unwanted::LosesResults) => Ok(()),
        Came::Declined(Unwanted::Ends(error)) => Err(error),
    }
}

/// What a server has renewed. Of what its store has never heard of it can say nothing.
fn without(mut held: Vec<LeaseRef>, unheard: &[LeaseRef]) -> Vec<LeaseRef> {
    if !unheard.is_empty() {
        let unheard: HashSet<&LeaseRef> = unheard.iter().collect();
        held.retain(|held| !unheard.contains(held));
    }
    held
}

/// Beats until a server says that this node is no longer this agent's.
pub(crate) async fn heartbeat(shared: Arc<Shared>) -> Error {
    // How often it registered again since a heartbeat was taken.
    let mut rejoined = 0;
    // Since when the cluster is another one.
    let mut elsewhere = None;
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
                    (rejoined, elsewhere) = (0, None);
                    shared.renewed(&without(held, &answer.unheard), asked);
                    shared.refused(answer.refused);
                    shared.stop(&answer.stop);
                    shared.links.close_idle(Instant::now());
                    break;
                }
                // The pause is in finding the next server.
                Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
                // No heartbeat says for good that the node is another's: the registration, which shows who this agent is,
                // decides.
                Err(fault @ (Fault::Unknown(_) | Fault::Occupied(_) | Fault::Superseded(_))) => {
                    // Servers that disagree about this node must not make a storm of it.
                    if rejoined > 0 {
                        tokio::time::sleep(shared.joining.pause(rejoined)).await;
                    }
                    rejoined += 1;
                    match rejoin(&shared, &fault).await {
                        Ok(()) => {}
                        // The wrong store, perhaps, for a while: the work goes on for as long as its leases may.
                        Err(error @ Error::OtherCluster { .. }) => {
                            let since = *elsewhere.get_or_insert(asked);
                            if shared.clock.now().saturating_duration_since(since) >= shared.lease_ttl {
                                return error;
                            }
                            tracing::error!(node = %shared.node, %error, "trying on");
                        }
                        Err(error) => return error,
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
