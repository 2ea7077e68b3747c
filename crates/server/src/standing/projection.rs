//! Owns the projection of all clusters and of the walks of their nodes. It follows the feed, on replicas too.

use std::sync::{Arc, Mutex, MutexGuard};

use downbeat_core::change::EndOf;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, TaskId};
use downbeat_core::standing::{ClusterStatus, LastAttempt, StandingTask, Start, Walks};
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::{self as store, StandingKey, StandingResult, Store};
use jiff::SignedDuration;
use tokio::sync::Notify;

use crate::dispatch::Dispatcher;
use crate::journal::Perform;
use crate::runs::Runs;

/// How many results are read at once.
const AT_ONCE: u32 = 10_000;
/// For how long a server remembers the nodes of a deleted cluster: longer than its rows are there.
const GONE_FOR: SignedDuration = SignedDuration::from_hours(1);

/// The right to edit a cluster on this server.
pub(crate) type Turn = tokio::sync::Mutex<()>;

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

/// A task that follows another one on the same node.
pub(super) struct Following {
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) start: Start,
}

#[derive(Debug, Default)]
struct Inner {
    clusters: HashMap<ClusterId, Walks>,
    /// The cluster of each standing run.
    homes: HashMap<RunId, ClusterId>,
    /// Who edits each cluster: one request at a time, in their order.
    turns: HashMap<ClusterId, Arc<Turn>>,
    /// The nodes of clusters that were deleted lately, with the time of the deletion. Later their agents learn it when they
    /// register.
    gone: Vec<(Timestamp, HashSet<NodeId>)>,
    /// The cluster that was decided for last.
    served: Option<ClusterId>,
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

    /// Returns the turn of a cluster's edits. Edits of other servers do not take part in it: the version of the cluster
    /// decides between them.
    pub(crate) fn turn(&self, cluster: ClusterId) -> Option<Arc<Turn>> {
        self.inner().turns.get(&cluster).cloned()
    }

    /// Returns a task that is not deleted, with its cluster.
    pub(crate) fn task(&self, id: TaskId) -> Option<(Arc<ClusterRecord>, StandingTask)> {
        self.inner().clusters.values().find_map(|walks| {
            let (_, task) = walks.cluster().list.by_id(id)?;
            Some((Arc::clone(walks.cluster()), task.clone()))
        })
    }

    /// Returns the id and the name of the task, deleted or not, whose executions have this step of a standing run.
    pub(crate) fn task_of_step(&self, run: &RunId, step: u32) -> Option<(TaskId, String)> {
        let cluster = self.cluster_by_id(run.standing_of()?)?;
        cluster.list.by_number(step).map(|task| (task.id, task.name.clone()))
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
        self.inner().gone.iter().any(|(_, nodes)| nodes.contains(&node))
    }

    /// Forgets which nodes were in clusters that were deleted long ago.
    pub(super) fn forget_gone(&self, now: Timestamp) {
        self.inner().forget_gone(now);
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

    /// Calls `decide` with the walks of a cluster that this server decides for and that has nodes to decide for, one cluster
    /// after the other: a busy one does not keep others waiting.
    pub(super) fn decide<T>(&self, server: ServerId, decide: impl FnOnce(&mut Walks, u64) -> T) -> Option<T> {
        let mut inner = self.inner();
        let own = |walks: &Walks| walks.owner().filter(|(owner, _)| *owner == server && walks.has_due());
        let due = inner.clusters.iter().filter(|(_, walks)| own(walks).is_some()).map(|(id, _)| *id);
        let next = next_after(inner.served, due)?;
        inner.served = Some(next);
        let walks = inner.clusters.get_mut(&next)?;
        let (_, epoch) = own(walks)?;
        Some(decide(walks, epoch))
    }

    /// Decides which task a node starts when an open execution of a standing run has ended. Nothing if another server decides.
    pub(super) fn start_after(
        &self,
        server: ServerId,
        node: NodeId,
        run: &RunId,
        end: EndOf,
        now: Timestamp,
    ) -> Option<Following> {
        let mut inner = self.inner();
        let walks = inner.of_run(run)?;
        let (_, epoch) = walks.owner().filter(|(owner, _)| *owner == server)?;
        let start = walks.start_after(node, end, now)?;
        Some(Following { epoch, version: walks.cluster().version, start })
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
                self.turns.insert(cluster.id, Arc::default());
                self.clusters.insert(cluster.id, Walks::new(cluster));
            }
        }
    }

    fn remove(&mut self, cluster: ClusterId) -> Option<Walks> {
        self.homes.remove(&RunId::standing(cluster));
        self.turns.remove(&cluster);
        self.clusters.remove(&cluster)
    }

    fn forget_gone(&mut self, now: Timestamp) {
        self.gone.retain(|(at, _)| now.duration_since(*at) < GONE_FOR);
    }

    fn of_run(&mut self, run: &RunId) -> Option<&mut Walks> {
        if !run.as_str().starts_with(RunId::STANDING) {
            return None;
        }
        self.clusters.get_mut(self.homes.get(run)?)
    }

    fn load(&mut self, result: &StandingResult) {
        let Some(walks) = self.of_run(&result.run) else { return };
        let StandingResult { execution, attempt, status, created_at, lost_before, .. } = *result;
        let last = LastAttempt { execution, attempt, status, created_at, lost_before };
        walks.load(result.node, result.step, last);
    }
}

impl Perform for Standing {
    /// The board has already performed the events.
    fn perform(&self, events: &Arc<[Event]>) {
        let mut nodes: HashSet<NodeId> = HashSet::default();
        let mut removed = Vec::new();
        let mut newest = newest_versions(events);
        let mut inner = self.inner();
        for event in events.iter() {
            match &event.change {
                Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                    if let Some(newest) = newest.remove(&cluster.id) {
                        inner.add(Arc::new(newest.clone()));
                    }
                }
                Change::ClusterDeleted { cluster, at, .. } => {
                    if let Some(walks) = inner.remove(*cluster) {
                        inner.forget_gone(*at);
                        inner.gone.push((*at, walks.nodes().map(|node| node.id).collect()));
                        removed.push(*cluster);
                    }
                }
                Change::NodeRegistered { registration } => {
                    nodes.insert(registration.node);
                    if !registration.attempts.is_empty()
                        && let Some(walks) = inner.clusters.get_mut(&registration.cluster)
                    {
                        walks.returned(registration.node, &registration.attempts);
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
            inner.clusters.values_mut().for_each(Walks::forget_strangers);
            let is_due = inner.clusters.values().any(Walks::has_due);
            drop(inner);
            is_due
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
            inner.clusters.values_mut().for_each(Walks::forget_strangers);
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

/// Returns the first cluster after the last one, in a circle.
fn next_after(last: Option<ClusterId>, due: impl Iterator<Item = ClusterId>) -> Option<ClusterId> {
    due.min_by_key(|cluster| (last.is_some_and(|last| *cluster <= last), *cluster))
}

/// Returns the newest version of each cluster that events change. With each version all nodes of the cluster walk through
/// the list again, so the others are left out. What happened between two versions is the same with the newer one.
fn newest_versions(events: &[Event]) -> HashMap<ClusterId, &ClusterRecord> {
    let mut newest = HashMap::default();
    for event in events {
        if let Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } = &event.change
        {
            newest.insert(cluster.id, cluster);
        }
    }
    newest
}

/// Returns the node whose record a change alters.
fn node_of(change: &Change) -> Option<NodeId> {
    match change {
        Change::NodeMoved { node, .. }
        | Change::NodeDrainSet { node, .. }
        | Change::NodeDeleted { node, .. } => Some(*node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::cluster::ClusterEdit;
    use downbeat_core::ids::ServerId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn clusters_are_served_in_turn() {
        let ids = |numbers: &[u128]| {
            numbers.iter().map(|number| ClusterId(Uuid::from_u128(*number))).collect::<Vec<_>>()
        };
        let mut last = None;
        let mut served = Vec::new();
        // The second one is always due.
        for due in [ids(&[3, 1, 2]), ids(&[3, 2]), ids(&[2, 3]), ids(&[1, 2]), ids(&[2])] {
            last = next_after(last, due.into_iter());
            served.extend(last);
        }
        assert_eq!(served, ids(&[1, 2, 3, 1, 2]));
        assert_eq!(next_after(last, std::iter::empty()), None);
    }

    #[test]
    fn of_several_versions_of_a_cluster_only_the_newest_is_walked_through() {
        let at = Timestamp::UNIX_EPOCH;
        let first = ClusterRecord::new(ClusterId(Uuid::from_u128(1)), "web".to_owned(), String::new(), at);
        let edited = |cluster: &ClusterRecord| cluster.edited(at, |_| ());
        let (default, second) = (edited(&ClusterRecord::default_cluster()), edited(&first));
        let third = edited(&second);
        let by = || "api".to_owned();
        let changed =
            |cluster| Change::ClusterChanged { cluster, edit: ClusterEdit::TasksReordered, by: by(), at };
        let changes = [
            Change::ClusterCreated { cluster: first, by: by(), at },
            changed(second),
            changed(default.clone()),
            changed(third.clone()),
        ];
        let server = ServerId(Uuid::from_u128(7));
        let events: Vec<Event> = changes
            .into_iter()
            .zip(1..)
            .map(|(change, seq)| Event { seq, server, change, about: Default::default() })
            .collect();
        let newest = newest_versions(&events);
        assert_eq!(newest, HashMap::from_iter([(third.id, &third), (default.id, &default)]));
    }
}
