//! A new session of a node. What the old one held and did not deliver is lost at once, not after the lease's term.

use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::Registration;
use downbeat_core::{Change, Timestamp};
use downbeat_proto::message::{Fault, Register};
use tracing::info;

use super::Host;
use super::host::unavailable;

impl Host {
    pub(super) async fn take_in(&self, register: Register) -> Result<(), Fault> {
        let Register { cluster, node, session, description } = register;
        let derived = NodeId::derive(cluster, &description.hostname);
        if node != derived {
            return Err(Fault::Rejected(format!(
                "node id `{node}` is not the one of hostname `{}` in cluster `{cluster}`, which is `{derived}`",
                description.hostname
            )));
        }
        description.check().map_err(|bad| Fault::Rejected(bad.to_string()))?;
        if self.parts.store.cluster(&cluster.to_string()).await.map_err(unavailable)?.is_none() {
            return Err(Fault::NotFound(format!("cluster `{cluster}`")));
        }
        let is_full = {
            let board = self.parts.dispatcher.board();
            board.node(node).is_none() && board.is_full(cluster)
        };
        if is_full {
            return Err(Fault::Rejected(format!(
                "cluster `{cluster}` has {} nodes, which is the most",
                limits::NODES_PER_CLUSTER
            )));
        }
        let hostname = description.hostname.clone();
        // Not before the one that it replaces, whatever a clock says: a call that was under way for long shall lose.
        let known = self.parts.store.node(node).await.map_err(unavailable)?;
        let at = known.map_or(Timestamp::MIN, |known| known.registered_at).max(self.parts.clock.now());
        let registration = Registration { node, cluster, session, description, at };
        if self.parts.commit(vec![Change::NodeRegistered { registration }]).await?[0].is_err() {
            return Err(Fault::Unavailable(format!("another agent registered as node `{node}` meanwhile")));
        }
        self.end_former_sessions(node, session).await?;
        self.parts.dispatcher.wake();
        info!(%node, hostname, %session, "node registered");
        Ok(())
    }

    /// After the registration is committed: from then on nothing more is leased to the old session.
    async fn end_former_sessions(&self, node: NodeId, session: SessionId) -> Result<(), Fault> {
        let now = self.parts.clock.now();
        let held = self.parts.store.held_by(node).await.map_err(unavailable)?;
        let lost: Vec<Change> = held
            .into_iter()
            .filter_map(|execution| {
                let lease = *execution.state.lease()?;
                (lease.session != session).then(|| Change::ExecutionLost {
                    run: execution.run,
                    execution: execution.id,
                    token: lease.token,
                    silence: None,
                    reason: "its agent restarted".to_owned(),
                    at: now,
                })
            })
            .collect();
        if !lost.is_empty() {
            self.parts.commit(lost).await?;
        }
        Ok(())
    }
}
