//! Placement: whether a node may take a task that runs once, if not, why, and which of several is the best.

mod fits;
mod misfit;
mod rank;

pub use fits::fits;
pub use misfit::Misfit;
pub use rank::{Rank, rank, weight};
