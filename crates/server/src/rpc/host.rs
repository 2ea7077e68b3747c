//! Owns what agents can ask of a server.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use downbeat_core::Change;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId, SessionId};
use downbeat_core::level;
use downbeat_core::node::{NodeStatus, bounded_problems};
use downbeat_proto::Link;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, LeaseRef, OLDEST_PROTOCOL, Output, PROTOCOL, Poll, PollAnswer,
    Register, Report, ReportAnswer, Welcome, agreed_protocol,
};
use downbeat_store as store;

use crate::parts::Parts;

/// What agents say they hold, held against what this server knows.
#[derive(Debug, Default)]
pub(super) struct Sighted {
    /// The executions of the leases that count.
    pub(super) current: HashSet<ExecutionId>,
    /// Leases that do not count (any more).
    refused: Vec<LeaseRef>,
    /// Leases that the store has never heard of, and another store may have given.
    unheard: Vec<LeaseRef>,
}

impl Sighted {
    /// What is said of a lease that may be another store's is not taken, and not refused either: the agent keeps it and
    /// says it again.
    pub(super) fn all_heard_of(&self) -> Result<(), Fault> {
        match &self.unheard[..] {
            [] => Ok(()),
            [held, ..] => Err(Fault::Unknown(format!("execution `{}`", held.execution))),
        }
    }
}

/// One server, as agents see it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(super) parts: Parts,
}

impl Host {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Which of these leases count. The store is asked only for what the board does not know.
    pub(super) async fn sight(&self, node: NodeId, held: Vec<LeaseRef>) -> Result<Sighted, Fault> {
        let (known, unknown): (Vec<LeaseRef>, Vec<LeaseRef>) = {
            let board = self.parts.dispatcher.board();
            held.into_iter().partition(|held| board.holds(node, held))
        };
        let mut sighted = self.sight_in_store(node, unknown).await?;
        sighted.current.extend(known.into_iter().map(|held| held.execution));
        Ok(sighted)
    }

    /// Whether the node was deleted while it had this session.
    pub(super) async fn is_deleted(&self, node: NodeId, session: SessionId) -> Result<bool, Fault> {
        let tombstones = self.parts.store.tombstones(Some(node)).await.map_err(unavailable)?;
        Ok(tombstones.iter().any(|tombstone| tombstone.session == session))
    }

    /// Why a session is not its node's current one.
    async fn stranger(&self, node: NodeId, session: SessionId) -> Fault {
        match self.is_deleted(node, session).await {
            Ok(false) => {}
            Ok(true) => return deleted(node),
            Err(fault) => return fault,
        }
        match self.parts.store.node(node).await.map_err(unavailable) {
            Ok(None) => Fault::Unknown(format!("node `{node}`")),
            Ok(Some(stored)) if stored.displaced == Some(session) => Fault::Occupied(format!(
                "another installation registered as {} while this one was silent",
                stored.description.hostname
            )),
            Ok(Some(stored)) if stored.session == session => {
                Fault::Unavailable(format!("node `{node}` has registered in this moment"))
            }
            Ok(Some(_)) => superseded(node),
            Err(fault) => fault,
        }
    }

    /// Whoever speaks for a node that does not exist is told so. Which of its sessions speaks does not matter.
    pub(super) async fn exists(&self, node: NodeId, session: SessionId) -> Result<(), Fault> {
        let is_known = self.parts.dispatcher.board().node(node).is_some();
        if is_known || self.parts.store.node(node).await.map_err(unavailable)?.is_some() {
            return Ok(());
        }
        Err(self.stranger(node, session).await)
    }

    /// Records what an agent says is wrong on its host, if that is not what was said before.
    async fn note_problems(&self, node: NodeId, session: SessionId, said: Vec<String>) -> Result<(), Fault> {
        let problems = bounded_problems(said);
        let is_new = self.parts.dispatcher.board().node(node).is_some_and(|node| node.problems != problems);
        if is_new {
            let at = self.parts.clock.now();
            let change = Change::NodeProblemsSet { node, session, problems, at };
            if self.parts.level.allows(&change) {
                self.parts.commit(vec![change]).await?;
            }
        }
        Ok(())
    }

    /// What the store says of leases that the board does not know.
    async fn sight_in_store(&self, node: NodeId, unknown: Vec<LeaseRef>) -> Result<Sighted, Fault> {
        let executions: Vec<ExecutionId> = unknown.iter().map(|held| held.execution).collect();
        let stored = self.stored(&executions).await?;
        let mut sighted = Sighted::default();
        for held in unknown {
            match stored.get(&held.execution) {
                Some(execution) if is_current(execution, node, held) => {
                    sighted.current.insert(held.execution);
                }
                Some(_) => sighted.refused.push(held),
                None => sighted.unheard.push(held),
            }
        }
        if !sighted.unheard.is_empty() {
            let record = self.parts.store.node(node).await.map_err(unavailable)?;
            let lease_ttl = self.parts.settings.lease_ttl.0;
            // Else the execution was here and is deleted, with its run.
            if !record.is_some_and(|record| self.rule().may_hold_of_another_store(&record, lease_ttl)) {
                sighted.refused.append(&mut sighted.unheard);
            }
        }
        Ok(sighted)
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

fn is_current(execution: &Execution, node: NodeId, held: LeaseRef) -> bool {
    let lease = execution.state.lease();
    execution.state.status().is_open()
        && lease.is_some_and(|lease| lease.token == held.token && lease.node == node)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub(super) fn unavailable(error: store::Error) -> Fault {
    Fault::Unavailable(error.to_string())
}

/// What the session of a deleted node is told.
pub(super) fn deleted(node: NodeId) -> Fault {
    Fault::NotFound(format!("node `{node}` was deleted"))
}

pub(super) fn superseded(node: NodeId) -> Fault {
    Fault::Superseded(format!("a newer agent registered as node `{node}`"))
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
        let cluster = cluster.ok_or_else(|| Fault::Unknown(format!("cluster `{}`", hello.cluster)))?;
        let settings = &self.parts.settings;
        Ok(Welcome {
            cluster,
            server_name: self.parts.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval: settings.heartbeat_interval.0,
            lease_ttl: settings.lease_ttl.0,
            output_max_bytes: settings.output_max_bytes,
            protocol,
            // The registration may reach an older server, which would declare lost what is announced with it.
            keeps_undelivered: self.parts.level.reaches(level::NODES),
        })
    }

    async fn register(&self, register: Register) -> Result<(), Fault> {
        self.take_in(register).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        let Heartbeat { node, session, held, leaving, problems } = heartbeat;
        if !self.parts.heartbeats.beat(node, session).await? {
            return Err(self.stranger(node, session).await);
        }
        let (status, (stop, unknown), has_stray) = {
            let mut board = self.parts.dispatcher.board();
            let status = board.node(node).map(|record| record.status);
            (status, board.review(node, &held, self.parts.clock.now()), board.has_stray())
        };
        if has_stray {
            self.parts.dispatcher.wake();
        }
        // Whoever says goodbye is not gone for good: what it still holds waits for its restart, until silence says
        // otherwise.
        let to = if leaving { NodeStatus::Stale } else { NodeStatus::Online };
        if let Some(from) = status.filter(|from| *from != to) {
            let at = self.parts.clock.now();
            let moved = Change::NodeMoved { node, session, from, to, silent_since: None, at };
            self.parts.commit(vec![moved]).await?;
            self.parts.dispatcher.wake();
        }
        if leaving {
            let kept: HashSet<ExecutionId> = held.iter().map(|held| held.execution).collect();
            self.give_up(node, "its agent stopped", |execution, lease| {
                lease.session == session && !kept.contains(&execution.id)
            })
            .await?;
        }
        self.note_problems(node, session, problems).await?;
        let Sighted { refused, unheard, .. } = self.sight_in_store(node, unknown).await?;
        Ok(HeartbeatAnswer { refused, stop, unheard })
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        self.park(poll).await
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        self.record(report).await
    }

    async fn output(&self, output: Output) -> Result<(), Fault> {
        self.exists(output.node, output.session).await?;
        let sighted = self.sight(output.node, output.held).await?;
        let chunks = output.chunks.into_iter().filter(|chunk| sighted.current.contains(&chunk.execution));
        self.parts.outputs.append(chunks).await?;
        sighted.all_heard_of()
    }
}
