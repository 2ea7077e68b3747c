//! How records become columns and columns records, the same way for both SQL stores.

mod codes;
mod event;
mod execution;
mod node;
mod run;
mod scalar;
mod state;
mod totals;

pub(crate) use codes::Code;
pub(crate) use event::{EVENT_COLUMNS, EventRow, event_row};
pub(crate) use execution::{EXECUTION_COLUMNS, ExecutionRow, execution_row};
pub(crate) use node::{
    NODE_COLUMNS, NODE_LIVE_COLUMNS, NodeLiveRow, NodeRow, TOMBSTONE_COLUMNS, TombstoneRow, node_live_row,
    node_row, problems_column, registration_column, tombstone_row,
};
pub(crate) use run::{RUN_COLUMNS, RUN_LIVE_COLUMNS, RunLiveRow, RunRow, run_live_row, run_row};
pub(crate) use scalar::{count, int, json, micros, params_column, small, small_count, time, time_opt};
pub(crate) use state::StateColumns;
