//! The doors: what both ports do with a connection before HTTP begins. They count it, wait for its first bytes, and
//! tell HTTP/1 from HTTP/2. Neither requests nor calls are seen here.

mod accept;
mod opening;
mod room;
mod spawn;

pub(crate) use accept::Door;
pub(crate) use opening::{Protocol, open, refuse};
pub(crate) use room::{Bounds, Permit, Room};
pub(crate) use spawn::Spawn;
