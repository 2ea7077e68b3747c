//! `downbeat bench`: measures a server, its store and its agents on this machine. Servers are separate processes, and so
//! are the simulated nodes of `fleet` and `cluster`, and the agents of `graph`; other agents run in this process. All
//! connections use loopback.
//!
//! Invariant: nothing in here prints.

mod agents;
mod claims;
mod cleaning;
mod cluster;
mod database;
mod failure;
mod figures;
mod fill;
mod fleet;
mod graph;
mod hostile;
mod http2;
mod loads;
mod node;
mod nodes;
mod page;
mod process;
mod schedules;
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

/// Receives the progress of a load.
pub type Note = fn(&str);
