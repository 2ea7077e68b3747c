//! Owns the open runs as admission sees them, kept up to date by the feed. It is synchronous and never waits.

use downbeat_core::admission::{Applicant, Decision, Nodes, decide};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::plan::NodeRef;
use downbeat_core::run::{RunEvent, RunLive, RunRecord, RunState, step};
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

/// The open runs, with their counts.
#[derive(Debug, Default)]
pub(super) struct Queue {
    runs: HashMap<RunId, RunRecord>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: usize,
    active: usize,
}

impl Counts {
    fn moved(&mut self, before: Option<&RunLive>, now: &RunLive) {
        self.waiting += usize::from(now.is_waiting());
        self.waiting -= usize::from(before.is_some_and(RunLive::is_waiting));
        self.active += usize::from(now.is_active());
        self.active -= usize::from(before.is_some_and(RunLive::is_active));
    }
}

impl Queue {
    pub(super) fn add(&mut self, run: &RunRecord) {
        let before = self.runs.insert(run.id.clone(), run.clone());
        self.counts.moved(before.as_ref().map(|before| &before.live), &run.live);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn waiting(&self) -> usize {
        self.counts.waiting
    }

    pub(super) fn active(&self) -> usize {
        self.counts.active
    }

    pub(super) fn awaits_nodes(&self) -> bool {
        self.counts.waiting > 0
            && self.runs.values().any(|run| run.live.is_waiting() && run.definition.exclusive)
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
        self.counts.moved(Some(&run.live), &next);
        run.live = next;
        if run.live.is_ended() {
            self.runs.remove(id);
        }
        // A requested end admits no run; the end itself may.
        if matches!(event, RunEvent::CancelRequested { .. }) { Affects::Nothing } else { Affects::Runs }
    }

    pub(super) fn decide(&self, board: &Board, limit: Option<u32>) -> Decision {
        if self.counts.waiting == 0 {
            return Decision::default();
        }
        let applicants: Vec<Applicant<'_>> = self
            .runs
            .iter()
            .map(|(id, run)| Applicant {
                id,
                live: &run.live,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use downbeat_core::ids::ClusterId;
    use downbeat_core::plan::Resolved;
    use downbeat_core::run::{RunMade, RunStage};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn run(name: &str, state: RunState) -> RunRecord {
        let definition = json!({"tasks": [{"backend": "test", "action": "noop"}]});
        let made = RunMade {
            id: RunId::from(name),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition: Arc::new(serde_json::from_value(definition).unwrap()),
            resolved: Arc::new(Resolved::default()),
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
        run.live.stage = RunStage::of(state, false, None).unwrap();
        run
    }

    #[test]
    fn a_scheduled_run_neither_waits_nor_is_active() {
        let mut queue = Queue::default();
        queue.add(&run("scheduled", RunState::PreRun));
        queue.add(&run("running", RunState::Running));
        assert_eq!((queue.waiting(), queue.active()), (0, 1));
        let mut becomes = |path: &[RunState]| {
            let (run, path) = (RunId::from("scheduled"), path.to_vec());
            queue.apply(&Change::RunMoved { run, epoch: 1, path, end: None, at: Timestamp::UNIX_EPOCH });
            (queue.waiting(), queue.active())
        };
        assert_eq!(becomes(&[RunState::Pending]), (1, 1));
        assert_eq!(becomes(&[RunState::Starting]), (0, 2));
        assert_eq!(becomes(&[RunState::Terminating, RunState::Retrying]), (0, 2));
        assert_eq!(becomes(&[RunState::Pending]), (1, 1));
        assert_eq!(becomes(&[RunState::Cancelled]), (0, 1));
        assert_eq!(queue.runs.len(), 1);
    }
}
