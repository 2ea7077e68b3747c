//! Owns how one store becomes the copy of another: what a store hands out of itself (`Source`), and what a store that is
//! a replica's takes in (`Replica`). Nothing here decides: events are applied by the rules of `tables`, rows as they are.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::change::{Event, Refusal};
use downbeat_core::execution::Execution;
use downbeat_core::ids::{NodeId, RunId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::{Former, NodeRecord, Registration, Tombstone};
use downbeat_core::run::RunRecord;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::memory::MemoryStore;
use crate::port::{Error, OutputChunk, ServerRecord, Store};
use crate::sqlite::SqliteStore;

/// Rows in one part of a snapshot: few enough that a part is some megabytes at most. Definitions are the large ones.
pub(crate) const NODES_PER_PART: usize = 200;
pub(crate) const TOMBSTONES_PER_PART: usize = 1_000;
pub(crate) const RUNS_PER_PART: usize = 50;
pub(crate) const HOLDS_PER_PART: usize = 1_000;
pub(crate) const EXECUTIONS_PER_PART: usize = 1_000;
pub(crate) const CHUNKS_PER_PART: usize = 64;
pub(crate) const EVENTS_PER_PART: usize = 200;

/// A piece of a snapshot. They come in the order of the variants, `End` once and last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Nodes(Vec<NodeRecord>),
    /// Nodes that were deleted.
    Tombstones(Vec<Tombstone>),
    Runs(Vec<RunRecord>),
    /// Nodes that runs have for themselves.
    Holds(Vec<(NodeId, RunId)>),
    Executions(Vec<Execution>),
    /// Each execution's in order.
    Output(Vec<OutputChunk>),
    Events(Vec<Event>),
    /// All was read as of this sequence number.
    End {
        seq: u64,
    },
}

/// What pruning has left. It removes from the front only, so its edge says all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The first event that is kept; nothing: none is.
    pub first_seq: Option<u64>,
    /// The first run that has ended and is kept, by its end and id; nothing: no ended run is.
    pub first_ended: Option<(Timestamp, RunId)>,
    /// When the first deleted node that is remembered was deleted; nothing: none is.
    #[serde(default)]
    pub first_deleted: Option<Timestamp>,
}

/// When a node's session was last heard of.
pub type Seen = (NodeId, SessionId, Timestamp);

/// What became of events that another store committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicated {
    Applied,
    /// The copy is none any more: what the primary applied, a guard here refuses. Nothing was written.
    Diverged(Diverged),
}

/// Where a copy and its primary part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Diverged {
    #[error("event {seq} does not follow event {last}")]
    Gap { last: u64, seq: u64 },
    #[error("event {seq} ({kind}) was applied by the primary and is refused here: {refusal}")]
    Refused { seq: u64, kind: String, refusal: Refusal },
}

/// A store that holds the copy of another one. Only the feed of that one writes to it.
#[async_trait]
pub trait Replica: Store {
    /// Whether a whole copy is in it.
    async fn is_copied(&self) -> Result<bool, Error>;
    /// Takes a snapshot in the place of everything. Readers see what there was until it is there whole; when its end
    /// does not come, nothing has changed. Answers the snapshot's number.
    async fn replace(&self, parts: mpsc::Receiver<Part>) -> Result<u64, Error>;
    /// Applies events as another store did: with their numbers, in their order, all or none. Output comes with them, so
    /// that whoever sees an execution's end finds what it wrote; it is appended as by [`Beside::append_output`](crate::Beside::append_output).
    async fn replicate(
        &self,
        events: &[Event],
        output: &[OutputChunk],
        keep_bytes: u64,
    ) -> Result<Replicated, Error>;
    /// Removes what the other store has removed.
    async fn forget(&self, kept: &Kept) -> Result<(), Error>;
    /// Heartbeats that the other store recorded; those of other sessions are passed over.
    async fn see_nodes(&self, seen: &[Seen]) -> Result<(), Error>;
    /// These servers in the place of those that were listed.
    async fn set_servers(&self, servers: &[ServerRecord]) -> Result<(), Error>;
}

/// Opens a store for the copy of another one: `sqlite:PATH`, new or a replica's already, or `memory:`.
pub async fn open_replica(location: &str) -> Result<Arc<dyn Replica>, Error> {
    if location == "memory:" {
        return Ok(Arc::new(MemoryStore::new()));
    }
    if location.starts_with("postgres://") || location.starts_with("postgresql://") {
        return Err(Error::Misused(
            "a replica keeps its copy in a store of its own, sqlite:PATH or memory:, not in PostgreSQL"
                .to_owned(),
        ));
    }
    match location.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(Arc::new(SqliteStore::open_replica(Path::new(path)).await?)),
        _ => Err(Error::BadLocation(location.to_owned())),
    }
}

/// The parts did not come to their end.
pub(crate) fn broken_off() -> Error {
    Error::Unavailable("a snapshot was broken off before its end".to_owned())
}

/// Whether these events go on where `last` ends.
pub(crate) fn follows(last: u64, events: &[Event]) -> Result<(), Diverged> {
    let mut last = last;
    for event in events {
        if event.seq != last + 1 {
            return Err(Diverged::Gap { last, seq: event.seq });
        }
        last = event.seq;
    }
    Ok(())
}

/// Nodes that were deleted before this are forgotten when runs that ended before `before` are.
pub(crate) fn deleted_before(before: Timestamp) -> Timestamp {
    let kept = SignedDuration::from_hours(24 * limits::TOMBSTONE_DAYS);
    before.checked_sub(kept).unwrap_or(Timestamp::MIN)
}

/// A node's registration, as far as it is still known.
pub(crate) fn registration(node: NodeRecord) -> Registration {
    let at = node.registered_at;
    let NodeRecord { id: node, cluster, session, description, installation, undelivered, displaced, .. } =
        node;
    let silent_since = Some(at);
    let former = displaced.map_or(Former::Any, |session| Former::Session { session, silent_since });
    Registration { node, cluster, session, description, installation, undelivered, former, at }
}
