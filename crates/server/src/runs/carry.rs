//! Reads the results that a retry carries over, and completes a retry whose owner died before it had committed all of them.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::ExecutionId;
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::run::again::left_to_carry;
use downbeat_core::{Dice, limits};
use downbeat_store::{self as store, ExecutionFilter, Listed, Page, Store};
use tracing::warn;

use crate::heavy::{HeavyWork, is_heavy, is_heavy_run};

/// Reads the executions of an ended run's last round for a retry, page by page.
pub(crate) struct Pages<'a> {
    store: &'a dyn Store,
    filter: ExecutionFilter,
    round: u32,
    next: Option<Page<ExecutionId>>,
}

impl<'a> Pages<'a> {
    pub(crate) fn of(store: &'a dyn Store, run: &RunRecord) -> Self {
        let filter = ExecutionFilter { run: Some(run.id.clone()), ..ExecutionFilter::default() };
        Self { store, filter, round: run.live.round, next: Some(Page::first(limits::RETRY_READ)) }
    }

    /// Returns the next executions; none after the last. Only those that succeeded have params: others are not carried
    /// over.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Execution>>, store::Error> {
        let Some(page) = &mut self.next else { return Ok(None) };
        let Listed { mut rows, next, .. } = self.store.executions(&self.filter, page).await?;
        rows.retain(|execution| execution.round == self.round);
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

/// Returns the executions of `run` together with the results that are left to carry over to it, and these results. A run
/// that has started has all of them.
pub(super) async fn complete(
    store: &dyn Store,
    heavy: &HeavyWork,
    run: &RunRecord,
    own: Vec<Execution>,
    dice: &mut Dice,
) -> Result<(Vec<Execution>, Vec<Execution>), store::Error> {
    let has_all = run.resolved.retry.is_none() || run.live.started_at.is_some() || run.live.is_ended();
    let Some(first) = run.retry_of.as_ref().filter(|_| !has_all) else { return Ok((own, Vec::new())) };
    let Some(first) = store.run(first).await? else {
        warn!(run = %run.id, "the run that it retries no longer exists: what was not carried over is executed again");
        return Ok((own, Vec::new()));
    };
    let (mut executions, mut pages) = (Vec::new(), Pages::of(store, &first));
    while let Some(page) = pages.next().await? {
        executions.extend(page);
    }
    let is_heavy = is_heavy_run(&first) || is_heavy(executions.len() as u64);
    let (run, mut dice) = (run.clone(), Dice::new(dice.next_u64()));
    let complete = move || {
        let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved));
        let plan =
            plan.map_err(|error| store::Error::Corrupt(format!("cannot compile `{}`: {error}", first.id)))?;
        let left = left_to_carry(&run, &first, &plan, &executions, &own);
        let left = left.map(|left| left.executions(&run.id, run.created_at, &mut dice)).unwrap_or_default();
        let mut all = own;
        all.extend_from_slice(&left);
        Ok((all, left))
    };
    let completed = heavy.run_own_if(is_heavy, complete).await;
    completed.map_err(|error| store::Error::Unavailable(error.to_string()))?
}
