//! Owns the agents' side of the server: one file per call of the protocol, except simple ones.

mod connected;
mod host;
mod intake;
mod poll;
mod readiness;
mod register;
mod report;
mod serve;

pub(crate) use host::Host;
pub(crate) use readiness::Readiness;
pub(crate) use serve::{port_limits, serve};

type Result<T> = std::result::Result<T, downbeat_proto::message::Fault>;
