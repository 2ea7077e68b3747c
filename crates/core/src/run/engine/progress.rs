//! Owns the progress of a run: takes in committed changes, and decides the run's end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::agenda::Agenda;
use super::attempts::{Attempts, End};
use super::failures::Failures;
use super::fitting::FitCheck;
use super::outbox::{Decided, Outbox};
use super::outputs::Outputs;
use super::passes::{At, Passes};
use super::restore::Resume;
use super::room::Room;
use super::waves::Waves;
use crate::backend::Params;
use crate::change::Change;
use crate::dice::Dice;
use crate::execution::{Execution, State, Verdict};
use crate::ids::{NodeId, RunId};
use crate::node::Reach;
use crate::plan::{Plan, StepIx};
use crate::run::{Instance, RunEnd, RunState, StopCause, Stopped, successors};
use crate::{debug, level};

/// The facts that decisions use beyond the run: the time, dice, and the state of nodes.
#[allow(missing_debug_implementations)]
pub struct Turn<'a> {
    pub now: Timestamp,
    pub dice: &'a mut Dice,
    pub reach: &'a dyn Fn(NodeId) -> Reach,
    /// Returns the values of a node that expressions may use.
    pub facts: &'a dyn Fn(NodeId) -> Option<serde_json::Value>,
    /// Returns `Ok` if some node fits a placed step, judged by its lasting properties; else the reason why none fits.
    pub fits: &'a dyn Fn(StepIx) -> Result<(), String>,
    /// The level that all live servers have in common; see [`level`](crate::level).
    pub level: u32,
    /// Since when agents have been able to report without a break. Nothing is overdue because of earlier silence.
    pub serving_since: Timestamp,
}

/// The reason why the rest of a run is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Cancelled,
    /// The run's timeout is over. `on_failure` steps still run, until `cleanup_timeout` is over as well.
    CleaningUp {
        since: Timestamp,
    },
    /// The run's timeout is over, and nothing is cleaned up.
    TimedOut,
    /// The run's timeout is over, and so is `cleanup_timeout`.
    CleanupTimedOut,
    /// The store will never accept what was decided.
    Rejected,
    /// The run is skipped because of its constraints. It has not started.
    Skipped,
    /// The run fails because of its constraints, of its actions or of its deadline. It has not started.
    GivenUp,
}

impl Stop {
    /// Returns how a run stops whose timeout is over. It cleans up only if every server would.
    pub fn after_timeout(plan: &Plan, turn: &Turn<'_>) -> Self {
        match plan.cleanup_timeout().filter(|_| turn.level >= level::CLEANUP) {
            Some(_) => Stop::CleaningUp { since: turn.now },
            None => Stop::TimedOut,
        }
    }

    /// Returns whether a run's timeout is the reason.
    pub(super) fn is_timeout(self) -> bool {
        matches!(self, Stop::CleaningUp { .. } | Stop::TimedOut | Stop::CleanupTimedOut)
    }

    /// Returns what is recorded when a run begins to stop. A person's request is recorded already.
    fn recorded(self, now: Timestamp) -> Option<Stopped> {
        match self {
            Stop::CleaningUp { since } => Some(Stopped { cause: StopCause::CleaningUp, at: since }),
            Stop::TimedOut => Some(Stopped { cause: StopCause::TimedOut, at: now }),
            Stop::Rejected => Some(Stopped { cause: StopCause::Rejected, at: now }),
            Stop::Cancelled | Stop::CleanupTimedOut | Stop::Skipped | Stop::GivenUp => None,
        }
    }
}

impl From<Stopped> for Stop {
    fn from(Stopped { cause, at }: Stopped) -> Self {
        match cause {
            StopCause::CleaningUp => Stop::CleaningUp { since: at },
            StopCause::TimedOut => Stop::TimedOut,
            StopCause::Rejected => Stop::Rejected,
        }
    }
}

/// The progress of a run. Each part has its own file, and only that file writes the part's fields.
#[derive(Clone, Debug)]
pub struct Progress {
    pub(super) plan: Arc<Plan>,
    pub(super) run: RunId,
    pub(super) epoch: u64,
    /// The attempt of the whole run, from 1.
    pub(super) round: u32,
    /// The time of the schedule that started the run.
    pub(super) scheduled_at: Option<Timestamp>,
    /// The values of the job's params.
    pub(super) params: Arc<Params>,
    pub(super) state: RunState,
    pub(super) stopping: Option<Stop>,
    /// Why a run is skipped or given up.
    pub(super) why: Option<Arc<str>>,
    /// The end of the run, while its constraints and actions after the plan are carried out.
    pub(super) closing: Option<(RunState, RunEnd)>,
    /// The recorded cause of the stop.
    pub(super) stopped: Option<StopCause>,
    /// A person has paused the run: no pass begins.
    pub(super) paused: bool,
    /// Instances that succeeded in the run that this one retries.
    pub(super) carried: HashSet<Instance>,
    /// The number of instances that items have created so far.
    pub(super) instances: usize,
    /// The last turn stopped before its end, because its decisions fill a submission.
    pub(super) is_unfinished: bool,
    /// The bytes of all evaluated params so far.
    pub(super) params_bytes: usize,
    pub(super) agenda: Agenda,
    pub(super) passes: Passes,
    pub(super) attempts: Attempts,
    pub(super) failures: Failures,
    pub(super) waves: Waves,
    pub(super) room: Room,
    pub(super) fit_check: FitCheck,
    pub(super) outputs: Outputs,
    pub(super) resume: Resume,
    pub(super) outbox: Outbox,
}

impl Progress {
    /// Creates the progress of a run that has not begun. `state` comes from the run's record.
    pub fn new(plan: Arc<Plan>, run: RunId, epoch: u64, state: RunState) -> Self {
        Self {
            passes: Passes::new(&plan),
            outputs: Outputs::of(&plan),
            plan,
            scheduled_at: run.schedule().map(|(_, _, at)| at),
            run,
            epoch,
            round: 1,
            params: Arc::default(),
            state,
            stopping: None,
            why: None,
            closing: None,
            stopped: None,
            paused: false,
            carried: HashSet::new(),
            instances: 0,
            params_bytes: 0,
            is_unfinished: false,
            agenda: Agenda::default(),
            attempts: Attempts::default(),
            failures: Failures::default(),
            waves: Waves::default(),
            room: Room::default(),
            fit_check: FitCheck::default(),
            resume: Resume::default(),
            outbox: Outbox::default(),
        }
    }

    /// Sets the values of the job's params, which expressions use.
    #[must_use]
    pub fn with_params(mut self, params: Arc<Params>) -> Self {
        self.params = params;
        self
    }

    /// Names the run that this one retries: it has the same time, if a schedule started that one.
    #[must_use]
    pub fn retrying(mut self, first: Option<&RunId>) -> Self {
        let of_first = || first?.schedule().map(|(_, _, at)| at);
        self.scheduled_at = self.scheduled_at.or_else(of_first);
        self
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub fn run(&self) -> &RunId {
        &self.run
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn round(&self) -> u32 {
        self.round
    }

    pub fn state(&self) -> RunState {
        self.state
    }

    pub fn is_ended(&self) -> bool {
        self.state.is_terminal()
    }

    /// Begins the run: its first passes become due.
    pub fn begin(&mut self, turn: &mut Turn<'_>) {
        if self.state == RunState::Pending {
            self.move_to(&[RunState::Starting, RunState::Running]);
        }
        self.passes.begin();
        self.run_to_fixpoint(turn);
    }

    /// Takes in a committed change of this run, and decides the consequences.
    pub fn observe(&mut self, change: &Change, turn: &mut Turn<'_>) {
        self.observe_all([change], turn);
    }

    /// Like `observe`, for changes that became known together. The consequences are decided after all changes are
    /// taken in, so that the order of the changes makes no difference.
    pub fn observe_all<'c>(&mut self, changes: impl IntoIterator<Item = &'c Change>, turn: &mut Turn<'_>) {
        debug_assert!(!self.is_unfinished, "the decisions of a turn follow from the same facts");
        for change in changes {
            self.take_in(change, turn);
        }
        self.run_to_fixpoint(turn);
    }

    /// Returns the part of a committed change that its run has to observe, if there is any. Changes wait to be observed
    /// while a turn is committed: they must not keep the params of the whole run in memory, or a million skipped
    /// executions.
    pub fn observable(change: &Change) -> Option<Change> {
        match change {
            Change::RunCreated { .. }
            | Change::RunMoved { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::ExecutionStarted { .. }
            | Change::InstanceFailed { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. } => None,
            Change::ExecutionsAdded {
                run,
                epoch,
                executions,
                rollout: _,
                version: _,
                sessions: _,
                after: _,
                at,
            } => {
                let has_news = |execution: &&Execution| {
                    matches!(execution.state, State::Leased { .. }) || execution.is_cached()
                };
                let without_values = |execution: &Execution| Execution {
                    id: execution.id,
                    of: execution.of.clone(),
                    pinned: execution.pinned,
                    round: execution.round,
                    attempt: execution.attempt,
                    former: execution.former,
                    params: None,
                    reused: execution.reused,
                    limits: None,
                    cache_key: execution.cache_key.clone(),
                    failed_for_good: None,
                    created_at: execution.created_at,
                    state: execution.state.clone(),
                };
                let executions: Vec<_> = executions.iter().filter(has_news).map(without_values).collect();
                let (run, epoch, at) = (run.clone(), *epoch, *at);
                let added = |executions| Change::ExecutionsAdded {
                    run,
                    epoch,
                    executions,
                    rollout: None,
                    version: None,
                    sessions: Vec::new(),
                    after: None,
                    at,
                };
                (!executions.is_empty()).then(|| added(executions))
            }
            other => Some(other.clone()),
        }
    }

    /// Takes in a change, and decides nothing that follows from it.
    pub(in crate::run) fn take_in(&mut self, change: &Change, turn: &mut Turn<'_>) {
        match change {
            Change::ExecutionsAdded { executions, .. } => {
                for Execution { id, state, .. } in executions {
                    match state {
                        State::Leased { lease, .. } => self.note_lease(*id, lease),
                        State::Succeeded { outcome, .. } => {
                            // A cached result: the attempt succeeded without being sent.
                            self.note_outputs(*id, &outcome.outputs);
                            self.attempts.end(*id, End::Succeeded);
                        }
                        _ => {}
                    }
                }
            }
            Change::ExecutionLeased { execution, lease, .. } => self.note_lease(*execution, lease),
            Change::ExecutionFinished { execution, outcome, .. } => {
                let end = match outcome.verdict {
                    Verdict::Succeeded => {
                        self.note_outputs(*execution, &outcome.outputs);
                        End::Succeeded
                    }
                    Verdict::Failed => End::Failed,
                    Verdict::Cancelled => End::Cancelled,
                };
                self.ended(*execution, end, turn);
            }
            Change::ExecutionLost { execution, .. } => self.ended(*execution, End::Lost, turn),
            Change::ApprovalDecided { execution, decision, at, .. } if decision.approved => {
                self.note_outputs(*execution, &decision.outputs(*at));
                self.ended(*execution, End::Succeeded, turn);
            }
            Change::ApprovalDecided { execution, .. } => self.ended(*execution, End::GivenUp, turn),
            Change::ExecutionCancelRequested { execution, .. } => {
                // A leased attempt was only asked to stop: it ends when its agent reports.
                if self.attempts.get(*execution).is_some_and(|active| active.lease.is_none()) {
                    self.ended(*execution, End::Withdrawn, turn);
                }
            }
            Change::ExecutionGivenUp { execution, .. } => self.ended(*execution, End::GivenUp, turn),
            Change::ExecutionSkipped { execution, .. } => self.ended(*execution, End::Withdrawn, turn),
            Change::RunCancelRequested { .. } => self.begin_stop(Stop::Cancelled, turn),
            Change::RunPauseSet { paused, .. } => self.paused = *paused,
            Change::ClusterCreated { .. }
            | Change::ClusterChanged { .. }
            | Change::ClusterDeleted { .. }
            | Change::JobApplied { .. }
            | Change::JobPauseSet { .. }
            | Change::JobDeleted { .. }
            | Change::JobDecided { .. }
            | Change::BackfillCreated { .. }
            | Change::BackfillMoved { .. }
            | Change::BackfillCancelled { .. }
            | Change::JobNotTriggered { .. }
            | Change::TriggersFollowed { .. }
            | Change::ExecutionStarted { .. }
            | Change::InstanceFailed { .. }
            | Change::RunAdmitted { .. }
            | Change::RunCreated { .. }
            | Change::RunTaken { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::RunMoved { .. }
            | Change::NodeRegistered { .. }
            | Change::NodeMoved { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeProblemsSet { .. }
            | Change::NodeDeleted { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. }
            | Change::Unknown { .. } => {}
        }
    }

    /// Returns whether decisions of the last turn are left to make. The caller observes nothing until there are none:
    /// everything that follows from the same facts is decided by those facts alone.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Makes the decisions that the last turn left for later.
    pub fn finish_turn(&mut self, turn: &mut Turn<'_>) {
        self.run_to_fixpoint(turn);
    }

    /// Ends the rest of the run.
    pub fn stop(&mut self, stop: Stop, turn: &mut Turn<'_>) {
        self.begin_stop(stop, turn);
        self.run_to_fixpoint(turn);
    }

    /// Ends the rest of the run because its timeout is over, except for its `on_failure` steps.
    pub fn time_out(&mut self, turn: &mut Turn<'_>) {
        self.stop(Stop::after_timeout(&self.plan, turn), turn);
    }

    pub(in crate::run) fn begin_stop(&mut self, stop: Stop, turn: &Turn<'_>) {
        // The plan has ended: only what follows it is left out.
        if self.closing.is_some() && stop == Stop::Cancelled {
            (self.closing, self.stopping) = (None, Some(stop));
            return;
        }
        let is_cleaning_up = |stop| matches!(stop, Stop::CleaningUp { .. });
        let is_stopping = self.stopping.is_some_and(|former| !is_cleaning_up(former) || is_cleaning_up(stop));
        if is_stopping || self.is_ended() {
            return;
        }
        if self.state == RunState::Retrying {
            return self.end_between_rounds(stop);
        }
        self.stopping = Some(stop);
        let reason: Arc<str> = self.stop_reason().into();
        for (execution, at) in self.attempts.in_order() {
            if self.is_stopped(at.step) {
                self.emit(Decided::Cancelled { execution, reason: Arc::clone(&reason) }, turn);
            }
        }
        if let Some(stopped) = stop.recorded(turn.now) {
            self.record_stop(stopped, turn);
        }
        if self.state == RunState::Pending {
            // The run never began: everything is skipped.
            self.passes.begin();
        }
    }

    /// Returns whether a step gets no further attempts because the run is stopped.
    pub(super) fn is_stopped(&self, step: StepIx) -> bool {
        match self.stopping {
            None => false,
            Some(Stop::CleaningUp { .. }) => !self.plan.runs_on_failure(step),
            Some(
                Stop::Cancelled
                | Stop::TimedOut
                | Stop::CleanupTimedOut
                | Stop::Rejected
                | Stop::Skipped
                | Stop::GivenUp,
            ) => true,
        }
    }

    /// Returns whether the run is stopped as a whole, including `on_failure` steps.
    pub(super) fn is_all_stopped(&self) -> bool {
        self.stopping.is_some_and(|stop| !matches!(stop, Stop::CleaningUp { .. }))
    }

    pub(in crate::run) fn has_timed_out(&self) -> bool {
        self.stopping.is_some_and(Stop::is_timeout)
    }

    /// Returns when `cleanup_timeout` is over, if the run has timed out.
    fn cleanup_ends(&self) -> Option<Timestamp> {
        let Some(Stop::CleaningUp { since }) = self.stopping else { return None };
        let most =
            SignedDuration::try_from(self.plan.definition.cleanup_timeout().0).unwrap_or(SignedDuration::MAX);
        Some(since.saturating_add(most).unwrap_or(Timestamp::MAX))
    }

    /// Ends the rest of the run if `cleanup_timeout` is over.
    pub(super) fn end_cleanup(&mut self, turn: &Turn<'_>) {
        if self.cleanup_ends().is_some_and(|end| end <= turn.now) {
            self.begin_stop(Stop::CleanupTimedOut, turn);
        }
    }

    /// Fails the attempts that wait for nodes that went offline or were deleted. Attempts that were sent again after a
    /// loss, and debug commands, keep waiting for a node that is offline; they fail only if it was deleted.
    pub fn nodes_gone(&mut self, nodes: &[NodeId], turn: &mut Turn<'_>) {
        // A node may be back already. The attempts that waited for it fail anyway.
        let reach = |node: &NodeId| match (turn.reach)(*node) {
            Reach::Deleted => Reach::Deleted,
            Reach::Here | Reach::Offline => Reach::Offline,
        };
        let gone: HashMap<NodeId, Reach> = nodes.iter().map(|node| (*node, reach(node))).collect();
        let over = self.pending_over(|active| gone.get(&active.node?)?.fails(active.patience.is_some()));
        self.give_up(over, turn);
    }

    /// Gives up the attempts that have waited too long for their node, or for any node, and ends overdue ones.
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.end_cleanup(turn);
        self.end_overdue(turn);
        let mut over = self.pending_over(|active| {
            active.patience.filter(|until| *until <= now).map(|_| "was not online again in time")
        });
        if self.run.is_debug() {
            over.iter_mut().for_each(|over| over.error = debug::not_started());
        }
        for over in &mut over {
            if let Some(approve) = &self.plan.task(over.at.step).approve {
                over.error = format!("nobody approved it within {}", approve.timeout_or_default());
            }
        }
        over.extend(self.look_for_nodes(turn));
        self.give_up(over, turn);
        self.run_to_fixpoint(turn);
    }

    /// Returns the time of the next `tick`: the next deadline, or the next check for nodes.
    pub fn next_tick(&self) -> Option<Timestamp> {
        self.next_deadline().into_iter().chain(self.next_look()).min()
    }

    /// Returns the next deadline that does not depend on the state of nodes.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let wave = self.waves.pause_ends().filter(|_| !self.paused);
        self.attempts.next_deadline().into_iter().chain(wave).chain(self.cleanup_ends()).min()
    }

    /// Ends the run, or its round, when nothing is left to do.
    pub(super) fn finish(&mut self, turn: &Turn<'_>) {
        if !self.passes.all_ended() || self.is_ended() || self.state == RunState::Retrying {
            return;
        }
        let is_rollout = self.plan.definition.rollout.is_some();
        let (failed, fail_fast) = (self.failures.any(), self.failures.fail_fast().is_some());
        let (last, error) = match self.stopping {
            Some(Stop::Cancelled) => (RunState::Cancelled, Some("cancelled".to_owned())),
            Some(Stop::Skipped) => (RunState::Completed, Some(self.stop_text())),
            Some(
                Stop::CleaningUp { .. }
                | Stop::TimedOut
                | Stop::CleanupTimedOut
                | Stop::Rejected
                | Stop::GivenUp,
            ) => (RunState::Failed, Some(self.stop_text())),
            None if failed && (!is_rollout || fail_fast) => (RunState::Failed, Some(self.failure_text())),
            None => (RunState::Completed, None),
        };
        // The store would reject the same decisions again, and a run that was given up did not start in time.
        let is_given_up = matches!(self.stopping, Some(Stop::Rejected | Stop::GivenUp));
        let is_final = is_given_up || !self.has_rounds(turn.level);
        let last = if last == RunState::Failed && !is_final { RunState::Retrying } else { last };
        // Some states before the plan lead to the end without Terminating: the table of transitions decides.
        let terminating = successors(self.state).contains(&RunState::Terminating);
        let partial = failed && self.stopping.is_none() && !fail_fast;
        let end = RunEnd { partial, error };
        // Checks and actions follow the last round.
        if last != RunState::Retrying && self.acts_after() {
            if self.closing.is_none() {
                if terminating {
                    self.move_to(&[RunState::Terminating]);
                }
                self.closing = Some((last, end));
            }
            return;
        }
        let path = terminating.then_some(RunState::Terminating).into_iter().chain([last]);
        self.end_run(path.collect(), end);
    }

    /// Returns whether constraints are checked or actions follow before the run ends: its plan has ended by itself, or
    /// was stopped by its timeout.
    fn acts_after(&self) -> bool {
        let has_run = matches!(self.state, RunState::Running | RunState::Terminating);
        has_run && self.stopping.is_none_or(Stop::is_timeout) && self.plan.definition.acts_after()
    }

    /// Returns the end that waits for constraints and actions after the plan.
    pub(in crate::run) fn closing(&self) -> Option<&(RunState, RunEnd)> {
        self.closing.as_ref()
    }

    /// Ends a run whose end waited.
    pub(in crate::run) fn close(&mut self, last: RunState, end: RunEnd) {
        self.closing = None;
        self.end_run(vec![last], end);
    }

    /// Skips or gives up a run that has not started.
    pub(in crate::run) fn give_up_run(&mut self, stop: Stop, why: &str, turn: &mut Turn<'_>) {
        self.why = Some(why.into());
        self.begin_stop(stop, turn);
        self.go_on(turn);
    }

    pub(super) fn stop_text(&self) -> String {
        let reason = self.stop_reason();
        if self.stopping != Some(Stop::CleanupTimedOut) {
            return reason;
        }
        let most = self.plan.definition.cleanup_timeout();
        let paused = if self.paused { ": the run was paused" } else { "" };
        format!("{reason}, and its on_failure steps did not end within {most}{paused}")
    }

    pub(super) fn stop_reason(&self) -> String {
        match self.stopping {
            Some(Stop::CleaningUp { .. } | Stop::TimedOut | Stop::CleanupTimedOut) => {
                let (timeout, allowed) = (self.plan.definition.timeout, self.plan.definition.max_allowed());
                match (timeout, allowed) {
                    (timeout, Some(allowed)) if timeout.is_none_or(|timeout| allowed < timeout) => {
                        format!("the run took longer than {allowed}, its max_allowed")
                    }
                    _ => format!("the run timed out after {}", timeout.unwrap_or_default()),
                }
            }
            Some(Stop::Skipped | Stop::GivenUp) => self.why.as_deref().unwrap_or_default().to_owned(),
            Some(Stop::Rejected) => "the store cannot hold the next step of the run".to_owned(),
            Some(Stop::Cancelled) | None => "the run was cancelled".to_owned(),
        }
    }

    pub(super) fn step_text(&self, step: StepIx) -> String {
        format!("step {step} ({})", self.plan.task(step).label())
    }

    pub(super) fn hostname(&self, at: At) -> Option<&str> {
        let node = self.plan.nodes_of_pass(at.pass)?[at.walk.get()];
        Some(&self.plan.node(node).hostname)
    }
}
