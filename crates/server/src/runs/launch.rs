//! Launches a new run: commits it together with its first decisions, and starts its actor.

use std::sync::Arc;

use downbeat_core::execution::Execution;
use downbeat_core::plan::Plan;
use downbeat_core::run::engine::Progress;
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::spec::Definition;
use downbeat_core::{Change, Refusal, level, limits};
use tracing::info;

use super::actor::{Means, Start, Waits, refused_for_nodes, release, reserve};
use super::cache::Cache;
use crate::error::Error;
use crate::parts::Parts;
use crate::works::RunWork;

/// A run that is to be committed and started.
pub(crate) struct Launch {
    pub run: RunRecord,
    pub plan: Arc<Plan>,
    /// The executions that it takes over from an earlier run.
    pub taken: Vec<Execution>,
}

impl Means {
    pub(super) fn of(parts: &Parts, run: &RunRecord, plan: &Arc<Plan>) -> Self {
        let cache = Cache::of(&parts.store, run, plan);
        Self { journal: parts.journal.clone(), dispatcher: parts.dispatcher.clone(), cache }
    }
}

/// Commits a new run with its first decisions and starts it. Returns the run, or why the store refused it.
pub(crate) async fn launch(parts: &Parts, launch: Launch) -> Result<Result<RunRecord, Refusal>, Error> {
    let Launch { mut run, plan, taken } = launch;
    let (id, cluster, now) = (run.id.clone(), run.cluster, run.created_at);
    let mut dice = parts.chance.dice();
    // Opened before the first decision: the run hears of every node that goes offline from here on.
    let mailbox = parts.runs.open(&id);
    let mut progress = if taken.is_empty() {
        Progress::new(Arc::clone(&plan), id.clone(), run.epoch, run.state)
            .with_params(Arc::new(run.params.clone()))
    } else {
        Progress::restore(Arc::clone(&plan), &run, run.epoch, &taken, None)
    };
    let waits = has_to_wait(parts, &run.definition);
    if !waits {
        parts.dispatcher.turn(&id, now, &mut dice, |turn| progress.begin(turn));
    }
    // Every run is created pending. Those that there is room for do not count.
    let max_pending = waits.then(|| parts.settings.max_pending_runs.saturating_add(parts.admission.room()));
    let mut changes = vec![Change::RunCreated { run: run.clone(), max_pending }];
    changes.extend(taking_over(&run, &taken));
    changes.extend(progress.take_changes(now));
    let means = Means::of(parts, &run, &plan);
    if let Some(cache) = &means.cache {
        cache.answer(&mut changes, now).await;
    }
    let works = parts.dispatcher.works();
    works.insert(Arc::new(RunWork::new(id.clone(), cluster, plan)));
    reserve(&parts.dispatcher, &mut changes, now, &mut dice);
    let committed = parts.journal.commit(changes.clone()).await;
    let outcomes = match committed {
        Ok(outcomes) if outcomes[0].is_ok() => outcomes,
        failed => {
            release(&parts.dispatcher, &mut changes);
            works.remove(&id);
            return Ok(failed?.swap_remove(0).map(|()| run));
        }
    };
    let again = refused_for_nodes(&parts.dispatcher, changes, &outcomes);
    let (steps, nodes) = (run.definition.tasks.len(), run.resolved.nodes.len());
    info!(run = %id, job = run.job, tasks = steps, nodes, reused = taken.len(), waits, "run created");
    let start = if waits {
        Start::Waiting(Waits::ToBegin)
    } else {
        run.state = RunState::Running;
        run.started_at = Some(now);
        Start::Begun { at: now, again }
    };
    if !progress.is_ended() {
        parts.runs.start(mailbox, progress, start, means, dice.next_u64());
        if waits {
            parts.admission.wake();
        }
    } else if let Some(stored) = parts.store.run(&id).await? {
        run = stored;
    }
    Ok(Ok(run))
}

/// Adds the executions that a new run takes over from an earlier one.
fn taking_over(run: &RunRecord, taken: &[Execution]) -> impl Iterator<Item = Change> {
    taken.chunks(limits::EXECUTIONS_PER_CHANGE).map(|executions| Change::ExecutionsAdded {
        run: run.id.clone(),
        epoch: run.epoch,
        executions: executions.to_vec(),
        at: run.created_at,
    })
}

/// Whether a run starts only when it is admitted. While an older server lives, which does not know admission, there is
/// no limit.
fn has_to_wait(parts: &Parts, definition: &Definition) -> bool {
    let is_gated = definition.exclusive || parts.settings.max_concurrent_runs.is_some();
    is_gated && parts.level.reaches(level::FLEET)
}
