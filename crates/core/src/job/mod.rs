//! Stored jobs: their record and their versions.

mod diff;
mod record;

pub use diff::{Difference, differences};
pub use record::{JobKey, JobLive, JobRecord, JobVersion, NotStarted, definition_hash};
