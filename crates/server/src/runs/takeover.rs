//! Takes over runs whose owner is gone: raises the epoch, rebuilds the progress, and continues.

use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::ids::RunId;
use downbeat_core::run::{Course, RunRecord};
use downbeat_store::{self as store, Store};
use tracing::{error, info};

use super::actor::ActorParts;
use super::registry::Mailbox;
use crate::admission::Admission;
use crate::dispatch::Dispatcher;
use crate::parts::Parts;
use crate::works::RunWork;

/// Runs that are taken in one commit. Several servers that take over at once share the work: the first one
/// gets each run.
const AT_ONCE: usize = 64;

/// Takes these runs over. Runs that another server has just taken are skipped.
pub(crate) async fn take_over(parts: &Parts, runs: Vec<RunId>) -> Result<(), store::Error> {
    let mut taken = 0;
    for ids in runs.chunks(AT_ONCE) {
        taken += take_some(parts, ids).await?;
    }
    if taken > 0 {
        info!(runs = taken, "took over runs");
    }
    Ok(())
}

struct Taking {
    run: RunRecord,
    work: Arc<RunWork>,
    /// Opened before the commit, so that nothing is missed.
    mailbox: Mailbox,
}

async fn take_some(parts: &Parts, ids: &[RunId]) -> Result<usize, store::Error> {
    let mut takings = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(run) = parts.store.run(id).await? else { continue };
        match parts.dispatcher.works().of_stored(&run) {
            Ok(work) => {
                let mailbox = parts.runs.open(id);
                takings.push(Taking { run, work, mailbox });
            }
            Err(error) => error!(run = %id, %error, "cannot compile a stored run"),
        }
    }
    let (owner, at) = (parts.server, parts.clock.now());
    let changes = takings.iter().map(|taking| {
        let run = &taking.run;
        Change::RunTaken { run: run.id.clone(), owner, epoch: run.live.epoch + 1, at }
    });
    let changes: Vec<Change> = changes.collect();
    if changes.is_empty() {
        return Ok(0);
    }
    let outcomes = parts.journal.commit(changes).await?;
    let mut taken = 0;
    for (taking, outcome) in takings.into_iter().zip(outcomes) {
        if outcome.is_err() {
            continue;
        }
        let id = taking.run.id.clone();
        match continue_run(parts, taking).await {
            Ok(()) => taken += 1,
            // This server owns it without an actor: the next check finds it.
            Err(error) => error!(run = %id, %error, "cannot continue a run"),
        }
    }
    Ok(taken)
}

/// Rebuilds the progress of a taken run from the store, and starts its actor.
async fn continue_run(parts: &Parts, taking: Taking) -> Result<(), store::Error> {
    let Taking { run, work, mailbox } = taking;
    let plan = Arc::clone(&work.plan);
    let (now, epoch) = (parts.clock.now(), run.live.epoch + 1);
    parts.dispatcher.works().insert(work);
    let record = parts.store.run(&run.id).await?.unwrap_or(run);
    let executions = parts.store.executions_of(&record.id).await?;
    let actor = ActorParts::of(parts, &record, &plan);
    let mut dice = parts.chance.dice();
    let course = parts
        .dispatcher
        .turn(&record.id, now, &mut dice, |turn| Course::restore(plan, &record, epoch, &executions, turn));
    let waits = course.is_waiting();
    parts.runs.start(mailbox, course, Vec::new(), actor, parts.chance.seed());
    if waits {
        parts.admission.wake();
    }
    Ok(())
}

/// Loads the board from the store: nodes, and every open execution with its work. Called before the journal
/// publishes anything: later commits are applied after it.
pub(crate) async fn load_board(
    store: &dyn Store,
    dispatcher: &Dispatcher,
    admission: &Admission,
) -> Result<(), store::Error> {
    // Nodes last: a lease must not meet a session that ended before it was granted.
    let executions = store.open_executions().await?;
    let runs = store.open_runs().await?;
    let holds = store.holds().await?;
    let uses = store.uses().await?;
    let nodes = store.nodes(None).await?;
    admission.load(&runs);
    for run in &runs {
        match dispatcher.works().of_stored(run) {
            Ok(work) => dispatcher.works().insert(work),
            Err(error) => error!(run = %run.id, %error, "cannot compile a stored run"),
        }
    }
    let mut board = dispatcher.board();
    for (node, run) in holds {
        board.hold_node(node, run);
    }
    for run in runs.iter().filter(|run| run.live.paused_at.is_some()) {
        board.pause(&run.id, true);
    }
    for node in nodes {
        board.add_node(node);
    }
    let mut touched = Vec::new();
    for execution in &executions {
        if let Some(work) = dispatcher.works().get(&execution.of) {
            board.add_execution(execution, work, &mut touched);
        }
    }
    board.load_uses(uses);
    // The server that leased them has counted how long they waited.
    board.take_waits();
    Ok(())
}
