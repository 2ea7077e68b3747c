//! The components as processes: `server`, `agent`, and `dev`, which is both in one.

pub(crate) mod agent;
pub(crate) mod dev;
pub(crate) mod guard;
mod logging;
mod ready;
pub(crate) mod server;
mod start;
mod stop;

use start::started;
