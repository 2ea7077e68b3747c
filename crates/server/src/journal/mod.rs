//! The journal: the one way into the store. It gathers what all parts of the server want to write into one
//! transaction, and hands what was committed to those that act on it, in order.

mod feed;
mod writer;

pub use feed::{Batches, Feed};
pub(crate) use writer::{Journal, Lost, Perform};
