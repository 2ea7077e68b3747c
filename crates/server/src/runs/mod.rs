//! Owns runs: one actor for each run that this server owns, and the registry that sends them committed events.

mod actor;
mod cache;
mod carry;
mod effects;
mod launch;
#[cfg(test)]
mod life_tests;
mod registry;
mod takeover;
#[cfg(test)]
mod tests;

pub(crate) use carry::Pages;
pub(crate) use launch::{Launch, launch};
pub(crate) use registry::Runs;
pub(crate) use takeover::{load_board, take_over};
