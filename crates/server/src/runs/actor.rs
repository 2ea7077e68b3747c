//! Owns one run while this server does: it observes what was committed and commits what follows.

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

/// A failed commit is tried again after this long.
const RETRY: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    mailbox: Mailbox,
    course: Course,
    journal: Journal,
    dispatcher: Dispatcher,
    cache: Option<Cache>,
    clock: Clock,
    dice: Dice,
    /// Another server took the run.
    is_disowned: bool,
    /// Changes to commit before anything else, unaltered.
    again: Vec<Change>,
}

/// What an actor works with.
#[derive(Debug)]
pub(crate) struct Means {
    pub journal: Journal,
    pub dispatcher: Dispatcher,
    pub cache: Option<Cache>,
}

/// The run is not this server's any more.
struct Disowned;

impl Actor {
    pub(super) fn new(
        mailbox: Mailbox,
        course: Course,
        again: Vec<Change>,
        means: Means,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let Means { journal, dispatcher, cache } = means;
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

    /// Until the run ends, is disowned, or the server stops. The last two lose nothing: the store has it all.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let again = std::mem::take(&mut self.again);
        if !again.is_empty() && self.commit(again, Reserving::Off, &stop).await.is_err() {
            return;
        }
        loop {
            let mut changes = self.course.take_changes(self.clock.now());
            if let Some(cache) = &self.cache {
                cache.answer(&mut changes, self.clock.now()).await;
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
                        // Inputs come first; however many there are, the deadline is not put off.
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

    /// Commits a turn's changes; tries again for as long as the store is away.
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
                    changes = self.settle(changes, outcomes)?;
                    if changes.is_empty() {
                        return Ok(());
                    }
                    reserving = Reserving::Off;
                }
                Err(lost) => {
                    warn!(%lost, "will try again");
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

    /// Answers what is to be committed again.
    fn settle(&self, changes: Vec<Change>, outcomes: Vec<Applied>) -> Result<Vec<Change>, Disowned> {
        let mut result = Ok(Vec::new());
        for (mut change, outcome) in changes.into_iter().zip(outcomes) {
            let Err(refusal) = outcome else { continue };
            self.dispatcher.refused(&change, &refusal);
            release(&self.dispatcher, std::slice::from_mut(&mut change));
            match refusal {
                Refusal::StaleEpoch | Refusal::NotFound => result = Err(Disowned),
                Refusal::NodeHeld(_) => {
                    if let Ok(again) = &mut result {
                        again.push(change);
                    }
                }
                // It ended or was leased in this moment, or an earlier try of this commit took effect.
                _ => debug!(change = change.kind(), %refusal, "refused"),
            }
        }
        result
    }
}

/// Whether new executions may be born leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserving {
    On,
    Off,
}

/// Of what a commit came to: executions that were to be born at a node that another run had just taken for itself. They
/// are to be committed again, and wait for it.
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

/// Lets new executions be born leased where a node waits for work.
pub(super) fn reserve(dispatcher: &Dispatcher, changes: &mut [Change], now: Timestamp, dice: &mut Dice) {
    for change in changes {
        if let Change::ExecutionsAdded { executions, .. } = change {
            dispatcher.reserve(executions, now, dice);
        }
    }
}

/// Takes such leases back when their commit failed.
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
