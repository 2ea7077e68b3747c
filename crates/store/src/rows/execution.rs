//! Owns the row of an execution.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::work::Origin;
use uuid::Uuid;

use super::codes::{Code, condition};
use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{json, parse_opt, small, small_count, time, time_opt};
use super::state::StateColumns;
use super::text::Text;
use crate::port::{InstanceFacts, Result, StandingResult};

columns! {
    /// The columns of `executions` that do not belong to its state.
    struct MadeColumns<'a> {
        run: Text<'a>,
        step: i32,
        pinned: Option<Uuid>,
        round: i32,
        attempt: i32,
        former: Option<i16>,
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

/// The columns of an execution that are JSON. They never change.
#[derive(Debug)]
pub(crate) struct ExecutionDocuments<'a> {
    params: Option<Text<'a>>,
    limits: Option<Text<'a>>,
}

impl ExecutionDocuments<'_> {
    pub(crate) fn of(execution: &Execution) -> Result<Self> {
        Ok(Self {
            params: execution.params.as_deref().map(json).transpose()?.map(Text::from),
            limits: execution.limits.as_deref().map(json).transpose()?.map(Text::from),
        })
    }

    /// Returns the same documents without copying them.
    pub(crate) fn borrowed(&self) -> ExecutionDocuments<'_> {
        let (params, limits) = (self.params.as_ref(), self.limits.as_ref());
        ExecutionDocuments { params: params.map(Text::borrowed), limits: limits.map(Text::borrowed) }
    }
}

pub(crate) fn execution_row<'a>(
    execution: &'a Execution,
    documents: ExecutionDocuments<'a>,
) -> ExecutionRow<'a> {
    let made = MadeColumns {
        run: execution.run().as_str().into(),
        step: small(execution.step()),
        pinned: execution.pinned.map(|node| node.0),
        round: small(execution.round),
        attempt: small(execution.attempt),
        former: execution.former.map(Code::code),
        created_at: execution.created_at.as_microsecond(),
        params: documents.params,
        reused: execution.reused.map(|reused| reused.0),
        item: execution.item().map(small),
        limits: documents.limits,
        cache_key: execution.cache_key.as_deref().map(Text::from),
        failed_for_good: execution.failed_for_good.as_deref().map(Text::from),
    };
    (StateColumns::of(execution), made)
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
            round: small_count(made.round)?,
            attempt: small_count(made.attempt)?,
            former: made.former.map(Status::decode).transpose()?,
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

/// An execution without its params, which may be large.
#[derive(Debug)]
pub(crate) struct WithoutParams(pub(crate) Execution);

impl Record for WithoutParams {
    select!(format!("SELECT {} FROM executions", ExecutionRow::names_without(&["params"])));

    fn from_row(row: &impl Cells) -> Result<Self> {
        Execution::from_row(row).map(Self)
    }
}

/// An execution without its params and outputs, which may be large.
#[derive(Debug)]
pub(crate) struct Bare(pub(crate) Execution);

impl Record for Bare {
    select!(format!("SELECT {} FROM executions", ExecutionRow::names_without(&["params", "outputs"])));

    fn from_row(row: &impl Cells) -> Result<Self> {
        Execution::from_row(row).map(Self)
    }
}

/// Selects the status of the last but one attempt before an attempt whose former one was lost.
const EARLIER: &str = concat!(
    "CASE WHEN executions.",
    condition!(former was lost),
    " THEN (SELECT max(e.former) FROM executions e WHERE e.",
    condition!(standing runs),
    " AND e.run = executions.run AND e.step = executions.step AND e.pinned = executions.pinned \
      AND e.attempt = executions.attempt - 1) END"
);

/// Returns how many attempts in a row were lost, by the last one and the one before it.
fn lost_before(former: Option<Status>, earlier: Option<Status>) -> u32 {
    match (former, earlier) {
        (Some(Status::Lost), Some(Status::Lost)) => 2,
        (Some(Status::Lost), _) => 1,
        _ => 0,
    }
}

impl Record for StandingResult {
    select!(format!(
        "SELECT id, run, step, pinned, attempt, status, created_at, started_at, \
         coalesce(finished_at, ended_at), exit_code, former, {EARLIER} FROM executions"
    ));

    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(1)?;
        Ok(Self {
            execution: ExecutionId(row.cell(0)?),
            run: String::from(run).into(),
            step: small_count(row.cell(2)?)?,
            node: NodeId(row.cell(3)?),
            attempt: small_count(row.cell(4)?)?,
            status: Status::decode(row.cell(5)?)?,
            created_at: time(row.cell(6)?)?,
            started_at: time_opt(row.cell(7)?)?,
            ended_at: time_opt(row.cell(8)?)?,
            exit_code: row.cell(9)?,
            lost_before: {
                let status = |code: Option<i16>| code.map(Status::decode).transpose();
                lost_before(status(row.cell(10)?)?, status(row.cell(11)?)?)
            },
        })
    }
}

impl StandingResult {
    /// Returns the result of a pinned execution; `earlier` is the `former` of the attempt before it.
    pub(crate) fn of(execution: &Execution, earlier: Option<Status>) -> Option<Self> {
        let state = StateColumns::of(execution);
        let at = |micros: Option<i64>| time_opt(micros).ok().flatten();
        Some(Self {
            execution: execution.id,
            run: execution.run().clone(),
            step: execution.step(),
            node: execution.pinned?,
            attempt: execution.attempt,
            status: execution.state.status(),
            lost_before: lost_before(execution.former, earlier),
            created_at: execution.created_at,
            started_at: at(state.started_at),
            ended_at: at(state.finished_at.or(state.ended_at)),
            exit_code: state.exit_code,
        })
    }
}

/// An attempt with the facts that overviews of many instances need.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) pinned: Option<NodeId>,
    pub(crate) is_withdrawn: bool,
    pub(crate) facts: InstanceFacts,
}

impl From<&Execution> for Attempt {
    fn from(execution: &Execution) -> Self {
        let state = StateColumns::of(execution);
        let at = |micros: Option<i64>| time_opt(micros).ok().flatten();
        Self {
            pinned: execution.pinned,
            is_withdrawn: execution.is_withdrawn(),
            facts: InstanceFacts {
                step: execution.step(),
                node: execution.node(),
                item: execution.item(),
                attempt: execution.attempt,
                status: execution.state.status(),
                is_reused: execution.reused.is_some(),
                failed_for_good: execution.failed_for_good.is_some(),
                started_at: at(state.started_at),
                ended_at: at(state.finished_at.or(state.ended_at)),
            },
        }
    }
}

impl Record for Attempt {
    fn select() -> &'static str {
        "SELECT step, pinned, lease_node, item, attempt, status, reused IS NOT NULL, failed_for_good IS NOT NULL, \
         started_at, coalesce(finished_at, ended_at), token IS NOT NULL FROM executions"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let pinned = row.cell::<Option<Uuid>>(1)?.map(NodeId);
        let item: Option<i32> = row.cell(3)?;
        let (attempt, status) = (small_count(row.cell(4)?)?, Status::decode(row.cell(5)?)?);
        let was_sent: bool = row.cell(10)?;
        let is_unsent = status == Status::Skipped || (status == Status::Cancelled && !was_sent);
        Ok(Self {
            pinned,
            is_withdrawn: attempt > 1 && is_unsent,
            facts: InstanceFacts {
                step: small_count(row.cell(0)?)?,
                node: pinned.or(row.cell::<Option<Uuid>>(2)?.map(NodeId)),
                item: item.map(small_count).transpose()?,
                attempt,
                status,
                is_reused: row.cell(6)?,
                failed_for_good: row.cell(7)?,
                started_at: time_opt(row.cell(8)?)?,
                ended_at: time_opt(row.cell(9)?)?,
            },
        })
    }
}
