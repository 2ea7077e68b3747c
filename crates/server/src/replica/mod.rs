//! Owns read replicas: servers that keep a copy of a primary's store, and the primary's side of it.
//!
//! The primary streams frames (`frame`): a snapshot if the replica cannot continue, then events and output as they are
//! committed (`send`, `outputs`). The replica follows (`follow`), applies them to its own store with their numbers
//! (`apply`), and knows how far behind it is (`following`). It has no journal, no dispatcher and no agents (`door`).
//!
//! Invariant: only frames of the primary are written to a copy. A copy that refuses a change that the
//! primary applied is invalid and is replaced.

mod apply;
mod door;
mod follow;
mod following;
mod frame;
mod outputs;
mod send;
mod upstream;

pub(crate) use apply::Applier;
pub(crate) use door::Door;
pub(crate) use follow::Follower;
pub(crate) use following::Following;
pub(crate) use send::{SNAPSHOTS, Until, stream};
pub(crate) use upstream::Http;
pub use upstream::{Lost, Pieces, Since, Upstream};
