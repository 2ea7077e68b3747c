//! Owns what goes into a store and comes out of it, besides the records of core.

use std::sync::Arc;

use downbeat_core::change::Applied;
use downbeat_core::execution::{Status, Stream};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a commit did.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// For each change of the batch, in the order given: applied, or refused and why.
    pub outcomes: Vec<Applied>,
    /// For each applied change its sequence number, for each refused one nothing.
    pub seqs: Vec<Option<u64>>,
}

/// A window of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub limit: u32,
    pub offset: u64,
}

/// One window, and how many rows there are in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T> {
    pub rows: Vec<T>,
    pub total: u64,
}

/// Which runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFilter {
    pub cluster: Option<ClusterId>,
    /// Empty means any.
    pub states: Vec<RunState>,
    pub job: Option<String>,
}

/// Which executions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionFilter {
    pub run: Option<RunId>,
    /// Pinned to it, or leased by it.
    pub node: Option<NodeId>,
    pub step: Option<u32>,
    /// Empty means any.
    pub statuses: Vec<Status>,
}

/// Which events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventFilter {
    /// Only those with a higher sequence number.
    pub since: u64,
    pub run: Option<RunId>,
}

/// A piece of an execution's output: valid UTF-8, at most `limits::OUTPUT_CHUNK_BYTES`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    pub execution: ExecutionId,
    /// Where it begins in all that the execution wrote, in bytes. A chunk that begins below what is already stored
    /// for the execution was sent before, and is dropped.
    pub offset: u64,
    pub stream: Stream,
    pub text: String,
    pub at: Timestamp,
}

/// A server's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    pub id: ServerId,
    /// Stable over restarts: a server that starts with a name takes the place of the one that had it.
    pub name: String,
    pub http: String,
    pub grpc: String,
    pub version: String,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
    /// Which kinds of changes its program knows: `downbeat_core::level`.
    pub level: u32,
}

/// How many there are, for the view at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub runs: Vec<(RunState, u64)>,
    pub executions: Vec<(Status, u64)>,
    pub nodes: Vec<(NodeStatus, u64)>,
}

/// What a node has done and has to do, as far as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTotals {
    /// Its executions by status, without those whose result was taken over from an earlier run.
    pub executions: Vec<(Status, u64)>,
    /// When it was last given one.
    pub claimed_at: Option<Timestamp>,
    /// When one last came to its end, as its agent says.
    pub finished_at: Option<Timestamp>,
}

/// What another server did, as far as the store hears of it. A hint: whoever acts on it looks at the store, and looks
/// now and then without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Events were committed.
    Events,
    /// A server signed off.
    Servers,
    /// Output of these grew.
    Output(Arc<[ExecutionId]>),
    /// News may have been missed: anything may have happened.
    Anything,
}
