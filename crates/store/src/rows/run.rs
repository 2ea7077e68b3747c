//! Owns the rows of a run: the part that moves, and the whole.

use std::sync::Arc;

use downbeat_core::ids::{ClusterId, RunId, ServerId};
use downbeat_core::run::{RunEnd, RunRecord, RunState};
use downbeat_core::state::RunLive;
use uuid::Uuid;

use super::codes::Code;
use super::scalar::{count, parse, time, time_opt};
use crate::port::Error;

/// The moving part of a row of `runs`, in the order of [`RUN_LIVE_COLUMNS`].
#[derive(Debug)]
pub(crate) struct RunLiveRow {
    pub(crate) id: String,
    pub(crate) state: i16,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) partial: Option<bool>,
    pub(crate) error: Option<String>,
    pub(crate) cancel_requested_at: Option<i64>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) admitted_at: Option<i64>,
    pub(crate) owner: Uuid,
    pub(crate) epoch: i64,
}

pub(crate) const RUN_LIVE_COLUMNS: &str = "id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch";

macro_rules! run_live_row {
    ($row:expr, $get:ident) => {
        $crate::rows::RunLiveRow {
            id: $row.$get(0)?,
            state: $row.$get(1)?,
            started_at: $row.$get(2)?,
            finished_at: $row.$get(3)?,
            partial: $row.$get(4)?,
            error: $row.$get(5)?,
            cancel_requested_at: $row.$get(6)?,
            paused_at: $row.$get(7)?,
            admitted_at: $row.$get(8)?,
            owner: $row.$get(9)?,
            epoch: $row.$get(10)?,
        }
    };
}
pub(crate) use run_live_row;

impl RunLiveRow {
    pub(crate) fn record(self) -> Result<(RunId, RunLive), Error> {
        let live = RunLive {
            state: RunState::decode(self.state)?,
            started_at: time_opt(self.started_at)?,
            finished_at: time_opt(self.finished_at)?,
            end: self.partial.map(|partial| RunEnd { partial, error: self.error }),
            cancel_requested_at: time_opt(self.cancel_requested_at)?,
            paused_at: time_opt(self.paused_at)?,
            admitted_at: time_opt(self.admitted_at)?,
            owner: ServerId(self.owner),
            epoch: count(self.epoch)?,
        };
        Ok((RunId::from(self.id), live))
    }
}

/// A run whole, in the order of [`RUN_COLUMNS`], which reads `runs` joined with its `definitions`.
#[derive(Debug)]
pub(crate) struct RunRow {
    pub(crate) live: RunLiveRow,
    pub(crate) cluster: Uuid,
    pub(crate) job: Option<String>,
    pub(crate) by: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) definition: String,
    pub(crate) resolved: String,
    pub(crate) params: Option<String>,
    pub(crate) retry_of: Option<String>,
    pub(crate) no_cache: bool,
}

pub(crate) const RUN_COLUMNS: &str = "r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, \
     r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, \
     r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of, r.no_cache";

macro_rules! run_row {
    ($row:expr, $get:ident) => {
        $crate::rows::RunRow {
            live: $crate::rows::run_live_row!($row, $get),
            cluster: $row.$get(11)?,
            job: $row.$get(12)?,
            by: $row.$get(13)?,
            idempotency_key: $row.$get(14)?,
            created_at: $row.$get(15)?,
            definition: $row.$get(16)?,
            resolved: $row.$get(17)?,
            params: $row.$get(18)?,
            retry_of: $row.$get(19)?,
            no_cache: $row.$get(20)?,
        }
    };
}
pub(crate) use run_row;

impl RunRow {
    pub(crate) fn record(self) -> Result<RunRecord, Error> {
        let (id, live) = self.live.record()?;
        Ok(RunRecord {
            cluster: ClusterId(self.cluster),
            job: self.job,
            state: live.state,
            definition: Arc::new(parse("definition", &self.definition)?),
            resolved: Arc::new(parse("resolved targets", &self.resolved)?),
            by: self.by,
            idempotency_key: self.idempotency_key,
            created_at: time(self.created_at)?,
            started_at: live.started_at,
            finished_at: live.finished_at,
            end: live.end,
            cancel_requested_at: live.cancel_requested_at,
            params: self.params.map(|params| parse("params", &params)).transpose()?.unwrap_or_default(),
            retry_of: self.retry_of.map(RunId::from),
            no_cache: self.no_cache,
            paused_at: live.paused_at,
            admitted_at: live.admitted_at,
            owner: live.owner,
            epoch: live.epoch,
            id,
        })
    }
}
