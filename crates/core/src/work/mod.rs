//! Work: what a node is to do, and what wants it done.

mod origin;
mod record;

pub use origin::{Origin, Parent};
pub use record::{Attempt, Lane, Work};
