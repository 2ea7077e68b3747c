//! Owns what is known of open runs as far as turns go, kept by the feed. Synchronous; nothing here waits.

use std::sync::Arc;

use downbeat_core::admission::{Applicant, Decision, Nodes, decide};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::run::{NodeRef, Resolved, RunRecord, RunState};
use downbeat_core::{Change, Timestamp};

use crate::dispatch::Board;

/// An open run.
#[derive(Debug)]
struct Known {
    state: RunState,
    /// It had to wait, and was not let in yet.
    waits: bool,
    paused: bool,
    exclusive: bool,
    priority: i32,
    created_at: Timestamp,
    resolved: Arc<Resolved>,
    owner: ServerId,
    epoch: u64,
}

impl Known {
    fn of(run: &RunRecord, waits: bool) -> Self {
        Self {
            state: run.state,
            waits,
            paused: run.paused_at.is_some(),
            exclusive: run.definition.exclusive,
            priority: run.definition.priority,
            created_at: run.created_at,
            resolved: Arc::clone(&run.resolved),
            owner: run.owner,
            epoch: run.epoch,
        }
    }

    /// What it wants for itself.
    fn nodes(&self) -> &[NodeRef] {
        if self.exclusive { &self.resolved.nodes } else { &[] }
    }
}

/// Whose turn may have come by what was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    Nothing,
    /// Something ended on a node: of interest to those who wait for nodes.
    Nodes,
    /// A run came, ended, or moved in the queue.
    Runs,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    runs: HashMap<RunId, Known>,
    waiting: usize,
}

impl Queue {
    /// A run that the store holds open. One that is pending and was not let in waits: those that need not wait begin
    /// in the commit that creates them.
    pub(super) fn add(&mut self, run: &RunRecord) {
        let waits = run.state == RunState::Pending && run.admitted_at.is_none();
        self.insert(run, waits);
    }

    fn insert(&mut self, run: &RunRecord, waits: bool) {
        self.waiting += usize::from(waits);
        let before = self.runs.insert(run.id.clone(), Known::of(run, waits));
        self.waiting -= usize::from(before.is_some_and(|before| before.waits));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many runs are under way.
    pub(super) fn under_way(&self) -> usize {
        self.runs.len() - self.waiting
    }

    /// Whether somebody waits for nodes.
    pub(super) fn awaits_nodes(&self) -> bool {
        self.waiting > 0 && self.runs.values().any(|run| run.waits && run.exclusive)
    }

    /// Where a run stands.
    pub(super) fn state(&self, run: &RunId) -> Option<RunState> {
        self.runs.get(run).map(|run| run.state)
    }

    pub(super) fn apply(&mut self, change: &Change) -> News {
        match change {
            Change::RunCreated { run, max_pending } => {
                self.insert(run, max_pending.is_some() && run.admitted_at.is_none());
                News::Runs
            }
            Change::RunTaken { run, owner, epoch, .. } => self.alter(run, |run| {
                (run.owner, run.epoch) = (*owner, *epoch);
            }),
            Change::RunPauseSet { run, paused, .. } => self.alter(run, |run| run.paused = *paused),
            Change::RunAdmitted { run, .. } => self.alter(run, |run| run.waits = false),
            Change::RunMoved { run, path, .. } => match path.last() {
                None => News::Nothing,
                Some(state) if state.is_terminal() => {
                    let gone = self.runs.remove(run);
                    self.waiting -= usize::from(gone.is_some_and(|gone| gone.waits));
                    News::Runs
                }
                // Whoever moves on does not wait any more, also when it was cancelled before its turn came.
                Some(state) => self.alter(run, |run| (run.state, run.waits) = (*state, false)),
            },
            Change::ExecutionFinished { .. }
            | Change::ExecutionLost { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeDeleted { .. } => News::Nodes,
            Change::NodeRegistered { .. }
            | Change::NodeMoved { .. }
            | Change::NodeProblemsSet { .. }
            | Change::RunCancelRequested { .. }
            | Change::ExecutionsAdded { .. }
            | Change::ExecutionLeased { .. }
            | Change::ExecutionStarted { .. }
            | Change::ExecutionCancelRequested { .. }
            | Change::ExecutionGivenUp { .. }
            | Change::ExecutionSkipped { .. }
            | Change::Unknown { .. } => News::Nothing,
        }
    }

    fn alter(&mut self, run: &RunId, act: impl FnOnce(&mut Known)) -> News {
        let Some(known) = self.runs.get_mut(run) else { return News::Nothing };
        let before = known.waits;
        act(known);
        self.waiting = self.waiting + usize::from(known.waits) - usize::from(before);
        News::Runs
    }

    pub(super) fn decide(&self, board: &Board, limit: Option<u32>) -> Decision {
        if self.waiting == 0 {
            return Decision::default();
        }
        let applicants: Vec<Applicant<'_>> = self
            .runs
            .iter()
            .map(|(id, run)| Applicant {
                id,
                waits: run.waits,
                paused: run.paused,
                priority: run.priority,
                created_at: run.created_at,
                nodes: run.nodes(),
            })
            .collect();
        let holder = |node: NodeId| board.holder(node).cloned();
        let busy = |node: NodeId, run: &RunId| board.at_work(node, run).cloned();
        let drained = |node: NodeId| board.node(node).is_some_and(|node| node.draining);
        decide(&applicants, &Nodes { holder: &holder, busy: &busy, drained: &drained }, limit)
    }

    /// The change that lets a run in, if it is this server's.
    pub(super) fn admit(
        &self,
        id: &RunId,
        server: ServerId,
        limit: Option<u32>,
        at: Timestamp,
    ) -> Option<Change> {
        let run = self.runs.get(id).filter(|run| run.owner == server)?;
        let nodes = run.nodes().iter().map(|node| node.id).collect();
        Some(Change::RunAdmitted { run: id.clone(), epoch: run.epoch, limit, nodes, at })
    }
}
