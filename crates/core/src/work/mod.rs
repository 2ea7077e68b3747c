//! Work for nodes: its shape, and its origin.

mod origin;
mod record;

pub use origin::{Origin, Parent};
pub use record::{Attempt, Lane, Work};
