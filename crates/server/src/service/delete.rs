//! Deletes a node.

use downbeat_core::ids::NodeId;
use downbeat_core::node::Tombstone;

use super::Service;
use super::patience::patiently;
use crate::error::Error;
use crate::nodes::{self, Force};

impl Service {
    /// Deletes a node; see [`Force`].
    pub async fn delete_node(&self, node: NodeId, force: Force, by: &str) -> Result<Tombstone, Error> {
        patiently(nodes::delete(&self.parts, node, force, by)).await?
    }
}
