//! Owns one run while this server owns it: it observes committed changes and commits what follows.

use std::time::Duration;

use downbeat_core::run::Course;
use downbeat_core::run::engine::Turn;
use downbeat_core::{Applied, Change, Dice, Refusal, Timestamp};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::cache::Cache;
use super::registry::{Input, Mailbox};
use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::journal::Journal;

/// The pause before a failed commit is retried.
const RETRY: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    mailbox: Mailbox,
    course: Course,
    journal: Journal,
    dispatcher: Dispatcher,
    cache: Option<Cache>,
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
}

/// The run does not belong to this server any more.
struct Disowned;

impl Actor {
    pub(super) fn new(
        mailbox: Mailbox,
        course: Course,
        again: Vec<Change>,
        parts: ActorParts,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let ActorParts { journal, dispatcher, cache } = parts;
        Self {
            mailbox,
            course,
            again,
            journal,
            dispatcher,
            cache,
            clock,
            dice: Dice::new(seed),
            is_disowned: false,
        }
    }

    /// Runs until the run ends, is disowned, or the server stops. The last two lose nothing: the store has everything.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let again = std::mem::take(&mut self.again);
        if !again.is_empty() && self.commit(again, Reserving::Off, &stop).await.is_err() {
            return;
        }
        loop {
            let mut changes = self.course.take_changes(self.clock.now());
            if let Some(cache) = &self.cache {
                cache.fill(&mut changes, self.clock.now()).await;
            }
            let committed =
                if changes.is_empty() { Ok(()) } else { self.commit(changes, Reserving::On, &stop).await };
            if stop.is_cancelled() {
                return;
            }
            if committed.is_err() || self.is_disowned {
                info!("another server owns the run now");
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
    ) -> Result<(), Disowned> {
        loop {
            if reserving == Reserving::On {
                reserve(&self.dispatcher, &mut changes, self.clock.now(), &mut self.dice);
            }
            let committed = tokio::select! {
                biased;
                committed = self.journal.commit(changes.clone()) => committed,
                () = stop.cancelled() => return Err(Disowned),
            };
            match committed {
                Ok(outcomes) => {
                    changes = self.sort_refusals(changes, outcomes)?;
                    if changes.is_empty() {
                        return Ok(());
                    }
                    reserving = Reserving::Off;
                }
                Err(error) => {
                    warn!(%error, "cannot commit; trying again");
                    release(&self.dispatcher, &mut changes);
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(RETRY) => {}
                        () = stop.cancelled() => return Err(Disowned),
                    }
                }
            }
        }
    }

    /// Returns the changes to commit again.
    fn sort_refusals(&self, changes: Vec<Change>, outcomes: Vec<Applied>) -> Result<Vec<Change>, Disowned> {
        let mut result = Ok(Vec::new());
        for (mut change, outcome) in changes.into_iter().zip(outcomes) {
            let Err(refusal) = outcome else { continue };
            self.dispatcher.refused(&change, &refusal);
            release(&self.dispatcher, std::slice::from_mut(&mut change));
            match refusal {
                Refusal::StaleEpoch | Refusal::NotFound => result = Err(Disowned),
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
