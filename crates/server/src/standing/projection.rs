//! Owns the projection of all clusters and of the walks of their nodes. It follows the feed, on replicas too.

use std::sync::{Arc, Mutex, MutexGuard};

use downbeat_core::cluster::ClusterRecord;
use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, TaskId};
use downbeat_core::standing::{ClusterStatus, LastAttempt, StandingTask, Walks};
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::{self as store, StandingKey, StandingResult, Store};
use tokio::sync::Notify;

use crate::dispatch::Dispatcher;
use crate::journal::Perform;
use crate::runs::Runs;

/// How many results are read at once.
const AT_ONCE: u32 = 10_000;

/// A handle to the projection; cheap to clone. The lock is never held across an await, and never while the board is locked.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    inner: Arc<Mutex<Inner>>,
    dispatcher: Dispatcher,
    runs: Runs,
    wake: Arc<Notify>,
    /// Wakes the task that removes the rows of deleted clusters.
    deleted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    clusters: HashMap<ClusterId, Walks>,
    /// The cluster of each standing run.
    homes: HashMap<RunId, ClusterId>,
    /// The nodes of clusters that were deleted since the start. After a restart their agents learn it when they register.
    gone: HashSet<NodeId>,
}

impl Standing {
    pub(crate) fn new(dispatcher: Dispatcher, runs: Runs) -> Self {
        Self { inner: Arc::default(), dispatcher, runs, wake: Arc::default(), deleted: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the walks")
    }

    /// Loads everything from the store. Called after the board was loaded, before the journal publishes anything.
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), store::Error> {
        let mut inner = Inner::default();
        for cluster in store.clusters().await? {
            inner.add(Arc::new(cluster));
        }
        for run in store.open_runs().await? {
            if let Some(walks) = inner.of_run(&run.id) {
                walks.set_owner(run.live.owner, run.live.epoch);
            }
        }
        let mut after = None;
        loop {
            let results = store.standing_results(None, after.as_ref(), AT_ONCE).await?;
            let Some(last) = results.last() else { break };
            after = Some(StandingKey { run: last.run.clone(), step: last.step, node: last.node });
            results.into_iter().for_each(|result| inner.load(&result));
        }
        let board = self.dispatcher.board();
        for node in board.nodes() {
            if let Some(walks) = inner.clusters.get_mut(&node.cluster) {
                walks.set_node(Arc::clone(node));
            }
        }
        drop(board);
        inner.clusters.values_mut().for_each(Walks::loaded);
        *self.inner() = inner;
        self.wake.notify_one();
        self.deleted.notify_one();
        Ok(())
    }

    /// Returns all clusters, by name.
    pub(crate) fn clusters(&self) -> Vec<Arc<ClusterRecord>> {
        let mut clusters: Vec<_> =
            self.inner().clusters.values().map(|walks| Arc::clone(walks.cluster())).collect();
        clusters.sort_by(|one, other| one.name.cmp(&other.name));
        clusters
    }

    pub(crate) fn cluster(&self, name_or_id: &str) -> Option<Arc<ClusterRecord>> {
        let inner = self.inner();
        let by_id = name_or_id.parse().ok().and_then(|id: ClusterId| inner.clusters.get(&id));
        let found =
            by_id.or_else(|| inner.clusters.values().find(|walks| walks.cluster().name == name_or_id));
        found.map(|walks| Arc::clone(walks.cluster()))
    }

    pub(crate) fn cluster_by_id(&self, id: ClusterId) -> Option<Arc<ClusterRecord>> {
        self.inner().clusters.get(&id).map(|walks| Arc::clone(walks.cluster()))
    }

    /// Returns a task that is not deleted, with its cluster.
    pub(crate) fn task(&self, id: TaskId) -> Option<(Arc<ClusterRecord>, StandingTask)> {
        self.inner().clusters.values().find_map(|walks| {
            let (_, task) = walks.cluster().list.by_id(id)?;
            Some((Arc::clone(walks.cluster()), task.clone()))
        })
    }

    /// Returns the task, deleted or not, whose executions have this step of a standing run.
    pub(crate) fn task_of_step(&self, run: &RunId, step: u32) -> Option<StandingTask> {
        let cluster = self.cluster_by_id(run.standing_of()?)?;
        cluster.list.by_number(step).cloned()
    }

    pub(crate) fn status(&self, cluster: ClusterId) -> Option<ClusterStatus> {
        self.inner().clusters.get(&cluster).map(|walks| walks.status().clone())
    }

    /// Calls `read` with the walks of a cluster. It must be short: events wait for it.
    pub(crate) fn with_walks<T>(&self, cluster: ClusterId, read: impl FnOnce(&Walks) -> T) -> Option<T> {
        self.inner().clusters.get(&cluster).map(read)
    }

    /// Returns whether this server decides for a standing run.
    pub(crate) fn owns(&self, run: &RunId, server: ServerId) -> bool {
        let mut inner = self.inner();
        inner.of_run(run).is_some_and(|walks| walks.owner().is_some_and(|(owner, _)| owner == server))
    }

    /// Returns whether the cluster of a node was deleted.
    pub(crate) fn is_deleted(&self, node: NodeId) -> bool {
        self.inner().gone.contains(&node)
    }

    /// Returns the executions that nodes have of clusters that this server decides for, with the times of their creation.
    pub(super) fn held(&self, server: ServerId) -> Vec<(ExecutionId, Timestamp)> {
        let inner = self.inner();
        let own =
            inner.clusters.values().filter(|walks| walks.owner().is_some_and(|(owner, _)| owner == server));
        own.flat_map(Walks::held).collect()
    }

    /// Waits until a node may have something to do.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until a cluster was deleted.
    pub(super) async fn cluster_deleted(&self) {
        self.deleted.notified().await;
    }

    /// Calls `decide` with the walks of each cluster that this server decides for, until it returns something.
    pub(super) fn decide<T>(
        &self,
        server: ServerId,
        mut decide: impl FnMut(&mut Walks, u64) -> Option<T>,
    ) -> Option<T> {
        self.inner().clusters.values_mut().filter(|walks| walks.has_due()).find_map(|walks| {
            let (owner, epoch) = walks.owner()?;
            if owner == server { decide(walks, epoch) } else { None }
        })
    }

    /// Decides again for nodes whose last decision was not committed.
    pub(super) fn decide_again(&self, cluster: ClusterId, nodes: &[NodeId]) {
        if let Some(walks) = self.inner().clusters.get_mut(&cluster) {
            nodes.iter().for_each(|node| walks.is_due(*node));
        }
        self.wake();
    }
}

impl Inner {
    fn add(&mut self, cluster: Arc<ClusterRecord>) {
        match self.clusters.get_mut(&cluster.id) {
            Some(walks) => walks.set_cluster(cluster),
            None => {
                self.homes.insert(RunId::standing(cluster.id), cluster.id);
                self.clusters.insert(cluster.id, Walks::new(cluster));
            }
        }
    }

    fn remove(&mut self, cluster: ClusterId) -> Option<Walks> {
        self.homes.remove(&RunId::standing(cluster));
        self.clusters.remove(&cluster)
    }

    fn of_run(&mut self, run: &RunId) -> Option<&mut Walks> {
        if !run.as_str().starts_with(RunId::STANDING) {
            return None;
        }
        self.clusters.get_mut(self.homes.get(run)?)
    }

    fn load(&mut self, result: &StandingResult) {
        let Some(walks) = self.of_run(&result.run) else { return };
        let StandingResult { execution, attempt, status, created_at, .. } = *result;
        let last = LastAttempt { execution, attempt, status, created_at, lost_before: 0 };
        walks.load(result.node, result.step, last);
    }
}

impl Perform for Standing {
    /// The board has already performed the events.
    fn perform(&self, events: &Arc<[Event]>) {
        let mut nodes: HashSet<NodeId> = HashSet::default();
        let mut removed = Vec::new();
        let mut inner = self.inner();
        for event in events.iter() {
            match &event.change {
                Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                    inner.add(Arc::new(cluster.clone()));
                }
                Change::ClusterDeleted { cluster, .. } => {
                    if let Some(walks) = inner.remove(*cluster) {
                        inner.gone.extend(walks.nodes().map(|node| node.id));
                        removed.push(*cluster);
                    }
                }
                change => {
                    if let Some(walks) = change.run().and_then(|run| inner.of_run(run)) {
                        walks.observe(change);
                    } else if let Some(node) = node_of(change) {
                        nodes.insert(node);
                    }
                }
            }
        }
        let is_due = if nodes.is_empty() {
            inner.clusters.values().any(Walks::has_due)
        } else {
            drop(inner);
            // In this order: the board is never asked while the walks are locked.
            let board = self.dispatcher.board();
            let records: Vec<_> = nodes.iter().map(|node| (*node, board.node(*node).cloned())).collect();
            drop(board);
            let mut inner = self.inner();
            for (node, record) in records {
                match record {
                    Some(record) => {
                        if let Some(walks) = inner.clusters.get_mut(&record.cluster) {
                            walks.set_node(record);
                        }
                    }
                    None => inner.clusters.values_mut().for_each(|walks| walks.remove_node(node)),
                }
            }
            inner.clusters.values().any(Walks::has_due)
        };
        if is_due {
            self.wake();
        }
        for cluster in removed {
            let runs = self.dispatcher.forget_cluster(cluster);
            self.runs.forget(&runs);
            self.deleted.notify_one();
        }
    }
}

/// Returns the node whose record a change alters.
fn node_of(change: &Change) -> Option<NodeId> {
    match change {
        Change::NodeRegistered { registration } => Some(registration.node),
        Change::NodeMoved { node, .. }
        | Change::NodeDrainSet { node, .. }
        | Change::NodeDeleted { node, .. } => Some(*node),
        _ => None,
    }
}
