//! Owns the inputs and outputs of a store that are not records of core.

use std::sync::Arc;

use downbeat_core::change::{About, Applied};
use downbeat_core::delivery::{Delivery, DeliveryStatus};
pub use downbeat_core::execution::OutputChunk;
use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, DeliveryId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::job::JobVersion;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{RunBrief, RunState};
use downbeat_core::state::Verdicts;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// For each change of the batch, in the given order: applied, or refused with the reason.
    pub outcomes: Vec<Applied>,
    /// The sequence number of each applied change; none for a refused one.
    pub seqs: Vec<Option<u64>>,
    /// The subject of each change, as it is stored with its event; empty for a refused one.
    pub abouts: Vec<About>,
}

impl Committed {
    /// Numbers the applied changes of a batch from `last_seq` on.
    pub(crate) fn after(last_seq: u64, verdicts: Verdicts) -> Self {
        Self { seqs: verdicts.seqs(last_seq), outcomes: verdicts.outcomes, abouts: verdicts.abouts }
    }
}

/// A part of a list whose rows are ordered by `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<K> {
    /// How many rows it has at most: at least 1. Without a row, the next page would have no start.
    pub limit: u32,
    pub start: Position<K>,
}

/// A position in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position<K> {
    /// Only rows after this key; none means from the first row on.
    pub after: Option<K>,
    /// How many of these rows to skip.
    pub skip: u64,
}

impl<K> Page<K> {
    /// Returns the first rows of a list.
    pub fn first(limit: u32) -> Self {
        Self { limit, start: Position { after: None, skip: 0 } }
    }
}

impl<K> Position<K> {
    pub fn after(key: K) -> Self {
        Self { after: Some(key), skip: 0 }
    }
}

/// The rows of one page.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T, K> {
    pub rows: Vec<T>,
    /// The number of all rows of the list. None on a page after a key, and if counting would read more than
    /// `limits::ROWS_READ` rows.
    pub total: Option<u64>,
    /// The start of the next page; none if there are no more rows. A page that has read `limits::ROWS_READ` rows, or
    /// `limits::PAGE_BYTES` of definitions of runs, ends there, with the rows that it has found.
    pub next: Option<Position<K>>,
}

/// The order of a list of runs. Runs with the same time are ordered by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOrder {
    #[default]
    NewestFirst,
    OldestFirst,
    /// By their end, the last first. Only runs that have ended are listed.
    LastEndedFirst,
    /// By their end. Only runs that have ended are listed.
    FirstEndedFirst,
}

impl RunOrder {
    pub(crate) fn is_by_end(self) -> bool {
        matches!(self, Self::LastEndedFirst | Self::FirstEndedFirst)
    }

    pub(crate) fn is_ascending(self) -> bool {
        matches!(self, Self::OldestFirst | Self::FirstEndedFirst)
    }
}

/// The position of a run in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunKey {
    pub order: RunOrder,
    /// When it was created, or when it ended.
    pub at: Timestamp,
    pub id: RunId,
}

impl RunKey {
    /// Returns the position of a run in a list of this order; of one that has not ended, the first or last.
    pub(crate) fn of(run: &RunBrief, order: RunOrder) -> Self {
        let ended = run.live.finished_at().filter(|_| order.is_by_end());
        Self { order, at: ended.unwrap_or(run.created_at), id: run.id.clone() }
    }
}

/// Which runs a list has. Debug commands are runs, but not of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunKind {
    #[default]
    Jobs,
    Debug,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFilter {
    pub kind: RunKind,
    pub cluster: Option<ClusterId>,
    /// Empty means any.
    pub states: Vec<RunState>,
    pub job: Option<String>,
    /// Who requested it.
    pub by: Option<String>,
    /// Whether it has not ended and is paused.
    pub paused: Option<bool>,
    /// A part of the id or of the job's name, in upper or lower case.
    pub text: Option<String>,
    /// Among the last `limits::ROWS_READ` executions that are pinned to this node or were leased by it, one is of this
    /// run.
    pub node: Option<NodeId>,
    /// Created at this time or later.
    pub from: Option<Timestamp>,
    /// Created before this time.
    pub to: Option<Timestamp>,
    pub order: RunOrder,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionFilter {
    pub run: Option<RunId>,
    /// Pinned to the node, or leased by it.
    pub node: Option<NodeId>,
    pub step: Option<u32>,
    pub item: Option<u32>,
    /// Empty means any.
    pub statuses: Vec<Status>,
}

/// Which instances of a run to list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceFilter {
    pub step: Option<u32>,
    pub item: Option<u32>,
    /// Pinned to the node, or leased by it.
    pub node: Option<NodeId>,
    /// Empty means any.
    pub statuses: Vec<Status>,
    /// Only those after this one, by step and execution.
    pub after: Option<(u32, ExecutionId)>,
}

impl InstanceFilter {
    /// Returns the position after which the list starts, and its last step.
    pub(crate) fn span(&self) -> ((u32, ExecutionId), u32) {
        let start = (self.step.unwrap_or(0), ExecutionId(uuid::Uuid::nil()));
        (self.after.map_or(start, |after| after.max(start)), self.step.unwrap_or(u32::MAX))
    }

    /// Returns the wanted statuses in the order in which an instance may have them.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = Status> {
        Status::ALL.into_iter().filter(|status| self.statuses.is_empty() || self.statuses.contains(status))
    }
}

/// How many instances of one step of a run have one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceCount {
    pub step: u32,
    pub status: Status,
    pub total: u64,
    /// Those whose result was reused, without those from the cache.
    pub carried: u64,
    /// Those whose result came from the cache.
    pub cached: u64,
}

/// The facts about an instance that overviews of many instances need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFacts {
    pub step: u32,
    pub node: Option<NodeId>,
    pub item: Option<u32>,
    pub attempt: u32,
    pub status: Status,
    pub is_reused: bool,
    pub failed_for_good: bool,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// The position of a result in the list of standing results.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StandingKey {
    pub run: RunId,
    pub step: u32,
    pub node: NodeId,
}

/// The last attempt of a standing task on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingResult {
    pub execution: ExecutionId,
    /// The standing run of the cluster.
    pub run: RunId,
    /// The number of the task.
    pub step: u32,
    pub node: NodeId,
    pub attempt: u32,
    pub status: Status,
    /// How many attempts in a row were lost just before it. 2 stands for more, too: nothing depends on them.
    pub lost_before: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
}

impl StandingResult {
    pub fn key(&self) -> StandingKey {
        StandingKey { run: self.run.clone(), step: self.step, node: self.node }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventFilter {
    /// Only those with a higher sequence number.
    pub since: u64,
    pub run: Option<RunId>,
}

/// A server's heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    pub id: ServerId,
    /// Stable over restarts: a server that starts with a name replaces the one that had it.
    pub name: String,
    pub http: String,
    pub grpc: String,
    pub version: String,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
    /// The kinds of changes that its program knows: `downbeat_core::level`.
    pub level: u32,
}

/// Counts for an overview.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub runs: Vec<(RunState, u64)>,
    pub executions: Vec<(Status, u64)>,
    pub nodes: Vec<(NodeStatus, u64)>,
}

/// How much the store holds, besides what a [`Tally`] counts. Reading it costs the same however much that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    pub events: u64,
    /// The first event that is kept, or the next one if none is.
    pub first_seq: u64,
    /// The bytes of all output.
    pub output_bytes: u64,
    /// The bytes of the file or the database, with the room for new rows. None if nothing is on a disk.
    pub disk_bytes: Option<u64>,
}

/// How much was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub runs: u64,
    pub events: u64,
    pub output_bytes: u64,
}

/// Counts of a node's executions: of its last `limits::ROWS_READ`, as far as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTotals {
    /// Its executions by status, without reused results.
    pub executions: Vec<(Status, u64)>,
    /// When it last got a lease.
    pub claimed_at: Option<Timestamp>,
    /// When one last finished, by its agent's clock.
    pub finished_at: Option<Timestamp>,
}

/// A notification about another server. It is only a hint: the receiver reads the store to act on it, and also reads
/// the store periodically without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Events were committed.
    Events,
    /// A server signed off.
    Servers,
    /// Output of these executions was appended.
    Output(Arc<[ExecutionId]>),
    /// Notifications may have been missed: anything may have changed.
    Anything,
}

/// A version of a job without its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobVersionBrief {
    pub version: u64,
    pub hash: String,
    /// Who applied it.
    pub by: String,
    pub at: Timestamp,
}

impl JobVersionBrief {
    pub fn of(job: &JobVersion) -> Self {
        Self { version: job.version, hash: job.hash.clone(), by: job.by.clone(), at: job.at }
    }
}

/// Which deliveries a list has. Each filter that is none fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    pub cluster: Option<ClusterId>,
    pub run: Option<RunId>,
    pub job: Option<String>,
    pub status: Option<DeliveryStatus>,
}

impl DeliveryFilter {
    pub(crate) fn fits(&self, delivery: &Delivery) -> bool {
        self.cluster.is_none_or(|cluster| delivery.cluster == cluster)
            && self.run.as_ref().is_none_or(|run| delivery.run == *run)
            && self.job.as_ref().is_none_or(|job| delivery.job.as_deref() == Some(job))
            && self.status.is_none_or(|status| delivery.state.status() == status)
    }
}

/// The position of a delivery in a list, in which the newest is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeliveryKey {
    pub created_at: Timestamp,
    pub id: DeliveryId,
}

impl DeliveryKey {
    pub fn of(delivery: &Delivery) -> Self {
        Self { created_at: delivery.created_at, id: delivery.id }
    }
}

/// The position of a pending delivery in the order in which they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueKey {
    pub due_at: Timestamp,
    pub id: DeliveryId,
}

impl DueKey {
    /// Returns none for a delivery that has ended.
    pub fn of(delivery: &Delivery) -> Option<Self> {
        Some(Self { due_at: delivery.state.due_at()?, id: delivery.id })
    }
}
