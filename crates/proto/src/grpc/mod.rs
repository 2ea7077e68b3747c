//! gRPC as a carrier of the protocol: a [`Client`] that is a [`Link`](crate::Link), and a [`service`] around one; [`Services`] adds gRPC's
//! own services for load balancers and tools.

mod client;
mod convert;
mod fault;
mod health;
mod host;
pub mod request;
mod services;

pub use client::Client;
pub use convert::{finished_from_bytes, finished_to_bytes};
pub use fault::to_error;
pub use host::{Adaptor, Body, Service, service};
pub use services::{Services, is_agent_call};

/// Generated from `proto/agent.proto`.
#[allow(missing_debug_implementations, unreachable_pub, clippy::all)]
pub mod generated {
    tonic::include_proto!("downbeat.agent.v1");
}
