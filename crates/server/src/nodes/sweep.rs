//! Owns the sweep: silent nodes become stale, then offline; leases that were not renewed end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::{Change, Silence, Timestamp};
use downbeat_store as store;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::parts::Parts;

/// Since when this server has received heartbeats without a break: earlier silence does not count. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Serving(Arc<Mutex<Timestamp>>);

impl Serving {
    pub(crate) fn new(since: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(since)))
    }

    pub(crate) fn since(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, since: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// Sweeps until `stop` is cancelled. Several servers may sweep at once: every change is guarded.
pub(crate) async fn sweep(parts: Parts, stop: CancellationToken) {
    let tick = parts.settings.heartbeat_interval.0 / 4;
    let tick = tick.clamp(Duration::from_millis(50), Duration::from_millis(2_500));
    let late = tick * 4 + Duration::from_secs(1);
    let mut looked_at = parts.clock.now();
    parts.serving.begin(looked_at);
    while stop.run_until_cancelled(tokio::time::sleep(tick)).await.is_some() {
        // The store was unavailable or slow, or this process was frozen: no lease could be renewed in this time.
        let now = parts.clock.now();
        let frozen = now.duration_since(looked_at) > signed(late);
        looked_at = now;
        let stalled = parts.heartbeats.stalled_for() > late;
        // A server that cannot write its own heartbeat cannot renew leases either: the store may be
        // readable but not writable.
        let signs = parts.last_sign.is_fresh(parts.settings.server_stale_after.0);
        if frozen || stalled || !signs || !parts.journal.is_available() {
            parts.serving.begin(parts.clock.now());
        } else if let Err(error) = check_nodes(&parts).await {
            warn!(%error, "cannot check for silent nodes");
            parts.serving.begin(parts.clock.now());
        }
    }
}

async fn check_nodes(parts: &Parts) -> Result<(), store::Error> {
    let now = parts.clock.now();
    let shortest = parts.settings.lease_ttl.0.min(parts.settings.node_stale_after.0);
    let mut changes = Vec::new();
    for node in parts.store.silent_nodes(now - signed(shortest)).await? {
        changes.extend(check_node(parts, &node, now).await?);
    }
    if !changes.is_empty() {
        parts.journal.commit(changes).await?;
    }
    Ok(())
}

/// Returns the consequences of a node's silence.
async fn check_node(parts: &Parts, node: &NodeRecord, now: Timestamp) -> Result<Vec<Change>, store::Error> {
    let (lease_ttl, mut changes) = (parts.settings.lease_ttl.0, Vec::new());
    let heard = node.seen_at.max(parts.serving.since());
    let silent_for = Duration::try_from(now.duration_since(heard)).unwrap_or(Duration::ZERO);
    let to = parts.settings.health().status(silent_for);
    let offline = to == NodeStatus::Offline;
    if silent_for >= lease_ttl || offline {
        let reason = if offline { "the node went offline" } else { "the lease expired" };
        for execution in parts.store.held_by(node.id).await? {
            if let Some(lease) = execution.state.lease()
                && (offline || lease.granted_at.max(heard) + signed(lease_ttl) <= now)
            {
                changes.push(Change::ExecutionLost {
                    of: execution.of.parent(),
                    execution: execution.id,
                    token: lease.token,
                    silence: Some(Silence { node: node.id, since: node.seen_at }),
                    reason: reason.to_owned(),
                    at: now,
                });
            }
        }
    }
    if to > node.status {
        changes.push(Change::NodeMoved {
            node: node.id,
            session: node.session,
            from: node.status,
            to,
            silent_since: Some(node.seen_at),
            at: now,
        });
    }
    Ok(changes)
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
