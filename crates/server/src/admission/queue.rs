//! Owns what is known of open runs as far as turns go, kept by the feed. Synchronous; nothing here waits.

use std::sync::Arc;

use downbeat_core::admission::{Applicant, Decision, Nodes, decide};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::run::{NodeRef, Resolved, RunEvent, RunLive, RunRecord, RunState, step};
use downbeat_core::{Change, Timestamp};

use crate::dispatch::Board;

/// An open run.
#[derive(Debug)]
struct Known {
    live: RunLive,
    exclusive: bool,
    priority: i32,
    created_at: Timestamp,
    resolved: Arc<Resolved>,
}

impl Known {
    fn of(run: &RunRecord) -> Self {
        Self {
            live: run.live.clone(),
            exclusive: run.definition.exclusive,
            priority: run.definition.priority,
            created_at: run.created_at,
            resolved: Arc::clone(&run.resolved),
        }
    }

    /// Returns the nodes that the run wants for itself.
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
    /// Adds an open run.
    pub(super) fn add(&mut self, run: &RunRecord) {
        self.waiting += usize::from(run.live.is_waiting());
        let before = self.runs.insert(run.id.clone(), Known::of(run));
        self.waiting -= usize::from(before.is_some_and(|before| before.live.is_waiting()));
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
        self.waiting > 0 && self.runs.values().any(|run| run.live.is_waiting() && run.exclusive)
    }

    pub(super) fn state(&self, run: &RunId) -> Option<RunState> {
        self.runs.get(run).map(|run| run.live.state())
    }

    pub(super) fn apply(&mut self, change: &Change) -> News {
        match change {
            Change::RunCreated { run, .. } => {
                self.add(run);
                News::Runs
            }
            Change::RunCancelRequested { .. } => {
                self.alter(change);
                News::Nothing
            }
            Change::RunMoved { path, .. } if path.is_empty() => News::Nothing,
            Change::RunTaken { .. }
            | Change::RunPauseSet { .. }
            | Change::RunAdmitted { .. }
            | Change::RunMoved { .. } => self.alter(change),
            Change::ExecutionFinished { .. }
            | Change::ExecutionLost { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeDeleted { .. } => News::Nodes,
            Change::NodeRegistered { .. }
            | Change::NodeMoved { .. }
            | Change::NodeProblemsSet { .. }
            | Change::ExecutionsAdded { .. }
            | Change::ExecutionLeased { .. }
            | Change::ExecutionStarted { .. }
            | Change::ExecutionCancelRequested { .. }
            | Change::ExecutionGivenUp { .. }
            | Change::ExecutionSkipped { .. }
            | Change::Unknown { .. } => News::Nothing,
        }
    }

    fn alter(&mut self, change: &Change) -> News {
        let Some((id, event)) = RunEvent::of(change) else { return News::Nothing };
        let Some(known) = self.runs.get_mut(id) else { return News::Nothing };
        // An event that has no effect was part of what was loaded.
        let Ok(next) = step(&known.live, &event) else { return News::Nothing };
        self.waiting = self.waiting + usize::from(next.is_waiting()) - usize::from(known.live.is_waiting());
        known.live = next;
        if known.live.is_ended() {
            self.runs.remove(id);
        }
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
                waits: run.live.is_waiting(),
                paused: run.live.paused_at.is_some(),
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
        let run = self.runs.get(id).filter(|run| run.live.owner == server)?;
        let nodes = run.nodes().iter().map(|node| node.id).collect();
        Some(Change::RunAdmitted { run: id.clone(), epoch: run.live.epoch, limit, nodes, at })
    }
}
