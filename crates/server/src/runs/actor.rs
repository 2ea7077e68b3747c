//! Owns one run while this server owns it: it observes committed changes and commits what follows.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::run::Course;
use downbeat_core::run::engine::Turn;
use downbeat_core::{Applied, Change, Dice, Refusal, Timestamp};
use downbeat_store::{self as store, Store};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::cache::Cache;
use super::registry::{Input, Mailbox};
use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::journal::{CommitError, Journal};

/// The pause before a failed commit is retried.
const RETRY: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    mailbox: Mailbox,
    course: Course,
    journal: Journal,
    dispatcher: Dispatcher,
    cache: Option<Cache>,
    store: Arc<dyn Store>,
    clock: Clock,
    dice: Dice,
    /// Another server took the run over.
    is_disowned: bool,
    /// Changes to commit before anything else, unaltered.
    again: Vec<Change>,
}

/// The parts of the server that an actor uses.
#[derive(Debug)]
pub(crate) struct ActorParts {
    pub journal: Journal,
    pub dispatcher: Dispatcher,
    pub cache: Option<Cache>,
    pub store: Arc<dyn Store>,
}

/// Why a turn was not committed, for good.
enum Uncommitted {
    /// The run does not belong to this server any more, or the server stops.
    Disowned,
    /// The store will never accept it.
    Rejected,
}

impl Actor {
    pub(super) fn new(
        mailbox: Mailbox,
        course: Course,
        again: Vec<Change>,
        parts: ActorParts,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let ActorParts { journal, dispatcher, cache, store } = parts;
        Self {
            mailbox,
            course,
            again,
            journal,
            dispatcher,
            cache,
            store,
            clock,
            dice: Dice::new(seed),
            is_disowned: false,
        }
    }

    /// Runs until the run ends, is disowned, or the server stops. The last two lose nothing: the store has everything.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let again = std::mem::take(&mut self.again);
        if !again.is_empty() {
            let committed = self.commit(again, Reserving::Off, &stop).await;
            if !self.goes_on(committed, &stop).await {
                return;
            }
        }
        loop {
            let mut changes = self.course.take_changes(self.clock.now());
            if let Some(cache) = &self.cache {
                cache.fill(&mut changes, self.clock.now()).await;
            }
            let committed =
                if changes.is_empty() { Ok(()) } else { self.commit(changes, Reserving::On, &stop).await };
            if !self.goes_on(committed, &stop).await {
                return;
            }
            if self.course.is_ended() {
                info!(state = %self.course.state(), "run ended");
                return;
            }
            if self.course.has_more() {
                self.decide(Course::finish_turn);
                continue;
            }
            let pause = self.course.next_tick().map(|next| self.clock.until(next));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                input = self.mailbox.inputs.recv() => match input {
                    Some(input) => {
                        self.take(input);
                        while let Ok(input) = self.mailbox.inputs.try_recv() {
                            self.take(input);
                        }
                        // Inputs come first, but they must not delay the deadline.
                        if self.course.is_late(self.clock.now()) {
                            self.time_passed();
                        }
                    }
                    None => return,
                },
                () = tokio::time::sleep(pause.unwrap_or(Duration::MAX)), if pause.is_some() => self.time_passed(),
            }
        }
    }

    /// Returns whether the actor goes on after a commit. A rejected one is replaced by the run's end.
    async fn goes_on(&mut self, committed: Result<(), Uncommitted>, stop: &CancellationToken) -> bool {
        match committed {
            _ if stop.is_cancelled() => false,
            Ok(()) if !self.is_disowned => true,
            Ok(()) | Err(Uncommitted::Disowned) => {
                info!("another server owns the run now");
                false
            }
            Err(Uncommitted::Rejected) => {
                error!("the store will never accept the run's next step: the run fails");
                self.fail(stop).await
            }
        }
    }

    /// Replaces the progress by the stored one, and stops the run. Returns false if the server stops first.
    async fn fail(&mut self, stop: &CancellationToken) -> bool {
        let (run, plan, epoch) =
            (self.course.run().clone(), Arc::clone(self.course.plan()), self.course.epoch());
        loop {
            // A store that rejects the end as well must not be asked without a pause.
            tokio::select! {
                biased;
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => return false,
            }
            let stored = async {
                Ok::<_, store::Error>((self.store.run(&run).await?, self.store.executions_of(&run).await?))
            };
            match stored.await {
                Ok((Some(record), executions)) => {
                    let (course, now) = (&mut self.course, self.clock.now());
                    self.dispatcher.turn(&run, now, &mut self.dice, |turn| {
                        *course = Course::reject(plan, &record, epoch, &executions, turn);
                    });
                    return true;
                }
                Ok((None, _)) => return false,
                Err(error) => warn!(%error, "cannot read the run; trying again"),
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Committed(events, indexes) => {
                let changes = || indexes.iter().map(|index| &events[*index as usize].change);
                let own = self.course.epoch();
                let taken =
                    |change: &Change| matches!(change, Change::RunTaken { epoch, .. } if *epoch > own);
                self.is_disowned |= changes().any(taken);
                self.decide(|course, turn| course.observe_all(changes(), turn));
            }
            Input::NodeGone(node) => self.decide(|course, turn| course.node_gone(node, turn)),
        }
    }

    fn time_passed(&mut self) {
        self.decide(Course::time_passed);
    }

    fn decide(&mut self, act: impl FnOnce(&mut Course, &mut Turn<'_>)) {
        let run = self.course.run().clone();
        let course = &mut self.course;
        self.dispatcher.turn(&run, self.clock.now(), &mut self.dice, |turn| act(course, turn));
    }

    /// Commits a turn's changes; retries while the store is unavailable.
    async fn commit(
        &mut self,
        mut changes: Vec<Change>,
        mut reserving: Reserving,
        stop: &CancellationToken,
    ) -> Result<(), Uncommitted> {
        loop {
            if reserving == Reserving::On {
                reserve(&self.dispatcher, &mut changes, self.clock.now(), &mut self.dice);
            }
            let committed = tokio::select! {
                biased;
                committed = self.journal.commit(changes.clone()) => committed,
                () = stop.cancelled() => return Err(Uncommitted::Disowned),
            };
            match committed {
                Ok(outcomes) => {
                    changes = self.sort_refusals(changes, outcomes)?;
                    if changes.is_empty() {
                        return Ok(());
                    }
                    reserving = Reserving::Off;
                }
                Err(CommitError::Rejected(_)) => {
                    release(&self.dispatcher, &mut changes);
                    return Err(Uncommitted::Rejected);
                }
                Err(error) => {
                    warn!(%error, "cannot commit; trying again");
                    release(&self.dispatcher, &mut changes);
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(RETRY) => {}
                        () = stop.cancelled() => return Err(Uncommitted::Disowned),
                    }
                }
            }
        }
    }

    /// Returns the changes to commit again.
    fn sort_refusals(
        &self,
        changes: Vec<Change>,
        outcomes: Vec<Applied>,
    ) -> Result<Vec<Change>, Uncommitted> {
        let mut result = Ok(Vec::new());
        for (mut change, outcome) in changes.into_iter().zip(outcomes) {
            let Err(refusal) = outcome else { continue };
            self.dispatcher.refused(&change, &refusal);
            release(&self.dispatcher, std::slice::from_mut(&mut change));
            match refusal {
                Refusal::StaleEpoch | Refusal::NotFound => result = Err(Uncommitted::Disowned),
                // An older server has just joined, and the whole submission was refused: the rest is committed again.
                Refusal::NotKnownToAll if matches!(change, Change::InstanceFailed { .. }) => {}
                Refusal::NodeHeld(_) | Refusal::NotKnownToAll => {
                    if let Ok(again) = &mut result {
                        again.push(change);
                    }
                }
                // It has just ended or was leased, or an earlier try of this commit succeeded.
                _ => debug!(change = change.kind(), %refusal, "refused"),
            }
        }
        result
    }
}

/// Whether new executions may be created as leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserving {
    On,
    Off,
}

/// Returns the changes to commit again: executions that were leased to a node which another run has just
/// taken for itself. They become pending and wait for the node.
pub(super) fn refused_for_nodes(
    dispatcher: &Dispatcher,
    changes: Vec<Change>,
    outcomes: &[Applied],
) -> Vec<Change> {
    let mut again = Vec::new();
    for (change, outcome) in changes.into_iter().zip(outcomes) {
        if let Err(refusal @ Refusal::NodeHeld(_)) = outcome {
            dispatcher.refused(&change, refusal);
            again.push(change);
        }
    }
    release(dispatcher, &mut again);
    again
}

/// Leases new executions to nodes that wait for work.
pub(super) fn reserve(dispatcher: &Dispatcher, changes: &mut [Change], now: Timestamp, dice: &mut Dice) {
    for change in changes {
        if let Change::ExecutionsAdded { executions, .. } = change {
            dispatcher.reserve(executions, now, dice);
        }
    }
}

/// Takes such leases back if their commit failed.
pub(super) fn release(dispatcher: &Dispatcher, changes: &mut [Change]) {
    use downbeat_core::execution::State;
    for change in changes {
        if let Change::ExecutionsAdded { executions, .. } = change {
            dispatcher.board().release(executions.iter());
            for execution in executions.iter_mut().filter(|e| matches!(e.state, State::Leased { .. })) {
                execution.state = State::Pending { not_before: None };
            }
        }
    }
}
