//! Stored jobs: their record, their versions and their backfills.

mod backfill;
mod diff;
mod record;

pub use backfill::{
    Backfill, BackfillCancel, BackfillCounts, BackfillEnd, BackfillFacts, BackfillLive, BackfillNext,
    BackfillRecord, BackfillStep, next_of_backfill,
};
pub use diff::{Difference, differences};
pub use record::{JobKey, JobLive, JobRecord, JobVersion, NotStarted, definition_hash, schedule_key};
