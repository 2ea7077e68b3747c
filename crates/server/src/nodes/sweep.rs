//! Owns the sweep: silent nodes become stale, then offline; leases that were not renewed end.

use std::time::Duration;

use downbeat_core::node::{Health, NodeRecord, NodeStatus};
use downbeat_core::{Change, Silence, Timestamp};
use downbeat_store as store;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::parts::Parts;

/// The sweeper of one server. Several servers may sweep at once: every change is guarded.
pub(crate) struct Sweeper {
    parts: Parts,
    health: Health,
    lease_ttl: Duration,
    tick: Duration,
}

impl Sweeper {
    pub(crate) fn new(parts: Parts) -> Self {
        let settings = &parts.settings;
        let health =
            Health { stale_after: settings.node_stale_after.0, offline_after: settings.node_offline_after.0 };
        let lease_ttl = settings.lease_ttl.0;
        let tick = (settings.heartbeat_interval.0 / 4)
            .clamp(Duration::from_millis(50), Duration::from_millis(2_500));
        parts.serving.begin(parts.clock.now());
        Self { parts, health, lease_ttl, tick }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut looked_at = self.parts.clock.now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.tick) => {}
            }
            // The store was unavailable or slow, or this process was frozen: no lease could be renewed in this time.
            let now = self.parts.clock.now();
            let frozen = now.duration_since(looked_at) > signed(self.tick * 4 + Duration::from_secs(1));
            looked_at = now;
            let stalled = self.parts.heartbeats.stalled_for() > self.tick * 4 + Duration::from_secs(1);
            // A server that cannot write its own heartbeat cannot renew leases either: the store may be
            // readable but not writable.
            let signs = self.parts.last_sign.is_fresh(self.parts.settings.server_stale_after.0);
            if frozen || stalled || !signs || !self.parts.journal.is_available() {
                self.parts.serving.begin(self.parts.clock.now());
                continue;
            }
            if let Err(error) = self.sweep().await {
                warn!(%error, "cannot check for silent nodes");
                self.parts.serving.begin(self.parts.clock.now());
            }
        }
    }

    async fn sweep(&self) -> Result<(), store::Error> {
        let now = self.parts.clock.now();
        let shortest = self.lease_ttl.min(self.health.stale_after);
        let mut changes = Vec::new();
        for node in self.parts.store.silent_nodes(now - signed(shortest)).await? {
            self.check_node(&node, now, &mut changes).await?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.parts
            .journal
            .commit(changes)
            .await
            .map_err(|error| store::Error::Unavailable(error.to_string()))?;
        Ok(())
    }

    async fn check_node(
        &self,
        node: &NodeRecord,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> Result<(), store::Error> {
        let heard = node.seen_at.max(self.parts.serving.since());
        let silent_for = Duration::try_from(now.duration_since(heard)).unwrap_or(Duration::ZERO);
        let to = self.health.status(silent_for);
        let offline = to == NodeStatus::Offline;
        if silent_for >= self.lease_ttl || offline {
            let reason = if offline { "the node went offline" } else { "the lease expired" };
            for execution in self.parts.store.held_by(node.id).await? {
                if let Some(lease) = execution.state.lease()
                    && (offline || lease.granted_at.max(heard) + signed(self.lease_ttl) <= now)
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
        Ok(())
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
