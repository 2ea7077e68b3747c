//! Stores all state: one port, three implementations, one conformance suite.
//!
//! Invariant: no store decides. `downbeat_core::state` defines what a change does and which guard refuses it; a SQL store
//! loads the rows that a batch looks at, applies the batch to them there, and writes back what differs.

mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
mod copy;
mod counts;
mod deliveries;
mod filter;
mod instances;
mod jobs;
mod list;
mod memory;
mod migrate;
mod open;
mod pace;
mod port;
mod postgres;
mod read;
mod rows;
mod sqlite;
mod standing;

pub use copy::{Diverged, Kept, Part, Replica, Replicated, Seen};
pub use memory::MemoryStore;
pub use open::{open, open_replica};
pub use port::{
    Admission, Committed, Deliveries, DeliveryFilter, DeliveryKey, DirectWrites, DueKey, Error, EventFilter,
    Events, ExecutionFilter, Executions, Hint, InstanceCount, InstanceFacts, InstanceFilter, JobVersionBrief,
    Jobs, Listed, NodeTotals, Nodes, Output, OutputChunk, Page, Position, Removed, RunFilter, RunKey,
    RunKind, RunOrder, Runs, ServerRecord, Servers, Source, StandingKey, StandingResult, Store, Tally,
    Totals, Volume, Wrapped, Wrapper,
};
pub use postgres::{PostgresStore, postgres_client};
pub use sqlite::SqliteStore;
