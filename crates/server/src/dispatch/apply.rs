//! Applies committed changes to the board.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::run::{RunState, frees_nodes};
use downbeat_core::work::{Attempt, Work};
use downbeat_core::{Change, Event};

use super::board::{Board, DispatchState, OpenExecution, kind_of};
use super::post::{Holding, Post};
use super::stray::Stray;
use crate::works::Works;

/// Executions and the nodes whose polls may return them.
pub(crate) type Touched = Vec<(ExecutionId, NodeId)>;

impl Board {
    pub(crate) fn apply(&mut self, events: &[Event], works: &Works) {
        let mut touched = Touched::new();
        for event in events {
            self.apply_one(&event.change, works, &mut touched);
        }
        // In the order of their rows: executions that are assigned together are reported and written together.
        touched.sort_unstable();
        for (_, node) in touched {
            self.with_post(node, Post::flush);
        }
    }

    fn apply_one(&mut self, change: &Change, works: &Works, touched: &mut Touched) {
        match change {
            Change::NodeRegistered { registration } => {
                let draining = self.node(registration.node).is_some_and(|record| record.draining);
                self.add_node(NodeRecord {
                    id: registration.node,
                    cluster: registration.cluster,
                    session: registration.session,
                    description: registration.description.clone(),
                    status: NodeStatus::Online,
                    draining,
                    registered_at: registration.at,
                    seen_at: registration.at,
                    installation: registration.installation.clone(),
                    undelivered: registration.undelivered.clone(),
                    kept_since: registration.kept_since,
                    displaced: registration.former.displaced(),
                    problems: Vec::new(),
                });
            }
            Change::NodeProblemsSet { node, problems, .. } => {
                self.alter(*node, |record| record.problems.clone_from(problems));
            }
            Change::NodeDeleted { node, .. } => self.remove_node(*node),
            Change::NodeMoved { node, to, .. } => {
                self.alter(*node, |record| record.status = *to);
                if *to == NodeStatus::Offline {
                    self.with_post(*node, Post::end_poll);
                }
            }
            Change::NodeDrainSet { node, draining, .. } => {
                self.alter(*node, |record| record.draining = *draining);
            }
            Change::ExecutionsAdded { executions, .. } => {
                for execution in executions.iter().filter(|one| one.state.status().is_open()) {
                    if let Some(work) = works.get(&execution.of) {
                        self.add_execution(execution, work, touched);
                    }
                }
            }
            Change::ExecutionLeased { execution, lease, .. } => {
                let waited = self.open.get(execution).map(|open| {
                    let slot = open.slot;
                    if let DispatchState::Waiting { until } = open.stage {
                        self.queue.remove(slot, until, *execution);
                    }
                    lease.granted_at.duration_since(open.created_at).unsigned_abs()
                });
                self.waits.extend(waited);
                self.lease_committed(*execution, lease, false, Some(touched));
            }
            Change::ExecutionFinished { execution, .. }
            | Change::ExecutionLost { execution, .. }
            | Change::ExecutionGivenUp { execution, .. }
            | Change::ExecutionSkipped { execution, .. } => self.close(*execution),
            Change::ExecutionCancelRequested { execution, .. } => {
                match self.open.get(execution).map(|open| open.stage) {
                    Some(DispatchState::Leased { node }) => {
                        self.with_post(node, |post| post.stop(*execution));
                        touched.push((*execution, node));
                    }
                    Some(
                        DispatchState::Waiting { .. }
                        | DispatchState::Paused { .. }
                        | DispatchState::Claimed { .. },
                    ) => {
                        self.cancelled += 1;
                        self.close(*execution);
                    }
                    None => {}
                }
            }
            Change::RunMoved { run, path, .. } => {
                if frees_nodes(path) {
                    self.give_back(run);
                }
                if path.last().copied().is_some_and(RunState::is_terminal) {
                    self.paused.remove(run);
                }
            }
            Change::RunPauseSet { run, paused, .. } => self.pause(run, *paused),
            Change::RunAdmitted { run, nodes, .. } => {
                for node in nodes {
                    self.hold_node(*node, run.clone());
                }
            }
            // `standing` removes a deleted cluster when every part has performed its events.
            Change::ClusterCreated { .. }
            | Change::ClusterChanged { .. }
            | Change::ClusterDeleted { .. }
            | Change::JobApplied { .. }
            | Change::JobPauseSet { .. }
            | Change::JobDeleted { .. }
            | Change::JobDecided { .. }
            | Change::BackfillCreated { .. }
            | Change::BackfillMoved { .. }
            | Change::BackfillCancelled { .. }
            | Change::JobNotTriggered { .. }
            | Change::TriggersFollowed { .. }
            | Change::ExecutionStarted { .. }
            | Change::InstanceFailed { .. }
            | Change::ApprovalDecided { .. }
            | Change::RunCreated { .. }
            | Change::RunTaken { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::RunCancelRequested { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. }
            | Change::Unknown { .. } => {}
        }
    }

    fn alter(&mut self, node: NodeId, change: impl FnOnce(&mut NodeRecord)) {
        self.with_post(node, |post| change(Arc::make_mut(&mut post.record)));
    }

    /// Adds an open execution, from the feed or from the store. An approval waits for a person, and not for a node.
    pub(crate) fn add_execution(&mut self, execution: &Execution, work: Arc<Work>, touched: &mut Touched) {
        if work.is_approval() {
            return;
        }
        let slot = self.queue.slot(&work, execution);
        let until = match execution.state {
            State::Pending { not_before } => not_before,
            _ => None,
        };
        let kind = kind_of(execution, &work);
        let open = OpenExecution {
            attempt: Attempt::from(execution),
            parent: execution.of.parent(),
            work,
            kind,
            slot,
            created_at: execution.created_at,
            stage: DispatchState::Waiting { until },
        };
        if self.open.insert(execution.id, open).is_none() {
            self.queue.retain(slot);
        }
        if self.is_paused(&execution.of)
            && matches!(execution.state, State::Pending { .. })
            && let Some(open) = self.open.get_mut(&execution.id)
        {
            open.stage = DispatchState::Paused { until };
            return;
        }
        match &execution.state {
            State::Pending { not_before: None } => self.queue.push(slot, execution.id),
            State::Pending { not_before: Some(until) } => self.queue.delay(*until, execution.id),
            State::Leased { lease, stop } => {
                self.waits.push(lease.granted_at.duration_since(execution.created_at).unsigned_abs());
                self.lease_committed(execution.id, lease, *stop, Some(touched));
            }
            State::Running { lease, stop, .. } => {
                self.lease_committed(execution.id, lease, *stop, None);
            }
            _ => {}
        }
    }

    /// Notes a committed lease. Assigns the execution to its node, unless its work is known to have reached
    /// the node: then `touched` is `None`.
    fn lease_committed(
        &mut self,
        execution: ExecutionId,
        lease: &Lease,
        stop: bool,
        touched: Option<&mut Touched>,
    ) {
        self.use_limits(execution, lease);
        let Some(open) = self.open.get_mut(&execution) else { return };
        open.stage = DispatchState::Leased { node: lease.node };
        let (of, kind, token) = (open.parent.clone(), open.kind, lease.token);
        let Some(post) = self.posts.get_mut(&lease.node) else {
            let reason = "the node was deleted".to_owned();
            self.stray.found.push(Stray { of, execution, token, reason, may_run: true });
            return;
        };
        post.settle(execution);
        let is_former = post.record.session != lease.session;
        let is_kept = is_former && post.record.undelivered.contains(&execution);
        let is_gone = (is_former && !is_kept) || post.record.status == NodeStatus::Offline;
        if is_gone && touched.is_some() {
            // No agent is there to run it, and the sweep ignores nodes that are already offline.
            self.with_post(lease.node, |post| post.forget(execution));
            let reason = "the agent's session has ended".to_owned();
            self.stray.found.push(Stray { of, execution, token, reason, may_run: false });
            return;
        }
        post.held.insert(execution, Holding::new(lease, of, kind, stop));
        if let Some(touched) = touched.filter(|_| post.asks_here() && !is_former) {
            post.assign(open.assignment(token));
            touched.push((execution, lease.node));
        }
    }

    pub(super) fn close(&mut self, execution: ExecutionId) {
        let Some(open) = self.open.remove(&execution) else { return };
        match open.stage {
            DispatchState::Waiting { until } => self.queue.remove(open.slot, until, execution),
            DispatchState::Paused { .. } => {}
            DispatchState::Claimed { node, at } => {
                self.with_post(node, |post| post.unclaim(execution));
                self.release_slots(open.slot, execution, at);
            }
            DispatchState::Leased { node } => {
                self.with_post(node, |post| post.forget(execution));
                self.end_limit_uses(open.slot, execution);
            }
        }
        self.queue.release(open.slot);
    }
}
