//! Decides a run from its creation to its end: what comes before its plan, the plan, and the timeout.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::engine::{Progress, Stop, Turn};
use super::live::{RunLive, RunStage};
use super::record::RunRecord;
use super::words::RunState;
use crate::change::{Change, FiringGuard};
use crate::execution::Execution;
use crate::ids::{NodeId, RunId};
use crate::level;
use crate::plan::Plan;

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

/// What comes before a run's plan. Until it has happened, nothing starts. This release produces only `Admission`; it
/// leaves runs in the other stages where they are, until they are cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// The scheduled time.
    Schedule,
    Admission,
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
        let progress = if before.is_some() || !taken.is_empty() {
            Progress::restore(Arc::clone(plan), run, epoch, &taken, None)
        } else {
            let params = Arc::new(run.params.clone());
            Progress::new(Arc::clone(plan), id, epoch, run.state())
                .with_params(params)
                .retrying(run.retry_of.as_ref())
        };
        let mut course = Self { progress, before, deadline: None };
        match before {
            Some(_) => {}
            None if taken.is_empty() => {
                course.deadline = course.deadline_from(turn.now);
                course.progress.begin(turn);
            }
            None => course.go_on(turn.now, turn),
        }
        course.progress.carry(taken);
        changes.extend(course.take_changes(turn.now));
        // Servers of older releases would do again what is not committed together with the run.
        while turn.level < level::CARRY && course.progress.is_carrying() {
            changes.extend(course.take_changes(turn.now));
        }
        (course, changes)
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
        let mut course = Self { progress, before, deadline: None };
        if before.is_none() || stop.is_some() {
            course.go_on(run.live.started_at.unwrap_or(turn.now), turn);
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
        Self { progress, before: None, deadline: None }
    }

    /// Runs the plan, or what a stop leaves of it.
    fn go_on(&mut self, started_at: Timestamp, turn: &mut Turn<'_>) {
        self.before = None;
        self.deadline = self.deadline_from(started_at);
        self.progress.go_on(turn);
    }

    fn deadline_from(&self, started_at: Timestamp) -> Option<Timestamp> {
        let timeout = SignedDuration::try_from(self.progress.plan().definition.timeout?.0).ok()?;
        Some(started_at + timeout)
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

    pub fn state(&self) -> RunState {
        self.progress.state()
    }

    /// Returns true if the run has ended and nothing is left to commit.
    pub fn is_ended(&self) -> bool {
        self.progress.is_ended() && !self.has_more()
    }

    /// Returns whether decisions of the last turn are left to make or to commit.
    pub fn has_more(&self) -> bool {
        self.progress.has_more()
    }

    /// Returns whether decisions of the last turn are left to make. Until they are made, nothing is observed.
    pub fn is_unfinished(&self) -> bool {
        self.progress.is_unfinished()
    }

    /// Makes the decisions that the last turn left for later.
    pub fn finish_turn(&mut self, turn: &mut Turn<'_>) {
        if self.before.is_none() {
            self.progress.finish_turn(turn);
        }
    }

    /// Returns true if the run waits for admission.
    pub fn is_waiting(&self) -> bool {
        self.before == Some(Before::Admission)
    }

    /// Takes in committed changes that concern the run, and decides the consequences.
    pub fn observe_all<'c>(&mut self, changes: impl IntoIterator<Item = &'c Change>, turn: &mut Turn<'_>) {
        let Some(before) = self.before else { return self.progress.observe_all(changes, turn) };
        let (mut is_admitted, mut is_cancelled) = (false, false);
        for change in changes {
            is_admitted |= before == Before::Admission && matches!(change, Change::RunAdmitted { .. });
            is_cancelled |= matches!(change, Change::RunCancelRequested { .. });
            self.progress.take_in(change, turn);
        }
        if is_cancelled {
            self.before = None;
            self.progress.go_on(turn);
        } else if is_admitted {
            // The timeout counts from the run's start.
            self.go_on(turn.now, turn);
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
        if self.before.is_some() {
            return;
        }
        if self.is_late(turn.now) {
            self.deadline = None;
            self.progress.time_out(turn);
            if self.progress.is_unfinished() {
                return;
            }
        }
        self.progress.tick(turn);
    }

    /// Returns when [`time_passed`](Self::time_passed) has to be called next.
    pub fn next_tick(&self) -> Option<Timestamp> {
        let tick = self.progress.next_tick().filter(|_| self.before.is_none());
        self.deadline.into_iter().chain(tick).min()
    }

    /// Returns the changes to commit next, as one submission.
    #[must_use]
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        self.progress.take_changes(now)
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
    let deadline = run.live.started_at? + SignedDuration::try_from(run.definition.timeout?.0).ok()?;
    (deadline <= turn.now).then(|| Stop::after_timeout(plan, turn))
}
