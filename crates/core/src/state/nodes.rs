//! Applies changes to nodes.

use super::tables::Tables;
use crate::Timestamp;
use crate::change::{Applied, Refusal, Silence};
use crate::ids::{NodeId, SessionId};
use crate::node::{Former, NodeRecord, NodeStatus, Registration};

/// The changing part of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLive {
    pub session: SessionId,
    pub status: NodeStatus,
    pub draining: bool,
    pub registered_at: Timestamp,
    pub seen_at: Timestamp,
}

impl NodeLive {
    pub fn of(node: &NodeRecord) -> Self {
        Self {
            session: node.session,
            status: node.status,
            draining: node.draining,
            registered_at: node.registered_at,
            seen_at: node.seen_at,
        }
    }
}

impl Tables {
    /// Refuses if the node was heard after its silence was noticed.
    pub(super) fn unheard(&self, silence: Option<Silence>) -> Applied {
        let heard = silence.is_some_and(|silence| {
            self.nodes.get(&silence.node).is_some_and(|node| node.seen_at > silence.since)
        });
        if heard { Err(Refusal::Heard) } else { Ok(()) }
    }

    /// Refuses a session that is not the node's current one.
    pub(super) fn has_session(&self, node: NodeId, session: SessionId) -> Applied {
        match self.nodes.get(&node) {
            None => Err(Refusal::NotFound),
            Some(node) if node.session != session => Err(Refusal::StaleSession),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn register(&mut self, registration: &Registration) -> Applied {
        if !self.clusters.contains_key(&registration.cluster) {
            return Err(Refusal::NotFound);
        }
        let former = match registration.former {
            Former::Any => Ok(()),
            Former::Nobody if self.nodes.contains_key(&registration.node) => Err(Refusal::StaleSession),
            Former::Nobody => Ok(()),
            Former::Session { session, silent_since } => {
                // A replica may have a heartbeat that is later than the registration.
                let silence = silent_since.filter(|_| !self.is_copy);
                self.unheard(silence.map(|since| Silence { node: registration.node, since }))?;
                self.has_session(registration.node, session)
            }
        };
        former?;
        if self.deleted.contains(&(registration.node, registration.session)) {
            return Err(Refusal::Deleted);
        }
        // The registration was delayed for so long that a newer agent has taken the node.
        if let Some(node) = self.nodes.get(&registration.node)
            && registration.at < node.registered_at
            && registration.session != node.session
        {
            return Err(Refusal::StaleSession);
        }
        // Whether a standing task belongs to this session follows from its time.
        if let Some(at) = self.last_step_since(registration.node, registration.at).filter(|_| !self.is_copy) {
            return Err(Refusal::DecidedLater(at));
        }
        // A person drained the node, so it stays drained with a new session.
        let draining = self.nodes.get(&registration.node).is_some_and(|node| node.draining);
        let live = NodeLive {
            session: registration.session,
            status: NodeStatus::Online,
            draining,
            registered_at: registration.at,
            seen_at: registration.at,
        };
        self.nodes.insert(registration.node, live);
        self.node_homes.insert(registration.node, registration.cluster);
        Ok(())
    }
}
