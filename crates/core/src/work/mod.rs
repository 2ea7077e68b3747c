//! Work: the tasks for nodes, and where they come from.

mod origin;
mod record;

pub use origin::{Origin, Parent};
pub use record::{Attempt, Lane, Work};
