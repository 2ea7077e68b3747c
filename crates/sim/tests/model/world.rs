//! Owns the modelled world: the real tables and engine, and the servers' memory, the agents' state and the messages in
//! transit. It is a value, so that the checker can try every order of events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::execution::{Execution, Verdict};
use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId, SessionId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunLive;
use downbeat_core::run::engine::Progress;
use downbeat_core::state::Tables;
use uuid::Uuid;

use super::setup::run_id;

pub(crate) const SERVERS: usize = 2;
pub(crate) const NODES: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) tables: Arc<Tables>,
    /// The number of the last event.
    pub(crate) last_seq: u64,
    pub(crate) servers: [Server; SERVERS],
    /// The current session of each agent. It may not be registered yet.
    pub(crate) agents: [u8; NODES],
    /// Every lease that was ever committed, in order.
    pub(crate) grants: Vec<Grant>,
    /// The number of remaining faults.
    pub(crate) faults: u8,
    /// The rules that a step on the way here broke.
    pub(crate) breaches: Breaches,
}

/// One server's memory of the run. A crash erases it.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Idle,
    /// Its takeover is committed; it has not loaded the run yet.
    Taken {
        epoch: u64,
        mailbox: VecDeque<Change>,
    },
    /// It believes that it owns the run.
    Owner(Arc<Owner>),
}

#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) progress: Progress,
    /// Committed changes that are not observed yet. The first has consequences: changes without consequences are
    /// observed at once, which makes no difference.
    pub(crate) mailbox: VecDeque<Change>,
    /// A commit whose response was lost: it is retried before anything else.
    pub(crate) retry: Vec<Change>,
    /// The number of executions it has created, from which it derives ids.
    pub(crate) made: u64,
    /// Its observations; two owners with the same observations have the same progress.
    pub(crate) observed: Observed,
}

/// A digest of the observations since the load, and of their mirror image. Leases and successes commute; nothing else
/// does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) ordered: [u64; 2],
    pub(crate) unordered: [u64; 2],
}

/// A lease, its agent's state, and the state of its reports. A report is never removed from the network: it may arrive
/// late, repeatedly, or never.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) execution: ExecutionId,
    pub(crate) token: LeaseToken,
    pub(crate) node: usize,
    pub(crate) session: u8,
    pub(crate) phase: Phase,
    /// The number of results that were applied with it.
    pub(crate) results: u8,
    /// By a result, or by its loss.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// On its way to the agent.
    Sent,
    Running,
    /// The result is on the agent's disk.
    Finished(Verdict),
    /// The agent has no record of it any more.
    Gone(Option<Verdict>, Memory),
}

/// Why an agent dropped a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Recorded,
    Refused,
    /// The agent crashed.
    Forgotten,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaches {
    pub(crate) old_owner: bool,
    pub(crate) ended_moved: bool,
    pub(crate) feed: bool,
}

/// An execution's readable name: the same attempt has the same name in every order of events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) id: ExecutionId,
    step: u32,
    node: Option<usize>,
    number: u32,
    epoch: i64,
}

impl Attempt {
    pub(crate) fn of(execution: &Execution) -> Self {
        Self {
            id: execution.id,
            step: execution.step(),
            node: execution.pinned.and_then(node_index),
            number: execution.attempt,
            epoch: execution.created_at.as_second(),
        }
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id: _, step, node, number, epoch } = self;
        let node = node.map_or_else(|| "placed".to_owned(), |node| format!("n{node}"));
        write!(f, "step{step}/{node}/attempt{number}/epoch{epoch}")
    }
}

pub(crate) fn node_id(node: usize) -> NodeId {
    NodeId(Uuid::from_u128(0x100 + node as u128))
}

pub(crate) fn node_index(id: NodeId) -> Option<usize> {
    (0..NODES).find(|node| node_id(*node) == id)
}

pub(crate) fn session_id(session: u8) -> SessionId {
    SessionId(Uuid::from_u128(u128::from(session)))
}

pub(crate) fn session_number(id: SessionId) -> u8 {
    u8::try_from(id.0.as_u128()).expect("sessions are numbered from 1")
}

pub(crate) fn is_offline(tables: &Tables, node: NodeId) -> bool {
    tables.nodes.get(&node).is_some_and(|node| node.status == NodeStatus::Offline)
}

impl Server {
    pub(crate) fn epoch(&self) -> Option<u64> {
        match self {
            Server::Idle => None,
            Server::Taken { epoch, .. } => Some(*epoch),
            Server::Owner(owner) => Some(owner.progress.epoch()),
        }
    }

    pub(crate) fn receive(&mut self, change: &Change, tables: &Tables) {
        match self {
            Server::Idle => {}
            Server::Taken { mailbox, .. } => mailbox.push_back(change.clone()),
            Server::Owner(owner) => {
                let owner = Arc::make_mut(owner);
                owner.mailbox.push_back(change.clone());
                if owner.mailbox.len() == 1 {
                    owner.absorb(tables);
                }
            }
        }
    }
}

impl Grant {
    /// Returns the result, if there ever was one.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Finished(verdict) | Phase::Gone(Some(verdict), _) => Some(verdict),
            Phase::Sent | Phase::Running | Phase::Gone(None, _) => None,
        }
    }
}

impl World {
    /// Returns the run, which always exists.
    pub(crate) fn run(&self) -> &RunLive {
        &self.tables.runs[&run_id()]
    }

    pub(crate) fn execution(&self, id: ExecutionId) -> &Execution {
        &self.tables.executions[&id]
    }

    /// Returns true if this lease is the current one of an execution that has not ended.
    pub(crate) fn is_current(&self, grant: &Grant) -> bool {
        let state = &self.execution(grant.execution).state;
        state.status().is_open() && state.lease().is_some_and(|lease| lease.token == grant.token)
    }

    /// Returns the registered session of a node.
    pub(crate) fn registered(&self, node: usize) -> u8 {
        session_number(self.tables.nodes[&node_id(node)].session)
    }

    pub(crate) fn is_offline(&self, node: usize) -> bool {
        is_offline(&self.tables, node_id(node))
    }

    pub(crate) fn grant(&self, token: LeaseToken) -> &Grant {
        self.grants.iter().find(|grant| grant.token == token).expect("only granted leases are acted upon")
    }

    pub(crate) fn grant_mut(&mut self, token: LeaseToken) -> &mut Grant {
        self.grants.iter_mut().find(|grant| grant.token == token).expect("only granted leases are acted upon")
    }
}
