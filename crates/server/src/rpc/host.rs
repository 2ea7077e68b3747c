//! Owns what agents can ask of a server.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use downbeat_core::Change;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::node::NodeStatus;
use downbeat_proto::Link;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Held, Hello, OLDEST_PROTOCOL, Output, PROTOCOL, Poll, PollAnswer,
    Register, Report, ReportAnswer, Welcome, agreed_protocol,
};
use downbeat_store as store;

use crate::service::Parts;

/// One server, as agents see it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(super) parts: Parts,
}

impl Host {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Of these leases, the executions of those that count. The store is asked only for what the board does not know.
    pub(super) async fn current(&self, node: NodeId, held: Vec<Held>) -> Result<HashSet<ExecutionId>, Fault> {
        let (known, unknown): (Vec<Held>, Vec<Held>) = {
            let board = self.parts.dispatcher.board();
            held.into_iter().partition(|held| board.holds(node, held))
        };
        let mut current: HashSet<ExecutionId> = known.into_iter().map(|held| held.execution).collect();
        let refused = self.refused(unknown.clone()).await?;
        current.extend(unknown.iter().filter(|held| !refused.contains(held)).map(|held| held.execution));
        Ok(current)
    }

    /// Of what the board does not know, that which the store says is not the agent's (any more).
    async fn refused(&self, unknown: Vec<Held>) -> Result<Vec<Held>, Fault> {
        let executions: Vec<ExecutionId> = unknown.iter().map(|held| held.execution).collect();
        let stored = self.stored(&executions).await?;
        let is_current = |held: &Held| {
            stored.get(&held.execution).is_some_and(|execution| {
                execution.state.status().is_open()
                    && execution.state.lease().is_some_and(|lease| lease.token == held.token)
            })
        };
        Ok(unknown.into_iter().filter(|held| !is_current(held)).collect())
    }

    /// These executions as the store has them: one question, however many they are.
    pub(super) async fn stored(
        &self,
        executions: &[ExecutionId],
    ) -> Result<HashMap<ExecutionId, Execution>, Fault> {
        if executions.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.parts.store.executions_by_id(executions).await.map_err(unavailable)?;
        Ok(found.into_iter().map(|execution| (execution.id, execution)).collect())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub(super) fn unavailable(error: store::Error) -> Fault {
    Fault::Unavailable(error.to_string())
}

#[async_trait]
impl Link for Host {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault> {
        let protocol = agreed_protocol(hello.protocol).ok_or_else(|| {
            Fault::Rejected(format!(
                "this server speaks versions {OLDEST_PROTOCOL} to {PROTOCOL} of the agent protocol, the agent ({}) \
                 version {}: upgrade the agent",
                hello.version, hello.protocol
            ))
        })?;
        let cluster = self.parts.store.cluster(&hello.cluster).await.map_err(unavailable)?;
        let cluster = cluster.ok_or_else(|| Fault::NotFound(format!("cluster `{}`", hello.cluster)))?;
        let settings = &self.parts.settings;
        Ok(Welcome {
            cluster,
            server_name: self.parts.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval: settings.heartbeat_interval.0,
            lease_ttl: settings.lease_ttl.0,
            output_max_bytes: settings.output_max_bytes,
            protocol,
        })
    }

    async fn register(&self, register: Register) -> Result<(), Fault> {
        self.take_in(register).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        let Heartbeat { node, session, held, leaving } = heartbeat;
        if !self.parts.heartbeats.beat(node, session).await? {
            return Err(match self.parts.store.node(node).await.map_err(unavailable)? {
                None => Fault::NotFound(format!("node `{node}`")),
                Some(_) => Fault::Superseded(format!("another agent registered as node `{node}`")),
            });
        }
        let (status, (stop, unknown)) = {
            let mut board = self.parts.dispatcher.board();
            let status = board.node(node).map(|record| record.status);
            (status, board.review(node, &held, self.parts.clock.now()))
        };
        // Whoever says goodbye is not gone for good: its work waits for its restart, until silence says otherwise.
        let to = if leaving { NodeStatus::Stale } else { NodeStatus::Online };
        if let Some(from) = status.filter(|from| *from != to) {
            let at = self.parts.clock.now();
            let moved = Change::NodeMoved { node, session, from, to, silent_since: None, at };
            self.parts.commit(vec![moved]).await?;
            self.parts.dispatcher.wake();
        }
        let refused = self.refused(unknown).await?;
        Ok(HeartbeatAnswer { refused, stop })
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        self.park(poll).await
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        self.record(report).await
    }

    async fn output(&self, output: Output) -> Result<(), Fault> {
        let current = self.current(output.node, output.held).await?;
        self.parts
            .outputs
            .append(output.chunks.into_iter().filter(|chunk| current.contains(&chunk.execution)))
            .await
    }
}
