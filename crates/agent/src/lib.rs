//! The agent: leases, processes, outbox and output of one host. It connects to servers and runs the work that
//! they assign.
//!
//! Invariant: no gRPC type in this crate. A [`Connector`] provides the transport.

mod agent;
mod error;
mod execute;
mod guards;
mod holdings;
mod installation;
mod lease_clock;
mod links;
mod offer;
mod outbox;
mod output;
mod private;
mod session;
mod settings;
mod shared;
mod stop;
mod surroundings;
mod values;

pub use agent::{Agent, Handle};
pub use downbeat_backends::{
    BackendSettings, Declared, Environment, JOB_VARIABLES, Refused as DeclarationRefused, raise_open_files,
    reap_orphans, slots_within, stop_with_parent, watch_over,
};
pub use error::Error;
pub use links::{Connector, Grpc};
pub use settings::{Settings, Tuning};
pub use surroundings::{Disk, Host, Surroundings, Wall};
