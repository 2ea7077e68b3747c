//! Deletes a node.

use downbeat_core::ids::NodeId;
use downbeat_core::node::Tombstone;

use super::Service;
use super::patience::change_in_time;
use crate::caller::Caller;
use crate::error::Error;
use crate::nodes::{self, Force};

impl Service {
    pub async fn delete_node(&self, caller: &Caller, node: NodeId, force: Force) -> Result<Tombstone, Error> {
        change_in_time(nodes::delete(&self.parts, node, force, caller)).await?
    }
}
