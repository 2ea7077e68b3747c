//! Takes over runs whose owner is gone: raises the epoch, rebuilds the progress, and continues.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::execution::Execution;
use downbeat_core::ids::RunId;
use downbeat_core::plan::Plan;
use downbeat_core::run::engine::Turn;
use downbeat_core::run::{Course, RunRecord};
use downbeat_core::{Change, Dice};
use downbeat_store::{self as store, Store};
use futures_util::{StreamExt as _, stream};
use tracing::{Instrument, error, info};

use super::actor::ActorParts;
use super::carry;
use super::registry::{Delivery, Mailbox};
use crate::admission::Admission;
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::heavy::{HeavyWork, is_heavy, is_heavy_run};
use crate::parts::Parts;
use crate::works::RunWork;

/// Runs that are taken in one commit. Several servers that take over at once share the work: the first one
/// gets each run.
const AT_ONCE: usize = 64;
/// Taken runs whose executions are read at once. The store has connections left for others.
const READ_AT_ONCE: usize = 3;
/// The first and the longest pause before a run that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Takes these runs over. Runs that another server has just taken are skipped. Large runs are continued in the
/// background: the others do not wait for them.
pub(crate) async fn take_over(parts: &Parts, runs: Vec<RunId>) -> Result<(), store::Error> {
    let (standing, runs): (Vec<RunId>, Vec<RunId>) = runs.into_iter().partition(RunId::is_standing);
    take_standing(parts, &standing).await?;
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

/// Takes standing runs. They have no actor: from the commit on, this server decides for their clusters.
async fn take_standing(parts: &Parts, ids: &[RunId]) -> Result<(), store::Error> {
    for ids in ids.chunks(AT_ONCE) {
        let (owner, at) = (parts.server, parts.clock.now());
        let runs = parts.store.runs_by_id(ids).await?;
        let taken = runs.into_iter().map(|run| {
            let epoch = run.live.epoch + 1;
            Change::RunTaken { run: run.id.clone(), owner, epoch, at }
        });
        parts.journal.commit(taken.collect()).await?;
    }
    Ok(())
}

struct Taking {
    run: RunRecord,
    work: Arc<RunWork>,
    /// Opened before the commit: this server owns the run from then on. Inputs are delivered from its read on.
    mailbox: Mailbox,
}

impl Taking {
    /// Large runs are read after all others.
    fn is_large(&self) -> bool {
        is_heavy(self.work.plan.instances() as u64)
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
        let (id, works, is_heavy) = (run.id.clone(), parts.dispatcher.works().clone(), is_heavy_run(&run));
        let compiled = parts.heavy.run_own_if(is_heavy, move || (works.of_stored(&run), run)).await;
        match compiled {
            Ok((Ok(work), run)) => {
                let mailbox = parts.runs.open(&id, Delivery::Off);
                takings.push(Taking { run, work, mailbox });
            }
            // The others are taken without it.
            Ok((Err(error), _)) => error!(run = %id, %error, "cannot compile a stored run"),
            Err(error) => error!(run = %id, %error, "cannot compile a stored run"),
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
    let stored = match Stored::read(&*parts.store, &parts.heavy, id, &mut dice).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return None,
        Err(error) => {
            error!(run = %id, %error, "cannot read a run that was taken over; trying again");
            taking.mailbox.set_delivery(Delivery::Off);
            return Some(taking);
        }
    };
    if stored.record.live.epoch != epoch {
        info!(run = %id, "another server has taken over the run");
        return None;
    }
    let plan = Arc::clone(&taking.work.plan);
    let actor = ActorParts::of(parts, &stored.record, &plan);
    let course = match stored.restore(Course::restore, plan, &actor, dice).await {
        Ok((course, _)) => course,
        Err(error) => {
            error!(run = %id, %error, "cannot restore a run that was taken over; trying again");
            taking.mailbox.set_delivery(Delivery::Off);
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

/// Makes the course of a stored run.
pub(super) type Restore = fn(Arc<Plan>, &RunRecord, u64, &[Execution], &mut Turn<'_>) -> Course;

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
        heavy: &HeavyWork,
        id: &RunId,
        dice: &mut Dice,
    ) -> Result<Option<Self>, store::Error> {
        let Some(record) = store.run(id).await? else { return Ok(None) };
        let own = store.executions_of(id).await?;
        let (executions, left) = carry::complete(store, heavy, &record, own, dice).await?;
        Ok(Some(Self { record, executions, left }))
    }

    /// Restores the course of the run. On its own thread if the run is large: a million instances take seconds.
    pub(super) async fn restore(
        self,
        how: Restore,
        plan: Arc<Plan>,
        parts: &ActorParts,
        mut dice: Dice,
    ) -> Result<(Course, Dice), Error> {
        let Self { record, executions, left } = self;
        let (dispatcher, clock) = (parts.dispatcher.clone(), parts.clock.clone());
        let is_heavy = is_heavy(plan.instances() as u64);
        let restore = move || {
            let course = dispatcher.turn(&record.id, clock.now(), &mut dice, |turn| {
                how(plan, &record, record.live.epoch, &executions, turn)
            });
            (course.carrying(left), dice)
        };
        parts.heavy.run_own_if(is_heavy, restore).await
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
    for cluster in store.clusters().await? {
        dispatcher.works().set_list(&cluster);
    }
    for run in runs.iter().filter(|run| !run.id.is_standing()) {
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
