//! The `Store` port. The conformance suite is its specification.

mod error;
mod reads;
mod record;
mod store;

pub use error::Error;
pub(crate) use error::Result;
pub use reads::{
    Admission, Deliveries, DirectWrites, Events, Executions, Jobs, Nodes, Output, Runs, Servers, Source,
    Totals, Wrapped, Wrapper,
};
pub use record::{
    Committed, DeliveryFilter, DeliveryKey, DueKey, EventFilter, ExecutionFilter, Hint, InstanceCount,
    InstanceFacts, InstanceFilter, JobVersionBrief, Listed, NodeTotals, OutputChunk, Page, Position, Removed,
    RunFilter, RunKey, RunKind, RunOrder, ServerRecord, StandingKey, StandingResult, Tally, Volume,
};
pub use store::Store;
