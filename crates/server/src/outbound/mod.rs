//! Owns the HTTP calls that servers make for jobs: webhooks, notifications and hooks.
//!
//! Invariant: every connection, also after a redirect, goes to an address that `core::outbound` has allowed.

mod client;
mod error;
mod guard;
#[cfg(test)]
mod tests;

pub use client::Outside;
pub(crate) use client::{Outbound, Request};
pub(crate) use error::Error;
