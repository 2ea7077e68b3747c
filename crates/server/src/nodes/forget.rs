//! Forgets nodes: those that have been offline for `forget_nodes_after` are deleted, as with `node delete`.

use std::time::Duration;

use downbeat_core::collections::HashSet;
use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;
use downbeat_core::{Change, Timestamp};
use downbeat_store as store;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::parts::Parts;

/// How often a server looks for such nodes: a tenth of the time until they are forgotten, within these bounds.
const LOOK_LEAST: Duration = Duration::from_millis(100);
const LOOK_MOST: Duration = Duration::from_secs(60);
/// How long nodes have to return after an outage, at most. Agents try again at least every minute, so a few minutes are
/// enough. They must not be many: a server that is restarted every night has to forget nodes between two restarts.
const GRACE: Duration = Duration::from_secs(10 * 60);
/// How many nodes one commit deletes.
const AT_ONCE: usize = 200;
/// The name under which deletions are recorded.
const BY: &str = "forget_nodes_after";

/// Looks until `stop` is cancelled.
pub(crate) async fn forget(parts: Parts, stop: CancellationToken) {
    let after = parts.settings.forget_nodes_after.0;
    if after.is_zero() {
        return stop.cancelled().await;
    }
    let pause = (after / 10).clamp(LOOK_LEAST, LOOK_MOST);
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        if let Err(error) = look(&parts, after).await {
            warn!(%error, "cannot forget nodes that have been offline for long");
        }
    }
}

async fn look(parts: &Parts, after: Duration) -> Result<(), store::Error> {
    let now = parts.clock.now();
    // A time that is longer than the calendar is never over.
    let Some(before) = SignedDuration::try_from(after).ok().and_then(|after| now.checked_sub(after).ok())
    else {
        return Ok(());
    };
    // While no server received heartbeats, no node could show that it is alive.
    let served_for = Duration::try_from(now.duration_since(parts.serving.since(now))).unwrap_or_default();
    if served_for < after.min(GRACE) {
        return Ok(());
    }
    let changes = gone(parts, before, now).await?;
    if changes.is_empty() {
        return Ok(());
    }
    for changes in changes.chunks(AT_ONCE) {
        let outcomes = parts.journal.commit_apart(changes).await?;
        // A refused one has sent a heartbeat, or somebody has deleted it: each server with this setting looks for such nodes.
        let nodes = outcomes.iter().filter(|outcome| **outcome == Some(Ok(()))).count();
        if nodes > 0 {
            info!(nodes, after = %parts.settings.forget_nodes_after, "forgot nodes that have been offline for long");
        }
    }
    parts.dispatcher.wake();
    Ok(())
}

/// Returns the deletions of nodes that are offline and were last seen before a time.
async fn gone(parts: &Parts, before: Timestamp, now: Timestamp) -> Result<Vec<Change>, store::Error> {
    let offline: HashSet<NodeId> = {
        let board = parts.dispatcher.board();
        let offline = board.nodes().filter(|record| record.status == NodeStatus::Offline);
        offline.map(|record| record.id).collect()
    };
    if offline.is_empty() {
        return Ok(Vec::new());
    }
    let seen = parts.store.presence().await?.into_iter();
    let gone = seen.filter(|(node, _, seen_at)| *seen_at <= before && offline.contains(node));
    let deletions = gone.map(|(node, session, seen_at)| Change::NodeDeleted {
        node,
        session,
        by: BY.to_owned(),
        silent_since: Some(seen_at),
        at: now,
    });
    Ok(deletions.collect())
}

#[cfg(test)]
mod tests;
