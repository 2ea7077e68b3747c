//! Claims under contention: many agents at one or several servers, and what was really done against what the records and
//! the figures say.

#![allow(clippy::print_stdout, reason = "how much there was to contend for")]

mod once;
mod site;
