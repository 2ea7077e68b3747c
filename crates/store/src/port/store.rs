//! Owns the writes of the port, and the port as a whole.

use async_trait::async_trait;
use downbeat_core::change::Change;
use downbeat_core::ids::{NodeId, ServerId, SessionId};
use jiff::Timestamp;
use tokio::sync::broadcast;

use super::reads::{Admission, Events, Executions, Nodes, Output, Runs, Servers, Source, Totals};
use super::{Committed, Hint, OutputChunk, Result, ServerRecord};

/// Stores all state. Implementations do not differ in anything that the conformance suite can observe.
#[async_trait]
pub trait Store:
    Admission
    + DirectWrites
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

    /// Returns true if several servers may use it at once.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns notifications about other servers, from now on. A store that is not shared has none.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Returns the time of the store's own clock, which decides between servers that share it.
    async fn now(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// Checks, without writing, that the store can be written: its files exist and are not damaged, and their disk has
    /// room.
    async fn health(&self) -> Result<()>;

    /// Applies a batch in one durable transaction: kinds in the order of [`Change::phase`], within a kind as given.
    /// Every guard is checked; a refused change has no effect on anything. Each applied change becomes an event,
    /// numbered without gaps in the order of commits, also among several servers.
    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed>;

    /// Waits for active calls, and closes files and connections.
    async fn close(&self);
}

/// The writes besides [`Store::commit`]. They change no state that a guard reads, and create no events.
#[async_trait]
pub trait DirectWrites: Send + Sync {
    /// Records heartbeats in one write. Returns, for each, whether that session is the node's current one; only those
    /// are recorded.
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>>;

    /// Appends output and keeps about `keep_bytes` of each execution by dropping its oldest chunks. Chunks of unknown
    /// executions are dropped.
    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<()>;

    /// Writes a server's heartbeat, and removes any other server of the same name.
    async fn put_server(&self, server: &ServerRecord) -> Result<()>;
    async fn remove_server(&self, id: ServerId) -> Result<()>;

    /// Removes runs that ended before `before`, with their executions and output, and older events; at most `most` runs
    /// per call. Returns how many runs were removed.
    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64>;
}
