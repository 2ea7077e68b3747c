//! Implements the port with maps under one lock. Nothing is durable.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::change::{Change, Event};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, JobId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::job::JobVersion;
use downbeat_core::limits;
use downbeat_core::node::{NodeRecord, NodeStatus, Registration, Tombstone};
use downbeat_core::portion::json_bytes;
use downbeat_core::retention::{Excess, StandingKept};
use downbeat_core::run::{RunMade, RunRecord, RunState};
use downbeat_core::state::{LimitUse, NodeLive, Tables};
use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::copy::{Seen, deleted_before};
use crate::instances::results_of;
use crate::port::{
    Admission, Committed, DirectWrites, EventFilter, Events, Hint, NodeTotals, Nodes, Output, OutputChunk,
    Removed, Result, ServerRecord, Servers, Store, Tally, Totals, Volume,
};

#[derive(Default)]
pub(super) struct State {
    pub(super) tables: Tables,
    /// Those that are not deleted.
    pub(super) clusters: BTreeMap<ClusterId, ClusterRecord>,
    /// Deleted ones of which something is left.
    pub(super) removed_clusters: BTreeSet<ClusterId>,
    pub(super) registrations: BTreeMap<NodeId, Registration>,
    /// The problems of each node that reported some.
    pub(super) problems: BTreeMap<NodeId, Vec<String>>,
    pub(super) tombstones: BTreeMap<(NodeId, SessionId), Tombstone>,
    /// The versions of jobs; the rest of a job is in `tables`.
    pub(super) job_versions: BTreeMap<(JobId, u64), JobVersion>,
    /// The fixed part of each run; the live part is in `tables`.
    pub(super) made: BTreeMap<RunId, Arc<RunMade>>,
    /// Without gaps; the last one has the number `last_seq`.
    pub(super) events: VecDeque<Event>,
    pub(super) last_seq: u64,
    pub(super) output: BTreeMap<ExecutionId, VecDeque<OutputChunk>>,
    /// Output of ended runs up to this one was removed.
    pub(super) output_removed: Option<(Timestamp, RunId)>,
    pub(super) servers: BTreeMap<String, ServerRecord>,
    /// True if this is a complete copy of another store.
    pub(super) copied: bool,
}

/// The reference store.
pub struct MemoryStore {
    state: Mutex<State>,
    hints: broadcast::Sender<Hint>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("last_seq", &self.lock().last_seq).finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Returns an empty store with the cluster `default`.
    pub fn new() -> Self {
        Self { state: Mutex::new(State::empty()), hints: broadcast::channel(1).0 }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the maps consistent: nothing panics between two writes of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the state with only the cluster `default`.
    pub(super) fn empty() -> Self {
        let clusters = BTreeMap::from([(ClusterId::DEFAULT, ClusterRecord::default_cluster())]);
        Self { tables: Tables::new(), clusters, ..Self::default() }
    }

    /// Records a change that `tables` has applied.
    pub(super) fn record(&mut self, event: Event) {
        match &event.change {
            Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                self.clusters.insert(cluster.id, cluster.clone());
            }
            Change::ClusterDeleted { cluster, .. } => {
                self.clusters.remove(cluster);
                self.removed_clusters.insert(*cluster);
            }
            Change::NodeRegistered { registration } => {
                self.problems.remove(&registration.node);
                self.registrations.insert(registration.node, registration.clone());
            }
            Change::NodeProblemsSet { node, problems, .. } => {
                self.problems.insert(*node, problems.clone());
            }
            Change::NodeDeleted { node, session, at, .. } => {
                self.problems.remove(node);
                self.tables.node_homes.remove(node);
                if let Some(Registration { cluster, description, .. }) = self.registrations.remove(node) {
                    let (node, session, at, hostname) = (*node, *session, *at, description.hostname);
                    self.tombstones
                        .insert((node, session), Tombstone { node, session, cluster, hostname, at });
                }
            }
            Change::JobApplied { job, triggers_seen } => {
                self.put_job_version(job);
                if triggers_seen.is_some() {
                    self.tables.triggers_applied = event.seq;
                }
            }
            Change::BackfillCreated { backfill } => self.forget_backfills(&backfill.job),
            Change::DeliveryQueued { delivery, .. } => self.forget_deliveries(delivery.cluster),
            Change::RunCreated { run, .. } => {
                self.made.insert(run.id.clone(), Arc::clone(&run.made));
            }
            _ => {}
        }
        self.last_seq = event.seq;
        self.events.push_back(event);
    }

    pub(super) fn append(&mut self, chunks: &[OutputChunk], keep_bytes: u64) {
        for chunk in chunks {
            if chunk.text.is_empty() || !self.tables.executions.contains_key(&chunk.execution) {
                continue;
            }
            let kept = self.output.entry(chunk.execution).or_default();
            if kept.back().is_some_and(|last| chunk.offset < end_of(last)) {
                continue;
            }
            let first_kept = end_of(chunk).saturating_sub(keep_bytes);
            kept.retain(|chunk| chunk.offset >= first_kept);
            kept.push_back(chunk.clone());
        }
    }

    fn node(&self, id: NodeId) -> Option<NodeRecord> {
        let live = self.tables.nodes.get(&id)?;
        let registration = self.registrations.get(&id)?;
        Some(NodeRecord {
            id,
            cluster: registration.cluster,
            session: live.session,
            description: registration.description.clone(),
            status: live.status,
            draining: live.draining,
            registered_at: live.registered_at,
            seen_at: live.seen_at,
            installation: registration.installation.clone(),
            undelivered: registration.undelivered.clone(),
            kept_since: registration.kept_since,
            displaced: registration.former.displaced(),
            problems: self.problems.get(&id).cloned().unwrap_or_default(),
        })
    }

    /// Returns the deletions of one node or of all.
    pub(super) fn tombstones(&self, node: Option<NodeId>) -> Vec<Tombstone> {
        let of = |tombstone: &&Tombstone| node.is_none_or(|node| tombstone.node == node);
        let mut found: Vec<_> = self.tombstones.values().filter(of).cloned().collect();
        found.sort_by_key(|tombstone| (tombstone.node, tombstone.at, tombstone.session));
        found
    }

    /// Forgets nodes that were deleted before this time.
    pub(super) fn forget_deleted(&mut self, before: Timestamp) {
        self.tombstones.retain(|_, tombstone| tombstone.at >= before);
        let tombstones = &self.tombstones;
        self.tables.deleted.retain(|deleted| tombstones.contains_key(deleted));
    }

    /// Returns nodes by hostname, then id.
    pub(super) fn nodes(&self, wanted: impl Fn(&NodeRecord) -> bool) -> Vec<NodeRecord> {
        let mut nodes: Vec<_> =
            self.registrations.keys().filter_map(|&id| self.node(id)).filter(wanted).collect();
        nodes.sort_by(|a, b| (&a.description.hostname, a.id).cmp(&(&b.description.hostname, b.id)));
        nodes
    }

    pub(super) fn run(&self, id: &RunId) -> Option<RunRecord> {
        Some(RunRecord { made: Arc::clone(self.made.get(id)?), live: self.tables.runs.get(id)?.clone() })
    }

    /// Returns runs by creation, then id.
    pub(super) fn runs(&self, wanted: impl Fn(&RunRecord) -> bool) -> Vec<RunRecord> {
        let mut runs: Vec<_> = self.made.keys().filter_map(|id| self.run(id)).filter(wanted).collect();
        runs.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        runs
    }

    pub(super) fn executions(&self, wanted: impl Fn(&Execution) -> bool) -> Vec<Execution> {
        self.tables.executions.values().filter(|execution| wanted(execution)).cloned().collect()
    }

    pub(super) fn last_round(&self, run: &RunId) -> u32 {
        self.tables.runs.get(run).map_or(1, |live| live.round)
    }

    /// Returns the attempts that are results of a run's instances, by step and execution.
    pub(super) fn results(&self, run: &RunId) -> Vec<&Execution> {
        let round = self.last_round(run);
        let is_of_run = |execution: &&Execution| execution.run() == run && execution.round == round;
        results_of(self.tables.executions.values().filter(is_of_run))
    }

    pub(super) fn remove_run(&mut self, id: &RunId) {
        self.tables.runs.remove(id);
        self.tables.homes.remove(id);
        self.tables.keys.retain(|_, run| run != id);
        self.made.remove(id);
        self.tables.deliveries.retain(|_, delivery| delivery.run != *id);
        let output = &mut self.output;
        self.tables.executions.retain(|execution, record| {
            let keep = record.run() != id;
            if !keep {
                output.remove(execution);
            }
            keep
        });
        let executions = &self.tables.executions;
        self.tables.uses.retain(|execution, until| until.is_some() || executions.contains_key(&execution));
    }
}

fn counts<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<(K, u64)> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

pub(super) fn end_of(chunk: &OutputChunk) -> u64 {
    chunk.offset + chunk.text.len() as u64
}

#[async_trait]
impl Events for MemoryStore {
    async fn events(&self, filter: &EventFilter, portion: Portion) -> Result<Vec<Event>> {
        let state = self.lock();
        let start = state.events.partition_point(|event| event.seq <= filter.since);
        let wanted = |event: &&Event| filter.run.is_none() || event.change.run() == filter.run.as_ref();
        let found = || state.events.range(start..).filter(wanted);
        // Computing sizes takes time, which simulations do not need.
        let is_bounded = portion.bytes < usize::MAX;
        let size = |event: &Event| if is_bounded { json_bytes(&event.change) } else { 0 };
        let count = portion.fitting(found().map(size));
        Ok(found().take(count).cloned().collect())
    }

    async fn last_seq(&self) -> Result<u64> {
        Ok(self.lock().last_seq)
    }
}

#[async_trait]
impl Nodes for MemoryStore {
    async fn cluster(&self, name_or_id: &str) -> Result<Option<ClusterId>> {
        let state = self.lock();
        let by_id = name_or_id.parse().ok().filter(|id| state.clusters.contains_key(id));
        let by_name = || state.clusters.values().find(|cluster| cluster.name == name_or_id);
        Ok(by_id.or_else(|| by_name().map(|cluster| cluster.id)))
    }

    async fn clusters(&self) -> Result<Vec<ClusterRecord>> {
        let mut clusters: Vec<_> = self.lock().clusters.values().cloned().collect();
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(clusters)
    }

    async fn cluster_record(&self, id: ClusterId) -> Result<Option<ClusterRecord>> {
        Ok(self.lock().clusters.get(&id).cloned())
    }

    async fn removed_clusters(&self) -> Result<Vec<ClusterId>> {
        Ok(self.lock().removed_clusters.iter().copied().collect())
    }

    async fn nodes(&self, cluster: Option<ClusterId>) -> Result<Vec<NodeRecord>> {
        let state = self.lock();
        let is_removed = |node: &NodeRecord| state.removed_clusters.contains(&node.cluster);
        Ok(state.nodes(|node| cluster.map_or_else(|| !is_removed(node), |cluster| node.cluster == cluster)))
    }

    async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>> {
        Ok(self.lock().node(id))
    }

    async fn tombstones(&self, node: Option<NodeId>) -> Result<Vec<Tombstone>> {
        Ok(self.lock().tombstones(node))
    }

    async fn latest_tombstones(&self, most: u32) -> Result<Vec<Tombstone>> {
        let mut found = self.lock().tombstones(None);
        found.sort_by_key(|tombstone| (Reverse(tombstone.at), tombstone.node, tombstone.session));
        found.truncate(most as usize);
        Ok(found)
    }

    async fn seen(&self, nodes: &[NodeId]) -> Result<Vec<Seen>> {
        let nodes: BTreeSet<&NodeId> = nodes.iter().collect();
        let state = self.lock();
        let seen = |id: &NodeId| state.tables.nodes.get(id).map(|node| (*id, node.session, node.seen_at));
        Ok(nodes.into_iter().filter_map(seen).collect())
    }

    async fn silent_nodes(&self, before: Timestamp) -> Result<Vec<(NodeId, NodeLive)>> {
        let state = self.lock();
        let is_silent = |node: &NodeLive| node.status != NodeStatus::Offline && node.seen_at < before;
        let silent = state.tables.nodes.iter().filter(|(_, node)| is_silent(node));
        Ok(silent.map(|(id, node)| (*id, node.clone())).collect())
    }
}

#[async_trait]
impl Admission for MemoryStore {
    async fn holds(&self) -> Result<Vec<(NodeId, RunId)>> {
        Ok(self.lock().tables.holds.iter().map(|(node, run)| (*node, run.clone())).collect())
    }

    async fn uses(&self) -> Result<Vec<LimitUse>> {
        Ok(self.lock().tables.uses.list())
    }
}

#[async_trait]
impl Output for MemoryStore {
    async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Result<Vec<OutputChunk>> {
        let state = self.lock();
        let chunks = state.output.get(&execution).into_iter().flatten();
        Ok(chunks.filter(|chunk| end_of(chunk) > from).take(limit as usize).cloned().collect())
    }

    async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Result<Vec<OutputChunk>> {
        let state = self.lock();
        let chunks: Vec<&OutputChunk> = state.output.get(&execution).into_iter().flatten().collect();
        let before = chunks.len().saturating_sub(limit as usize);
        Ok(chunks[before..].iter().map(|chunk| (*chunk).clone()).collect())
    }
}

#[async_trait]
impl Servers for MemoryStore {
    async fn servers(&self) -> Result<Vec<ServerRecord>> {
        Ok(self.lock().servers.values().cloned().collect())
    }
}

#[async_trait]
impl Totals for MemoryStore {
    async fn tally(&self) -> Result<Tally> {
        let state = self.lock();
        Ok(Tally {
            runs: counts::<RunState>(
                state
                    .tables
                    .runs
                    .iter()
                    .filter(|(id, _)| !id.is_standing() && !id.is_debug())
                    .map(|(_, run)| run.state()),
            ),
            executions: counts::<Status>(state.tables.executions.values().map(|each| each.state.status())),
            nodes: counts::<NodeStatus>(state.tables.nodes.values().map(|node| node.status)),
        })
    }

    async fn volume(&self) -> Result<Volume> {
        Ok(self.lock().volume())
    }

    async fn node_totals(&self, node: NodeId) -> Result<NodeTotals> {
        let mut all = self.lock().executions(|each| each.node() == Some(node));
        all.drain(..all.len().saturating_sub(limits::ROWS_READ as usize));
        all.retain(|each| each.reused.is_none());
        let claimed_at = all.iter().filter_map(|each| each.state.lease()).map(|lease| lease.granted_at).max();
        let finished_at =
            all.iter().filter_map(|each| each.state.outcome()).map(|outcome| outcome.finished_at).max();
        let executions = counts::<Status>(all.iter().map(|each| each.state.status()));
        Ok(NodeTotals { executions, claimed_at, finished_at })
    }
}

#[async_trait]
impl DirectWrites for MemoryStore {
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>> {
        let mut state = self.lock();
        let touch = |&(node, session): &(NodeId, SessionId)| match state.tables.nodes.get_mut(&node) {
            Some(node) if node.session == session => {
                node.seen_at = node.seen_at.max(at);
                true
            }
            _ => false,
        };
        Ok(seen.iter().map(touch).collect())
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<()> {
        self.lock().append(chunks, keep_bytes);
        Ok(())
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<()> {
        let mut state = self.lock();
        state.servers.retain(|_, other| other.id != server.id);
        state.servers.insert(server.name.clone(), server.clone());
        Ok(())
    }

    async fn remove_server(&self, id: ServerId) -> Result<()> {
        self.lock().servers.retain(|_, server| server.id != id);
        Ok(())
    }

    /// Equal parts of records are shared if their changes share them.
    async fn share_contents(&self) -> Result<()> {
        Ok(())
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64> {
        let mut state = self.lock();
        let mut ended = state.ended_before(before);
        ended.truncate(most as usize);
        for (_, run) in &ended {
            state.remove_run(run);
        }
        state.tables.uses.forget(before);
        state.forget_deleted(deleted_before(before));
        state.remove_events(before, u64::MAX);
        Ok(ended.len() as u64)
    }

    async fn prune_excess(&self, excess: &Excess, most: u32) -> Result<Removed> {
        Ok(self.lock().prune_excess(excess, most))
    }

    async fn remove_cluster(&self, cluster: ClusterId, _: u32) -> Result<u64> {
        Ok(self.lock().remove_cluster(cluster))
    }

    async fn prune_standing(&self, kept: &StandingKept, most: u32) -> Result<u64> {
        Ok(self.lock().prune_standing(kept, most))
    }

    async fn prune_debug(&self, before: Timestamp, most: u32) -> Result<u64> {
        let mut state = self.lock();
        let mut ended = state.ended_before(before);
        ended.retain(|(_, run)| run.is_debug());
        ended.truncate(most as usize);
        for (_, run) in &ended {
            state.remove_run(run);
        }
        Ok(ended.len() as u64)
    }

    /// Does nothing: instances are counted here whenever somebody asks.
    async fn keep_counts(&self, _: Timestamp, _: u32) -> Result<u64> {
        Ok(0)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn health(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let verdicts = state.tables.apply_all(changes);
        let before = state.last_seq;
        for &index in &verdicts.applied {
            let (about, change) = (verdicts.abouts[index].clone(), changes[index].clone());
            state.record(Event { seq: state.last_seq + 1, server, about, change });
        }
        Ok(Committed::after(before, verdicts))
    }

    async fn close(&self) {}
}
