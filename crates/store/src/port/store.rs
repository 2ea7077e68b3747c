//! Owns the writes of the port, and the port as a whole.

use async_trait::async_trait;
use downbeat_core::change::Change;
use downbeat_core::ids::{NodeId, ServerId, SessionId};
use jiff::Timestamp;
use tokio::sync::broadcast;

use super::reads::{Admission, Events, Executions, Nodes, Output, Runs, Servers, Source, Totals};
use super::{Committed, Error, News, OutputChunk, ServerRecord};

/// Where all state lives. Implementations differ in nothing that the conformance suite can see.
#[async_trait]
pub trait Store:
    Admission
    + Beside
    + Events
    + Executions
    + Nodes
    + Output
    + Runs
    + Servers
    + Source
    + Totals
    + std::fmt::Debug
    + 'static
{
    /// `sqlite`, `postgres` or `memory`.
    fn name(&self) -> &'static str;

    /// Whether several servers may use it at once.
    fn is_shared(&self) -> bool;

    /// What other servers do, from now on. A store that is not shared has no news.
    fn news(&self) -> broadcast::Receiver<News>;

    /// The store's own clock: the one that counts among servers that share it.
    async fn now(&self) -> Result<Option<Timestamp>, Error>;

    /// Whether the store can take a write now, as far as it shows without one: its files are there and undamaged, and
    /// their disk has room.
    async fn health(&self) -> Result<(), Error>;

    /// Applies a batch in one durable transaction: kinds in the order of [`Change::phase`], within a kind as given.
    /// Every guard is checked; a refused change leaves no trace and harms no other. Each applied change becomes an
    /// event, numbered without gaps in the order of commits, also among several servers.
    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error>;

    /// Waits for calls under way, and closes files and connections.
    async fn close(&self);
}

/// The writes beside [`Store::commit`]. They change no state that a guard decides on by itself, and make no events.
#[async_trait]
pub trait Beside: Send + Sync {
    /// Records heartbeats: one write for all of them. Returns, for each, whether that session is the node's current
    /// one; only those are recorded.
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error>;

    /// Appends output; keeps at most about `keep_bytes` of each execution, dropping whole chunks from the front.
    /// Chunks of unknown executions are dropped.
    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Error>;

    /// Writes a server's sign of life; any other server of the same name is removed.
    async fn put_server(&self, server: &ServerRecord) -> Result<(), Error>;
    async fn remove_server(&self, id: ServerId) -> Result<(), Error>;

    /// Removes runs that ended before `before`, with their executions and output, and events older than that;
    /// at most `most` runs a call. Returns how many runs were removed.
    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64, Error>;
}
