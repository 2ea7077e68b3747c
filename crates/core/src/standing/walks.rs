//! Owns the walks of all nodes of a cluster: folded from events, and what each node has to do next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::list::{RerunScope, StandingList, StandingTask};
use super::walk::{Cell, LastAttempt, Next, SENDS, Walked, Withdrawal, created_at, takes_work};
use crate::Timestamp;
use crate::change::{Change, EndOf};
use crate::cluster::ClusterRecord;
use crate::collections::{HashMap, HashSet};
use crate::execution::{Execution, Status};
use crate::ids::{ExecutionId, NodeId, RunId, ServerId, SessionId};
use crate::node::{NodeRecord, NodeStatus};
use crate::words::words;

words! {
    /// Where a node is in the list.
    pub enum WalkState {
        /// Every task that applies to it succeeded.
        Complete = "complete",
        /// It has tasks to do.
        Pending = "pending",
        Running = "running",
        /// Every task has ended, and one of them failed.
        Failed = "failed",
        /// A blocking task failed, and the rest is skipped.
        Blocked = "blocked",
    }
}

/// Counts of a cluster. Each is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    pub nodes: u64,
    pub active: u64,
    pub tasks: u64,
    /// Nodes on which every task that applies to them succeeded.
    pub complete: u64,
    /// Nodes with tasks that are pending or running.
    pub pending: u64,
    /// Nodes with a task that failed or was lost.
    pub failed: u64,
    /// How many nodes have each cell, for each task of the list.
    pub cells: Vec<BTreeMap<Cell, u64>>,
}

impl ClusterStatus {
    /// Returns the share of nodes with everything done, in per cent; 100 if there is nothing to do.
    pub fn completion_percentage(&self) -> f64 {
        if self.nodes == 0 || self.tasks == 0 {
            return 100.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "a cluster has far fewer nodes than 2^52")]
        let share = self.complete as f64 / self.nodes as f64;
        share * 100.0
    }
}

/// The next step of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub node: NodeId,
    pub withdrawals: Vec<Withdrawal>,
    pub start: Option<Start>,
}

/// A task to start on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    pub number: u32,
    pub attempt: u32,
    /// The session of the node that gets it.
    pub session: SessionId,
    /// The status of the attempt before it.
    pub former: Option<Status>,
    pub created_at: Timestamp,
}

/// The walk of one node, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct WalkView {
    pub node: Arc<NodeRecord>,
    pub state: WalkState,
    pub cells: Vec<Cell>,
    /// The position of the failed blocking task, with its last execution.
    pub stuck: Option<(usize, Option<ExecutionId>)>,
}

#[derive(Debug)]
struct Walk {
    node: Arc<NodeRecord>,
    walked: Walked,
}

impl Walk {
    fn has_step(&self) -> bool {
        let starts = matches!(self.walked.next, Next::Start { .. }) && takes_work(&self.node);
        starts || !self.walked.withdrawals.is_empty()
    }
}

/// The walks of a cluster.
#[derive(Debug)]
pub struct Walks {
    cluster: Arc<ClusterRecord>,
    run: RunId,
    /// The server that decides, and its epoch.
    owner: Option<(ServerId, u64)>,
    walks: HashMap<NodeId, Walk>,
    /// The last attempts. Of nodes that do not exist only those that are open.
    attempts: HashMap<NodeId, BTreeMap<u32, LastAttempt>>,
    /// The numbers of the last attempts before a node was deleted, if it has returned, by the number of the task.
    earlier: HashMap<NodeId, BTreeMap<u32, u32>>,
    /// Nodes that do not exist (yet) and whose attempts have changed.
    strangers: HashSet<NodeId>,
    /// The executions that have not ended.
    open: HashMap<ExecutionId, (NodeId, u32)>,
    status: ClusterStatus,
    /// Nodes that may have something to do.
    due: HashSet<NodeId>,
    /// Pending executions of nodes that were deleted, until they have ended: another server may decide.
    left: BTreeSet<ExecutionId>,
}

impl Walks {
    pub fn new(cluster: Arc<ClusterRecord>) -> Self {
        let mut walks = Self {
            run: RunId::standing(cluster.id),
            cluster,
            owner: None,
            walks: HashMap::default(),
            attempts: HashMap::default(),
            earlier: HashMap::default(),
            strangers: HashSet::default(),
            open: HashMap::default(),
            status: ClusterStatus::default(),
            due: HashSet::default(),
            left: BTreeSet::new(),
        };
        walks.count_all();
        walks
    }

    pub fn cluster(&self) -> &Arc<ClusterRecord> {
        &self.cluster
    }

    /// Returns the run whose executions these are.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the server that decides, and its epoch; nothing if the cluster never had a standing task.
    pub fn owner(&self) -> Option<(ServerId, u64)> {
        self.owner
    }

    pub fn set_owner(&mut self, owner: ServerId, epoch: u64) {
        self.owner = Some((owner, epoch));
        self.due.extend(self.walks.keys().copied());
    }

    /// Replaces the cluster by a newer version.
    pub fn set_cluster(&mut self, cluster: Arc<ClusterRecord>) {
        self.cluster = cluster;
        let StandingList { tasks, deleted, .. } = &*self.cluster.list;
        let known: HashSet<u32> = tasks.iter().chain(deleted).map(|task| task.number).collect();
        let is_known =
            |number: &u32, attempt: &mut LastAttempt| attempt.status.is_open() || known.contains(number);
        for attempts in self.attempts.values_mut() {
            attempts.retain(is_known);
        }
        self.count_all();
        self.due.extend(self.walks.keys().copied());
    }

    pub fn set_node(&mut self, node: Arc<NodeRecord>) {
        let id = node.id;
        let walked = self.walked(&node, None);
        let former = self.walks.insert(id, Walk { node, walked });
        if let Some(former) = former {
            count(&mut self.status, &former, Count::Out);
        }
        count(&mut self.status, &self.walks[&id], Count::In);
        self.due.insert(id);
    }

    pub fn remove_node(&mut self, node: NodeId) {
        if let Some(former) = self.walks.remove(&node) {
            count(&mut self.status, &former, Count::Out);
        }
        self.due.remove(&node);
        self.earlier.remove(&node);
        self.leave(node);
    }

    /// Notes the numbers of the last attempts of a node that was deleted and registers again.
    pub fn returned(&mut self, node: NodeId, attempts: &[(u32, u32)]) {
        self.earlier.insert(node, attempts.iter().copied().collect());
    }

    /// Forgets the attempts of nodes that do not exist, except open ones. Called when all nodes of the events that were
    /// observed are set: a node may register with the same events.
    pub fn forget_strangers(&mut self) {
        for node in std::mem::take(&mut self.strangers) {
            if let Some(attempts) = self.attempts.get_mut(&node).filter(|_| !self.walks.contains_key(&node)) {
                attempts.retain(|_, last| last.status.is_open());
                if attempts.is_empty() {
                    self.attempts.remove(&node);
                }
            }
        }
    }

    /// Withdraws the pending attempts of a node that does not exist.
    fn leave(&mut self, node: NodeId) {
        self.strangers.insert(node);
        let attempts = self.attempts.get(&node).into_iter().flat_map(BTreeMap::values);
        let pending = attempts.filter(|attempt| attempt.status == Status::Pending);
        self.left.extend(pending.map(|attempt| attempt.execution));
    }

    /// Notes that all nodes and results were loaded.
    pub fn loaded(&mut self) {
        let unknown: Vec<NodeId> =
            self.attempts.keys().filter(|node| !self.walks.contains_key(node)).copied().collect();
        for node in unknown {
            self.leave(node);
        }
        self.forget_strangers();
    }

    /// Takes the pending executions of nodes that were deleted.
    pub fn take_left(&mut self) -> BTreeSet<ExecutionId> {
        std::mem::take(&mut self.left)
    }

    /// Adds a stored result: the last attempt at a task on a node.
    pub fn load(&mut self, node: NodeId, number: u32, last: LastAttempt) {
        self.note(node, number, last);
    }

    /// Takes in a committed change of the standing run.
    pub fn observe(&mut self, change: &Change) {
        match change {
            Change::RunCreated { run, .. } => self.set_owner(run.live.owner, run.live.epoch),
            Change::RunTaken { owner, epoch, .. } => self.set_owner(*owner, *epoch),
            Change::ExecutionsAdded { executions, .. } => {
                for execution in executions {
                    self.add(execution);
                }
            }
            Change::ExecutionLeased { execution, .. } => self.alter(*execution, Status::Leased),
            Change::ExecutionStarted { execution, .. } => self.alter(*execution, Status::Running),
            Change::ExecutionFinished { execution, outcome, .. } => {
                self.alter(*execution, outcome.verdict.status());
            }
            Change::ExecutionLost { execution, .. } => self.alter(*execution, Status::Lost),
            Change::ExecutionGivenUp { execution, .. } => self.alter(*execution, Status::Failed),
            Change::ExecutionSkipped { execution, .. } => self.alter(*execution, Status::Skipped),
            Change::ExecutionCancelRequested { execution, .. } => {
                let is_pending = |(node, number): &(NodeId, u32)| {
                    self.attempt(*node, *number).is_some_and(|last| last.status == Status::Pending)
                };
                if self.open.get(execution).is_some_and(is_pending) {
                    self.alter(*execution, Status::Skipped);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, execution: &Execution) {
        let Some(node) = execution.pinned else { return };
        let former = self.attempt(node, execution.step());
        let lost_before = match former {
            Some(former) if former.status == Status::Lost => (former.lost_before + 1).min(SENDS - 1),
            _ => 0,
        };
        let last = LastAttempt {
            execution: execution.id,
            attempt: execution.attempt,
            status: execution.state.status(),
            created_at: execution.created_at,
            lost_before,
        };
        self.note(node, execution.step(), last);
    }

    fn alter(&mut self, execution: ExecutionId, status: Status) {
        let Some(&(node, number)) = self.open.get(&execution) else { return };
        let Some(last) = self.attempt(node, number).filter(|last| last.execution == execution) else {
            return;
        };
        let last = LastAttempt { status, ..*last };
        self.note(node, number, last);
    }

    fn attempt(&self, node: NodeId, number: u32) -> Option<&LastAttempt> {
        self.attempts.get(&node)?.get(&number)
    }

    fn note(&mut self, node: NodeId, number: u32, last: LastAttempt) {
        let attempts = self.attempts.entry(node).or_default();
        if attempts.get(&number).is_some_and(|known| known.attempt > last.attempt) {
            return;
        }
        let former = attempts.insert(number, last);
        if let Some(former) = former.filter(|former| former.execution != last.execution) {
            self.open.remove(&former.execution);
            self.left.remove(&former.execution);
        }
        if last.status.is_open() {
            self.open.insert(last.execution, (node, number));
        } else {
            self.open.remove(&last.execution);
            self.left.remove(&last.execution);
        }
        self.walk_again(node);
    }

    fn walk_again(&mut self, node: NodeId) {
        let Some(record) = self.walks.get(&node).map(|walk| Arc::clone(&walk.node)) else {
            self.strangers.insert(node);
            return;
        };
        let walked = self.walked(&record, None);
        let Some(walk) = self.walks.get_mut(&node) else { return };
        if walk.walked.cells != walked.cells {
            count(&mut self.status, walk, Count::Out);
            walk.walked = walked;
            count(&mut self.status, walk, Count::In);
        } else {
            walk.walked = walked;
        }
        // Usually the next step was committed together with the end of the last one, and there is nothing to decide.
        if walk.has_step() {
            self.due.insert(node);
        } else {
            self.due.remove(&node);
        }
    }

    /// Walks through the list for a node. `instead` replaces the last attempt at a task.
    fn walked(&self, node: &NodeRecord, instead: Option<(u32, LastAttempt)>) -> Walked {
        let attempts = self.attempts.get(&node.id);
        let replaced = instead.map(|(number, _)| number);
        let stored = attempts.into_iter().flatten().filter(|(number, _)| Some(**number) != replaced);
        let open: Vec<(u32, LastAttempt)> =
            stored.filter(|(_, last)| last.status.is_open()).map(|(number, last)| (*number, *last)).collect();
        let last = |number: u32| match &instead {
            Some((replaced, last)) if *replaced == number => Some(last),
            _ => attempts?.get(&number),
        };
        Walked::new(&self.cluster.list, node, last, &open)
    }

    /// Walks and counts all nodes again, because the list has changed.
    fn count_all(&mut self) {
        let tasks = self.cluster.list.tasks.len();
        self.status = ClusterStatus {
            tasks: tasks as u64,
            cells: vec![BTreeMap::new(); tasks],
            ..ClusterStatus::default()
        };
        let mut walks = std::mem::take(&mut self.walks);
        for walk in walks.values_mut() {
            walk.walked = self.walked(&walk.node, None);
            count(&mut self.status, walk, Count::In);
        }
        self.walks = walks;
    }

    /// Takes at most this many of the nodes that may have something to do.
    pub fn take_due(&mut self, most: usize) -> Vec<NodeId> {
        let due: Vec<NodeId> = self.due.iter().copied().take(most).collect();
        for node in &due {
            self.due.remove(node);
        }
        due
    }

    /// Notes that a decision for a node was not committed: it is made again.
    pub fn is_due(&mut self, node: NodeId) {
        if self.walks.contains_key(&node) {
            self.due.insert(node);
        }
    }

    pub fn has_due(&self) -> bool {
        !self.due.is_empty() || !self.left.is_empty()
    }

    /// Decides the next step of a node. Nothing if there is nothing to do. A pending execution is withdrawn before another
    /// task starts.
    pub fn step(&self, node: NodeId, now: Timestamp) -> Option<Step> {
        let Walk { node: record, walked } = self.walks.get(&node).filter(|walk| walk.has_step())?;
        let start = match walked.next {
            Next::Start { position } if takes_work(record) && walked.withdrawals.is_empty() => {
                self.start(position, record, now)
            }
            Next::Start { .. } | Next::Wait | Next::Nothing => None,
        };
        Some(Step { node, withdrawals: walked.withdrawals.clone(), start })
    }

    /// Decides which task a node starts if its open execution ends in this way. Nothing if there is more to do than to start
    /// a task: [`Walks::step`] decides when the end is committed.
    pub fn start_after(&self, node: NodeId, end: EndOf, now: Timestamp) -> Option<Start> {
        let Walk { node: record, .. } = self.walks.get(&node).filter(|walk| takes_work(&walk.node))?;
        let (_, number) = self.open.get(&end.execution).filter(|(of, _)| *of == node)?;
        let last = self.attempt(node, *number).filter(|last| last.execution == end.execution)?;
        let walked = self.walked(record, Some((*number, LastAttempt { status: end.status, ..*last })));
        match walked.next {
            // The same task: its attempt would follow one that is not recorded yet.
            Next::Start { position } if self.cluster.list.tasks.get(position)?.number == *number => None,
            Next::Start { position } if walked.withdrawals.is_empty() => self.start(position, record, now),
            Next::Start { .. } | Next::Wait | Next::Nothing => None,
        }
    }

    fn start(&self, position: usize, node: &NodeRecord, now: Timestamp) -> Option<Start> {
        let task = self.cluster.list.tasks.get(position)?;
        let last = self.attempt(node.id, task.number);
        let earlier = self.earlier.get(&node.id).and_then(|attempts| attempts.get(&task.number));
        let before = last.map_or(0, |last| last.attempt).max(earlier.copied().unwrap_or(0));
        Some(Start {
            number: task.number,
            attempt: before + 1,
            session: node.session,
            former: last.map(|last| last.status),
            created_at: created_at(now, &self.cluster.list, task, node),
        })
    }

    pub fn status(&self) -> &ClusterStatus {
        &self.status
    }

    /// Returns the executions that nodes have, with the times of their creation.
    pub fn held(&self) -> impl Iterator<Item = (ExecutionId, Timestamp)> {
        self.open.iter().filter_map(|(execution, (node, number))| {
            let last = self.attempt(*node, *number)?;
            (last.status != Status::Pending).then_some((*execution, last.created_at))
        })
    }

    /// Returns how many nodes will do a task again, or for the first time, because of a request. A node that does it now will
    /// do it again when that has ended; if only failures are meant, nobody knows yet.
    pub fn concerned(&self, task: &StandingTask, scope: RerunScope) -> u64 {
        let Some((at, _)) = self.cluster.list.by_id(task.id) else { return 0 };
        let is_concerned = |cell: Cell| match (scope, cell) {
            (_, Cell::NotSelected) => false,
            (_, Cell::Failed | Cell::Lost) | (RerunScope::Node { .. }, _) => true,
            (RerunScope::All, Cell::Succeeded | Cell::Running) => true,
            (RerunScope::All | RerunScope::Failed, _) => false,
        };
        match scope {
            RerunScope::Node { node } => {
                let cell = self.walks.get(&node).and_then(|walk| walk.walked.cells.get(at));
                u64::from(cell.is_some_and(|cell| is_concerned(*cell)))
            }
            RerunScope::All | RerunScope::Failed => {
                let cells = self.status.cells.get(at).into_iter().flatten();
                cells.filter(|(cell, _)| is_concerned(**cell)).map(|(_, nodes)| nodes).sum()
            }
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.walks.values().map(|walk| &walk.node)
    }

    /// Returns the walk of a node, for people.
    pub fn walk(&self, node: NodeId) -> Option<WalkView> {
        let walk = self.walks.get(&node)?;
        let list = &self.cluster.list;
        let stuck = walk
            .walked
            .blocker(list)
            .map(|at| (at, self.attempt(node, list.tasks[at].number).map(|last| last.execution)));
        Some(WalkView {
            node: Arc::clone(&walk.node),
            state: state(&walk.walked.cells),
            cells: walk.walked.cells.clone(),
            stuck,
        })
    }

    /// Returns whether the last attempt at a task on a node was created since a time. Attempts before it never count again.
    pub fn was_tried_since(&self, node: NodeId, number: u32, since: Timestamp) -> bool {
        self.attempt(node, number).is_some_and(|last| last.created_at >= since)
    }

    /// Returns whether the last attempts of a node at the tasks of the list were all created since a time.
    pub fn tried_all_since(&self, node: NodeId, since: Timestamp) -> bool {
        let numbers = self.cluster.list.tasks.iter().map(|task| task.number);
        let mut attempts = numbers.filter_map(|number| self.attempt(node, number));
        attempts.all(|last| last.created_at >= since)
    }

    /// Returns the last attempt at a task on a node, whether it counts or not.
    pub fn last_attempt(&self, node: NodeId, number: u32) -> Option<LastAttempt> {
        self.attempt(node, number).copied()
    }
}

fn state(cells: &[Cell]) -> WalkState {
    let has = |cell| cells.contains(&cell);
    if has(Cell::Running) {
        WalkState::Running
    } else if has(Cell::Skipped) {
        WalkState::Blocked
    } else if has(Cell::Pending) {
        WalkState::Pending
    } else if has(Cell::Failed) || has(Cell::Lost) {
        WalkState::Failed
    } else {
        WalkState::Complete
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    In,
    Out,
}

fn count(status: &mut ClusterStatus, walk: &Walk, how: Count) {
    let change = |total: &mut u64, counts: bool| match how {
        _ if !counts => {}
        Count::In => *total += 1,
        Count::Out => *total = total.saturating_sub(1),
    };
    let cells = &walk.walked.cells;
    let has = |wanted: &[Cell]| cells.iter().any(|cell| wanted.contains(cell));
    change(&mut status.nodes, true);
    change(&mut status.active, walk.node.status == NodeStatus::Online);
    change(
        &mut status.complete,
        !has(&[Cell::Pending, Cell::Running, Cell::Failed, Cell::Lost, Cell::Skipped]),
    );
    change(&mut status.pending, has(&[Cell::Pending, Cell::Running]));
    change(&mut status.failed, has(&[Cell::Failed, Cell::Lost]));
    for (cell, totals) in cells.iter().zip(&mut status.cells) {
        change(totals.entry(*cell).or_default(), true);
    }
}
