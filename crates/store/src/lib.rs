//! Where state lives: one port, three implementations, one conformance suite.
//!
//! Invariant: no store decides. What a change does and which guard refuses it is written once, in `tables`, on top of
//! `downbeat_core`; a SQL store loads the rows that a batch looks at, lets `tables` decide, and writes what differs.

mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copy;
mod filter;
#[cfg(feature = "conformance")]
mod ledger;
mod memory;
mod migrate;
mod open;
mod port;
mod postgres;
mod rows;
mod sqlite;
mod tables;
mod uses;

pub use copy::{Diverged, Kept, Part, Replica, Replicated, Seen, Source, open_replica};
#[cfg(feature = "conformance")]
pub use ledger::Ledger;
pub use memory::MemoryStore;
pub use open::open;
pub use port::{
    Committed, Error, EventFilter, ExecutionFilter, LimitUse, Listed, News, NodeTotals, OutputChunk, Page,
    RunFilter, ServerRecord, Store, Tally,
};
pub use postgres::{PostgresStore, postgres_client};
pub use sqlite::SqliteStore;
