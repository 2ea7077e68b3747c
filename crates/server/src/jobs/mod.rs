//! Stored jobs on this server: what it knows of them, and the runs that their schedules and backfills start.

mod backfill;
mod backfills;
mod fire;
mod index;
mod projection;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_backfill;

pub(crate) use backfill::continue_backfills;
pub(crate) use backfills::Backfills;
pub(crate) use fire::{fire, settle};
pub(crate) use index::Source;
pub use projection::JobState;
pub(crate) use projection::Jobs;
