//! REST, live streams, health and metrics over HTTP. It reads the store and asks the service; it decides nothing.
//!
//! One file per noun; `downbeat_api` has what they show. A stream is read from the store and woken by the feed, so that a slow
//! client costs its own reads and nobody else's memory.

mod definition;
mod docs;
mod doorway;
mod events;
mod executions;
mod extract;
mod follow;
mod hosts;
mod lookup;
mod media;
mod nodes;
mod observe;
mod output;
mod payload;
mod plans;
mod problem;
mod replication;
mod router;
mod run_output;
mod runs;
mod serve;
mod system;
mod waits;
mod wake;
mod work;

pub(crate) use hosts::Hosts;
pub use router::openapi;
pub(crate) use router::router;
pub(crate) use serve::{Grants, serve};
