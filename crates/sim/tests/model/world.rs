//! Owns the modelled world: the real tables and engine, and around them what servers believe, what agents hold and
//! what is on its way. It is a value, so that the checker can try every order of events.

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
    /// The session that each agent lives in. It may not have registered it yet.
    pub(crate) agents: [u8; NODES],
    /// Every lease that was ever committed, in that order.
    pub(crate) grants: Vec<Grant>,
    /// How many more things may go wrong.
    pub(crate) faults: u8,
    /// What was seen to be broken by a step that led here.
    pub(crate) breaches: Breaches,
}

/// What one server has in memory about the run. All of it dies with the server.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Idle,
    /// Its take-over is committed; it has not loaded the run yet.
    Taken {
        epoch: u64,
        mailbox: VecDeque<Change>,
    },
    /// It believes that the run is its own.
    Owner(Arc<Owner>),
}

#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) progress: Progress,
    /// Committed, and not observed yet. Something follows from the first of it: what nothing follows from is observed
    /// at once, because nobody could tell.
    pub(crate) mailbox: VecDeque<Change>,
    /// A commit whose answer was lost: it is tried again before anything else.
    pub(crate) retry: Vec<Change>,
    /// How many executions it has made: its ids follow from that.
    pub(crate) made: u64,
    /// What it has observed; two owners that agree in this have the same progress.
    pub(crate) observed: Observed,
}

/// A digest of what was observed since the load, as it is and in the mirror. Leases and successes commute; all else
/// does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) ordered: [u64; 2],
    pub(crate) unordered: [u64; 2],
}

/// A lease, what its agent has made of it, and what became of its reports. What an agent says is never taken off the
/// network: it may arrive late, again and again, or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) execution: ExecutionId,
    pub(crate) token: LeaseToken,
    pub(crate) node: usize,
    pub(crate) session: u8,
    pub(crate) phase: Phase,
    /// How many results were applied with it.
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
    /// The agent knows nothing of it any more.
    Gone(Option<Verdict>, Memory),
}

/// Why an agent let go of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Recorded,
    Refused,
    /// It died.
    Forgotten,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaches {
    pub(crate) old_owner: bool,
    pub(crate) ended_moved: bool,
    pub(crate) feed: bool,
}

/// An execution by the name that people would use: the same attempt has the same name in every order of events.
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

    pub(crate) fn hear(&mut self, change: &Change, tables: &Tables) {
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
    /// The result, once there was one, whoever remembers it.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Finished(verdict) | Phase::Gone(Some(verdict), _) => Some(verdict),
            Phase::Sent | Phase::Running | Phase::Gone(None, _) => None,
        }
    }
}

impl World {
    /// The run, which is created at the beginning.
    pub(crate) fn run(&self) -> &RunLive {
        &self.tables.runs[&run_id()]
    }

    pub(crate) fn execution(&self, id: ExecutionId) -> &Execution {
        &self.tables.executions[&id]
    }

    /// Whether this lease is the current one of an execution that has not ended.
    pub(crate) fn is_current(&self, grant: &Grant) -> bool {
        let state = &self.execution(grant.execution).state;
        state.status().is_open() && state.lease().is_some_and(|lease| lease.token == grant.token)
    }

    /// The session that a node is registered with.
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
