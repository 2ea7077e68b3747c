//! Owns the doors: what both ports do with a connection before HTTP starts. They count it, wait for its
//! first bytes, and distinguish HTTP/1 from HTTP/2. They do not see requests or calls.

mod accept;
mod opening;
mod room;
mod spawn;

pub(crate) use accept::Door;
pub(crate) use opening::{Protocol, open, refuse};
pub(crate) use room::{Bounds, Permit, Room};
pub(crate) use spawn::Spawn;
