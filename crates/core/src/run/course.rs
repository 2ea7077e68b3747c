//! Decides a run from its creation to its end: what comes before its plan, the plan, the timeout, and what follows.

mod after;
mod before;
mod effect;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use effect::{Effect, EffectResult, Notify, Occasion};

use super::engine::{Progress, Stop, Turn};
use super::life::{Checked, Life};
use super::live::{RunLive, RunStage};
use super::record::RunRecord;
use super::retry;
use super::words::RunState;
use crate::change::{Change, FiringGuard};
use crate::execution::Execution;
use crate::ids::{NodeId, RunId};
use crate::level;
use crate::plan::Plan;
use crate::span::Span;

/// The facts that decide whether a new run has to wait for admission.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)]
pub struct AdmissionFacts<'a> {
    /// Whether every server that shares the store supports admission. If not, no run waits.
    pub is_known: bool,
    /// The maximum number of active runs.
    pub limit: Option<u32>,
    /// The maximum number of waiting runs, including those for which there is room now.
    pub max_pending: &'a (dyn Fn() -> u32 + Sync),
    /// The maximum number of open runs, if the store has to check it.
    pub max_open: Option<u32>,
}

/// A run that is to be created.
#[derive(Clone)]
#[allow(missing_debug_implementations)]
pub struct New<'a> {
    pub run: &'a RunRecord,
    pub plan: &'a Arc<Plan>,
    /// The executions that are carried over from an earlier run.
    pub taken: Vec<Execution>,
    pub admission: AdmissionFacts<'a>,
    /// Set if a schedule starts the run.
    pub firing: Option<FiringGuard>,
}

/// What comes before a run's plan. Until it has happened, nothing starts. This release does not produce `Schedule`; it
/// leaves such runs where they are, until they are cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// The scheduled time.
    Schedule,
    Admission,
    /// Another run of the job, or a time: the constraints are violated.
    Queue,
    Constraint,
    /// The action of a violated constraint.
    Action,
    /// The retry of the whole run.
    Retry,
}

impl Before {
    /// Returns what comes before the plan, or `None` if the plan is next, has started, or has ended.
    fn of(live: &RunLive) -> Option<Self> {
        match live.stage {
            RunStage::Scheduled => Some(Before::Schedule),
            RunStage::Waiting if live.is_queued() => Some(Before::Queue),
            RunStage::Waiting => Some(Before::Admission),
            RunStage::Checking(_) => Some(Before::Constraint),
            RunStage::Acting(_) => Some(Before::Action),
            RunStage::Retrying => Some(Before::Retry),
            RunStage::Admitted
            | RunStage::Starting
            | RunStage::Running
            | RunStage::Terminating
            | RunStage::Ended(_) => None,
        }
    }
}

/// The decisions for one open run.
#[derive(Clone, Debug)]
pub struct Course {
    progress: Progress,
    before: Option<Before>,
    /// When the run's own timeout stops it.
    deadline: Option<Timestamp>,
    /// When the run fails if its plan has not started.
    give_up_at: Option<Timestamp>,
    created_at: Timestamp,
    is_retry: bool,
    /// Its constraints and actions, including what is not committed yet.
    life: Life,
    /// What was found about the constraints so far, while a hook is called.
    results: Option<Vec<Checked>>,
    /// Set while the move to `starting` is committed: the plan follows. It has the guard of that move.
    gate: Option<Option<u32>>,
    /// A run that waits for others looks at them now, or at a time.
    looks: bool,
    look_at: Option<Timestamp>,
    /// Other runs of the job have moved since the facts about them were read.
    has_news: bool,
    /// When the plan started and ended.
    started_at: Option<Timestamp>,
    plan_ended_at: Option<Timestamp>,
    /// Changes that belong to no step of the plan.
    changes: Vec<Change>,
    /// When the next round begins, if the run waits for it.
    retry_at: Option<Timestamp>,
}

impl Course {
    /// Creates a run, and starts it unless it has to wait. Returns the changes to commit, the creation first.
    pub fn create(new: New<'_>, turn: &mut Turn<'_>) -> (Self, Vec<Change>) {
        let New { run, plan, taken, admission, firing } = new;
        let (id, epoch) = (run.id.clone(), run.live.epoch);
        let is_debug = id.is_debug();
        let waits =
            admission.is_known && !is_debug && (run.definition.exclusive || admission.limit.is_some());
        let before = Before::of(&run.live).filter(|before| waits || *before != Before::Admission);
        let max_pending = (before == Some(Before::Admission)).then(admission.max_pending);
        let max_open = admission.max_open.filter(|_| !is_debug);
        let mut changes = vec![Change::RunCreated { run: run.clone(), max_pending, max_open, firing }];
        let checks = run.definition.checks_before();
        let progress = if before.is_some() || checks || !taken.is_empty() {
            Progress::restore(Arc::clone(plan), run, epoch, &taken, None)
        } else {
            let params = Arc::new(run.params.clone());
            Progress::new(Arc::clone(plan), id, epoch, run.state())
                .with_params(params)
                .retrying(run.retry_of.as_ref())
        };
        let mut course = Self::of(progress, before, run);
        match before {
            Some(_) => {}
            None if taken.is_empty() && !checks => {
                course.start_clock(turn.now);
                course.progress.begin(turn);
                course.follow_plan(turn);
            }
            None => course.plan_or_checks(turn.now, turn),
        }
        course.progress.carry(taken);
        changes.extend(course.take_changes(turn.now));
        // Servers of older releases would do again what is not committed together with the run.
        while turn.level < level::CARRY && course.progress.is_carrying() {
            changes.extend(course.take_changes(turn.now));
        }
        (course, changes)
    }

    fn of(progress: Progress, before: Option<Before>, run: &RunRecord) -> Self {
        let deadline = run.definition.deadline.and_then(|span| SignedDuration::try_from(span.0).ok());
        let give_up_at = deadline.and_then(|span| run.created_at.saturating_add(span).ok());
        let terminating = RunState::Terminating;
        let stays = run.live.states.since(run.created_at, run.state());
        let ended = stays.iter().find(|stay| stay.state == terminating && run.state() == terminating);
        Self {
            progress,
            before,
            deadline: None,
            give_up_at: give_up_at.filter(|_| run.live.started_at.is_none()),
            created_at: run.created_at,
            is_retry: run.retry_of.is_some(),
            life: run.live.life.clone(),
            results: None,
            gate: None,
            looks: false,
            look_at: None,
            has_news: false,
            started_at: run.live.started_at,
            plan_ended_at: ended.map(|stay| stay.last_at),
            changes: Vec::new(),
            retry_at: None,
        }
    }

    /// Adds results that the run carries over and its former owner did not get to. The course was restored with them.
    #[must_use]
    pub fn carrying(mut self, executions: Vec<Execution>) -> Self {
        self.progress.carry(executions);
        self
    }

    /// Continues a stored run, which this server now owns with this epoch. What comes before its plan still does.
    pub fn restore(
        plan: Arc<Plan>,
        run: &RunRecord,
        epoch: u64,
        executions: &[Execution],
        turn: &mut Turn<'_>,
    ) -> Self {
        let before = Before::of(&run.live);
        let stop = match before {
            // The timeout applies to the plan.
            Some(_) => run.live.cancel_requested_at.map(|_| Stop::Cancelled),
            None => requested_stop(run, &plan, turn),
        };
        let progress = Progress::restore(plan, run, epoch, executions, stop);
        // If an older program moved the run, the time is not known: the next round begins now.
        let retries = before == Some(Before::Retry) && stop.is_none();
        let retry_at = retries.then(|| retry::waits_until(run).unwrap_or(turn.now));
        let mut course = Self { retry_at, ..Self::of(progress, before, run) };
        let started_at = run.live.round_started_at().unwrap_or(turn.now);
        if stop.is_some() {
            course.go_on(started_at, turn);
        } else if before.is_none() {
            course.plan_or_checks(started_at, turn);
        } else {
            course.resume_before(turn);
        }
        course.deadline = course.deadline.filter(|_| stop.is_none());
        course
    }

    /// Continues a stored run whose last decisions the store will never accept: it ends as failed.
    pub fn reject(
        plan: Arc<Plan>,
        run: &RunRecord,
        epoch: u64,
        executions: &[Execution],
        turn: &mut Turn<'_>,
    ) -> Self {
        let stop = run.live.cancel_requested_at.map_or(Stop::Rejected, |_| Stop::Cancelled);
        let mut progress = Progress::restore(plan, run, epoch, executions, Some(stop));
        progress.go_on(turn);
        Self::of(progress, None, run)
    }

    /// Runs the plan, or what a stop leaves of it.
    fn go_on(&mut self, started_at: Timestamp, turn: &mut Turn<'_>) {
        self.before = None;
        self.start_clock(started_at);
        self.progress.go_on(turn);
        self.follow_plan(turn);
    }

    /// The time limit of the plan counts from here.
    fn start_clock(&mut self, started_at: Timestamp) {
        (self.started_at, self.give_up_at) = (Some(started_at), None);
        let limit = self.definition().time_limit().and_then(|limit| SignedDuration::try_from(limit.0).ok());
        self.deadline = limit.map(|limit| started_at + limit);
    }

    pub fn run(&self) -> &RunId {
        self.progress.run()
    }

    pub fn plan(&self) -> &Arc<Plan> {
        self.progress.plan()
    }

    pub fn epoch(&self) -> u64 {
        self.progress.epoch()
    }

    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    pub fn state(&self) -> RunState {
        self.progress.state()
    }

    /// Returns true if the run has ended and nothing is left to commit.
    pub fn is_ended(&self) -> bool {
        self.progress.is_ended() && !self.has_more()
    }

    /// Returns whether decisions of the last turn are left to make or to commit.
    pub fn has_more(&self) -> bool {
        self.progress.has_more() || self.gate.is_some() || !self.changes.is_empty()
    }

    /// Returns whether decisions of the last turn are left to make. Until they are made, nothing is observed.
    pub fn is_unfinished(&self) -> bool {
        self.progress.is_unfinished()
    }

    /// Makes the decisions that the last turn left for later.
    pub fn finish_turn(&mut self, turn: &mut Turn<'_>) {
        if self.gate.take().is_some() {
            // The timeout counts from the run's start.
            self.go_on(turn.now, turn);
        } else if self.before.is_none() {
            self.progress.finish_turn(turn);
            self.follow_plan(turn);
        }
    }

    /// Returns what the run needs from outside, once all that was decided is committed.
    pub fn effect(&self) -> Option<Effect> {
        match self.before {
            _ if self.has_more() || self.is_ended() => None,
            Some(before) => self.effect_before(before),
            None => self.effect_after(),
        }
    }

    /// Takes in the result of [`effect`](Self::effect), and decides the consequences.
    pub fn effect_done(&mut self, result: EffectResult, turn: &mut Turn<'_>) {
        match self.before {
            Some(before) => self.effect_done_before(before, result, turn),
            None => self.effect_done_after(result, turn),
        }
    }

    /// Returns true if the run waits until another run of its job has ended.
    pub fn is_queued(&self) -> bool {
        self.before == Some(Before::Queue) && self.queued_until().is_none()
    }

    /// Returns true if the run waits for admission.
    pub fn is_waiting(&self) -> bool {
        self.before == Some(Before::Admission)
    }

    /// Takes in committed changes that concern the run, and decides the consequences.
    pub fn observe_all<'c>(&mut self, changes: impl IntoIterator<Item = &'c Change>, turn: &mut Turn<'_>) {
        let Some(before) = self.before else {
            self.progress.observe_all(changes, turn);
            return self.follow_plan(turn);
        };
        let (mut is_admitted, mut is_cancelled) = (false, false);
        for change in changes {
            is_admitted |= before == Before::Admission && matches!(change, Change::RunAdmitted { .. });
            is_cancelled |= matches!(change, Change::RunCancelRequested { .. });
            self.progress.take_in(change, turn);
        }
        if is_cancelled {
            (self.before, self.retry_at) = (None, None);
            self.progress.go_on(turn);
        } else if is_admitted {
            // The timeout counts from the run's start.
            self.plan_or_checks(turn.now, turn);
        }
    }

    /// Fails the attempts that wait for a node that went offline or was deleted.
    pub fn nodes_gone(&mut self, nodes: &[NodeId], turn: &mut Turn<'_>) {
        self.progress.nodes_gone(nodes, turn);
    }

    /// Returns true if the run's timeout is over.
    pub fn is_late(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Makes the decisions that depend only on the time.
    pub fn time_passed(&mut self, turn: &mut Turn<'_>) {
        if self.retry_at.is_some_and(|at| at <= turn.now) {
            // The run may be paused: then it is not admitted.
            (self.before, self.retry_at) = (Some(Before::Admission), None);
            self.progress.begin_round();
        }
        if let Some(before) = self.before {
            return self.time_passed_before(before, turn);
        }
        if self.is_late(turn.now) {
            self.deadline = None;
            self.progress.time_out(turn);
            if self.progress.is_unfinished() {
                return;
            }
        }
        self.progress.tick(turn);
        self.follow_plan(turn);
    }

    /// Returns when [`time_passed`](Self::time_passed) has to be called next.
    pub fn next_tick(&self) -> Option<Timestamp> {
        match self.before {
            Some(before) => self.next_tick_before(before),
            None => self.deadline.into_iter().chain(self.progress.next_tick()).min(),
        }
    }

    /// Returns the changes to commit next, as one submission.
    #[must_use]
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        let round = self.progress.round();
        let mut changes = std::mem::take(&mut self.changes);
        changes.extend(self.progress.take_changes(now));
        if let Some(guard) = self.gate {
            for change in &mut changes {
                if let Change::RunMoved { room, .. } = change {
                    *room = guard;
                }
            }
        }
        if self.before.is_none() && self.progress.round() > round {
            self.end_round(round, &mut changes, now);
        }
        changes
    }

    /// Waits for the next round. The changes, which are committed now, end the last one.
    fn end_round(&mut self, round: u32, changes: &mut [Change], now: Timestamp) {
        let Some(rule) = self.plan().definition.retry else { return };
        let at = retry::next_round_at(&rule, self.run(), round, now);
        if let Some(Change::RunMoved { end: Some(end), .. }) = changes.last_mut() {
            let failed = end.error.take().unwrap_or_default();
            let pause = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            let pause = Span::from_millis(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
            let (next, most) = (round.saturating_add(1), rule.max.saturating_add(1));
            end.error = Some(format!("{failed}; round {next} of {most} begins in {pause}"));
        }
        (self.before, self.retry_at, self.deadline) = (Some(Before::Retry), Some(at), None);
    }
}

/// Returns why a run whose plan has started has to stop, if it has to: then its attempts were cancelled on purpose.
pub fn requested_stop(run: &RunRecord, plan: &Plan, turn: &Turn<'_>) -> Option<Stop> {
    if run.live.cancel_requested_at.is_some() {
        return Some(Stop::Cancelled);
    }
    if let Some(stopped) = run.live.stopped {
        return Some(stopped.into());
    }
    let deadline =
        run.live.round_started_at()? + SignedDuration::try_from(run.definition.time_limit()?.0).ok()?;
    (deadline <= turn.now).then(|| Stop::after_timeout(plan, turn))
}
