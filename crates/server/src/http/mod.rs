//! Owns REST, live streams, health and metrics over HTTP. It reads the store and calls the service; it decides nothing.
//!
//! One file per resource; `downbeat_api` owns the types. A stream reads the store and is woken by the feed,
//! so a slow client costs only its own reads.

mod approve;
mod backends;
mod backfills;
mod clusters;
mod debug;
mod definition;
mod deliveries;
mod docs;
mod doorway;
mod events;
mod executions;
mod extract;
mod failures;
mod follow;
mod frames;
mod hooks;
mod hosts;
mod idempotency;
mod jobs;
mod limits;
mod live;
mod many;
mod matrix;
mod media;
mod merged;
mod nodes;
mod observe;
mod output;
mod paging;
mod payload;
mod plans;
mod problem;
mod replication;
mod results;
mod router;
mod run_output;
mod run_view;
mod runs;
mod schema;
mod serve;
mod stats;
mod system;
mod tasks;
mod ui;
mod waits;
mod wake;
mod walks;
mod work;

pub(crate) use hosts::Hosts;
pub use router::openapi;
pub(crate) use router::router;
pub(crate) use serve::{LIMITS, serve};
