//! Claims under contention: many agents at one or several servers, and what was really done against what the records and
//! the figures say.

#![allow(clippy::print_stdout, reason = "how much there was to contend for")]

#[allow(dead_code, reason = "it serves other tests as well")]
#[path = "../../../store/tests/database/mod.rs"]
mod database;

mod once;
mod site;
