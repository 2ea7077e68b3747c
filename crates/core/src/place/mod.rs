//! Placement: whether a node fits a placed task, why not, and which of several nodes is the best.

mod fits;
mod misfit;
mod rank;

pub use fits::{fits, suits};
pub use misfit::Misfit;
pub use rank::{Rank, rank, weight};
