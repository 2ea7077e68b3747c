//! Owns one run while this server does: it observes what was committed and commits what follows.

use std::time::Duration;

use downbeat_core::ids::NodeId;
use downbeat_core::run::engine::{Progress, Stop, Turn};
use downbeat_core::{Applied, Change, Dice, Refusal, Timestamp};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

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
    clock: Clock,
    dice: Dice,
    /// The feed told that another server took the run.
    is_disowned: bool,
}

/// The run is not this server's any more.
struct Disowned;

impl Actor {
    pub(super) fn new(
        mailbox: Mailbox,
        progress: Progress,
        started_at: Timestamp,
        journal: Journal,
        dispatcher: Dispatcher,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let timeout = progress.plan().definition.timeout;
        let deadline =
            timeout.and_then(|timeout| SignedDuration::try_from(timeout.0).ok()).map(|t| started_at + t);
        Self {
            mailbox,
            progress,
            deadline,
            journal,
            dispatcher,
            clock,
            dice: Dice::new(seed),
            is_disowned: false,
        }
    }

    /// Until the run ends, is disowned, or the server stops. The last two lose nothing: the store has it all.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let changes = self.progress.take_changes(self.clock.now());
            let committed = if changes.is_empty() { Ok(()) } else { self.commit(changes, &stop).await };
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
                self.decide(|progress, turn| {
                    for change in changes() {
                        progress.observe(change, turn);
                    }
                });
            }
            Input::NodeOffline(node) => self.decide(|progress, turn| progress.node_offline(node, turn)),
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
        let dispatcher = self.dispatcher.clone();
        let offline = |node: NodeId| dispatcher.board().is_offline(node);
        let facts = |node: NodeId| dispatcher.facts(node);
        let mut turn = Turn { now: self.clock.now(), dice: &mut self.dice, offline: &offline, facts: &facts };
        act(&mut self.progress, &mut turn);
    }

    /// Commits a turn's changes; tries again for as long as the store is away.
    async fn commit(&mut self, mut changes: Vec<Change>, stop: &CancellationToken) -> Result<(), Disowned> {
        loop {
            reserve(&self.dispatcher, &mut changes, self.clock.now(), &mut self.dice);
            let committed = tokio::select! {
                biased;
                committed = self.journal.commit(changes.clone()) => committed,
                () = stop.cancelled() => return Err(Disowned),
            };
            match committed {
                Ok(outcomes) => return self.settle(changes, outcomes),
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

    fn settle(&self, changes: Vec<Change>, outcomes: Vec<Applied>) -> Result<(), Disowned> {
        let mut result = Ok(());
        for (mut change, outcome) in changes.into_iter().zip(outcomes) {
            let Err(refusal) = outcome else { continue };
            release(&self.dispatcher, std::slice::from_mut(&mut change));
            match refusal {
                Refusal::StaleEpoch | Refusal::NotFound => result = Err(Disowned),
                // It ended or was leased in this moment, or an earlier try of this commit took effect.
                _ => debug!(change = change.kind(), %refusal, "refused"),
            }
        }
        result
    }
}

/// Lets new executions be born leased where a node waits for work.
pub(crate) fn reserve(dispatcher: &Dispatcher, changes: &mut [Change], now: Timestamp, dice: &mut Dice) {
    for change in changes {
        if let Change::ExecutionsAdded { executions, .. } = change {
            dispatcher.board().reserve(executions, now, dice);
        }
    }
}

/// Takes such leases back when their commit failed.
pub(crate) fn release(dispatcher: &Dispatcher, changes: &mut [Change]) {
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
