//! Deletes a node. Its leases are lost and pending work for it fails, as every server's board and actors
//! learn from the feed. If a server stops after the commit, the next start derives the same from the store.

use downbeat_core::ids::NodeId;
use downbeat_core::node::{NodeStatus, Tombstone};
use downbeat_core::{Change, Refusal};
use tracing::info;

use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};
use crate::force::Force;
use crate::parts::Parts;

/// How often the decision is made again because the node changed in between.
const TRIES: u32 = 5;

/// Deletes a node; its agent stops when it notices. Returns the earlier tombstone of a node that was deleted before.
pub(crate) async fn delete(parts: &Parts, id: NodeId, force: Force, caller: &Caller) -> Result<Tombstone> {
    for _ in 0..TRIES {
        let Some(node) = parts.store.node(id).await? else {
            let last = parts.store.tombstones(Some(id)).await?.pop();
            return last.ok_or_else(|| Noun::node(id).into());
        };
        let hostname = node.description.hostname;
        if force == Force::Off && node.status == NodeStatus::Online {
            return Err(Conflict::NodeOnline(hostname).into());
        }
        let (session, at) = (node.session, parts.clock.now());
        // Without force the node must still be silent at the commit.
        let silent_since = (force == Force::Off).then_some(node.seen_at);
        let change =
            Change::NodeDeleted { node: id, session, by: caller.name().to_owned(), silent_since, at };
        match parts.journal.commit_one(change).await? {
            Ok(()) => {
                info!(node = %id, hostname, by = caller.name(), "node deleted");
                parts.dispatcher.wake();
                return Ok(Tombstone { node: id, session, cluster: node.cluster, hostname, at });
            }
            Err(Refusal::NotKnownToAll) => return Err(Error::OlderServer("deleting nodes")),
            // The caller meant the previous agent, not one that was started since.
            Err(Refusal::StaleSession) => return Err(Conflict::NodeRegistered(hostname).into()),
            // A heartbeat arrived, or another caller deleted the node: decide again.
            Err(_) => {}
        }
    }
    Err(Error::Unavailable(format!("node `{id}` keeps changing; try again")))
}
