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
mod read;
mod rows;
mod sqlite;
mod tables;
mod uses;

pub use copy::{Diverged, Kept, Part, Replica, Replicated, Seen, open_replica};
#[cfg(feature = "conformance")]
pub use ledger::Ledger;
pub use memory::MemoryStore;
pub use open::open;
pub use port::{
    Admission, Beside, Committed, Error, EventFilter, Events, ExecutionFilter, Executions, LimitUse, Listed, News,
    NodeTotals, Nodes, Output, OutputChunk, Page, RunFilter, Runs, ServerRecord, Servers, Source, Store, Stream,
    Tally, Totals, Wrapped, Wrapper,
};
pub use postgres::{PostgresStore, postgres_client};
pub use sqlite::SqliteStore;
