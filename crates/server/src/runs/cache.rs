//! Replaces executions by earlier results: for tasks with `cache`.

use std::sync::Arc;

use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::ClusterId;
use downbeat_core::plan::{Plan, StepIx};
use downbeat_core::run::RunRecord;
use downbeat_core::{Change, Timestamp};
use downbeat_store::Store;
use tracing::{info, warn};

use crate::dispatch::added;

/// The results of earlier runs, for one run.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    store: Arc<dyn Store>,
    cluster: ClusterId,
    plan: Arc<Plan>,
}

impl Cache {
    /// Returns `None` for a run that uses no earlier results.
    pub(crate) fn of(store: &Arc<dyn Store>, run: &RunRecord, plan: &Arc<Plan>) -> Option<Self> {
        let mut tasks = run.definition.steps();
        let uses = !run.no_cache && tasks.any(|task| task.cache.is_some());
        uses.then(|| Self { store: Arc::clone(store), cluster: run.cluster, plan: Arc::clone(plan) })
    }

    /// Sets the result of executions that are about to be created, if the cache has it. If the store fails,
    /// they are executed.
    pub(crate) async fn fill(&self, changes: &mut [Change], now: Timestamp) {
        let keys: Vec<Arc<str>> =
            wanted(changes).filter_map(|execution| execution.cache_key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        let found = match self.store.cached(self.cluster, &keys).await {
            Ok(found) => found,
            Err(error) => {
                warn!(%error, "cannot read cached results; the tasks are executed");
                return;
            }
        };
        for execution in wanted(changes) {
            let former = execution.cache_key.as_ref().and_then(|key| found.get(key));
            let Some(former) = former.filter(|former| self.is_fresh(execution.step(), former, now)) else {
                continue;
            };
            info!(step = execution.step(), execution = %former.id, "using a cached result");
            execution.state = former.state.clone();
            execution.reused = Some(former.id);
        }
    }

    fn is_fresh(&self, step: u32, former: &Execution, now: Timestamp) -> bool {
        let State::Succeeded { outcome, .. } = &former.state else { return false };
        self.plan.task(StepIx(step)).cache.is_some_and(|cache| cache.accepts(outcome.ended_at(), now))
    }
}

/// Returns pending first attempts.
fn wanted(changes: &mut [Change]) -> impl Iterator<Item = &mut Execution> {
    added(changes).flatten().filter(|execution| {
        execution.attempt == 1
            && execution.cache_key.is_some()
            && matches!(execution.state, State::Pending { .. })
    })
}
