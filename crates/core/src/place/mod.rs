//! Placement: whether a node may take a task that runs once, and if not, why.

mod fits;
mod misfit;

pub use fits::fits;
pub use misfit::Misfit;
