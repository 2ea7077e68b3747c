//! Tests the engine without a server: scenarios from the tables, and random runs compared with a slow interpreter.

#![allow(clippy::print_stdout)]

mod approvals;
mod giant;
mod graph;
mod model;
mod overdue;
mod scenarios;
mod stops;
mod world;
