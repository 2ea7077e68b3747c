//! Nodes: their signs of life, and what silence does to them.

mod heartbeat;
mod serving;
mod sweep;

pub(crate) use heartbeat::Heartbeats;
pub(crate) use serving::Serving;
pub(crate) use sweep::Sweeper;
