//! Runs a whole cluster on one thread: the real server and agent code on a simulated network, clock, disk and store,
//! driven by one seed. Faults come first; then everything heals and every run has to end; then the checkers compare the
//! tables, the feed and what really happened on the hosts.
//!
//! Calls use `downbeat_proto::Link`, not simulated sockets, so that they can be duplicated, reordered and answered
//! late, which a TCP stream never does. gRPC has its own tests.
//!
//! The same seed produces the same trace, byte for byte. So this crate must not read the system's time or random
//! numbers, iterate over a map without a fixed order, or use a second thread.

mod check;
mod client;
mod clock;
mod cluster;
mod detection;
mod faults;
mod gate;
mod host;
mod jobs;
mod mute;
mod network;
mod outside;
mod replica;
mod schedules;
mod seed;
mod standing;
mod store;
mod stranger;
mod trace;
mod truth;
mod world;

pub use check::{Checker, Violation};
pub use seed::{Broken, Outcome, Setup, run};
