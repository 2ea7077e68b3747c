//! Owns the calls that agents make to a server.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId, SessionId};
use downbeat_core::node::{NodeStatus, bounded_problems};
use downbeat_core::{Change, level};
use downbeat_proto::Link;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, LeaseRef, OLDEST_PROTOCOL, Output, PROTOCOL, Poll, PollAnswer,
    Register, Registered, Report, ReportAnswer, Welcome, agreed_protocol,
};
use downbeat_store as store;

use super::Result;
use crate::parts::Parts;

/// The leases that an agent lists, compared with this server's knowledge.
#[derive(Debug, Default)]
pub(super) struct CheckedLeases {
    pub(super) current: HashSet<ExecutionId>,
    refused: Vec<LeaseRef>,
    /// Leases that this store does not know and that another store may have granted.
    unheard: Vec<LeaseRef>,
}

impl CheckedLeases {
    /// Fails if a lease may belong to another store. The agent then keeps its report and sends it again.
    pub(super) fn require_known(&self) -> Result<()> {
        match &self.unheard[..] {
            [] => Ok(()),
            [held, ..] => Err(Fault::Unknown(format!("execution `{}`", held.execution))),
        }
    }
}

/// The server as agents see it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(super) parts: Parts,
}

impl Host {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Checks which of these leases are current. Reads the store only for leases that the board does not know.
    pub(super) async fn check_leases(&self, node: NodeId, held: Vec<LeaseRef>) -> Result<CheckedLeases> {
        let (known, unknown): (Vec<LeaseRef>, Vec<LeaseRef>) = {
            let board = self.parts.dispatcher.board();
            held.into_iter().partition(|held| board.holds(node, held))
        };
        let mut checked = self.check_in_store(node, unknown).await?;
        checked.current.extend(known.into_iter().map(|held| held.execution));
        Ok(checked)
    }

    /// Returns whether the node was deleted while it had this session, or its whole cluster was.
    pub(super) async fn is_deleted(&self, node: NodeId, session: SessionId) -> Result<bool> {
        if self.parts.standing.is_deleted(node) {
            return Ok(true);
        }
        let tombstones = self.parts.store.tombstones(Some(node)).await.map_err(unavailable)?;
        Ok(tombstones.iter().any(|tombstone| tombstone.session == session))
    }

    /// Returns why a session is not the current one of its node.
    async fn why_not_current(&self, node: NodeId, session: SessionId) -> Fault {
        let stored = async {
            let is_deleted = self.is_deleted(node, session).await?;
            Ok((is_deleted, self.parts.store.node(node).await.map_err(unavailable)?))
        };
        match stored.await {
            Ok((true, _)) => deleted(node),
            Ok((false, None)) => Fault::Unknown(format!("node `{node}`")),
            Ok((false, Some(stored))) if stored.displaced == Some(session) => Fault::Occupied(format!(
                "another installation registered as {} while this one was disconnected",
                stored.description.hostname
            )),
            Ok((false, Some(stored))) if stored.session == session => {
                Fault::Unavailable(format!("node `{node}` has just registered; try again"))
            }
            Ok((false, Some(_))) => superseded(node),
            Err(fault) => fault,
        }
    }

    /// Fails if the node does not exist. Any of its sessions will do.
    pub(super) async fn require_node(&self, node: NodeId, session: SessionId) -> Result<()> {
        let is_known = self.parts.dispatcher.board().node(node).is_some();
        if is_known || self.parts.store.node(node).await.map_err(unavailable)?.is_some() {
            return Ok(());
        }
        Err(self.why_not_current(node, session).await)
    }

    /// Records the problems of an agent's host, if they have changed.
    async fn note_problems(&self, node: NodeId, session: SessionId, problems: Vec<String>) -> Result<()> {
        let problems = bounded_problems(problems);
        let is_new = self.parts.dispatcher.board().node(node).is_some_and(|node| node.problems != problems);
        if is_new {
            let at = self.parts.clock.now();
            let change = Change::NodeProblemsSet { node, session, problems, at };
            if self.parts.level.allows(&change) {
                self.parts.journal.commit(vec![change]).await?;
            }
        }
        Ok(())
    }

    async fn check_in_store(&self, node: NodeId, unknown: Vec<LeaseRef>) -> Result<CheckedLeases> {
        let executions: Vec<ExecutionId> = unknown.iter().map(|held| held.execution).collect();
        let stored = self.stored(&executions).await?;
        let mut checked = CheckedLeases::default();
        for held in unknown {
            match stored.get(&held.execution) {
                Some(execution) if is_current(execution, node, held) => {
                    checked.current.insert(held.execution);
                }
                Some(_) => checked.refused.push(held),
                None => checked.unheard.push(held),
            }
        }
        if !checked.unheard.is_empty() {
            let record = self.parts.store.node(node).await.map_err(unavailable)?;
            let lease_ttl = self.parts.settings.lease_ttl.0;
            // Otherwise the execution was in this store and was deleted with its run.
            if !record.is_some_and(|record| self.rule().may_hold_of_another_store(&record, lease_ttl)) {
                checked.refused.append(&mut checked.unheard);
            }
        }
        Ok(checked)
    }

    /// Reads these executions from the store with one query.
    pub(super) async fn stored(&self, executions: &[ExecutionId]) -> Result<HashMap<ExecutionId, Execution>> {
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

pub(super) fn deleted(node: NodeId) -> Fault {
    Fault::NotFound(format!("node `{node}` was deleted"))
}

pub(super) fn no_cluster(name_or_id: impl fmt::Display) -> Fault {
    Fault::NoCluster(format!("cluster `{name_or_id}` does not exist"))
}

pub(super) fn superseded(node: NodeId) -> Fault {
    Fault::Superseded(format!("a newer agent registered as node `{node}`"))
}

#[async_trait]
impl Link for Host {
    async fn hello(&self, hello: Hello) -> Result<Welcome> {
        let protocol = agreed_protocol(hello.protocol).ok_or_else(|| {
            Fault::Rejected(format!(
                "this server supports versions {OLDEST_PROTOCOL} to {PROTOCOL} of the agent protocol, the agent ({}) \
                 uses version {}: upgrade the agent",
                hello.version, hello.protocol
            ))
        })?;
        let cluster = self.parts.store.cluster(&hello.cluster).await.map_err(unavailable)?;
        let cluster = cluster.ok_or_else(|| no_cluster(&hello.cluster))?;
        let settings = &self.parts.settings;
        Ok(Welcome {
            cluster,
            server_name: self.parts.itself.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval: settings.heartbeat_interval.0,
            lease_ttl: settings.lease_ttl.0,
            output_max_bytes: settings.output_max_bytes,
            protocol,
            // An older server may get the registration, and would declare the announced results lost.
            keeps_undelivered: self.parts.level.reaches(level::NODES),
        })
    }

    async fn register(&self, register: Register) -> Result<Registered> {
        self.register_node(register).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer> {
        let Heartbeat { node, session, held, leaving, problems } = heartbeat;
        // Its row may still be there: it is removed in portions.
        if self.parts.standing.is_deleted(node) {
            return Err(deleted(node));
        }
        let Some(heard) = self.parts.heartbeats.beat(node, session).await? else {
            return Err(self.why_not_current(node, session).await);
        };
        let (status, (stop, unknown), has_stray) = {
            let mut board = self.parts.dispatcher.board();
            let status = board.node(node).map(|record| record.status);
            (status, board.review(node, &held, self.parts.clock.now()), board.has_stray())
        };
        if has_stray {
            self.parts.dispatcher.wake();
        }
        // An agent that leaves may restart: its remaining leases wait for it until they expire.
        let to = if leaving { NodeStatus::Stale } else { NodeStatus::Online };
        let at = self.parts.clock.now();
        // A heartbeat that was recorded late does not end a silence: other servers would see it go on. The next one does.
        let silent_for = Duration::try_from(at.duration_since(heard)).unwrap_or_default();
        let is_heard = leaving || self.parts.settings.health().status(silent_for) == to;
        if let Some(from) = status.filter(|from| *from != to && is_heard) {
            let moved = Change::NodeMoved { node, session, from, to, silent_since: None, at };
            self.parts.journal.commit(vec![moved]).await?;
            self.parts.dispatcher.wake();
        }
        if leaving {
            let kept: HashSet<ExecutionId> = held.iter().map(|held| held.execution).collect();
            self.end_leases(node, "the agent stopped", |execution, lease| {
                lease.session == session && !kept.contains(&execution.id)
            })
            .await?;
        }
        self.note_problems(node, session, problems).await?;
        let CheckedLeases { refused, unheard, .. } = self.check_in_store(node, unknown).await?;
        Ok(HeartbeatAnswer { refused, stop, unheard })
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer> {
        self.park(poll).await
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer> {
        self.record(report).await
    }

    async fn output(&self, output: Output) -> Result<()> {
        self.require_node(output.node, output.session).await?;
        let checked = self.check_leases(output.node, output.held).await?;
        let chunks = output.chunks.into_iter().filter(|chunk| checked.current.contains(&chunk.execution));
        self.parts.outputs.append(chunks).await?;
        checked.require_known()
    }
}
