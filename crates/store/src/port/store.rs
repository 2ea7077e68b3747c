//! Owns the port as a whole: its commits, its clock, its health.

use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::change::Change;
use downbeat_core::ids::ServerId;
use jiff::Timestamp;
use tokio::sync::broadcast;

use super::reads::{
    Admission, Deliveries, DirectWrites, Events, Executions, Jobs, Nodes, Output, Runs, Servers, Source,
    Totals,
};
use super::{Committed, Hint, Result};

/// Stores all state. Implementations do not differ in anything that the conformance suite can observe.
#[async_trait]
pub trait Store:
    Admission
    + Deliveries
    + DirectWrites
    + Events
    + Executions
    + Jobs
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

    /// Returns a handle for the reads of users, if the store has separate connections for them: only a few such reads
    /// run at once, each for a limited time, and nothing else waits for them.
    fn views(&self) -> Option<Arc<dyn Store>> {
        None
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
