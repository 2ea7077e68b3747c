//! Owns the row of a backfill.

use downbeat_core::ids::BackfillId;
use downbeat_core::job::{Backfill, BackfillRecord};
use downbeat_core::limits;
use uuid::Uuid;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{json, micros, parse};
use super::text::Text;
use crate::port::Result;

columns! {
    /// A row of `backfills`.
    struct BackfillRow<'a> {
        id: Uuid,
        cluster: Uuid,
        job: Uuid,
        ended_at: Option<i64>,
        made: Text<'a>,
        live: Text<'a>,
    }
}

columns! {
    /// A job that has a new backfill, and how many are kept.
    struct OldBackfillsRow {
        job: Uuid,
        kept: i64,
    }
}

impl BackfillRow<'_> {
    pub(crate) fn of(backfill: &BackfillRecord) -> Result<Self> {
        let BackfillRecord { made, live } = backfill;
        Ok(Self {
            id: made.id.0,
            cluster: made.job.cluster.0,
            job: made.job.id().0,
            ended_at: micros(live.ended_at),
            made: json(made)?.into(),
            live: json(live)?.into(),
        })
    }
}

impl OldBackfillsRow {
    pub(crate) fn before(backfill: &Backfill) -> Self {
        Self { job: backfill.job.id().0, kept: super::int(limits::BACKFILLS as u64) }
    }
}

impl Record for BackfillRecord {
    select!(BackfillRow<'_>, "b", "backfills");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = BackfillRow::read(row, 0)?;
        Ok(Self { made: parse("backfill", &row.made.0)?, live: parse("backfill", &row.live.0)? })
    }
}

impl Record for (BackfillId, BackfillRecord) {
    select!(BackfillRow<'_>, "backfills");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let backfill = BackfillRecord::from_row(row)?;
        Ok((backfill.made.id, backfill))
    }
}
