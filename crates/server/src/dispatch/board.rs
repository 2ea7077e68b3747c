//! Owns the board: every open execution and every node, as the feed reports them. It is synchronous and never waits.

use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus, Reach};
use downbeat_core::work::{Attempt, Parent, Work};
use downbeat_core::{Timestamp, limits};
use downbeat_proto::message::{Assignment, Free, LeaseRef, PollAnswer, WorkKind};
use tokio::sync::oneshot;

use super::pile::Share;
use super::post::{Post, fitting};
use super::queue::{Queue, QueueSlot};
use super::schemas::{Catalogues, Schemas};
use super::stray::{Stray, Strays};
use super::stuck::Improved;
use super::uses::UsesOfLimits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    UnknownNode,
    OtherSession,
}

#[derive(Debug)]
pub(super) struct OpenExecution {
    pub(super) attempt: Attempt,
    pub(super) parent: Parent,
    pub(super) work: Arc<Work>,
    /// Which slot of a node it uses. Pinned work uses the only slot for fleet work, or one for debug commands.
    pub(super) kind: WorkKind,
    pub(super) slot: QueueSlot,
    pub(super) created_at: Timestamp,
    pub(super) stage: DispatchState,
}

/// Returns which slot of a node an execution uses.
pub(super) fn kind_of(execution: &Execution, work: &Work) -> WorkKind {
    match execution.pinned {
        None => WorkKind::Placed,
        Some(_) if work.is_debug => WorkKind::Debug,
        Some(_) => WorkKind::Fleet,
    }
}

impl OpenExecution {
    pub(super) fn assignment(&self, token: LeaseToken) -> Assignment {
        Assignment::new(&self.work, &self.attempt, token)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchState {
    Waiting {
        until: Option<Timestamp>,
    },
    /// Its run is paused: the execution is not in the queue.
    Paused {
        until: Option<Timestamp>,
    },
    /// Assigned to a node by a claim whose commit is pending.
    Claimed {
        node: NodeId,
        at: Timestamp,
    },
    Leased {
        node: NodeId,
    },
}

/// The board is the dispatcher's picture of all nodes and open executions.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(super) posts: HashMap<NodeId, Post>,
    pub(super) open: HashMap<ExecutionId, OpenExecution>,
    pub(super) queue: Queue,
    /// `holds`: nodes that an exclusive run holds. `wanted`: nodes that are kept free for the next
    /// exclusive run.
    pub(super) holds: HashMap<NodeId, RunId>,
    pub(super) wanted: HashMap<NodeId, RunId>,
    pub(super) paused: HashSet<RunId>,
    /// The backend schemas that nodes declare. Equal schemas are stored once.
    schemas: Schemas,
    catalogues: Catalogues,
    pub(super) parked: usize,
    pub(super) stray: Strays,
    /// Counts pending executions that were just cancelled, for the metrics: only the board knows that they
    /// were pending.
    pub(super) cancelled: usize,
    pub(super) uses: UsesOfLimits,
    pub(super) improved: Improved,
    /// How often a node was checked for a class.
    #[cfg(test)]
    pub(super) checks: std::cell::Cell<usize>,
    /// How long executions that were just leased had waited, for the metrics.
    pub(super) waits: Vec<std::time::Duration>,
}

impl Board {
    pub(crate) fn add_node(&mut self, mut record: NodeRecord) {
        self.schemas.share(&mut record.description.backends);
        let record = Arc::new(record);
        let former = self.posts.get(&record.id).map(|post| &post.record);
        self.catalogues.note(former.map(Arc::as_ref), &record);
        let known = self.with_post(record.id, |post| post.replace(Arc::clone(&record)));
        self.improved.has_registered(record.id);
        if known.is_none() {
            self.posts.insert(record.id, Post::new(record));
        }
    }

    /// Removes a deleted node: its poll ends, and its leases are lost.
    pub(super) fn remove_node(&mut self, node: NodeId) {
        if let Some(post) = self.posts.remove(&node) {
            self.parked -= usize::from(post.is_parked());
            self.catalogues.remove(&post.record.cluster);
            let reason = format!("node {} was deleted", post.record.description.hostname);
            self.stray.found.extend(post.held.into_iter().map(|(execution, holding)| Stray {
                of: holding.of,
                execution,
                token: holding.token,
                reason: reason.clone(),
                may_run: true,
            }));
        }
        self.holds.remove(&node);
        self.wanted.remove(&node);
        self.improved.forget(node);
    }

    /// Removes a deleted cluster: its nodes, and its open executions. Nothing of it is reported as lost.
    pub(super) fn remove_cluster(&mut self, cluster: ClusterId) {
        let of_cluster =
            |(id, open): (&ExecutionId, &OpenExecution)| (open.work.cluster == cluster).then_some(*id);
        let executions: Vec<ExecutionId> = self.open.iter().filter_map(of_cluster).collect();
        executions.into_iter().for_each(|execution| self.close(execution));
        let nodes = self.nodes().filter(|node| node.cluster == cluster).map(|node| node.id);
        let nodes: Vec<NodeId> = nodes.collect();
        nodes.into_iter().for_each(|node| self.remove_node(node));
    }

    /// Returns the work of an open execution, or nothing if the board does not know the execution.
    pub(crate) fn work(&self, execution: ExecutionId) -> Option<&Arc<Work>> {
        self.open.get(&execution).map(|open| &open.work)
    }

    /// Returns the built-in backends and those that the cluster's nodes declare.
    pub(crate) fn catalogue(&mut self, cluster: ClusterId) -> Arc<Catalogue> {
        let nodes = self.posts.values().map(|post| post.record.as_ref());
        self.catalogues.get(cluster, nodes)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.posts.values().map(|post| &post.record)
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<&Arc<NodeRecord>> {
        self.posts.get(&node).map(|post| &post.record)
    }

    /// Returns how many placed executions a node has.
    pub(crate) fn slots_in_use(&self, node: NodeId) -> u32 {
        let held = self.posts.get(&node).into_iter().flat_map(|post| post.held.values());
        u32::try_from(held.filter(|holding| holding.kind == WorkKind::Placed).count()).unwrap_or(u32::MAX)
    }

    /// Returns whether a cluster has its maximum of nodes besides this one. Nodes that are offline do not count.
    pub(crate) fn is_full(&self, cluster: ClusterId, besides: NodeId, most: usize) -> bool {
        let counts = |record: &&Arc<NodeRecord>| {
            record.cluster == cluster && record.status != NodeStatus::Offline && record.id != besides
        };
        // Counts them only if that is possible.
        self.posts.len() >= most && self.nodes().filter(counts).count() >= most
    }

    pub(crate) fn reach(&self, node: NodeId) -> Reach {
        match self.posts.get(&node).map(|post| post.record.status) {
            Some(NodeStatus::Online | NodeStatus::Stale) => Reach::Here,
            Some(NodeStatus::Offline) => Reach::Offline,
            None => Reach::Deleted,
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether `claim` may have something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.queue.len() > 0 || self.has_stray()
    }

    pub(crate) fn has_stray(&self) -> bool {
        !self.stray.found.is_empty()
    }

    /// Drops the stray leases: another server has to end them.
    pub(crate) fn forget_stray(&mut self) {
        self.stray.clear();
    }

    /// Sets how this server and the others divide the pending executions.
    pub(crate) fn share(&mut self, share: Share) {
        self.queue.share(share);
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    pub(crate) fn take_waits(&mut self) -> Vec<std::time::Duration> {
        std::mem::take(&mut self.waits)
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due().into_iter().chain(self.stray.next_due()).min()
    }

    /// Parks a poll until there is something for its node.
    pub(crate) fn park(
        &mut self,
        node: NodeId,
        session: SessionId,
        poll: u64,
        free: Free,
        answer: oneshot::Sender<PollAnswer>,
    ) -> Result<(), Parking> {
        self.current(node, session)?;
        self.with_post(node, |post| post.park(poll, free, answer));
        Ok(())
    }

    pub(crate) fn unpark(&mut self, node: NodeId, poll: u64) {
        self.with_post(node, |post| post.unpark(poll));
    }

    pub(crate) fn refresh(&mut self, node: NodeId, session: SessionId, poll: u64, free: Free) -> bool {
        self.current(node, session).is_ok()
            && self.with_post(node, |post| post.refresh(poll, free)).unwrap_or(false)
    }

    /// Keeps new assignments of a node for the response to a report. Returns false if the session is not the current one.
    pub(crate) fn begin_report(&mut self, node: NodeId, session: SessionId) -> bool {
        self.current(node, session).is_ok() && self.with_post(node, Post::begin_report).is_some()
    }

    pub(crate) fn take_for_report(&mut self, node: NodeId) -> Vec<Assignment> {
        self.with_post(node, Post::take_for_report).unwrap_or_default()
    }

    pub(crate) fn end_report(&mut self, node: NodeId) {
        self.with_post(node, Post::end_report);
    }

    /// Drops every parked poll, because the server stops.
    pub(crate) fn drop_polls(&mut self) {
        let nodes: Vec<Arc<NodeRecord>> = self.nodes().cloned().collect();
        for record in nodes {
            self.posts.insert(record.id, Post::new(record));
        }
        self.parked = 0;
    }

    /// Ends the parked poll of a node, because a new poll is coming.
    pub(crate) fn unpark_any(&mut self, node: NodeId) {
        self.with_post(node, Post::unpark_any);
    }

    /// Notes that the agent has the `known` executions or is receiving them now. Returns those of
    /// `assignments` that fit into one response; the others are kept for the next poll.
    pub(crate) fn resynced(
        &mut self,
        node: NodeId,
        known: &HashSet<ExecutionId>,
        mut assignments: Vec<Assignment>,
    ) -> Vec<Assignment> {
        let later = assignments.split_off(fitting(&assignments, limits::POLL_RESPONSE_BYTES));
        self.with_post(node, |post| {
            post.forget_ready(known);
            post.keep_for_later(later);
        });
        assignments
    }

    /// Returns whether the node holds this lease, as far as the board knows.
    pub(crate) fn holds(&self, node: NodeId, held: &LeaseRef) -> bool {
        let holding = self.posts.get(&node).and_then(|post| post.held.get(&held.execution));
        holding.is_some_and(|holding| holding.token == held.token)
    }

    fn current(&mut self, node: NodeId, session: SessionId) -> Result<&mut Post, Parking> {
        let post = self.posts.get_mut(&node).ok_or(Parking::UnknownNode)?;
        if post.record.session == session { Ok(post) } else { Err(Parking::OtherSession) }
    }

    pub(super) fn with_post<T>(&mut self, node: NodeId, act: impl FnOnce(&mut Post) -> T) -> Option<T> {
        let post = self.posts.get_mut(&node)?;
        let (before, free, held) = (post.is_parked(), post.free().placed, post.held.len());
        let result = act(post);
        self.parked = self.parked + usize::from(post.is_parked()) - usize::from(before);
        if post.free().placed > free || post.held.len() < held {
            self.improved.is_freer(node);
        }
        Some(result)
    }

    /// Compares the leases that a node lists with the board. Returns the leases that the node has to stop,
    /// and those that the board does not know. Executions that the node should have received long ago are
    /// assigned again. Results of a former session that the node no longer lists are lost.
    pub(crate) fn review(
        &mut self,
        node: NodeId,
        held: &[LeaseRef],
        now: Timestamp,
    ) -> (Vec<LeaseRef>, Vec<LeaseRef>) {
        let (mut stop, mut unknown) = (Vec::new(), Vec::new());
        let Some(post) = self.posts.get_mut(&node) else { return (stop, held.to_vec()) };
        self.stray.found.extend(post.lost_results(held, now));
        let mut missed: HashSet<ExecutionId> = post.undelivered(now).collect();
        for held in held {
            missed.remove(&held.execution);
            match post.held.get(&held.execution) {
                Some(holding) if holding.token == held.token => {
                    if holding.stop {
                        stop.push(*held);
                    }
                }
                Some(_) | None => unknown.push(*held),
            }
        }
        for execution in missed {
            self.assign_again(node, execution, now);
        }
        (stop, unknown)
    }

    fn assign_again(&mut self, node: NodeId, execution: ExecutionId, now: Timestamp) {
        let Some(open) =
            self.open.get(&execution).filter(|open| open.stage == (DispatchState::Leased { node }))
        else {
            return;
        };
        let Some(post) = self.posts.get_mut(&node) else { return };
        let Some(holding) = post.held.get_mut(&execution) else { return };
        holding.since = now;
        let token = holding.token;
        post.assign(open.assignment(token));
        self.with_post(node, Post::flush);
    }
}
