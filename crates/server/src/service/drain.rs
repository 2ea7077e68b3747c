//! Drains a node, or ends that.

use downbeat_core::Change;
use downbeat_core::ids::NodeId;

use super::Service;
use crate::error::Error;

/// Whether a node is drained: it finishes its executions and takes no new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    On,
    Off,
}

impl Service {
    /// Drains a node, or lets it take work again.
    pub async fn set_drain(&self, node: NodeId, drain: Drain, by: &str) -> Result<(), Error> {
        let draining = drain == Drain::On;
        let change = Change::NodeDrainSet { node, draining, by: by.to_owned(), at: self.parts.clock.now() };
        match self.commit_one(change).await? {
            Ok(()) => {
                self.parts.dispatcher.wake();
                Ok(())
            }
            Err(_) => Err(Error::NotFound(format!("node `{node}` does not exist"))),
        }
    }
}
