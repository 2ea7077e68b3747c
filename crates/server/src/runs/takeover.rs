//! Takes over runs whose owner is gone: raises the epoch, rebuilds the progress, and goes on where it was.

use std::sync::Arc;

use downbeat_core::collections::HashSet;
use downbeat_core::ids::{NodeId, RunId, ServerId};
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::run::engine::{Progress, Stop, Turn};
use downbeat_core::{Change, Dice, Timestamp};
use downbeat_store as store;
use jiff::SignedDuration;
use tracing::{error, info};

use super::actor::{release, reserve};
use crate::service::{Parts, seed};

/// Takes these runs. Those that somebody else took in this moment are left to them.
pub(crate) async fn take_over(
    parts: &Parts,
    server: ServerId,
    runs: Vec<RunId>,
) -> Result<usize, store::Error> {
    let mut taken = 0;
    for id in runs {
        let Some(run) = parts.store.run(&id).await? else { continue };
        match take_one(parts, server, &run).await {
            Ok(true) => taken += 1,
            Ok(false) => {}
            Err(Failure::Store(error)) => return Err(error),
            Err(Failure::Plan(error)) => error!(run = %run.id, %error, "cannot compile a stored run"),
        }
    }
    if taken > 0 {
        info!(runs = taken, "took over runs");
    }
    Ok(taken)
}

enum Failure {
    Store(store::Error),
    Plan(downbeat_core::plan::Error),
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Failure::Store(error)
    }
}

async fn take_one(parts: &Parts, server: ServerId, run: &RunRecord) -> Result<bool, Failure> {
    let now = parts.clock.now();
    let plan =
        Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)).map_err(Failure::Plan)?;
    let plan = Arc::new(plan);
    let epoch = run.epoch + 1;
    let mailbox = parts.runs.open(&run.id);
    let taken = Change::RunTaken { run: run.id.clone(), owner: server, epoch, at: now };
    match parts.journal.commit(vec![taken]).await {
        Ok(outcomes) if outcomes[0].is_ok() => {}
        Ok(_) => return Ok(false),
        Err(lost) => return Err(Failure::Store(store::Error::Unavailable(lost.to_string()))),
    }
    parts.dispatcher.board().add_plan(run.id.clone(), run.cluster, Arc::clone(&plan));
    let record = parts.store.run(&run.id).await?.unwrap_or_else(|| run.clone());
    let executions = parts.store.executions_of(&run.id).await?;
    let stop = told_to_stop(&record, now);
    let mut progress = Progress::restore(plan, &record, epoch, &executions, stop);
    let mut dice = Dice::new(seed());
    {
        let offline = |node: NodeId| parts.dispatcher.board().is_offline(node);
        let mut turn = Turn { now, dice: &mut dice, offline: &offline };
        progress.go_on(&mut turn);
    }
    let mut changes = progress.take_changes(now);
    if !changes.is_empty() {
        reserve(&parts.dispatcher, &mut changes, now, &mut dice);
        if let Err(lost) = parts.journal.commit(changes.clone()).await {
            release(&parts.dispatcher, &mut changes);
            return Err(Failure::Store(store::Error::Unavailable(lost.to_string())));
        }
    }
    if progress.is_ended() {
        return Ok(true);
    }
    let started_at = record.started_at.unwrap_or(now);
    parts.runs.start(mailbox, progress, started_at, parts.journal.clone(), parts.dispatcher.clone(), seed());
    Ok(true)
}

/// Whether the run was to end before its owner died: then what is cancelled was meant to be.
fn told_to_stop(run: &RunRecord, now: Timestamp) -> Option<Stop> {
    if run.cancel_requested_at.is_some() {
        return Some(Stop::Cancelled);
    }
    let timeout = SignedDuration::try_from(run.definition.timeout?.0).ok()?;
    (run.started_at? + timeout <= now).then_some(Stop::TimedOut)
}

/// Puts what the store holds on the board: nodes, and every open execution with its plan.
pub(crate) async fn load_board(parts: &Parts, runs: &[RunRecord]) -> Result<(), store::Error> {
    let nodes = parts.store.nodes(None).await?;
    let executions = parts.store.open_executions().await?;
    let mut board = parts.dispatcher.board();
    for node in nodes {
        board.add_node(node);
    }
    for run in runs {
        match Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)) {
            Ok(plan) => board.add_plan(run.id.clone(), run.cluster, Arc::new(plan)),
            Err(error) => error!(run = %run.id, %error, "cannot compile a stored run"),
        }
    }
    let mut touched = HashSet::default();
    for execution in &executions {
        board.add_execution(execution, &mut touched);
    }
    // How long they had waited was counted by the server that leased them.
    board.take_waits();
    Ok(())
}
