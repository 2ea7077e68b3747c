//! Owns one run while this server owns it: it observes committed changes and commits what follows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::run::engine::Turn;
use downbeat_core::run::{Course, Effect, EffectResult};
use downbeat_core::{Applied, Change, Dice, Refusal};
use downbeat_store::Store;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::cache::Cache;
use super::effects::Effects;
use super::registry::{Input, Mailbox};
use super::takeover::{Restore, Stored};
use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::heavy::HeavyWork;
use crate::journal::{CommitError, Journal};

/// The pause before a failed commit is retried.
const RETRY: Duration = Duration::from_millis(200);

pub(super) struct Actor {
    pub(super) mailbox: Mailbox,
    pub(super) course: Course,
    pub(super) parts: ActorParts,
    pub(super) dice: Dice,
    /// Another server took the run over.
    pub(super) is_disowned: bool,
    /// Changes to commit before anything else, unaltered.
    pub(super) again: Vec<Change>,
    /// Inputs that came while a commit was repeated: they are observed after it.
    pub(super) kept: VecDeque<Input>,
}

#[derive(Debug)]
pub(crate) struct ActorParts {
    pub journal: Journal,
    pub dispatcher: Dispatcher,
    pub cache: Option<Cache>,
    pub clock: Clock,
    pub store: Arc<dyn Store>,
    pub heavy: HeavyWork,
    /// Set for a run with constraints or actions.
    pub effects: Option<Effects>,
}

/// What the run's course asked for, while it is carried out.
struct InFlight {
    effect: Effect,
    result: BoxFuture<'static, EffectResult>,
}

/// Why a turn was not committed, for good.
enum Uncommitted {
    /// The run does not belong to this server any more, or the server stops.
    Disowned,
    /// The store will never accept it.
    Rejected,
    /// The run was cancelled, paused or resumed meanwhile, or timed out, or attempts were overdue, or another run of its
    /// job was faster: it is decided again.
    Outdated,
}

impl Actor {
    /// Runs until the run ends, is disowned, or the server stops. The last two lose nothing: the store has everything.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let again = std::mem::take(&mut self.again);
        if !again.is_empty() {
            let committed = self.commit(again, Reserving::Off, &stop).await;
            if !self.goes_on(committed, &stop).await {
                return;
            }
        }
        let mut in_flight: Option<InFlight> = None;
        loop {
            let mut changes = self.course.take_changes(self.parts.clock.now());
            if let Some(cache) = &self.parts.cache {
                cache.fill(&mut changes, self.parts.clock.now()).await;
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
            if let Some(input) = self.kept.pop_front() {
                self.take(input);
                continue;
            }
            self.follow_effect(&mut in_flight);
            let pause = self.course.next_tick().map(|next| self.parts.clock.until(next));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                input = self.mailbox.inputs.recv() => match input {
                    Some(input) => {
                        self.take(input);
                        while !self.course.is_unfinished() && let Ok(input) = self.mailbox.inputs.try_recv() {
                            self.take(input);
                        }
                        // Inputs come first, but they must not delay the deadline.
                        if !self.course.is_unfinished() && self.course.is_late(self.parts.clock.now()) {
                            self.time_passed();
                        }
                    }
                    None => return,
                },
                result = async { in_flight.as_mut().expect("there is one").result.as_mut().await },
                    if in_flight.is_some() => {
                        in_flight = None;
                        self.decide(|course, turn| course.effect_done(result, turn));
                    }
                () = tokio::time::sleep(pause.unwrap_or(Duration::MAX)), if pause.is_some() => self.time_passed(),
            }
        }
    }

    /// Starts what the course asks for, and drops what it no longer needs.
    fn follow_effect(&mut self, in_flight: &mut Option<InFlight>) {
        let Some(effects) = &self.parts.effects else { return };
        let wanted = self.course.effect();
        if in_flight.as_ref().map(|running| &running.effect) != wanted.as_ref() {
            *in_flight = None;
        }
        if let Some(effect) = wanted.filter(|_| in_flight.is_none()) {
            if matches!(effect, Effect::ReadFacts { .. }) {
                self.course.reads_facts();
            }
            let result = Box::pin(effects.clone().perform(effect.clone()));
            *in_flight = Some(InFlight { effect, result });
        }
        self.mailbox.set_queued(self.course.is_queued());
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
                self.reload(Course::reject, stop).await
            }
            Err(Uncommitted::Outdated) => self.reload(Course::restore, stop).await,
        }
    }

    /// Replaces the progress by the stored one. Returns false if another server owns the run, or if the server stops first.
    async fn reload(&mut self, restore: Restore, stop: &CancellationToken) -> bool {
        let (run, plan, epoch) =
            (self.course.run().clone(), Arc::clone(self.course.plan()), self.course.epoch());
        loop {
            // A store that rejects the end as well must not be asked without a pause.
            if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                return false;
            }
            let read = Stored::read(&*self.parts.store, &self.parts.heavy, &run, &mut self.dice);
            let stored = match read.await {
                Ok(Some(stored)) if stored.record.live.epoch == epoch => stored,
                Ok(Some(_)) => {
                    info!("another server owns the run now");
                    return false;
                }
                Ok(None) => return false,
                Err(error) => {
                    warn!(%error, "cannot read the run; trying again");
                    continue;
                }
            };
            let restored = stored.restore(restore, Arc::clone(&plan), &self.parts, self.dice.clone());
            match stop.run_until_cancelled(restored).await {
                Some(Ok((course, dice))) => {
                    (self.course, self.dice) = (course, dice);
                    // The store had everything that they say.
                    self.kept.clear();
                    return true;
                }
                Some(Err(error)) => error!(%error, "cannot restore the run; trying again"),
                None => return false,
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Committed(changes) => {
                let own = self.course.epoch();
                let taken =
                    |change: &Change| matches!(change, Change::RunTaken { epoch, .. } if *epoch > own);
                self.is_disowned |= changes.iter().any(taken);
                self.decide(|course, turn| course.observe_all(&changes, turn));
            }
            Input::OthersMoved => self.course.others_moved(),
            Input::NodesGone(nodes) => self.decide(|course, turn| course.nodes_gone(&nodes, turn)),
        }
    }

    fn time_passed(&mut self) {
        self.decide(Course::time_passed);
    }

    fn decide(&mut self, act: impl FnOnce(&mut Course, &mut Turn<'_>)) {
        let run = self.course.run().clone();
        let course = &mut self.course;
        self.parts.dispatcher.turn(&run, self.parts.clock.now(), &mut self.dice, |turn| act(course, turn));
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
                self.parts.dispatcher.reserve(&mut changes, self.parts.clock.now(), &mut self.dice);
            }
            let (journal, submitted) = (&self.parts.journal, changes.clone());
            let has_more = self.course.has_more();
            let commit = async {
                if has_more { journal.commit_part(submitted).await } else { journal.commit(submitted).await }
            };
            let committed = tokio::select! {
                biased;
                committed = commit => committed,
                () = stop.cancelled() => return Err(Uncommitted::Disowned),
            };
            match committed {
                Ok(outcomes) => {
                    let (count, is_unknown) =
                        (changes.len(), outcomes.contains(&Err(Refusal::NotKnownToAll)));
                    changes = self.sort_refusals(changes, outcomes)?;
                    if changes.is_empty() {
                        return Ok(());
                    }
                    reserving = Reserving::Off;
                    // Nothing could be left out: it has to wait until the older server is gone.
                    if is_unknown && changes.len() == count {
                        self.pause(stop).await?;
                    }
                }
                Err(CommitError::Rejected(_)) => {
                    self.parts.dispatcher.release(&mut changes);
                    return Err(Uncommitted::Rejected);
                }
                Err(error) => {
                    warn!(%error, "cannot commit; trying again");
                    self.parts.dispatcher.release(&mut changes);
                    self.pause(stop).await?;
                    // Agents could not report meanwhile: what was overdue may be so no longer.
                    if changes.iter().any(|change| matches!(change, Change::ExecutionLost { .. })) {
                        return Err(Uncommitted::Outdated);
                    }
                }
            }
        }
    }

    /// Waits before a commit is repeated. Inputs are kept for later, unless they make the changes outdated.
    async fn pause(&mut self, stop: &CancellationToken) -> Result<(), Uncommitted> {
        let pause = tokio::time::sleep(RETRY);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Uncommitted::Disowned),
                input = self.mailbox.inputs.recv() => {
                    let input = input.ok_or(Uncommitted::Disowned)?;
                    let is_request = requests_stop(&input);
                    self.kept.push_back(input);
                    if is_request {
                        return Err(Uncommitted::Outdated);
                    }
                }
                () = &mut pause => {
                    let is_late = self.course.is_late(self.parts.clock.now());
                    return if is_late { Err(Uncommitted::Outdated) } else { Ok(()) };
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
            self.parts.dispatcher.refused(&change, &refusal);
            self.parts.dispatcher.release(std::slice::from_mut(&mut change));
            match refusal {
                Refusal::StaleEpoch | Refusal::NotFound => result = Err(Uncommitted::Disowned),
                // Another run of the job has just started: the constraints are checked again.
                Refusal::JobBusy { .. } => result = result.and(Err(Uncommitted::Outdated)),
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

/// Returns whether a person cancelled, paused or resumed the run, or another server took it over.
fn requests_stop(input: &Input) -> bool {
    let Input::Committed(changes) = input else { return false };
    changes.iter().any(|change| {
        matches!(
            change,
            Change::RunCancelRequested { .. } | Change::RunPauseSet { .. } | Change::RunTaken { .. }
        )
    })
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
    dispatcher.release(&mut again);
    again
}
