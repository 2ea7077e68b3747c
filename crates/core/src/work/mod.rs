//! Work: what a node is to do, and what wants it done.

mod origin;

pub use origin::{Origin, Parent};
