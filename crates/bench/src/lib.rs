//! `downbeat bench`: measures a server, its store and its agents on this machine. Servers, the simulated nodes of
//! `fleet` and the agents of `graph` are separate processes; other agents run in this process. All communicate over
//! loopback.
//!
//! Invariant: this crate prints nothing.

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
mod site;
mod soak;
mod tables;
mod takeover;
mod tasks;
mod watcher;

pub use failure::{Code, Failure};
pub use loads::{BenchArgs, Output, Report, run};
pub use page::Part;

/// Reports the progress of a load.
pub type Note = fn(&str);
