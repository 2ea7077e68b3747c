//! Owns the `Store` port: what any store must do. The conformance suite is its specification.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::change::{Applied, Change, Event};
use downbeat_core::execution::{Execution, Status, Stream};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::state::LimitUse;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::copy::Source;

/// Why the store could not answer. A refused change is no error: see [`Committed::outcomes`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Passing: the database is away, busy or full. Nothing of the call was kept; try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Another server has it.
    #[error("`{0}` is in use by another server; one SQLite file serves one server, several need PostgreSQL")]
    InUse(String),
    /// The schema is newer than this program.
    #[error(
        "the store's schema has version {found}, which does not work with this downbeat ({version}, version {known}): \
         start downbeat {program}",
        version = crate::migrate::PROGRAM
    )]
    NewerSchema {
        found: u32,
        known: u32,
        /// Which to start.
        program: String,
    },
    /// A migration that ran before is not the one that this program has.
    #[error(
        "migration {number} of the store is not the one that this downbeat has; was it built from another tree?"
    )]
    AlteredMigration { number: u32 },
    /// The location is not one.
    #[error("`{0}` is not a store; write sqlite:PATH, postgres://USER@HOST:PORT/DATABASE or memory:")]
    BadLocation(String),
    /// The location names a store, and an option of it is wrong or missing.
    #[error("{0}")]
    BadOption(String),
    /// The store is there, and not for this use.
    #[error("{0}")]
    Misused(String),
    /// The database itself cannot be read.
    #[error("the database {0}: stop the server and restore a copy")]
    Damaged(String),
    /// What is stored cannot be read, or a statement is wrong.
    #[error("the store holds or was given something unreadable: {0}")]
    Corrupt(String),
}

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

/// Where all state lives. Implementations differ in nothing that the conformance suite can see.
#[async_trait]
pub trait Store: Source + Send + Sync + std::fmt::Debug + 'static {
    /// `sqlite`, `postgres` or `memory`.
    fn name(&self) -> &'static str;

    /// Whether several servers may use it at once.
    fn is_shared(&self) -> bool;

    /// What other servers do, from now on. A store that is not shared has no news.
    fn news(&self) -> broadcast::Receiver<News>;

    /// The store's own clock: the one that counts among servers that share it.
    async fn now(&self) -> Result<Option<Timestamp>, Error>;

    /// Whether it can take a write now, as far as it shows without one: its files are there and undamaged, and their disk
    /// has room.
    async fn health(&self) -> Result<(), Error>;

    /// Applies a batch in one durable transaction: kinds in the order of [`Change::phase`], within a kind as given.
    /// Every guard is checked; a refused change leaves no trace and harms no other. Each applied change becomes an
    /// event, numbered without gaps in the order of commits, also among several servers.
    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error>;

    /// Events in order, at most `limit`.
    async fn events(&self, filter: &EventFilter, limit: u32) -> Result<Vec<Event>, Error>;
    /// The highest sequence number, 0 when there is none.
    async fn last_seq(&self) -> Result<u64, Error>;

    /// The id of a cluster given by name or id.
    async fn cluster(&self, name_or_id: &str) -> Result<Option<ClusterId>, Error>;

    /// Nodes of a cluster (or of all), by hostname.
    async fn nodes(&self, cluster: Option<ClusterId>) -> Result<Vec<NodeRecord>, Error>;
    async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>, Error>;
    /// That a node was deleted, each time (or of all that were), by node and time. Kept for `limits::TOMBSTONE_DAYS`
    /// longer than runs are.
    async fn tombstones(&self, node: Option<NodeId>) -> Result<Vec<Tombstone>, Error>;
    /// Records heartbeats: one write for all of them. Answers, for each, whether that session is the node's current
    /// one; only those are recorded.
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error>;
    /// Nodes that are not offline and were last seen before `before`.
    async fn silent_nodes(&self, before: Timestamp) -> Result<Vec<NodeRecord>, Error>;

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, Error>;
    /// Newest first (by creation, then id).
    async fn runs(&self, filter: &RunFilter, page: Page) -> Result<Listed<RunRecord>, Error>;
    /// All runs that have not ended, oldest first.
    async fn open_runs(&self) -> Result<Vec<RunRecord>, Error>;
    /// The same runs, only their ids and owners: cheap enough to ask every other second.
    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>, Error>;

    /// The nodes that exclusive runs have for themselves, by node, each with the run that has it.
    async fn holds(&self) -> Result<Vec<(NodeId, RunId)>, Error>;

    /// Who has a place of a limit: by cluster and key, then as they were granted. Uses of rates whose time is over may
    /// be among them. A copy of a store has none: nothing is given out there.
    async fn uses(&self) -> Result<Vec<LimitUse>, Error>;

    /// For each of these keys the newest succeeded execution in the cluster that has it and was really carried out.
    async fn cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>, Error>;

    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>, Error>;
    /// Those of these executions that exist, in the order of their ids, each once.
    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>, Error>;
    /// In the order of their ids, which is the order of creation.
    async fn executions(&self, filter: &ExecutionFilter, page: Page) -> Result<Listed<Execution>, Error>;
    /// All executions of a run, in the order of their ids.
    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error>;
    /// All executions that are pending, leased or running, in the order of their ids.
    async fn open_executions(&self) -> Result<Vec<Execution>, Error>;
    /// Leased or running executions whose lease names this node, in the order of their ids.
    async fn held_by(&self, node: NodeId) -> Result<Vec<Execution>, Error>;
    /// What there is of a node: executions that are pinned to it or were leased by it. Nothing of an unknown one.
    async fn node_totals(&self, node: NodeId) -> Result<NodeTotals, Error>;

    /// Appends output; keeps at most about `keep_bytes` of each execution, dropping whole chunks from the front.
    /// Chunks of unknown executions are dropped.
    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Error>;
    /// Output from a byte offset on, in order, at most `limit` chunks. The first chunk's offset shows what was cut.
    async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Result<Vec<OutputChunk>, Error>;
    /// The last `limit` chunks of an execution's output, in order.
    async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Result<Vec<OutputChunk>, Error>;

    /// Writes a server's sign of life; any other server of the same name is removed.
    async fn put_server(&self, server: &ServerRecord) -> Result<(), Error>;
    async fn remove_server(&self, id: ServerId) -> Result<(), Error>;
    /// By name.
    async fn servers(&self) -> Result<Vec<ServerRecord>, Error>;

    async fn tally(&self) -> Result<Tally, Error>;

    /// Removes runs that ended before `before`, with their executions and output, and events older than that;
    /// at most `most` runs a call. Answers how many runs went.
    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64, Error>;

    /// Waits for what is under way and lets go of files and connections.
    async fn close(&self);
}
