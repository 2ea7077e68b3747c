//! The REST API from a client's side: requests, streams, and how refusals become failures.

mod http;
mod problem;
mod sse;

pub(crate) use http::{Body, Client};
pub(crate) use problem::params_failure;
pub(crate) use sse::Feed;
