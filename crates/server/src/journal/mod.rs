//! Owns the journal: the only way to write to the store. It gathers the changes of all parts of the server
//! into one transaction, and passes committed events to the performers in order.

mod feed;
mod writer;

pub(crate) use feed::{Batches, Feed, Published, event_text};
pub(crate) use writer::{CommitError, Journal, Perform};
