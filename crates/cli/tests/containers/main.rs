//! Containers on a real engine, with server and agents as processes: what becomes of them when leases are kept, renewed,
//! lost and given anew.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was done, and what to look at when it fails"
)]

mod engine;
mod lease;
mod run;
#[allow(dead_code, reason = "the fault tests need more of it")]
#[path = "../faults/site.rs"]
mod site;
#[path = "../support/mod.rs"]
mod support;
