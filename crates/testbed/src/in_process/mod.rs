//! Servers in the test's own process, requests to them, and agents that a test controls.

mod agent;
mod setup;
mod stream;

pub use agent::{Agent, outcome};
pub use setup::{Answer, Setup, noop, send, settings};
pub use stream::{Sent, Stream};
