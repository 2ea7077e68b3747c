//! Completes a retry whose owner died before it had committed all results that the retry carries over.

use std::sync::Arc;

use downbeat_core::Dice;
use downbeat_core::execution::Execution;
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::run::again::left_to_carry;
use downbeat_store::{self as store, Store};
use tracing::warn;

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
    let executions = store.executions_of(&first.id).await?;
    let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved));
    let plan =
        plan.map_err(|error| store::Error::Corrupt(format!("cannot compile `{}`: {error}", first.id)))?;
    let left = left_to_carry(run, &plan, &executions, own);
    Ok(left.map(|left| left.executions(&run.id, run.created_at, dice)).unwrap_or_default())
}
