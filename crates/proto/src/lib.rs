//! The agent protocol: its messages, the rules of a session, and how gRPC carries them.
//!
//! Invariant: no tonic type is needed to speak the protocol; [`Link`] is all that agents and servers know of it.

mod deadline;
pub mod grpc;
mod link;
pub mod message;

pub use deadline::{deadline, poll_deadline};
pub use link::Link;
