//! REST, live streams, health and metrics over HTTP. It reads the store and asks the service; it decides nothing.
//!
//! One file per noun; `view` is what they show. A stream is read from the store and woken by the feed, so that a slow
//! client costs its own reads and nobody else's memory.

mod definition;
mod docs;
mod events;
mod executions;
mod extract;
mod follow;
mod lookup;
mod nodes;
mod observe;
mod output;
mod plans;
mod problem;
mod replication;
mod router;
mod run_output;
mod runs;
mod system;
pub mod view;
mod waits;
mod wake;
mod work;

pub use router::{openapi, router};
