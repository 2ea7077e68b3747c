//! Reads the results that a retry carries over, and completes a retry whose owner died before it had committed all of them.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::run::again::left_to_carry;
use downbeat_core::{Dice, limits};
use downbeat_store::{self as store, ExecutionFilter, Listed, Page, Store};
use tracing::warn;

/// Reads the executions of an ended run for a retry, page by page.
pub(crate) struct Pages<'a> {
    store: &'a dyn Store,
    filter: ExecutionFilter,
    next: Option<Page<ExecutionId>>,
}

impl<'a> Pages<'a> {
    pub(crate) fn of(store: &'a dyn Store, run: &RunId) -> Self {
        let filter = ExecutionFilter { run: Some(run.clone()), ..ExecutionFilter::default() };
        Self { store, filter, next: Some(Page::first(limits::RETRY_READ)) }
    }

    /// Returns the next executions; none after the last. Only those that succeeded have params: others are not carried
    /// over.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Execution>>, store::Error> {
        let Some(page) = &mut self.next else { return Ok(None) };
        let Listed { mut rows, next, .. } = self.store.executions(&self.filter, page).await?;
        for execution in &mut rows {
            if execution.state.status() != Status::Succeeded {
                execution.params = None;
            }
        }
        match next {
            Some(next) => page.start = next,
            None => self.next = None,
        }
        Ok(Some(rows))
    }
}

/// Returns the results that are left to carry over to `run`. A run that has started has all of them.
pub(super) async fn left(
    store: &dyn Store,
    run: &RunRecord,
    own: &[Execution],
    dice: &mut Dice,
) -> Result<Vec<Execution>, store::Error> {
    let has_all = run.resolved.retry.is_none() || run.live.started_at.is_some() || run.live.is_ended();
    let Some(first) = run.retry_of.as_ref().filter(|_| !has_all) else { return Ok(Vec::new()) };
    let Some(first) = store.run(first).await? else {
        warn!(run = %run.id, "the run that it retries no longer exists: what was not carried over is executed again");
        return Ok(Vec::new());
    };
    let (mut executions, mut pages) = (Vec::new(), Pages::of(store, &first.id));
    while let Some(page) = pages.next().await? {
        executions.extend(page);
    }
    let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved));
    let plan =
        plan.map_err(|error| store::Error::Corrupt(format!("cannot compile `{}`: {error}", first.id)))?;
    let left = left_to_carry(run, &plan, &executions, own);
    Ok(left.map(|left| left.executions(&run.id, run.created_at, dice)).unwrap_or_default())
}
