//! Rebuilds a run's progress from its recorded executions, so that another server can continue the run.
//!
//! Records win over decisions that would be made now. Decisions that the former owner did not record are made only
//! after all records are read.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::attempts::{Active, End, Ended};
use super::failures::FinalFailure;
use super::history::History;
use super::outputs::OutputOf;
use super::passes::{At, EntryEnd};
use super::progress::{Progress, Stop, Turn};
use crate::backend::params_bytes;
use crate::execution::{Execution, State};
use crate::ids::{ExecutionId, NodeId};
use crate::plan::{NodeIx, PassIx, Plan, Shape, StepIx, WalkIx};
use crate::run::{Instance, RunRecord, RunState};

/// Open questions that restoring found. They are decided after all records are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Resume {
    stop: Option<Stop>,
    failures: Vec<Failure>,
    /// The failure that triggered fail-fast is that of an attempt that was given up.
    gave_up: bool,
    /// Final failures that were not recorded as such.
    unrecorded: Vec<FinalFailure>,
    ended: Vec<Ended>,
    walks: Vec<(PassIx, WalkIx)>,
    unopened: Vec<Unopened>,
    pub(super) passes: Vec<PassIx>,
}

/// A walk that has had no attempt, of a pass of which other walks have records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unopened {
    pass: PassIx,
    walk: WalkIx,
    /// Its first leaves were skipped one by one, so it takes part.
    joined: bool,
}

/// A recorded failure. Failures count in the order of these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failure {
    cause: Cause,
    at: Timestamp,
    step: StepIx,
    pass: PassIx,
    node: Option<NodeIx>,
    end: End,
}

/// Why an instance failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Own,
    /// Fail-fast withdrew or prevented the next attempt: another instance must have failed before, whatever the clocks
    /// show.
    Withdrawn,
}

/// Whether an instance has ended, according to its records.
enum Recorded {
    /// An attempt is open, or it is not decided yet whether another one follows.
    Open,
    Over,
}

impl Progress {
    /// Returns the progress of `run` as its record and the executions of its last round show it. `go_on` makes the open
    /// decisions. Between two rounds it is the progress of the next one.
    /// `stop` is set if the run was asked to stop before: then its cancelled attempts were cancelled on purpose.
    pub fn restore(
        plan: Arc<Plan>,
        run: &RunRecord,
        epoch: u64,
        executions: &[Execution],
        stop: Option<Stop>,
    ) -> Self {
        let round = run.live.round;
        if run.state() == RunState::Retrying {
            let next = Self::new(plan, run.id.clone(), epoch, run.state());
            let next = next.with_params(Arc::new(run.params.clone())).retrying(run.retry_of.as_ref());
            let mut next = next.after_round(round, run.live.paused_at.is_some());
            next.resume.stop = stop;
            return next;
        }
        let executions: Vec<&Execution> =
            executions.iter().filter(|execution| execution.round == round).collect();
        let history = History::of(&plan, &executions, stop);
        let mut progress = Self::new(plan, run.id.clone(), epoch, run.state())
            .with_params(Arc::new(run.params.clone()))
            .retrying(run.retry_of.as_ref());
        progress.round = round;
        progress.resume.stop = stop;
        progress.stopped = run.live.stopped.map(|stopped| stopped.cause);
        progress.params_bytes =
            executions.iter().filter_map(|execution| execution.params.as_deref()).map(params_bytes).sum();
        progress.paused = run.live.paused_at.is_some();
        let tried = history.attempts.values().flatten().filter(|execution| !execution.is_cached());
        if let Some(last) = tried.filter_map(|execution| ended_at(&execution.state)).max() {
            progress.waves.note_end(last);
        }
        progress.restore_carried(&executions);
        progress.passes.begin();
        while let Some(pass) = progress.passes.next_due() {
            progress.restore_pass(pass, &history);
        }
        progress.count_failures();
        progress.outputs.drop_excess();
        progress
    }

    /// Counts failures in the order in which they happened, because the order decides which one triggered fail-fast.
    fn count_failures(&mut self) {
        let mut failures = std::mem::take(&mut self.resume.failures);
        failures.sort_unstable();
        for Failure { pass, step, node, end, .. } in failures {
            if self.count_failure(pass, step, node) {
                self.resume.gave_up = end == End::GivenUp;
            }
        }
    }

    /// Records the instances that succeeded in the run that this one retries.
    fn restore_carried(&mut self, executions: &[&Execution]) {
        let nodes = self.plan.resolved.nodes.iter().zip((0..).map(NodeIx));
        let index: HashMap<NodeId, NodeIx> = nodes.map(|(node, index)| (node.id, index)).collect();
        for execution in executions.iter().filter(|execution| execution.is_carried()) {
            let instance = Instance::of(execution);
            self.carried.insert(instance);
            if let State::Succeeded { outcome, .. } = &execution.state {
                let node = instance.node.and_then(|node| index.get(&node).copied());
                let of = OutputOf::of(node, instance.item);
                self.note_outputs_of(instance.step, of, &outcome.outputs);
            }
        }
    }

    /// Makes the decisions that were not recorded, and repeats requests that may have been lost.
    pub fn go_on(&mut self, turn: &mut Turn<'_>) {
        if self.is_ended() {
            return;
        }
        if self.state == RunState::Retrying {
            if let Some(stop) = self.resume.stop.take() {
                self.end_between_rounds(stop);
            }
            return;
        }
        match self.state {
            // The run was cancelled before its plan started.
            _ if self.stopping.is_some() => {}
            RunState::Pending => self.move_to(&[RunState::Starting, RunState::Running]),
            RunState::Starting => self.move_to(&[RunState::Running]),
            RunState::Running
            | RunState::Terminating
            | RunState::Completed
            | RunState::Failed
            | RunState::Cancelled
            | RunState::Orphaned => {}
            RunState::PreRun
            | RunState::ConditionPending
            | RunState::ConditionRunning
            | RunState::ActionPending
            | RunState::ActionRunning
            | RunState::Retrying => {
                debug_assert!(self.resume.stop.is_some(), "{} starts nothing", self.state);
            }
        }
        if self.attempts.unplaced_mut().next().is_some() {
            self.look_soon(turn.now);
        }
        self.waves.forget_future(turn.now);
        self.note_serving(turn);
        let resume = std::mem::take(&mut self.resume);
        if let Some(stop) = resume.stop {
            self.begin_stop(stop, turn);
            self.end_cleanup(turn);
        }
        for failure in resume.unrecorded {
            self.record_failure(failure, turn);
        }
        self.agenda.add_unopened(resume.unopened);
        self.attempts.add_ended(resume.ended);
        self.agenda.add_walks(resume.walks);
        self.passes.add_due(resume.passes);
        // If a node that went away triggered fail-fast, the former owner was giving up all attempts that waited for it.
        if !resume.gave_up {
            self.withdraw(turn);
        }
        // Nodes may have gone offline or been deleted while no server observed the run.
        let reach = turn.reach;
        let over = self.pending_over(|active| reach(active.node?).fails(active.patience.is_some()));
        self.give_up(over, turn);
        if resume.gave_up {
            self.withdraw(turn);
        }
        self.run_to_fixpoint(turn);
    }

    /// Begins or skips a walk that the former owner did not get to.
    pub(super) fn open_late(&mut self, unopened: Unopened, turn: &mut Turn<'_>) {
        let Unopened { pass, walk, joined } = unopened;
        let began = if joined || self.passes.has_begun(pass) { Ok(()) } else { self.pass_runs(pass) };
        // If its pass has bounds and has had an attempt, a walk without a record waits for room.
        let waits = joined || (self.is_bounded(pass) && self.passes.has_attempts(pass));
        match began.and_then(|()| if waits { Ok(()) } else { self.joins(pass, walk, turn) }) {
            Ok(()) => self.advance(pass, walk, turn),
            Err(reason) => self.skip_walk(pass, walk, &reason, turn),
        }
    }

    fn restore_pass(&mut self, pass: PassIx, history: &History<'_>) {
        let recorded = history.is_recorded(pass);
        if !recorded && !history.has_later(pass) {
            self.resume.passes.push(pass);
            return;
        }
        let began = history.is_reached(&self.plan, pass) && self.would_begin(pass);
        if !recorded && self.has_nothing_to_do(pass) {
            return self.passes.end(&self.plan, pass, EntryEnd::Succeeded);
        }
        let open = if history.has_no_items(&self.plan, pass) || !(recorded || began) {
            self.plain_walks_of(pass)
        } else {
            // The pass had items when it began, and they evaluate to the same values again.
            self.walks_of(pass).unwrap_or_else(|_| self.plain_walks_of(pass))
        };
        if began {
            self.waves.begin(self.wave(pass));
        }
        for walk in WalkIx::within(self.passes.open(pass, open)) {
            if recorded || began {
                self.restore_walk(pass, walk, history);
            } else {
                self.passes.mark_skipped(pass);
                self.walk_ended(pass, walk);
            }
        }
    }

    /// Returns whether a pass began that the run has reached. Its records need not show it: all its leaves may have
    /// been skipped one by one, or carried over from another run.
    fn would_begin(&mut self, pass: PassIx) -> bool {
        match self.plan.shape {
            Shape::List => {
                // Everything before this pass has ended, so all failures that matter to it are known.
                self.count_failures();
                self.pass_runs(pass).is_ok()
            }
            // It is not known yet whether fail-fast was triggered. A pass without a record does not depend on it.
            Shape::Graph => self.condition_holds(pass).is_ok(),
        }
    }

    fn restore_walk(&mut self, pass: PassIx, walk: WalkIx, history: &History<'_>) {
        let plan = Arc::clone(&self.plan);
        let mut joined = false;
        for step in plan.entry_of(pass).steps() {
            let at = At { pass, walk, step };
            if self.is_carried(at) {
                self.passes.mark_reused(pass);
            } else {
                let Some(attempts) = history.attempts.get(&self.instance(at)) else {
                    if self.passes.walk(pass, walk).begun {
                        self.resume.walks.push((pass, walk));
                    } else {
                        self.resume.unopened.push(Unopened { pass, walk, joined });
                    }
                    return;
                };
                joined = true;
                self.restore_counts(at, attempts);
                match self.restore_instance(&plan, at, attempts, history) {
                    Recorded::Open => return,
                    Recorded::Over => {}
                }
            }
            self.passes.next_leaf(pass, walk);
        }
        self.walk_ended(pass, walk);
    }

    /// Restores how many attempts an instance has had.
    fn restore_counts(&mut self, at: At, attempts: &[&Execution]) {
        let Some((last, before)) = attempts.split_last() else { return };
        if last.attempt > 1 || !matches!(last.state, State::Skipped { .. }) {
            self.passes.mark_begun(at.pass, at.walk);
        }
        let count = |wanted: fn(&State) -> bool| {
            let count = before.iter().filter(|execution| wanted(&execution.state)).count();
            u32::try_from(count).expect("attempts are bounded")
        };
        let walk = self.passes.walk_mut(at.pass, at.walk);
        walk.attempt = last.attempt;
        walk.retries = count(|state| matches!(state, State::Failed { .. }));
        walk.losses = count(is_loss);
    }

    fn restore_instance(
        &mut self,
        plan: &Plan,
        at: At,
        attempts: &[&Execution],
        history: &History<'_>,
    ) -> Recorded {
        let Some((last, before)) = attempts.split_last() else { return Recorded::Over };
        // Releases that counted withdrawn retries marked them.
        let recorded = attempts.iter().any(|attempt| attempt.failed_for_good.is_some());
        // Releases before `failed_for_good` left only the records that follow.
        let is_final = |progress: &Self| recorded || history.went_on(plan, at.pass, progress.instance(at));
        match &last.state {
            State::Pending { .. } | State::Leased { .. } | State::Running { .. } => {
                self.restore_active(at, last, before.last().copied());
                return Recorded::Open;
            }
            State::Succeeded { outcome, .. } => {
                self.passes.mark_ran(at.pass);
                let walk = self.passes.walk(at.pass, at.walk);
                let of = OutputOf::of(walk.node, walk.item);
                self.note_outputs_of(at.step, of, &outcome.outputs);
            }
            State::Skipped { at: time, .. } | State::Cancelled { lease: None, at: time, .. } => {
                // It was never sent: the attempt before it counts.
                match before.last() {
                    Some(former) => self.restore_failure(at, former.id, recorded, End::Withdrawn, *time),
                    None => self.passes.mark_skipped(at.pass),
                }
            }
            State::Failed { lease: None, at: time, .. } => {
                let end = if last.created_at == *time { End::Unsent } else { End::GivenUp };
                self.restore_failure(at, last.id, recorded, end, *time);
            }
            State::Failed { lease: Some(_), at: time, .. } => {
                if self.has_retries(at) && !is_final(self) {
                    self.passes.mark_ran(at.pass);
                    self.resume.ended.push(Ended { execution: last.id, at, end: End::Failed });
                    return Recorded::Open;
                }
                self.restore_failure(at, last.id, recorded, End::Failed, *time);
            }
            State::Lost { at: time, .. } | State::Cancelled { lease: Some(_), at: time, .. } => {
                self.passes.mark_ran(at.pass);
                // Final ends are identified before anything is retried: one of them may have triggered fail-fast.
                if self.has_resends(at) && !is_final(self) {
                    let end =
                        if matches!(last.state, State::Lost { .. }) { End::Lost } else { End::Cancelled };
                    self.resume.ended.push(Ended { execution: last.id, at, end });
                    return Recorded::Open;
                }
                if recorded || !history.stopped {
                    self.restore_failure(at, last.id, recorded, End::Lost, *time);
                }
            }
        }
        Recorded::Over
    }

    fn restore_active(&mut self, at: At, execution: &Execution, former: Option<&Execution>) {
        let not_before = match execution.state {
            State::Pending { not_before } => not_before,
            _ => None,
        };
        let node = self.pinned(at);
        let resent = former.is_some_and(|former| is_loss(&former.state)) && node.is_some();
        let again = resent.then(|| execution.created_at + self.patience(at.step));
        let patience = again.or_else(|| self.first_patience(at.step, execution.created_at));
        // The records do not show when nodes were last checked: the wait counts from now.
        let unfit_since = None;
        let former = former.map(|former| former.id);
        self.attempts.add(
            execution.id,
            Active { at, node, lease: None, due: None, patience, not_before, unfit_since, former },
        );
        if let Some(lease) = execution.state.lease() {
            self.note_lease(execution.id, lease);
        }
    }

    /// Records a failure with the time at which it happened. Its consequences are decided when all failures are known.
    fn restore_failure(&mut self, at: At, last: ExecutionId, recorded: bool, end: End, time: Timestamp) {
        let ended = Ended { execution: last, at, end };
        if !recorded {
            let failure = FinalFailure { is_new: false, ..self.final_failure(ended) };
            self.resume.unrecorded.push(failure);
        }
        let is_withdrawn = end == End::Withdrawn || self.may_come_again(&ended);
        let cause = if is_withdrawn { Cause::Withdrawn } else { Cause::Own };
        let node = self.note_failure(at);
        let At { pass, step, .. } = at;
        self.resume.failures.push(Failure { cause, at: time, step, pass, node, end });
    }
}

fn is_loss(state: &State) -> bool {
    matches!(state, State::Lost { .. } | State::Cancelled { .. })
}

fn ended_at(state: &State) -> Option<Timestamp> {
    match state {
        State::Pending { .. } | State::Leased { .. } | State::Running { .. } | State::Skipped { .. } => None,
        // Releases without receipts recorded the agent's clock, which may lag. No attempt ended before it was leased.
        State::Succeeded { outcome, lease } => {
            let ended = outcome.ended_at();
            Some(lease.map_or(ended, |lease| lease.granted_at.max(ended)))
        }
        State::Failed { at, lease, .. } | State::Cancelled { at, lease, .. } => {
            Some(lease.map_or(*at, |lease| lease.granted_at.max(*at)))
        }
        State::Lost { at, .. } => Some(*at),
    }
}
