//! Completes a retry whose owner died before it had committed all results that the retry carries over.

use std::sync::Arc;

use downbeat_core::Dice;
use downbeat_core::execution::Execution;
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::run::again::left_to_carry;
use downbeat_store::{self as store, Store};
use tracing::warn;

use crate::heavy::{HeavyWork, is_heavy, is_heavy_run};

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
    let executions = store.executions_of(&first.id).await?;
    let is_heavy = is_heavy_run(&first) || is_heavy(executions.len() as u64);
    let (run, mut dice) = (run.clone(), Dice::new(dice.next_u64()));
    let complete = move || {
        let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved));
        let plan =
            plan.map_err(|error| store::Error::Corrupt(format!("cannot compile `{}`: {error}", first.id)))?;
        let left = left_to_carry(&run, &plan, &executions, &own);
        let left = left.map(|left| left.executions(&run.id, run.created_at, &mut dice)).unwrap_or_default();
        let mut all = own;
        all.extend_from_slice(&left);
        Ok((all, left))
    };
    let completed = heavy.run_own_if(is_heavy, complete).await;
    completed.map_err(|error| store::Error::Unavailable(error.to_string()))?
}
