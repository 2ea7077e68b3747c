//! Converts records to columns and back, in the same way for both SQL stores. A row declares its columns once; `column`
//! derives the rest.

mod backfill;
mod cluster;
mod codes;
mod column;
mod content;
mod delivery;
mod event;
mod execution;
mod job;
mod node;
mod record;
mod run;
mod scalar;
mod state;
mod text;

pub(crate) use backfill::{BackfillRow, OldBackfillsRow};
pub(crate) use cluster::{ClusterNameRow, ClusterRow, DeletedClusterRow};
pub(crate) use codes::{Code, condition};
pub(crate) use column::{Cell, Cells, Column, Columns, Value, columns, list};
pub(crate) use content::{ContentRow, Contents, NewContents, Stored, hashes_of};
pub(crate) use delivery::DeliveryRow;
pub(crate) use event::{ChangeColumns, EventRow, NumberColumns, write_event};
pub(crate) use execution::{
    Attempt, Bare, ExecutionDocuments, ExecutionRow, FailedRow, WithoutParams, execution_row,
};
pub(crate) use job::{JobRow, JobVersionRow, OldVersionsRow};
pub(crate) use node::{
    BuriedRow, DescribedRow, NodeLiveRow, ProblemsRow, StoredNode, TombstoneRow, description_row,
};
pub(crate) use record::{CachedRow, HoldRow, LimitUseRow, OutputRow, Record, ServerRow};
pub(crate) use run::{
    BriefRow, DefinedRow, Extent, RunLiveRow, RunRow, StoredDefinition, StoredRun, definition_row, run_row,
};
pub(crate) use scalar::{count, int, json, small, small_count, time};
pub(crate) use state::{LEASE_COLUMNS, StateColumns};
pub(crate) use text::Text;
