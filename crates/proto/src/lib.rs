//! The agent protocol: its messages, the rules of a session, and how gRPC carries them.
//!
//! Invariant: no tonic type is needed to use the protocol; agents and servers know only [`Link`].

mod deadline;
pub mod grpc;
mod link;
pub mod message;

pub use deadline::{deadline, poll_deadline};
pub use link::{Link, Ready};
