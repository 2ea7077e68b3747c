//! Where state lives: one port, three implementations, one conformance suite.

mod port;

pub use port::{
    Committed, Error, EventFilter, ExecutionFilter, Listed, OutputChunk, Page, RunFilter, ServerRecord, Store, Stream,
    Tally,
};
