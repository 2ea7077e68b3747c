//! Owns the doors: what both ports do with a connection before HTTP starts. They count it, wait for its
//! first bytes, and distinguish HTTP/1 from HTTP/2. They do not see requests or calls.

mod accept;
mod opening;
mod room;
mod serve;
mod threads;

use accept::{Door, Shut};
use opening::open;
pub(crate) use opening::{Opened, Protocol, refuse};
pub(crate) use room::Bounds;
use room::{Permit, Room};
pub(crate) use serve::{KEEPALIVE, PortLimits, Spawn, serve};
pub(crate) use threads::Threads;
