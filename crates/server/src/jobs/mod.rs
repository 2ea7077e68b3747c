//! Stored jobs on this server: what it knows of them, and the runs that their schedules start.

mod fire;
mod index;
mod projection;
#[cfg(test)]
mod tests;

pub(crate) use fire::{decide, fire};
pub(crate) use index::Source;
pub(crate) use projection::{JobState, Jobs};
