//! Starts stored jobs when runs of other jobs end, and on events.
//!
//! Every server follows all events (`follow`). It acts at once on those that it committed itself, and after a while on
//! those of others, if their run does not exist by then. The id of a run follows from its job and the event, so that it
//! exists once, however many servers start it. `TriggersFollowed` in the feed is the memory of all servers: one that starts
//! reads the events after it again (`replay`), and finds out which of them have not started their jobs.

mod follow;
mod replay;
mod start;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_rivals;

pub(crate) use follow::follow;
