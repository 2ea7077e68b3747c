//! Owns dispatch: it decides which node runs which execution. The board is a projection of the store that
//! follows the feed; the dispatcher claims work for all waiting nodes in one commit.

mod apply;
mod board;
mod candidates;
mod claim;
mod class;
mod dispatcher;
mod interned;
mod line;
mod pile;
mod post;
mod queue;
mod reasons;
mod schemas;
mod slots;
mod stray;
mod stuck;
#[cfg(test)]
mod tests;
mod turns;
mod usage;
mod uses;

pub(crate) use board::{Board, Parking};
pub(crate) use dispatcher::{Dispatcher, added};
pub(crate) use pile::Share;
pub(crate) use usage::LimitKey;
