//! The agent protocol: its messages, and how gRPC carries them.

pub mod message;

/// Generated from `proto/agent.proto`.
#[allow(missing_debug_implementations, unreachable_pub, clippy::all)]
pub mod generated {
    tonic::include_proto!("downbeat.agent.v1");
}
