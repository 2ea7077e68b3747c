//! Owns one run while this server does: it observes what was committed and commits what follows.

use std::time::Duration;

use downbeat_core::run::engine::{Progress, Stop, Turn};
use downbeat_core::{Applied, Change, Dice, Refusal, Timestamp};
use jiff::SignedDuration;
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
    progress: Progress,
    /// When the run's own timeout strikes.
    deadline: Option<Timestamp>,
    journal: Journal,
    dispatcher: Dispatcher,
    cache: Option<Cache>,
    clock: Clock,
    dice: Dice,
    /// The feed told that another server took the run.
    is_disowned: bool,
    /// It begins when it is let in.
    waits: Option<Waits>,
    /// To be committed before anything else, and as it is.
    again: Vec<Change>,
}

/// What an actor works with.
#[derive(Debug)]
pub(crate) struct Means {
    pub journal: Journal,
    pub dispatcher: Dispatcher,
    pub cache: Option<Cache>,
}

/// How an actor begins.
#[derive(Debug)]
pub(crate) enum Start {
    /// It is under way since then. These of its first changes were refused for their nodes.
    Begun { at: Timestamp, again: Vec<Change> },
    /// It waits for its turn.
    Waiting(Waits),
}

/// What a run does when its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    ToBegin,
    /// It was another server's before.
    ToGoOn,
}

/// The run is not this server's any more.
struct Disowned;

impl Actor {
    pub(super) fn new(
        mailbox: Mailbox,
        progress: Progress,
        start: Start,
        means: Means,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let Means { journal, dispatcher, cache } = means;
        let (deadline, waits, again) = match start {
            Start::Begun { at, again } => (deadline(&progress, at), None, again),
            // The run's time counts from its start.
            Start::Waiting(waits) => (None, Some(waits), Vec::new()),
        };
        Self {
            mailbox,
            progress,
            deadline,
            waits,
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
            let mut changes = self.progress.take_changes(self.clock.now());
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
            if self.progress.is_ended() {
                info!(state = %self.progress.state(), "run ended");
                return;
            }
            let next = [self.deadline, self.progress.next_tick()].into_iter().flatten().min();
            let pause = next.map(|next| self.clock.until(next));
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
                        if self.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
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
                let own = self.progress.epoch();
                let taken =
                    |change: &Change| matches!(change, Change::RunTaken { epoch, .. } if *epoch > own);
                self.is_disowned |= changes().any(taken);
                if self.waits.is_some() {
                    changes().for_each(|change| self.take_while_waiting(change));
                    return;
                }
                self.decide(|progress, turn| progress.observe_all(changes(), turn));
            }
            Input::NodeGone(node) => self.decide(|progress, turn| progress.node_gone(node, turn)),
        }
    }

    /// Its turn comes, or it is cancelled before.
    fn take_while_waiting(&mut self, change: &Change) {
        match (change, self.waits) {
            (Change::RunAdmitted { .. }, Some(waits)) => {
                self.waits = None;
                self.deadline = deadline(&self.progress, self.clock.now());
                self.decide(|progress, turn| match waits {
                    Waits::ToBegin => progress.begin(turn),
                    Waits::ToGoOn => progress.go_on(turn),
                });
            }
            (Change::RunCancelRequested { .. }, Some(_)) => {
                self.waits = None;
                self.decide(|progress, turn| progress.observe(change, turn));
            }
            _ => self.decide(|progress, turn| progress.observe(change, turn)),
        }
    }

    fn time_passed(&mut self) {
        let timed_out = self.deadline.is_some_and(|deadline| deadline <= self.clock.now());
        if timed_out {
            self.deadline = None;
        }
        self.decide(|progress, turn| {
            if timed_out {
                progress.stop(Stop::TimedOut, turn);
            }
            progress.tick(turn);
        });
    }

    fn decide(&mut self, act: impl FnOnce(&mut Progress, &mut Turn<'_>)) {
        let run = self.progress.run().clone();
        let progress = &mut self.progress;
        self.dispatcher.turn(&run, self.clock.now(), &mut self.dice, |turn| act(progress, turn));
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

/// When a run's own timeout strikes.
fn deadline(progress: &Progress, started_at: Timestamp) -> Option<Timestamp> {
    let timeout = SignedDuration::try_from(progress.plan().definition.timeout?.0).ok()?;
    Some(started_at + timeout)
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
