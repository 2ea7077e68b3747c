//! Drains a node, or ends the drain.

use downbeat_core::Change;
use downbeat_core::ids::NodeId;

use super::Service;
use crate::caller::Caller;
use crate::error::{Error, Noun};

/// Whether a node is drained: it finishes its executions and gets no new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    On,
    Off,
}

impl Service {
    pub async fn set_drain(&self, caller: &Caller, node: NodeId, drain: Drain) -> Result<(), Error> {
        let (draining, by, at) = (drain == Drain::On, caller.name().to_owned(), self.parts.clock.now());
        let change = Change::NodeDrainSet { node, draining, by, at };
        self.commit_one(change).await?.map_err(|_| Noun::node(node))?;
        self.parts.dispatcher.wake();
        Ok(())
    }
}
