//! Tests claims under contention: many agents at one or several servers, and whether the real work matches the records
//! and the metrics.

#![allow(clippy::print_stdout, reason = "how much there was to contend for")]

mod once;
mod site;
