//! Drains a node, ends the drain, and deletes a node.

use downbeat_core::Change;
use downbeat_core::ids::NodeId;
use downbeat_core::node::Tombstone;

use super::Service;
use super::patience::change_in_time;
use crate::caller::Caller;
use crate::error::{Noun, Result};
use crate::force::Force;
use crate::nodes;

/// Whether a node is drained: it finishes its executions and gets no new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    On,
    Off,
}

impl Service {
    pub async fn set_drain(&self, caller: &Caller, node: NodeId, drain: Drain) -> Result<()> {
        let (draining, by, at) = (drain == Drain::On, caller.name().to_owned(), self.now());
        let change = Change::NodeDrainSet { node, draining, by, at };
        self.commit_one(change).await?.map_err(|_| Noun::node(node))?;
        self.parts.dispatcher.wake();
        Ok(())
    }

    pub async fn delete_node(&self, caller: &Caller, node: NodeId, force: Force) -> Result<Tombstone> {
        change_in_time(nodes::delete(&self.parts, node, force, caller)).await?
    }
}
