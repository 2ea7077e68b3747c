//! Owns which rows a batch of changes reads and which it changes: a SQL store loads the former before it applies a
//! batch and writes the latter afterwards. Knows no SQL.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::change::{Change, Subject};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{BackfillId, ClusterId, DeliveryId, ExecutionId, JobId, NodeId, RunId, SessionId};
use downbeat_core::job::{Backfill, JobKey, JobVersion};
use downbeat_core::node::{Former, Registration};
use downbeat_core::run::{RunRecord, frees_nodes};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::state::{Counted, LimitUse, Question, Tables, Verdicts, current_lease};
use downbeat_core::work::Parent;
use jiff::Timestamp;

use crate::port::Result;
use crate::rows::{
    BackfillRow, CachedRow, ClusterNameRow, ClusterRow, Code, DeletedClusterRow, DeliveryRow, JobRow,
    JobVersionRow, OldBackfillsRow, OldVersionsRow, columns, int,
};

/// How a store detects that the id of a new execution is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewIds {
    /// By a violated key on insert: new ids are random, so a lookup first would be wasted.
    Trusted,
    /// By a lookup first. For the second try, after a key was violated.
    Checked,
}

/// The rows that the guards of a batch read.
#[derive(Debug, Default)]
pub(crate) struct Needs<'a> {
    pub(crate) clusters: BTreeSet<ClusterId>,
    /// The guards read all clusters, because a name has to be free.
    pub(crate) all_clusters: bool,
    /// Clusters that the batch changes or deletes.
    pub(crate) clusters_altered: BTreeSet<ClusterId>,
    pub(crate) nodes: BTreeSet<NodeId>,
    /// Further nodes, of which the guards read only the session.
    pub(crate) sessions: BTreeSet<NodeId>,
    /// Sessions for which the guards check whether their node was deleted.
    pub(crate) deleted: BTreeSet<(NodeId, SessionId)>,
    /// Nodes that register, with the first id of a standing task that was decided for them too late.
    pub(crate) steps: BTreeMap<NodeId, ExecutionId>,
    /// A node registers that does not exist, so there is no row to lock.
    pub(crate) new_nodes: bool,
    pub(crate) jobs: BTreeSet<JobId>,
    /// The event after which the guards look for jobs with triggers that were applied.
    pub(crate) triggers_seen: Option<u64>,
    pub(crate) backfills: BTreeSet<BackfillId>,
    pub(crate) runs: BTreeSet<&'a RunId>,
    /// Runs and nodes whose cluster the events name.
    pub(crate) homes: BTreeSet<&'a RunId>,
    pub(crate) node_homes: BTreeSet<NodeId>,
    pub(crate) keys: BTreeSet<(ClusterId, &'a str)>,
    pub(crate) executions: BTreeSet<ExecutionId>,
    pub(crate) deliveries: BTreeSet<DeliveryId>,
    /// Nodes for which the guards read which run holds them.
    pub(crate) held: BTreeSet<NodeId>,
    /// Runs whose holds are read because the runs give them back.
    pub(crate) holders: BTreeSet<&'a RunId>,
    /// Nodes whose leased executions are read because an exclusive run takes the nodes.
    pub(crate) reserved: BTreeSet<NodeId>,
    /// The guards read how many runs are waiting and how many are active.
    pub(crate) counts: bool,
    /// Runs for whose job the guards read how many runs are active.
    pub(crate) rooms: BTreeSet<&'a RunId>,
}

/// Returns the node of an execution that is added with a lease.
fn initial_node(execution: &Execution) -> Option<NodeId> {
    current_lease(execution).map(|lease| lease.node)
}

impl<'a> Needs<'a> {
    /// Returns true if the batch reads or changes `holds`.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty() || !self.holders.is_empty()
    }

    pub(crate) fn of(changes: &'a [Change], new_ids: NewIds) -> Self {
        let mut needs = Self::default();
        for change in changes {
            match change.subject() {
                Subject::Node(node) => _ = needs.node_homes.insert(node),
                Subject::Run(run) | Subject::Execution { run, .. } => _ = needs.homes.insert(run),
                Subject::Cluster(_) | Subject::Job(_) | Subject::Unknown(_) => {}
            }
            match change {
                Change::ClusterCreated { .. } => needs.all_clusters = true,
                Change::ClusterChanged { cluster, .. } => {
                    needs.all_clusters = true;
                    needs.clusters_altered.insert(cluster.id);
                }
                Change::ClusterDeleted { cluster, .. } => {
                    needs.all_clusters = true;
                    needs.clusters_altered.insert(*cluster);
                }
                Change::NodeRegistered { registration } => {
                    needs.clusters.insert(registration.cluster);
                    needs.nodes.insert(registration.node);
                    needs.deleted.insert((registration.node, registration.session));
                    let first = ExecutionId::first_of(registration.at);
                    let known = needs.steps.entry(registration.node).or_insert(first);
                    *known = first.min(*known);
                    needs.new_nodes |= registration.former == Former::Nobody;
                }
                Change::NodeMoved { node, .. }
                | Change::NodeDrainSet { node, .. }
                | Change::NodeProblemsSet { node, .. } => {
                    needs.nodes.insert(*node);
                }
                Change::NodeDeleted { node, .. } => {
                    needs.nodes.insert(*node);
                    needs.held.insert(*node);
                }
                Change::JobApplied { job, triggers_seen } => {
                    needs.need_job(&job.key);
                    needs.triggers_seen = match (needs.triggers_seen, *triggers_seen) {
                        (Some(one), Some(other)) => Some(one.min(other)),
                        (one, other) => one.or(other),
                    };
                }
                Change::JobPauseSet { job, .. }
                | Change::JobDeleted { job, .. }
                | Change::JobDecided { job, .. }
                | Change::JobNotTriggered { job, .. } => needs.need_job(job),
                Change::BackfillCreated { backfill } => {
                    needs.need_job(&backfill.job);
                    needs.backfills.insert(backfill.id);
                }
                Change::BackfillMoved { job, backfill, .. }
                | Change::BackfillCancelled { job, backfill, .. } => {
                    needs.clusters.insert(job.cluster);
                    needs.backfills.insert(*backfill);
                }
                Change::TriggersFollowed { .. } => {}
                Change::RunCreated { run, max_pending, max_open, firing } => {
                    needs.clusters.insert(run.cluster);
                    if let Some(job) = run.job.as_deref().filter(|_| firing.is_some()) {
                        needs.jobs.insert(JobId::derive(run.cluster, job));
                    }
                    needs.backfills.extend(firing.and_then(|firing| Some(firing.backfill?.id)));
                    needs.counts |= max_pending.is_some() || max_open.is_some();
                    needs.runs.insert(&run.id);
                    if let Some(key) = &run.idempotency_key {
                        needs.keys.insert((run.cluster, key));
                    }
                }
                Change::RunTaken { run, .. }
                | Change::RunCancelRequested { run, .. }
                | Change::RunPauseSet { run, .. }
                | Change::RunChecked { run, .. }
                | Change::RunActed { run, .. }
                | Change::RunWoken { run, .. } => {
                    needs.runs.insert(run);
                }
                Change::RunAdmitted { run, limit, nodes, .. } => {
                    needs.runs.insert(run);
                    needs.counts |= limit.is_some();
                    needs.held.extend(nodes);
                    needs.reserved.extend(nodes);
                }
                Change::RunMoved { run, path, room, .. } => {
                    needs.runs.insert(run);
                    if room.is_some() {
                        needs.rooms.insert(run);
                    }
                    if frees_nodes(path) {
                        needs.holders.insert(run);
                    }
                }
                Change::ExecutionsAdded { run, executions, version, sessions, .. } => {
                    needs.runs.insert(run);
                    if !sessions.is_empty() {
                        needs.sessions.extend(executions.iter().filter_map(|execution| execution.pinned));
                    }
                    if version.is_some() {
                        match run.standing_of() {
                            Some(cluster) => _ = needs.clusters.insert(cluster),
                            None => needs.all_clusters = true,
                        }
                    }
                    needs.held.extend(executions.iter().filter_map(initial_node));
                    if new_ids == NewIds::Checked {
                        needs.executions.extend(executions.iter().map(|execution| execution.id));
                    }
                }
                Change::ExecutionLeased { execution, lease, .. } => {
                    needs.executions.insert(*execution);
                    needs.held.insert(lease.node);
                }
                Change::ExecutionStarted { execution, .. }
                | Change::ExecutionFinished { execution, .. }
                | Change::ApprovalDecided { execution, .. } => {
                    needs.executions.insert(*execution);
                }
                Change::ExecutionLost { execution, silence, .. } => {
                    needs.executions.insert(*execution);
                    needs.nodes.extend(silence.map(|silence| silence.node));
                }
                Change::ExecutionCancelRequested { run, execution, .. }
                | Change::ExecutionGivenUp { run, execution, .. }
                | Change::ExecutionSkipped { run, execution, .. }
                | Change::InstanceFailed { run, execution, .. } => {
                    needs.runs.insert(run);
                    needs.executions.insert(*execution);
                }
                Change::DeliveryQueued { delivery, .. } => {
                    needs.clusters.insert(delivery.cluster);
                    needs.runs.insert(&delivery.run);
                    needs.deliveries.insert(delivery.id);
                }
                Change::DeliveryTaken { delivery, .. }
                | Change::DeliveryTried { delivery, .. }
                | Change::DeliveryRequested { delivery, .. } => _ = needs.deliveries.insert(*delivery),
                Change::Unknown { .. } => {}
            }
        }
        needs.sessions.retain(|node| !needs.nodes.contains(node));
        needs
    }

    /// Returns the jobs whose active runs the guards count, once the homes of the runs are loaded.
    pub(crate) fn busy_jobs(&self, tables: &Tables) -> BTreeSet<JobKey> {
        let homes = self.rooms.iter().filter_map(|run| tables.homes.get(*run));
        homes.filter_map(|home| Some(JobKey::new(home.cluster, home.job.clone()?))).collect()
    }

    fn need_job(&mut self, job: &JobKey) {
        self.clusters.insert(job.cluster);
        self.jobs.insert(job.id());
    }
}

/// A limit in which a lease of the batch needs a free slot.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LimitCheck<'a> {
    pub(crate) run: &'a RunId,
    /// The run's cluster, if the batch creates the run.
    pub(crate) created_in: Option<ClusterId>,
    pub(crate) key: String,
    pub(crate) counted: Counted,
}

impl<'a> LimitCheck<'a> {
    /// Returns the limits to count before a batch is applied. It needs the loaded executions, which know their limits.
    /// Usually there are none.
    pub(crate) fn of(changes: &'a [Change], tables: &Tables) -> BTreeSet<Self> {
        let added = || {
            let of = |change: &'a Change| match change {
                Change::ExecutionsAdded { executions, .. } => &executions[..],
                _ => &[],
            };
            changes.iter().flat_map(of).filter(|execution| execution.limits.is_some())
        };
        let new: BTreeMap<ExecutionId, &Execution> = added().map(|each| (each.id, each)).collect();
        let mut checks = BTreeSet::new();
        let mut ask = |run: &'a RunId, execution: &Execution, at: Timestamp| {
            for (key, limit) in execution.limits.iter().flat_map(|limits| limits.iter()) {
                let counted = Counted::of(*limit, at);
                checks.insert(Self { run, created_in: None, key: key.clone(), counted });
            }
        };
        for execution in added() {
            if let Some(lease) = current_lease(execution) {
                ask(execution.run(), execution, lease.granted_at);
            }
        }
        for change in changes {
            if let Change::ExecutionLeased { of: Parent::Run(run), execution, lease } = change {
                let known = [tables.executions.get(execution), new.get(execution).copied()];
                known.into_iter().flatten().for_each(|each| ask(run, each, lease.granted_at));
            }
        }
        if checks.is_empty() {
            return checks;
        }
        let created = |change: &'a Change| match change {
            Change::RunCreated { run, .. } => Some((&run.id, run.cluster)),
            _ => None,
        };
        let created: BTreeMap<&RunId, ClusterId> = changes.iter().filter_map(created).collect();
        let index = |one: Self| Self { created_in: created.get(one.run).copied(), ..one };
        checks.into_iter().map(index).collect()
    }

    /// Records the number of uses that count.
    pub(crate) fn record(self, cluster: ClusterId, count: u32, tables: &mut Tables) {
        let question = Question { cluster, key: self.key, counted: self.counted };
        tables.uses.elsewhere.insert(question, count);
    }
}

/// The rows that the applied changes of a batch created or changed. Each is written once, in its final state.
#[derive(Debug, Default)]
pub(crate) struct Dirty<'a> {
    /// The last version of each cluster that is not deleted.
    pub(crate) clusters: BTreeMap<ClusterId, &'a ClusterRecord>,
    pub(crate) clusters_created: BTreeSet<ClusterId>,
    pub(crate) clusters_deleted: BTreeMap<ClusterId, Timestamp>,
    pub(crate) nodes_registered: BTreeMap<NodeId, &'a Registration>,
    pub(crate) nodes_altered: BTreeSet<NodeId>,
    /// The problems that each agent reported last.
    pub(crate) node_problems: BTreeMap<NodeId, &'a [String]>,
    /// In order. Those that registered again are also in `nodes_registered`.
    pub(crate) nodes_deleted: Vec<Deleted<'a>>,
    pub(crate) jobs: BTreeMap<JobId, &'a JobKey>,
    pub(crate) job_versions: Vec<&'a JobVersion>,
    pub(crate) backfills: BTreeSet<BackfillId>,
    pub(crate) backfills_created: Vec<&'a Backfill>,
    pub(crate) deliveries: BTreeSet<DeliveryId>,
    /// Clusters that have a new delivery: older ones may be removed.
    pub(crate) delivered: BTreeSet<ClusterId>,
    pub(crate) runs_created: BTreeMap<&'a RunId, &'a RunRecord>,
    pub(crate) runs_altered: BTreeSet<&'a RunId>,
    pub(crate) executions_added: BTreeSet<ExecutionId>,
    pub(crate) executions_altered: BTreeSet<ExecutionId>,
    /// The changed executions with a new lease. Nothing else changes the lease columns, and an UPDATE without them does
    /// not rewrite their indexes.
    pub(crate) executions_leased: BTreeSet<ExecutionId>,
    /// The stored executions whose instance failed for good.
    pub(crate) executions_failed: BTreeSet<ExecutionId>,
}

/// A node that a batch deleted.
#[derive(Debug)]
pub(crate) struct Deleted<'a> {
    pub(crate) node: NodeId,
    pub(crate) session: SessionId,
    pub(crate) at: Timestamp,
    /// Its registration, if it is in the same batch: then the store has none, or an earlier one.
    pub(crate) registration: Option<&'a Registration>,
}

impl<'a> Dirty<'a> {
    /// `applied` are the indexes of the applied changes, in the order of application.
    pub(crate) fn of(changes: &'a [Change], applied: &[usize]) -> Self {
        let mut dirty = Self::default();
        for &index in applied {
            match &changes[index] {
                Change::ClusterCreated { cluster, .. } => {
                    dirty.clusters.insert(cluster.id, cluster);
                    dirty.clusters_created.insert(cluster.id);
                }
                Change::ClusterChanged { cluster, .. } => _ = dirty.clusters.insert(cluster.id, cluster),
                Change::ClusterDeleted { cluster, at, .. } => {
                    dirty.clusters_deleted.insert(*cluster, *at);
                }
                Change::NodeRegistered { registration } => {
                    dirty.nodes_registered.insert(registration.node, registration);
                    // A new session has not reported any problems.
                    dirty.node_problems.remove(&registration.node);
                }
                Change::NodeMoved { node, .. } | Change::NodeDrainSet { node, .. } => {
                    if !dirty.nodes_registered.contains_key(node) {
                        dirty.nodes_altered.insert(*node);
                    }
                }
                Change::NodeProblemsSet { node, problems, .. } => {
                    dirty.node_problems.insert(*node, problems);
                }
                Change::NodeDeleted { node, session, at, .. } => {
                    let registration = dirty.nodes_registered.remove(node);
                    dirty.nodes_altered.remove(node);
                    dirty.node_problems.remove(node);
                    let (node, session, at) = (*node, *session, *at);
                    dirty.nodes_deleted.push(Deleted { node, session, at, registration });
                }
                Change::JobApplied { job, .. } => {
                    dirty.jobs.insert(job.key.id(), &job.key);
                    dirty.job_versions.push(job);
                }
                Change::JobPauseSet { job, .. }
                | Change::JobDeleted { job, .. }
                | Change::JobDecided { job, .. } => _ = dirty.jobs.insert(job.id(), job),
                Change::JobNotTriggered { .. } | Change::TriggersFollowed { .. } => {}
                Change::BackfillCreated { backfill } => {
                    dirty.backfills.insert(backfill.id);
                    dirty.backfills_created.push(backfill);
                }
                Change::BackfillMoved { backfill, .. } | Change::BackfillCancelled { backfill, .. } => {
                    dirty.backfills.insert(*backfill);
                }
                Change::RunCreated { run, firing, .. } => {
                    dirty.backfills.extend(firing.and_then(|firing| Some(firing.backfill?.id)));
                    dirty.runs_created.insert(&run.id, run);
                }
                // An empty path without a stop changes nothing, not even a run that has ended.
                Change::RunMoved { path, stop: None, .. } if path.is_empty() => {}
                Change::DeliveryQueued { delivery, .. } => {
                    dirty.deliveries.insert(delivery.id);
                    dirty.delivered.insert(delivery.cluster);
                }
                Change::DeliveryTaken { delivery, .. }
                | Change::DeliveryTried { delivery, .. }
                | Change::DeliveryRequested { delivery, .. } => _ = dirty.deliveries.insert(*delivery),
                Change::Unknown { .. } => {}
                Change::RunTaken { run, .. }
                | Change::RunCancelRequested { run, .. }
                | Change::RunPauseSet { run, .. }
                | Change::RunAdmitted { run, .. }
                | Change::RunChecked { run, .. }
                | Change::RunActed { run, .. }
                | Change::RunWoken { run, .. }
                | Change::RunMoved { run, .. } => {
                    dirty.alter_run(run);
                }
                Change::ExecutionsAdded { run, executions, rollout, .. } => {
                    dirty.executions_added.extend(executions.iter().map(|execution| execution.id));
                    if rollout.is_some() {
                        dirty.alter_run(run);
                    }
                }
                Change::ExecutionLeased { execution, .. } => {
                    if !dirty.executions_added.contains(execution) {
                        dirty.executions_altered.insert(*execution);
                        dirty.executions_leased.insert(*execution);
                    }
                }
                Change::InstanceFailed { run, execution, rollout, .. } => {
                    if !dirty.executions_added.contains(execution) {
                        dirty.executions_failed.insert(*execution);
                    }
                    if rollout.is_some() {
                        dirty.alter_run(run);
                    }
                }
                Change::ExecutionStarted { execution, .. }
                | Change::ExecutionFinished { execution, .. }
                | Change::ExecutionLost { execution, .. }
                | Change::ApprovalDecided { execution, .. }
                | Change::ExecutionCancelRequested { execution, .. }
                | Change::ExecutionGivenUp { execution, .. }
                | Change::ExecutionSkipped { execution, .. } => {
                    if !dirty.executions_added.contains(execution) {
                        dirty.executions_altered.insert(*execution);
                    }
                }
            }
        }
        dirty
    }

    /// Returns the rows of the created and changed clusters.
    pub(crate) fn cluster_rows(&self) -> Result<Vec<ClusterRow<'a>>> {
        let row = |cluster: &&'a ClusterRecord| {
            let mut row = ClusterRow::of(cluster)?;
            if self.clusters_deleted.contains_key(&cluster.id) {
                row.unname();
            }
            Ok(row)
        };
        self.clusters.values().map(row).collect()
    }

    /// Returns rows that take the names from the clusters whose name may change: two clusters may swap theirs.
    pub(crate) fn unnamed_clusters(&self) -> Vec<ClusterNameRow<'static>> {
        let ids = self.clusters.keys().chain(self.clusters_deleted.keys());
        ids.map(|id| ClusterNameRow::unnamed(*id)).collect()
    }

    pub(crate) fn deleted_clusters(&self) -> Vec<DeletedClusterRow<'static>> {
        self.clusters_deleted.iter().map(|(id, at)| DeletedClusterRow::of(*id, *at)).collect()
    }

    pub(crate) fn job_rows(&self, tables: &Tables) -> Vec<JobRow<'a>> {
        self.jobs.iter().map(|(id, key)| JobRow::of(key, &tables.jobs[id])).collect()
    }

    pub(crate) fn job_version_rows(&self) -> Result<Vec<JobVersionRow<'a>>> {
        self.job_versions.iter().map(|job| JobVersionRow::of(job)).collect()
    }

    /// Returns the first version to keep of each job that has a new one.
    pub(crate) fn old_versions(&self) -> Vec<OldVersionsRow> {
        self.job_versions.iter().map(|job| OldVersionsRow::before(job)).collect()
    }

    pub(crate) fn backfill_rows(&self, tables: &Tables) -> Result<Vec<BackfillRow<'static>>> {
        self.backfills.iter().map(|id| BackfillRow::of(&tables.backfills[id])).collect()
    }

    /// Returns the jobs that have a new backfill: ended ones beyond the last few are removed.
    pub(crate) fn old_backfills(&self) -> Vec<OldBackfillsRow> {
        self.backfills_created.iter().map(|backfill| OldBackfillsRow::before(backfill)).collect()
    }

    pub(crate) fn delivery_rows<'t>(&self, tables: &'t Tables) -> Result<Vec<DeliveryRow<'t>>> {
        self.deliveries.iter().map(|id| DeliveryRow::of(&tables.deliveries[id])).collect()
    }

    fn alter_run(&mut self, run: &'a RunId) {
        if !self.runs_created.contains_key(run) {
            self.runs_altered.insert(run);
        }
    }

    /// Returns the batch's additions to the counts of ended rows. The state of an ended row never changes again, so each
    /// row whose state changed and that has ended did so in this batch.
    pub(crate) fn ended(&self, tables: &Tables, changed: &Changed<'_>) -> Vec<Ended> {
        let executions = changed.added.iter().chain(&changed.altered);
        let statuses =
            executions.map(|execution| execution.state.status()).filter(|status| !status.is_open());
        let runs = self.runs_created.keys().chain(&self.runs_altered);
        let states = runs.map(|id| tables.runs[*id].state()).filter(|state| state.is_terminal());
        let mut totals = BTreeMap::new();
        let kinds = statuses
            .map(|status| (ENDED_EXECUTIONS, status.code()))
            .chain(states.map(|state| (ENDED_RUNS, state.code())));
        for kind in kinds {
            *totals.entry(kind).or_insert(0) += 1;
        }
        totals.into_iter().map(|((kind, code), total)| Ended { kind, code, total }).collect()
    }

    /// Looks up the added and the altered executions.
    pub(crate) fn changed<'t>(&self, tables: &'t Tables) -> Changed<'t> {
        let executions = |ids: &BTreeSet<ExecutionId>| ids.iter().map(|id| &tables.executions[id]).collect();
        Changed { added: executions(&self.executions_added), altered: executions(&self.executions_altered) }
    }
}

/// The executions that a batch adds and alters.
#[derive(Debug)]
pub(crate) struct Changed<'t> {
    pub(crate) added: Vec<&'t Execution>,
    pub(crate) altered: Vec<&'t Execution>,
}

impl<'t> Changed<'t> {
    /// Returns the results that may be reused.
    pub(crate) fn cached(&self) -> impl Iterator<Item = CachedRow<'t>> {
        self.added.iter().chain(&self.altered).filter_map(|execution| {
            let key = execution.cache_key.as_deref().filter(|_| execution.reused.is_none())?;
            match &execution.state {
                State::Succeeded { outcome, .. } => Some(CachedRow {
                    execution: execution.id.0,
                    cache_key: key.into(),
                    finished_at: outcome.ended_at().as_microsecond(),
                    run: execution.run().as_str().into(),
                }),
                _ => None,
            }
        })
    }
}

/// The batch's changes to `holds`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds<'a> {
    pub(crate) removed: Vec<NodeId>,
    pub(crate) added: Vec<(NodeId, &'a RunId)>,
}

impl<'a> Holds<'a> {
    pub(crate) fn of(before: &BTreeMap<NodeId, RunId>, after: &'a BTreeMap<NodeId, RunId>) -> Self {
        let added = after.iter().filter(|(node, run)| before.get(node) != Some(run));
        Self {
            removed: before.keys().filter(|node| !after.contains_key(node)).copied().collect(),
            added: added.map(|(node, run)| (*node, run)).collect(),
        }
    }
}

/// The batch's changes to `limit_uses`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitChanges {
    pub(crate) added: Vec<LimitUse>,
    /// Executions that no longer count against an `AtOnce` limit.
    pub(crate) removed: Vec<ExecutionId>,
    /// Uses of rates that expire before this time are removed.
    pub(crate) expired_at: Option<Timestamp>,
}

impl LimitChanges {
    /// Returns how many expired uses a batch removes at most: more than it adds, so that they do not accumulate.
    pub(crate) fn max_expired(&self) -> i64 {
        int(1_000 + 2 * self.added.len() as u64)
    }

    pub(crate) fn of(tables: &Tables, dirty: &Dirty<'_>, verdicts: &Verdicts) -> Self {
        let counts_at_once = |limits: &Limits| limits.values().any(|limit| matches!(limit, Limit::AtOnce(_)));
        let removed = dirty.executions_altered.iter().filter(|id| {
            let Execution { limits, state, .. } = &tables.executions[id];
            limits.as_deref().is_some_and(counts_at_once)
                && !state.status().is_open()
                && state.lease().is_some()
        });
        Self {
            added: tables.uses.list(),
            removed: removed.copied().collect(),
            expired_at: verdicts.uses_over,
        }
    }
}

/// The stored codes of the kinds of rows whose ends are counted.
pub(crate) const ENDED_EXECUTIONS: i16 = 1;
pub(crate) const ENDED_RUNS: i16 = 2;
/// The bytes of output are counted in the same table, by triggers.
pub(crate) const OUTPUT_BYTES: i16 = 3;

columns! {
    /// A number of rows of a kind that ended with a status.
    struct Ended {
        kind: i16,
        code: i16,
        total: i64,
    }
}
