//! Dispatch: which node gets which execution. The board is a projection of the store, kept by the feed; the
//! dispatcher claims for all waiting nodes in one commit.

mod board;
mod dispatcher;
mod post;
mod queue;

pub(crate) use board::{Board, Parking, assignment};
pub(crate) use dispatcher::Dispatcher;
