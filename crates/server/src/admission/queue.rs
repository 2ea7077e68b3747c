//! Owns the open runs as admission sees them, kept up to date by the feed. It is synchronous and never waits.

use downbeat_core::admission::{Applicant, Decision, Nodes, decide};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::run::{NodeRef, RunEvent, RunRecord, RunState, step};
use downbeat_core::{Change, Timestamp};

use crate::dispatch::Board;

/// Which waiting runs a committed change may admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Affects {
    Nothing,
    /// An execution ended on a node: affects runs that wait for nodes.
    Nodes,
    /// A run was created, ended, or moved in the queue: affects all.
    Runs,
}

/// The open runs, with those that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    runs: HashMap<RunId, RunRecord>,
    waiting: usize,
}

impl Queue {
    pub(super) fn add(&mut self, run: &RunRecord) {
        self.waiting += usize::from(run.live.is_waiting());
        let before = self.runs.insert(run.id.clone(), run.clone());
        self.waiting -= usize::from(before.is_some_and(|before| before.live.is_waiting()));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn active(&self) -> usize {
        self.runs.len() - self.waiting
    }

    pub(super) fn awaits_nodes(&self) -> bool {
        self.waiting > 0 && self.runs.values().any(|run| run.live.is_waiting() && run.definition.exclusive)
    }

    pub(super) fn state(&self, run: &RunId) -> Option<RunState> {
        self.runs.get(run).map(RunRecord::state)
    }

    pub(super) fn apply(&mut self, change: &Change) -> Affects {
        match change {
            Change::RunCreated { run, .. } => {
                self.add(run);
                Affects::Runs
            }
            Change::ExecutionFinished { .. }
            | Change::ExecutionLost { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeDeleted { .. } => Affects::Nodes,
            Change::RunMoved { path, .. } if path.is_empty() => Affects::Nothing,
            _ => RunEvent::of(change).map_or(Affects::Nothing, |(run, event)| self.alter(run, &event)),
        }
    }

    fn alter(&mut self, id: &RunId, event: &RunEvent<'_>) -> Affects {
        let Some(run) = self.runs.get_mut(id) else { return Affects::Nothing };
        // An event without an effect was part of the loaded state.
        let Ok(next) = step(&run.live, event) else { return Affects::Nothing };
        self.waiting = self.waiting + usize::from(next.is_waiting()) - usize::from(run.live.is_waiting());
        run.live = next;
        if run.live.is_ended() {
            self.runs.remove(id);
        }
        // A requested end admits no run; the end itself may.
        if matches!(event, RunEvent::CancelRequested { .. }) { Affects::Nothing } else { Affects::Runs }
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
                priority: run.definition.priority,
                created_at: run.created_at,
                nodes: wanted_nodes(run),
            })
            .collect();
        let holder = |node: NodeId| board.holder(node).cloned();
        let busy = |node: NodeId, run: &RunId| board.other_run_on(node, run).cloned();
        let drained = |node: NodeId| board.node(node).is_some_and(|node| node.draining);
        decide(&applicants, &Nodes { holder: &holder, busy: &busy, drained: &drained }, limit)
    }

    /// Returns the change that admits a run, if this server owns it.
    pub(super) fn admit(
        &self,
        id: &RunId,
        server: ServerId,
        limit: Option<u32>,
        at: Timestamp,
    ) -> Option<Change> {
        let run = self.runs.get(id).filter(|run| run.live.owner == server)?;
        let nodes = wanted_nodes(run).iter().map(|node| node.id).collect();
        Some(Change::RunAdmitted { run: id.clone(), epoch: run.live.epoch, limit, nodes, at })
    }
}

/// Returns the nodes that the run wants for itself.
fn wanted_nodes(run: &RunRecord) -> &[NodeRef] {
    if run.definition.exclusive { &run.resolved.nodes } else { &[] }
}
