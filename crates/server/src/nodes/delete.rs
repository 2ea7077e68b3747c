//! Deletes a node. What it held is lost and what waits for it fails, as the feed tells every server's board and actors:
//! whatever dies after the commit, the next start derives the same from the store.

use downbeat_core::ids::NodeId;
use downbeat_core::node::{NodeStatus, Tombstone};
use downbeat_core::{Change, Refusal};
use tracing::info;

use crate::error::Error;
use crate::parts::Parts;

/// How often it is decided anew because something happened to the node meanwhile.
const TRIES: u32 = 5;

/// Whether a node that is online may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    On,
    Off,
}

/// Deletes a node, whose agent ends when it hears of it. One that is deleted already is answered as it was.
pub(crate) async fn delete(parts: &Parts, id: NodeId, force: Force, by: &str) -> Result<Tombstone, Error> {
    for _ in 0..TRIES {
        let Some(node) = parts.store.node(id).await? else {
            let last = parts.store.tombstones(Some(id)).await?.pop();
            return last.ok_or_else(|| Error::NotFound(format!("node `{id}` does not exist")));
        };
        let hostname = node.description.hostname;
        if force == Force::Off && node.status == NodeStatus::Online {
            return Err(Error::Conflict(format!(
                "{hostname} is online; stop its agent first, or use --force"
            )));
        }
        let (session, at) = (node.session, parts.clock.now());
        // Who is not forced relies on its silence.
        let silent_since = (force == Force::Off).then_some(node.seen_at);
        let change = Change::NodeDeleted { node: id, session, by: by.to_owned(), silent_since, at };
        match parts.journal.commit_one(change).await? {
            Ok(()) => {
                info!(node = %id, hostname, by, "node deleted");
                parts.dispatcher.wake();
                return Ok(Tombstone { node: id, session, cluster: node.cluster, hostname, at });
            }
            Err(Refusal::NotKnownToAll) => {
                return Err(Error::Unavailable(
                    "an older server shares the store, which knows nothing of deleted nodes; upgrade all servers"
                        .to_owned(),
                ));
            }
            // Whoever asked meant the agent that was there, not one that was started since.
            Err(Refusal::StaleSession) => {
                return Err(Error::Conflict(format!(
                    "{hostname} has registered again meanwhile; look at it first"
                )));
            }
            // It was heard of, or somebody else deleted it: it is looked at again.
            Err(_) => {}
        }
    }
    Err(Error::Unavailable(format!("node `{id}` comes and goes; try again")))
}
