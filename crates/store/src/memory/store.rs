//! Implements the port with maps under one lock. Nothing is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::change::{Change, Event};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, State as ExecutionState, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::{NodeRecord, NodeStatus, Registration, Tombstone};
use downbeat_core::portion::json_bytes;
use downbeat_core::run::{RunBrief, RunMade, RunRecord, RunState};
use downbeat_core::spec::Definition;
use downbeat_core::state::{LimitUse, NodeLive, Tables};
use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::copy::{Seen, deleted_before};
use crate::filter::distances;
use crate::instances::{position, results_of};
use crate::port::{
    Admission, Committed, DirectWrites, EventFilter, Events, ExecutionFilter, Executions, Hint,
    InstanceCount, InstanceFacts, InstanceFilter, Listed, NodeTotals, Nodes, Output, OutputChunk, Page,
    Position, Result, RunFilter, RunKey, RunKind, Runs, ServerRecord, Servers, StandingKey, StandingResult,
    Store, Tally, Totals,
};
use crate::rows::Attempt;

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
    /// The fixed part of each run; the live part is in `tables`.
    pub(super) made: BTreeMap<RunId, Arc<RunMade>>,
    /// Without gaps; the last one has the number `last_seq`.
    pub(super) events: VecDeque<Event>,
    pub(super) last_seq: u64,
    pub(super) output: BTreeMap<ExecutionId, VecDeque<OutputChunk>>,
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

    fn run(&self, id: &RunId) -> Option<RunRecord> {
        Some(RunRecord { made: Arc::clone(self.made.get(id)?), live: self.tables.runs.get(id)?.clone() })
    }

    /// Returns runs by creation, then id.
    pub(super) fn runs(&self, wanted: impl Fn(&RunRecord) -> bool) -> Vec<RunRecord> {
        let mut runs: Vec<_> = self.made.keys().filter_map(|id| self.run(id)).filter(wanted).collect();
        runs.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        runs
    }

    fn executions(&self, wanted: impl Fn(&Execution) -> bool) -> Vec<Execution> {
        self.tables.executions.values().filter(|execution| wanted(execution)).cloned().collect()
    }

    /// Returns the attempts that are results of a run's instances, by step and execution.
    fn results(&self, run: &RunId) -> Vec<&Execution> {
        results_of(self.tables.executions.values().filter(|execution| execution.run() == run))
    }

    pub(super) fn remove_run(&mut self, id: &RunId) {
        self.tables.runs.remove(id);
        self.tables.homes.remove(id);
        self.tables.keys.retain(|_, run| run != id);
        self.made.remove(id);
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

/// Returns whether a run matches a filter, except for its node.
fn is_listed(filter: &RunFilter, run: &RunRecord) -> bool {
    let contains = |text: &str| {
        let part = filter.text.as_deref().unwrap_or_default().to_ascii_lowercase();
        text.to_ascii_lowercase().contains(&part)
    };
    let is_paused = run.live.paused_at.is_some() && !run.live.is_ended();
    run.id.is_debug() == (filter.kind == RunKind::Debug)
        && filter.cluster.is_none_or(|cluster| run.cluster == cluster)
        && (filter.states.is_empty() || filter.states.contains(&run.state()))
        && (filter.job.is_none() || run.job == filter.job)
        && filter.by.as_ref().is_none_or(|by| run.by == *by)
        && filter.paused.is_none_or(|paused| paused == is_paused)
        && (contains(run.id.as_str()) || run.job.as_deref().is_some_and(contains))
        && filter.from.is_none_or(|from| run.created_at >= from)
        && filter.to.is_none_or(|to| run.created_at < to)
}

/// Returns an execution without its params and outputs.
fn bare(mut execution: Execution) -> Execution {
    execution.params = None;
    let outcome = match &mut execution.state {
        ExecutionState::Succeeded { outcome, .. } => Some(outcome),
        ExecutionState::Failed { outcome, .. } | ExecutionState::Cancelled { outcome, .. } => {
            outcome.as_mut()
        }
        _ => None,
    };
    if let Some(outcome) = outcome {
        outcome.outputs.clear();
    }
    execution
}

/// Cuts a page out of a sorted list. `is_after` returns whether a key comes after another one.
fn window<T, K>(
    mut rows: Vec<T>,
    page: &Page<K>,
    key: impl Fn(&T) -> K,
    is_after: impl Fn(&K, &K) -> bool,
) -> Listed<T, K> {
    let total = page.start.after.is_none().then_some(rows.len() as u64);
    if let Some(after) = &page.start.after {
        rows.retain(|row| is_after(&key(row), after));
    }
    let skip = usize::try_from(page.start.skip).unwrap_or(usize::MAX);
    let limit = page.limit as usize;
    let has_more = rows.len() > skip.saturating_add(limit);
    let rows: Vec<T> = rows.into_iter().skip(skip).take(limit).collect();
    let next = rows.last().map(|row| Position::after(key(row))).filter(|_| has_more);
    Listed { rows, total: total.filter(|total| *total <= u64::from(limits::ROWS_READ)), next }
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
impl Runs for MemoryStore {
    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>> {
        Ok(self.lock().run(id))
    }

    async fn runs_by_id(&self, ids: &[RunId]) -> Result<Vec<RunRecord>> {
        let ids: BTreeSet<&RunId> = ids.iter().collect();
        let state = self.lock();
        Ok(ids.into_iter().filter_map(|id| state.run(id)).collect())
    }

    async fn runs_of_key(&self, key: &str) -> Result<Vec<RunRecord>> {
        let state = self.lock();
        let keys = state.tables.keys.iter().filter(|((_, known), _)| known == key);
        let ids: BTreeSet<&RunId> = keys.map(|(_, run)| run).collect();
        Ok(ids.into_iter().filter_map(|id| state.run(id)).collect())
    }

    async fn runs(&self, filter: &RunFilter, page: &Page<RunKey>) -> Result<Listed<RunBrief, RunKey>> {
        let state = self.lock();
        let of_node: Option<BTreeSet<&RunId>> = filter.node.map(|node| {
            let executions = state.tables.executions.values().rev();
            let of_node = executions.filter(|execution| execution.node() == Some(node));
            of_node.take(limits::ROWS_READ as usize).map(Execution::run).collect()
        });
        let mut runs = state.runs(|run| {
            is_listed(filter, run)
                && !run.id.is_standing()
                && !state.removed_clusters.contains(&run.cluster)
                && of_node.as_ref().is_none_or(|of| of.contains(&run.id))
        });
        let order = filter.order;
        runs.retain(|run| !order.is_by_end() || run.live.is_ended());
        let mut runs: Vec<RunBrief> = runs.iter().map(RunBrief::from).collect();
        let key = |run: &RunBrief| RunKey::of(run, order);
        let compare = |a: &RunKey, b: &RunKey| {
            let ascending = (a.at, &a.id).cmp(&(b.at, &b.id));
            if order.is_ascending() { ascending } else { ascending.reverse() }
        };
        runs.sort_by(|a, b| compare(&key(a), &key(b)));
        Ok(window(runs, page, key, |key, after| compare(key, after).is_gt()))
    }

    async fn definitions(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, Arc<Definition>>> {
        let state = self.lock();
        let definition = |id: &RunId| Some((id.clone(), Arc::clone(&state.made.get(id)?.definition)));
        Ok(runs.iter().filter_map(definition).collect())
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>> {
        let state = self.lock();
        Ok(state.runs(|run| !run.live.is_ended() && !state.removed_clusters.contains(&run.cluster)))
    }

    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>> {
        Ok(self.open_runs().await?.into_iter().map(|run| (run.id.clone(), run.live.owner)).collect())
    }
}

#[async_trait]
impl Executions for MemoryStore {
    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>> {
        Ok(self.lock().tables.executions.get(&id).cloned())
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        let ids: BTreeSet<&ExecutionId> = ids.iter().collect();
        let state = self.lock();
        Ok(ids.into_iter().filter_map(|id| state.tables.executions.get(id).cloned()).collect())
    }

    async fn executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let rows = self.lock().executions(|execution| {
            filter.run.as_ref().is_none_or(|run| execution.run() == run)
                && filter.node.is_none_or(|node| execution.node() == Some(node))
                && filter.step.is_none_or(|step| execution.step() == step)
                && filter.item.is_none_or(|item| execution.item() == Some(item))
                && (filter.statuses.is_empty() || filter.statuses.contains(&execution.state.status()))
        });
        Ok(window(rows, page, |execution| execution.id, |key, after| key > after))
    }

    async fn bare_executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        Ok(self.executions_by_id(ids).await?.into_iter().map(bare).collect())
    }

    async fn bare_executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let Listed { rows, total, next } = self.executions(filter, page).await?;
        Ok(Listed { rows: rows.into_iter().map(bare).collect(), total, next })
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>> {
        Ok(self.lock().executions(|execution| execution.run() == run))
    }

    async fn instances(
        &self,
        run: &RunId,
        filter: &InstanceFilter,
        portion: Portion,
    ) -> Result<Vec<Execution>> {
        let state = self.lock();
        let (start, last) = filter.span();
        let is_wanted = |execution: &&&Execution| {
            position(execution) > start
                && execution.step() <= last
                && filter.item.is_none_or(|item| execution.item() == Some(item))
                && filter.node.is_none_or(|node| execution.node() == Some(node))
                && filter.wanted().any(|status| status == execution.state.status())
        };
        let mut bytes = 0;
        let fits = |execution: &&&Execution| {
            let before = bytes;
            let outputs = execution.state.outcome().map(|outcome| &outcome.outputs);
            bytes += outputs.filter(|outputs| !outputs.is_empty()).map_or(0, json_bytes);
            before <= portion.bytes
        };
        let results = state.results(run);
        let found = results.iter().filter(is_wanted).take(portion.rows).take_while(fits);
        Ok(found.map(|execution| Execution { params: None, ..(*execution).clone() }).collect())
    }

    async fn instance_counts(&self, run: &RunId) -> Result<Vec<InstanceCount>> {
        let state = self.lock();
        let mut counts: BTreeMap<(u32, Status), InstanceCount> = BTreeMap::new();
        for execution in state.results(run) {
            let (step, status) = (execution.step(), execution.state.status());
            let none = InstanceCount { step, status, total: 0, carried: 0, cached: 0 };
            let count = counts.entry((step, status)).or_insert(none);
            count.total += 1;
            count.carried += u64::from(execution.is_carried());
            count.cached += u64::from(execution.is_cached());
        }
        Ok(counts.into_values().collect())
    }

    async fn run_counts(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, BTreeMap<Status, u64>>> {
        let state = self.lock();
        let mut counts = BTreeMap::new();
        for run in runs.iter().filter(|run| state.tables.runs.contains_key(run)) {
            let own: &mut BTreeMap<Status, u64> = counts.entry(run.clone()).or_default();
            own.clear();
            for execution in state.results(run) {
                *own.entry(execution.state.status()).or_default() += 1;
            }
        }
        Ok(counts)
    }

    async fn instance_facts(&self, run: &RunId) -> Result<Vec<InstanceFacts>> {
        let state = self.lock();
        let mut results = state.results(run);
        results.sort_unstable_by_key(|execution| execution.id);
        Ok(results.into_iter().map(|execution| Attempt::from(execution).facts).collect())
    }

    async fn instance_facts_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<InstanceFacts>> {
        let facts = self.instance_facts(run).await?;
        Ok(facts.into_iter().filter(|fact| fact.node.is_some_and(|node| nodes.contains(&node))).collect())
    }

    async fn placed_nodes(&self, run: &RunId) -> Result<Vec<NodeId>> {
        let state = self.lock();
        let placed = state.results(run).into_iter().filter(|execution| execution.pinned.is_none());
        let nodes: BTreeSet<NodeId> = placed.filter_map(Execution::node).collect();
        Ok(nodes.into_iter().collect())
    }

    async fn unsuccessful_nodes(&self, run: &RunId) -> Result<Vec<(NodeId, Status)>> {
        let facts = self.instance_facts(run).await?;
        let is_wanted = |status| matches!(status, Status::Failed | Status::Lost | Status::Cancelled);
        let wanted = facts.into_iter().filter(|fact| is_wanted(fact.status));
        let nodes: BTreeSet<(NodeId, Status)> =
            wanted.filter_map(|fact| Some((fact.node?, fact.status))).collect();
        Ok(nodes.into_iter().collect())
    }

    async fn standing_results(
        &self,
        cluster: Option<ClusterId>,
        after: Option<&StandingKey>,
        most: u32,
    ) -> Result<Vec<StandingResult>> {
        let state = self.lock();
        let mut last: BTreeMap<StandingKey, StandingResult> = BTreeMap::new();
        for result in state.tables.executions.values().filter_map(StandingResult::of) {
            let key = result.key();
            let is_wanted = match (key.run.standing_of(), cluster) {
                (None, _) => false,
                (Some(of), cluster) => cluster.is_none_or(|cluster| of == cluster),
            };
            let is_later = last.get(&key).is_none_or(|known| known.attempt < result.attempt);
            if is_wanted && is_later && after.is_none_or(|after| key > *after) {
                last.insert(key, result);
            }
        }
        Ok(last.into_values().take(most as usize).collect())
    }

    async fn open_executions(&self) -> Result<Vec<Execution>> {
        Ok(self.lock().executions(|execution| execution.state.status().is_open()))
    }

    async fn held_by(&self, nodes: &[NodeId]) -> Result<Vec<Execution>> {
        Ok(self.lock().executions(|execution| {
            matches!(execution.state.status(), Status::Leased | Status::Running)
                && execution.state.lease().is_some_and(|lease| nodes.contains(&lease.node))
        }))
    }

    async fn cached(&self, cluster: ClusterId, keys: &[Arc<str>]) -> Result<BTreeMap<Arc<str>, Execution>> {
        let state = self.lock();
        let mut newest: BTreeMap<Arc<str>, ((Timestamp, ExecutionId), Execution)> = BTreeMap::new();
        for execution in state.tables.executions.values().filter(|execution| execution.reused.is_none()) {
            let Some(key) = execution.cache_key.as_ref().filter(|key| keys.contains(key)) else { continue };
            let ExecutionState::Succeeded { outcome, .. } = &execution.state else { continue };
            let age = (outcome.ended_at(), execution.id);
            if state.tables.homes.get(execution.run()).is_some_and(|home| home.cluster == cluster)
                && newest.get(key).is_none_or(|(other, _)| age > *other)
            {
                newest.insert(Arc::clone(key), (age, execution.clone()));
            }
        }
        Ok(newest.into_iter().map(|(key, (_, execution))| (key, execution)).collect())
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
                state.tables.runs.iter().filter(|(id, _)| !id.is_standing()).map(|(_, run)| run.state()),
            ),
            executions: counts::<Status>(state.tables.executions.values().map(|each| each.state.status())),
            nodes: counts::<NodeStatus>(state.tables.nodes.values().map(|node| node.status)),
        })
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
        let mut ended = state.runs(|run| run.live.finished_at().is_some_and(|at| at < before));
        ended.sort_by(|a, b| (a.live.finished_at(), &a.id).cmp(&(b.live.finished_at(), &b.id)));
        ended.truncate(most as usize);
        for run in &ended {
            state.remove_run(&run.id);
        }
        state.tables.uses.forget(before);
        state.forget_deleted(deleted_before(before));
        // Only from the front: the remaining events have no gaps.
        let is_old = |state: &State, distance: &usize| {
            state.events.get(*distance).is_some_and(|event| event.change.at() < before)
        };
        let places = || distances().filter_map(|distance| usize::try_from(distance).ok());
        while let Some(last) = places().filter(|distance| is_old(&state, distance)).last() {
            state.events.drain(..=last);
        }
        Ok(ended.len() as u64)
    }

    async fn remove_cluster(&self, cluster: ClusterId, _: u32) -> Result<u64> {
        Ok(self.lock().remove_cluster(cluster))
    }

    async fn prune_standing(&self, deleted: &[(RunId, Vec<u32>)], keep: u32, most: u32) -> Result<u64> {
        Ok(self.lock().prune_standing(deleted, keep, most))
    }

    async fn prune_debug(&self, before: Timestamp, most: u32) -> Result<u64> {
        let mut state = self.lock();
        let is_old = |run: &RunRecord| run.live.finished_at().is_some_and(|at| at < before);
        let mut ended = state.runs(|run| run.id.is_debug() && is_old(run));
        ended.sort_by(|a, b| (a.live.finished_at(), &a.id).cmp(&(b.live.finished_at(), &b.id)));
        ended.truncate(most as usize);
        for run in &ended {
            state.remove_run(&run.id);
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
