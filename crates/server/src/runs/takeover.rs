//! Takes over runs whose owner is gone: raises the epoch, rebuilds the progress, and continues.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::execution::Execution;
use downbeat_core::ids::RunId;
use downbeat_core::run::{Course, RunRecord};
use downbeat_core::{Change, Dice, limits};
use downbeat_store::{self as store, Store};
use futures_util::{StreamExt as _, stream};
use tracing::{Instrument, error, info};

use super::actor::ActorParts;
use super::carry;
use super::registry::{Delivery, Mailbox};
use crate::admission::Admission;
use crate::dispatch::Dispatcher;
use crate::parts::Parts;
use crate::works::{self, RunWork};

/// Runs that are taken in one commit. Several servers that take over at once share the work: the first one
/// gets each run.
const AT_ONCE: usize = 64;
/// Taken runs whose executions are read at once. The store has connections left for others.
const READ_AT_ONCE: usize = 3;
/// Runs with more instances are read after all others.
const LARGE_INSTANCES: usize = limits::PLAN_SMALL_INSTANCES;
/// The first and the longest pause before a run that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Takes these runs over. Runs that another server has just taken are skipped. Large runs are continued in the
/// background: the others do not wait for them.
pub(crate) async fn take_over(parts: &Parts, runs: Vec<RunId>) -> Result<(), store::Error> {
    let (mut taken, mut later) = (0, Vec::new());
    let taking = async {
        for ids in runs.chunks(AT_ONCE) {
            let takings = take_some(parts, ids).await?;
            taken += takings.len();
            let (large, small): (Vec<_>, Vec<_>) = takings.into_iter().partition(Taking::is_large);
            later.extend(large);
            let read = stream::iter(small).map(|taking| continue_run(parts, taking));
            let unread: Vec<_> = read.buffer_unordered(READ_AT_ONCE).collect().await;
            later.extend(unread.into_iter().flatten());
        }
        Ok(())
    };
    let result = taking.await;
    if taken > 0 {
        info!(runs = taken, later = later.len(), "took over runs");
    }
    if !later.is_empty() {
        parts.runs.spawn(continue_later(parts.clone(), later).in_current_span());
    }
    result
}

struct Taking {
    run: RunRecord,
    work: Arc<RunWork>,
    /// Opened before the commit: this server owns the run from then on. Inputs are delivered from its read on.
    mailbox: Mailbox,
}

impl Taking {
    fn is_large(&self) -> bool {
        self.work.plan.instances() > LARGE_INSTANCES
    }

    /// The epoch in which this server owns the run.
    fn epoch(&self) -> u64 {
        self.run.live.epoch + 1
    }
}

/// Takes runs in one commit. Returns those that this server got.
async fn take_some(parts: &Parts, ids: &[RunId]) -> Result<Vec<Taking>, store::Error> {
    let mut takings = Vec::with_capacity(ids.len());
    for run in parts.store.runs_by_id(ids).await? {
        let (works, is_large) = (parts.dispatcher.works().clone(), works::is_large(&run));
        let compile = move || (works.of_stored(&run), run);
        let (work, run) = if is_large { heavy(parts, compile).await? } else { compile() };
        match work {
            Ok(work) => {
                let mailbox = parts.runs.open(&run.id, Delivery::Off);
                takings.push(Taking { run, work, mailbox });
            }
            Err(error) => error!(run = %run.id, %error, "cannot compile a stored run"),
        }
    }
    if takings.is_empty() {
        return Ok(takings);
    }
    let (owner, at) = (parts.server, parts.clock.now());
    let changes = takings.iter().map(|taking| {
        let (run, epoch) = (taking.run.id.clone(), taking.epoch());
        Change::RunTaken { run, owner, epoch, at }
    });
    let outcomes = parts.journal.commit(changes.collect()).await?;
    let outcomes = takings.into_iter().zip(outcomes);
    Ok(outcomes.filter_map(|(taking, outcome)| outcome.is_ok().then_some(taking)).collect())
}

/// Continues runs one after the other, small ones first. A run that cannot be read is tried again without taking it
/// again.
async fn continue_later(parts: Parts, mut takings: Vec<Taking>) {
    let mut pause = RETRY;
    takings.sort_by_key(|taking| taking.work.plan.instances());
    while !takings.is_empty() {
        let mut unread = Vec::new();
        for taking in takings {
            unread.extend(continue_run(&parts, taking).await);
        }
        takings = unread;
        if !takings.is_empty() {
            tokio::time::sleep(pause).await;
            pause = RETRY_MOST.min(pause * 2);
        }
    }
}

/// Rebuilds the progress of a taken run from the store, and starts its actor. Returns the run if it cannot be read.
async fn continue_run(parts: &Parts, mut taking: Taking) -> Option<Taking> {
    taking.mailbox.set_delivery(Delivery::On);
    let (id, epoch) = (&taking.run.id, taking.epoch());
    parts.dispatcher.works().insert(Arc::clone(&taking.work));
    let mut dice = parts.chance.dice();
    let Stored { record, executions, left } = match Stored::read(&*parts.store, id, &mut dice).await {
        Ok(Some(read)) => read,
        Ok(None) => return None,
        Err(error) => {
            error!(run = %id, %error, "cannot read a run that was taken over; trying again");
            taking.mailbox.set_delivery(Delivery::Off);
            return Some(taking);
        }
    };
    if record.live.epoch != epoch {
        info!(run = %id, "another server has taken over the run");
        return None;
    }
    let (plan, now) = (Arc::clone(&taking.work.plan), parts.clock.now());
    let actor = ActorParts::of(parts, &record, &plan);
    let dispatcher = parts.dispatcher.clone();
    let restore = move || {
        let course = dispatcher.turn(&record.id, now, &mut dice, |turn| {
            Course::restore(plan, &record, epoch, &executions, turn)
        });
        course.carrying(left)
    };
    let restored = if taking.is_large() { heavy(parts, restore).await } else { Ok(restore()) };
    let course = match restored {
        Ok(course) => course,
        Err(error) => {
            error!(run = %id, %error, "cannot restore a run that was taken over; trying again");
            return Some(taking);
        }
    };
    let waits = course.is_waiting();
    parts.runs.start(taking.mailbox, course, Vec::new(), actor, parts.chance.seed());
    if waits {
        parts.admission.wake();
    }
    None
}

/// Runs work on its own thread: restoring a run of a million instances takes seconds.
async fn heavy<T: Send + 'static>(
    parts: &Parts,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, store::Error> {
    parts.heavy.run_own(work).await.map_err(|error| store::Error::Unavailable(error.to_string()))
}

/// A run as the store has it.
pub(super) struct Stored {
    pub record: RunRecord,
    /// All its executions, and those in `left`.
    pub executions: Vec<Execution>,
    /// Results that it has to carry over before it starts.
    pub left: Vec<Execution>,
}

impl Stored {
    /// Reads a run. `None` if it no longer exists.
    pub(super) async fn read(
        store: &dyn Store,
        id: &RunId,
        dice: &mut Dice,
    ) -> Result<Option<Self>, store::Error> {
        let Some(record) = store.run(id).await? else { return Ok(None) };
        let mut executions = store.executions_of(id).await?;
        let left = carry::left(store, &record, &executions, dice).await?;
        executions.extend_from_slice(&left);
        Ok(Some(Self { record, executions, left }))
    }
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
    let mut board = dispatcher.empty_board();
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
    // At once: readers see the former board until here.
    *dispatcher.board() = board;
    Ok(())
}
