//! Owns the row of an execution.

use std::sync::Arc;

use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::work::Origin;
use uuid::Uuid;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{json, parse_opt, small, small_count, time};
use super::state::StateColumns;
use super::text::Text;
use crate::port::Result;

columns! {
    /// The columns of `executions` that do not belong to its state.
    struct MadeColumns<'a> {
        run: Text<'a>,
        step: i32,
        pinned: Option<Uuid>,
        attempt: i32,
        created_at: i64,
        params: Option<Text<'a>>,
        reused: Option<Uuid>,
        item: Option<i32>,
        limits: Option<Text<'a>>,
        cache_key: Option<Text<'a>>,
        failed_for_good: Option<Text<'a>>,
    }
}

columns! {
    /// The column of `executions` that is set when the instance has failed for good, after the id.
    struct FailedRow<'a> {
        id: Uuid,
        failed_for_good: Option<Text<'a>>,
    }
}

impl<'a> FailedRow<'a> {
    pub(crate) fn of(execution: &'a Execution) -> Self {
        Self { id: execution.id.0, failed_for_good: execution.failed_for_good.as_deref().map(Text::from) }
    }
}

/// A whole row of `executions`.
pub(crate) type ExecutionRow<'a> = (StateColumns<'a>, MadeColumns<'a>);

pub(crate) fn execution_row(execution: &Execution) -> Result<ExecutionRow<'_>> {
    let made = MadeColumns {
        run: execution.run().as_str().into(),
        step: small(execution.step()),
        pinned: execution.pinned.map(|node| node.0),
        attempt: small(execution.attempt),
        created_at: execution.created_at.as_microsecond(),
        params: execution.params.as_deref().map(json).transpose()?.map(Text::from),
        reused: execution.reused.map(|reused| reused.0),
        item: execution.item().map(small),
        limits: execution.limits.as_deref().map(json).transpose()?.map(Text::from),
        cache_key: execution.cache_key.as_deref().map(Text::from),
        failed_for_good: execution.failed_for_good.as_deref().map(Text::from),
    };
    Ok((StateColumns::of(execution), made))
}

impl Record for Execution {
    select!(ExecutionRow<'_>, "executions");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (state, made) = ExecutionRow::read(row, 0)?;
        Ok(Execution {
            id: ExecutionId(state.id),
            of: Origin::Step {
                run: RunId::from(String::from(made.run)),
                step: small_count(made.step)?,
                item: made.item.map(small_count).transpose()?,
            },
            pinned: made.pinned.map(NodeId),
            attempt: small_count(made.attempt)?,
            created_at: time(made.created_at)?,
            state: state.state()?,
            params: parse_opt("params", made.params.as_ref())?.map(Arc::new),
            reused: made.reused.map(ExecutionId),
            limits: parse_opt("limits", made.limits.as_ref())?.map(Arc::new),
            cache_key: made.cache_key.map(|key| Arc::from(&*key.0)),
            failed_for_good: made.failed_for_good.map(|reason| Arc::from(&*reason.0)),
        })
    }
}
