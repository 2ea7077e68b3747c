//! Owns nodes: their heartbeats, and the consequences of silence.

mod delete;
mod forget;
mod heartbeat;
mod sweep;
#[cfg(test)]
mod tests;

pub(crate) use delete::delete;
pub(crate) use forget::forget;
pub(crate) use heartbeat::Heartbeats;
pub(crate) use sweep::{Serving, sweep};
