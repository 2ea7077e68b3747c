//! Read replicas: servers that keep a copy of a primary's store, and what a primary sends them.
//!
//! The primary streams frames (`frame`): a snapshot for who has nothing to go on with, then events and output as they
//! are committed (`send`, `outputs`). The replica follows (`follow`), applies them to its own store with their numbers
//! (`apply`), and knows how far behind it is (`following`). It has no journal, no dispatcher and no agents (`door`).
//!
//! Invariant: nothing writes to a copy but what its primary sent. A copy that refuses what the primary applied is none
//! any more, and is made anew.

mod apply;
mod cut;
mod door;
mod follow;
mod following;
mod frame;
mod mask;
mod outputs;
mod send;

pub(crate) use apply::Applier;
pub(crate) use door::Door;
pub(crate) use follow::Follower;
pub(crate) use following::{Following, Lag};
pub(crate) use send::{Since, Until, stream};
