//! Stored jobs on this server: what it knows of them, and the runs that their schedules start.

mod fire;
mod projection;
#[cfg(test)]
mod tests;

pub(crate) use fire::{fire, settle};
pub use projection::JobState;
pub(crate) use projection::Jobs;
