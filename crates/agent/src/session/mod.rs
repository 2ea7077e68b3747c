//! A session: how it opens, and its loops until it ends.

mod ahead;
mod cut_off;
mod deliver;
mod heartbeat;
mod join;
mod open;
mod output;
mod poll;
mod report;
mod stuck;

pub(crate) use ahead::send_ahead;
pub(crate) use cut_off::cut_off;
pub(crate) use heartbeat::{heartbeat, leave};
pub(crate) use join::{Joined, Joining};
pub(crate) use open::open;
pub(crate) use output::output;
pub(crate) use poll::poll;
pub(crate) use report::{Outgoing, report};
