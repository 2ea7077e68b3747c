//! Owns the renewal of leases: one heartbeat for all of them, which also returns the lost ones.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::collections::HashSet;
use downbeat_core::ids::NodeId;
use downbeat_proto::message::{Fault, Heartbeat, LeaseRef, Welcome};
use tokio::time::{Instant, timeout};

use super::join::JoinResult;
use crate::error::Error;
use crate::shared::Shared;

/// How long an agent that stops waits for a response to its goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

fn beat(shared: &Shared, held: Vec<LeaseRef>, leaving: bool) -> Heartbeat {
    Heartbeat { node: shared.node, session: shared.session, held, leaving, problems: shared.problems() }
}

/// Sends a goodbye, once. Without it servers notice the silence, only later.
pub(crate) async fn leave(shared: &Shared) {
    let sent = async {
        let link = shared.links.control_link().await;
        let held = shared.holdings.lock().held();
        link.heartbeat(beat(shared, held, true)).await
    };
    if !matches!(timeout(GOODBYE, sent).await, Ok(Ok(_))) {
        tracing::debug!(node = %shared.node, "no server responded to the goodbye");
    }
}

/// Why an agent does not register again with a server.
enum Unwanted {
    /// The server would end the leases of results that it does not have yet.
    LosesResults,
    Ends(Error),
}

/// Registers the same session again with a server that does not know it. Running work continues; the next heartbeats
/// show which leases are still valid. Only if another installation has the node does all work end here.
async fn rejoin(shared: &Shared, fault: &Fault) -> Result<(), Error> {
    tracing::warn!(node = %shared.node, session = %shared.session, %fault, "registering again");
    let end_work = || {
        // The installation that took over the node while this agent was silent has ended its leases.
        let held = shared.holdings.lock().held();
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
            // The newest registration wins there, so the agent must not register.
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
        JoinResult::Joined(_) => {
            tracing::info!(node = %shared.node, session = %shared.session, "registered again");
            // Assignments on their way here may be lost.
            shared.poll_again.notify_one();
            Ok(())
        }
        JoinResult::Declined(Unwanted::LosesResults) => Ok(()),
        JoinResult::Declined(Unwanted::Ends(error)) => Err(error),
    }
}

/// Returns the leases that a server renewed, without those that its store does not know.
fn without(mut held: Vec<LeaseRef>, unheard: &[LeaseRef]) -> Vec<LeaseRef> {
    if !unheard.is_empty() {
        let unheard: HashSet<&LeaseRef> = unheard.iter().collect();
        held.retain(|held| !unheard.contains(held));
    }
    held
}

/// Sends heartbeats until the node no longer belongs to this agent.
pub(crate) async fn heartbeat(shared: Arc<Shared>) -> Error {
    // Registrations since the last successful heartbeat.
    let mut rejoined = 0;
    // Since when the cluster has been another one, or does not exist.
    let mut elsewhere = None;
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep(shared.heartbeat_interval) => {}
            () = shared.heartbeat_now.notified() => {}
        }
        loop {
            let link = shared.links.control_link().await;
            let held = shared.holdings.lock().held();
            let asked = shared.clock.now();
            let answer = link.heartbeat(beat(&shared, held.clone(), false)).await;
            shared.links.note_result(&link, &answer).await;
            match answer {
                Ok(answer) => {
                    (rejoined, elsewhere) = (0, None);
                    shared.renewed(&without(held, &answer.unheard), asked);
                    shared.refused(answer.refused);
                    shared.stop(&answer.stop);
                    shared.links.close_idle(Instant::now());
                    break;
                }
                // The pause is in connecting to the next server.
                Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
                // A heartbeat cannot decide that the node belongs to another agent. The registration, which proves the
                // identity, does.
                Err(fault @ (Fault::Unknown(_) | Fault::Occupied(_) | Fault::Superseded(_))) => {
                    // Servers that disagree about this node must not cause a storm of registrations.
                    if rejoined > 0 {
                        tokio::time::sleep(shared.joining.pause(rejoined)).await;
                    }
                    rejoined += 1;
                    match rejoin(&shared, &fault).await {
                        Ok(()) => {}
                        // Perhaps the wrong store, temporarily: work continues as long as its leases may last.
                        Err(error @ (Error::OtherCluster { .. } | Error::NoCluster(_))) => {
                            let since = *elsewhere.get_or_insert(asked);
                            if shared.clock.now().saturating_duration_since(since) >= shared.lease_ttl {
                                return error;
                            }
                            tracing::error!(node = %shared.node, %error, "retrying");
                        }
                        Err(error) => return error,
                    }
                    // The next heartbeat shows which leases are still valid.
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
