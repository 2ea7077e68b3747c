//! gRPC as a carrier of the protocol: a [`Client`] that is a [`Link`](crate::Link), and a [`service`] around one.

mod client;
mod convert;
mod fault;
mod host;
pub mod request;
mod stored;

pub use client::Client;
pub use fault::to_error;
pub use host::{Adaptor, Body, Service, service};
pub use stored::{finished_from_bytes, finished_to_bytes};

/// Generated from `proto/agent.proto`.
#[allow(missing_debug_implementations, unreachable_pub, clippy::all)]
pub mod generated {
    tonic::include_proto!("downbeat.agent.v1");
}
