//! Runs: one actor per run that this server owns, and the registry that brings them what was committed.

mod actor;
mod cache;
mod registry;
mod takeover;

pub(crate) use actor::{Means, Start, Waits, refused_for_nodes, release, reserve};
pub(crate) use cache::Cache;
pub(crate) use registry::Runs;
pub(crate) use takeover::{load_board, take_over};
