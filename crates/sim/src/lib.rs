//! A whole cluster on one thread: the real server and agent code on a simulated network, clock, disk and store, driven
//! by one seed. Faults first, then everything heals and every run has to end; then the checkers look at the tables, at
//! the feed and at what really happened on the hosts.
//!
//! Calls travel over `downbeat_proto::Link`, not over simulated sockets: so they can be doubled, reordered and answered
//! late, which no TCP stream does. gRPC itself is tested where it is.
//!
//! The same seed gives the same trace, byte for byte. So nothing here may ask the system for time or chance, iterate
//! over a map whose order is not fixed, or use a second thread.

mod check;
mod client;
mod clock;
mod cluster;
mod faults;
mod gate;
mod host;
mod jobs;
mod network;
mod seed;
mod store;
mod stranger;
mod trace;
mod truth;
mod world;

pub use check::{Checker, Violation};
pub use seed::{Broken, Outcome, Setup, run};
