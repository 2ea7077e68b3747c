//! Where state lives: one port, three implementations, one conformance suite.
//!
//! Invariant: no store decides. `downbeat_core::state` says what a change does and which guard refuses it; a SQL store
//! loads the rows that a batch looks at, applies the batch to them there, and writes back what differs.

mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copy;
mod filter;
mod memory;
mod migrate;
mod open;
mod port;
mod postgres;
mod rows;
mod sqlite;

pub use copy::{Diverged, Kept, Part, Replica, Replicated, Seen, Source, open_replica};
pub use memory::MemoryStore;
pub use open::open;
pub use port::{
    Committed, Error, EventFilter, ExecutionFilter, Listed, News, NodeTotals, OutputChunk, Page, RunFilter,
    ServerRecord, Store, Tally,
};
pub use postgres::{PostgresStore, postgres_client};
pub use sqlite::SqliteStore;
