//! Launches a new run: commits it together with its first decisions, and starts its actor.

use std::sync::Arc;

use downbeat_core::change::FiringGuard;
use downbeat_core::execution::Execution;
use downbeat_core::ids::ClusterId;
use downbeat_core::plan::Plan;
use downbeat_core::run::{AdmissionFacts, Course, New, RunMade, RunRecord};
use downbeat_core::{Refusal, level};
use tracing::info;

use super::actor::{ActorParts, refused_for_nodes};
use super::cache::Cache;
use super::effects::Effects;
use super::registry::Delivery;
use crate::error::Error;
use crate::parts::Parts;
use crate::works::RunWork;

pub(crate) struct Launch {
    pub made: RunMade,
    pub plan: Arc<Plan>,
    /// Executions whose results it reuses from an earlier run.
    pub taken: Vec<Execution>,
    /// Set if a schedule starts the run.
    pub firing: Option<FiringGuard>,
    /// Whether the id follows from what caused the run, so that other servers may create the same run.
    pub derived: bool,
}

/// Returns the bound on open runs that the store has to check. With a limit on active runs, the bound on waiting runs
/// suffices.
fn max_open(parts: &Parts, cluster: ClusterId) -> Option<u32> {
    let most = parts.settings.max_pending_runs;
    let is_needed =
        parts.settings.max_concurrent_runs.is_none() && parts.admission.is_nearly_full(cluster, most);
    is_needed.then_some(most)
}

impl ActorParts {
    pub(super) fn of(parts: &Parts, run: &RunRecord, plan: &Arc<Plan>) -> Self {
        let cache = Cache::of(&parts.store, run, plan);
        let (journal, dispatcher) = (parts.journal.clone(), parts.dispatcher.clone());
        let (clock, store, heavy) = (parts.clock.clone(), Arc::clone(&parts.store), parts.heavy.clone());
        let effects = Effects::of(parts, &run.made);
        Self { journal, dispatcher, cache, clock, store, heavy, effects }
    }
}

/// Commits a new run with its first decisions and starts it. Returns the run, or why the store refused it.
pub(crate) async fn launch(parts: &Parts, launch: Launch) -> Result<Result<RunRecord, Refusal>, Error> {
    let Launch { made, plan, taken, firing, derived } = launch;
    let mut run = RunRecord::new(made, parts.server);
    let (id, cluster, now) = (run.id.clone(), run.cluster, run.created_at);
    let mut dice = parts.chance.dice();
    // Opened before the first decision, so that the run learns of every node that goes offline from here on.
    let Some(mailbox) = parts.runs.open_new(&id, Delivery::On) else {
        return Ok(Err(Refusal::RunExists(id)));
    };
    let admission = AdmissionFacts {
        is_known: parts.level.reaches(level::FLEET),
        limit: parts.settings.max_concurrent_runs,
        // Runs that can start at once do not count.
        max_pending: &|| parts.settings.max_pending_runs.saturating_add(parts.admission.room(cluster)),
        max_open: max_open(parts, cluster),
    };
    let reused = taken.len();
    let new = New { run: &run, plan: &plan, taken, admission, firing };
    let (course, mut changes) = parts.dispatcher.turn(&id, now, &mut dice, |turn| Course::create(new, turn));
    let actor = ActorParts::of(parts, &run, &plan);
    if let Some(cache) = &actor.cache {
        cache.fill(&mut changes, now).await;
    }
    let works = parts.dispatcher.works();
    if !derived {
        works.insert(Arc::new(RunWork::new(id.clone(), cluster, plan)));
    }
    parts.dispatcher.reserve(&mut changes, now, &mut dice);
    let committed = parts.journal.commit(changes.clone()).await;
    let outcomes = match committed {
        Ok(outcomes) if outcomes[0].is_ok() => outcomes,
        failed => {
            parts.dispatcher.release(&mut changes);
            // Another server may have created the run: then the board knows its work from the feed.
            if !derived {
                works.remove(&id);
            }
            return Ok(failed?.swap_remove(0).map(|()| run));
        }
    };
    run.live.follow(&changes);
    let again = refused_for_nodes(&parts.dispatcher, changes, &outcomes);
    let (steps, nodes, waits) = (run.definition.tasks.len(), run.resolved.nodes.len(), course.is_waiting());
    info!(run = %id, job = run.job, tasks = steps, nodes, reused, waits, "run created");
    if !course.is_ended() {
        parts.runs.start(mailbox, course, again, actor, dice.next_u64());
        if waits {
            parts.admission.wake();
        }
    }
    Ok(Ok(run))
}
