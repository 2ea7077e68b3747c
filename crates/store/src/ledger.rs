//! Owns the tables as a plain value, for whoever models the protocol: the guards that every store runs, and nothing
//! around them. A value can be cloned and compared, so that a checker may try every order of events.

use downbeat_core::change::Change;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, SessionId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{RunRecord, RunState};

use crate::port::Committed;
use crate::tables::Tables;

/// The tables of one store, and the number of its last event.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    tables: Tables,
    last_seq: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// Empty, with the cluster `default`.
    pub fn new() -> Self {
        let mut tables = Tables::default();
        tables.clusters.insert(ClusterId::DEFAULT);
        Self { tables, last_seq: 0 }
    }

    /// What `Store::commit` does.
    pub fn commit(&mut self, changes: &[Change]) -> Committed {
        let verdicts = self.tables.apply_all(changes);
        let seqs = verdicts.seqs(self.last_seq);
        self.last_seq += verdicts.applied.len() as u64;
        Committed { outcomes: verdicts.outcomes, seqs }
    }

    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The session that a node is registered with.
    pub fn session(&self, node: NodeId) -> Option<SessionId> {
        self.tables.nodes.get(&node).map(|node| node.session)
    }

    pub fn status(&self, node: NodeId) -> Option<NodeStatus> {
        self.tables.nodes.get(&node).map(|node| node.status)
    }

    /// A run's state and epoch.
    pub fn run(&self, run: &RunId) -> Option<(RunState, u64)> {
        self.tables.runs.get(run).map(|run| (run.state, run.epoch))
    }

    /// The record of a run that was created as `created`, as it stands.
    pub fn record(&self, created: &RunRecord) -> Option<RunRecord> {
        let live = self.tables.runs.get(&created.id)?.clone();
        Some(RunRecord {
            state: live.state,
            started_at: live.started_at,
            finished_at: live.finished_at,
            end: live.end,
            cancel_requested_at: live.cancel_requested_at,
            paused_at: live.paused_at,
            admitted_at: live.admitted_at,
            owner: live.owner,
            epoch: live.epoch,
            ..created.clone()
        })
    }

    pub fn execution(&self, id: ExecutionId) -> Option<&Execution> {
        self.tables.executions.get(&id)
    }

    /// By id.
    pub fn executions(&self) -> impl Iterator<Item = &Execution> {
        self.tables.executions.values()
    }

    /// Puts an execution into a state past all guards: how a model shows that it would notice if they were missing.
    pub fn force(&mut self, id: ExecutionId, state: State) {
        if let Some(execution) = self.tables.executions.get_mut(&id) {
            execution.state = state;
        }
    }
}
