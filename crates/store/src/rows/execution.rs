//! Owns the row of an execution.

use std::sync::Arc;

use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::work::Origin;
use uuid::Uuid;

use super::scalar::{parse, small_count, time};
use super::state::StateColumns;
use crate::port::Error;

/// A row of `executions`, in the order of [`EXECUTION_COLUMNS`].
#[derive(Debug)]
pub(crate) struct ExecutionRow {
    pub(crate) id: Uuid,
    pub(crate) run: String,
    pub(crate) step: i32,
    pub(crate) pinned: Option<Uuid>,
    pub(crate) attempt: i32,
    pub(crate) created_at: i64,
    pub(crate) state: StateColumns<String>,
    pub(crate) params: Option<String>,
    pub(crate) reused: Option<Uuid>,
    pub(crate) item: Option<i32>,
    pub(crate) limits: Option<String>,
    pub(crate) cache_key: Option<String>,
}

pub(crate) const EXECUTION_COLUMNS: &str = "id, run, step, pinned, attempt, created_at, status, not_before, token, \
     lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, \
     outputs, params, reused, item, limits, cache_key";

/// Reads a row by the getter that the driver has.
macro_rules! execution_row {
    ($row:expr, $get:ident) => {
        $crate::rows::ExecutionRow {
            id: $row.$get(0)?,
            run: $row.$get(1)?,
            step: $row.$get(2)?,
            pinned: $row.$get(3)?,
            attempt: $row.$get(4)?,
            created_at: $row.$get(5)?,
            state: $crate::rows::StateColumns {
                status: $row.$get(6)?,
                not_before: $row.$get(7)?,
                token: $row.$get(8)?,
                lease_node: $row.$get(9)?,
                session: $row.$get(10)?,
                granted_at: $row.$get(11)?,
                stop: $row.$get(12)?,
                started_at: $row.$get(13)?,
                verdict: $row.$get(14)?,
                exit_code: $row.$get(15)?,
                error: $row.$get(16)?,
                finished_at: $row.$get(17)?,
                reason: $row.$get(18)?,
                ended_at: $row.$get(19)?,
                outputs: $row.$get(20)?,
            },
            params: $row.$get(21)?,
            reused: $row.$get(22)?,
            item: $row.$get(23)?,
            limits: $row.$get(24)?,
            cache_key: $row.$get(25)?,
        }
    };
}
pub(crate) use execution_row;

impl ExecutionRow {
    pub(crate) fn record(self) -> Result<Execution, Error> {
        Ok(Execution {
            id: ExecutionId(self.id),
            of: Origin::Step {
                run: RunId::from(self.run),
                step: small_count(self.step)?,
                item: self.item.map(small_count).transpose()?,
            },
            pinned: self.pinned.map(NodeId),
            attempt: small_count(self.attempt)?,
            created_at: time(self.created_at)?,
            state: self.state.state()?,
            params: self.params.map(|params| parse("params", &params)).transpose()?.map(Arc::new),
            reused: self.reused.map(ExecutionId),
            limits: self.limits.map(|limits| parse("limits", &limits)).transpose()?.map(Arc::new),
            cache_key: self.cache_key.map(Arc::from),
        })
    }
}
