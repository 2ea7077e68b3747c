//! `downbeat bench`: measures a server, its store and its agents on this machine. Servers are processes of their own, and
//! so are the many simulated nodes of `fleet` and the agents of `graph`; other agents live in this process. All speak over
//! loopback.
//!
//! Invariant: nothing in here prints.

mod agents;
mod bare;
mod claims;
mod database;
mod failure;
mod figures;
mod fleet;
mod graph;
mod http2;
mod loads;
mod node;
mod nodes;
mod page;
mod process;
mod server;
mod shares;
mod sightings;
mod site;
mod soak;
mod tables;
mod takeover;
mod tasks;

pub use failure::{Code, Failure};
pub use loads::{BenchArgs, Output, Report, run};
pub use page::Part;

/// How a load says how far it is.
pub type Note = fn(&str);
