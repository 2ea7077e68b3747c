//! Owns the changes that were decided and not committed yet, and hands them out in portions.
//!
//! One commit must not grow with the run: a run that skips a million instances is many small commits, between which the
//! commits of others go on. A crash between two portions loses nothing: the next owner decides the rest again.
//!
//! The order of the changes: results of another run; failures of instances whose last attempt ended before the turn, so
//! that readers of the feed see the end of an attempt, a wave or a step before its consequences; new executions, in the
//! order of the decisions; and once the agenda is empty, changes of executions and the failures of new ones.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use super::failures::FinalFailure;
use super::progress::{Progress, Turn};
use crate::change::Change;
use crate::execution::Execution;
use crate::ids::{ExecutionId, LeaseToken, RunId};
use crate::level;
use crate::limits;
use crate::portion::Portion;
use crate::run::{Instance, RunEnd, RunState, Stopped, successors};
use crate::work::Parent;

/// The bounds of one submission: executions that are added or changed, and the values of added ones.
pub const COMMIT: Portion = Portion::new(limits::EXECUTIONS_PER_COMMIT, limits::PARAMS_PER_COMMIT_BYTES);

#[derive(Clone, Debug)]
struct Added {
    execution: Execution,
    /// The size of its values.
    bytes: usize,
    /// It is committed together with the one before it.
    joins_former: bool,
}

/// A decision about an execution. The change is made when it is handed out: a run may withdraw a million executions, and
/// changes are much larger.
#[derive(Clone, Debug)]
pub(super) enum Decided {
    Cancelled { execution: ExecutionId, reason: Arc<str> },
    Skipped { execution: ExecutionId, reason: Arc<str> },
    GivenUp { execution: ExecutionId, error: String },
    Lost { execution: ExecutionId, token: LeaseToken, reason: String },
    Failed(FinalFailure),
}

impl Decided {
    fn into_change(self, run: RunId, epoch: u64, at: Timestamp) -> Change {
        match self {
            Decided::Cancelled { execution, reason } => {
                Change::ExecutionCancelRequested { run, execution, epoch, reason: reason.as_ref().into(), at }
            }
            Decided::Skipped { execution, reason } => {
                Change::ExecutionSkipped { run, execution, epoch, reason: reason.as_ref().into(), at }
            }
            Decided::GivenUp { execution, error } => {
                Change::ExecutionGivenUp { run, execution, epoch, error, at }
            }
            Decided::Lost { execution, token, reason } => {
                Change::ExecutionLost { of: Parent::Run(run), execution, token, silence: None, reason, at }
            }
            Decided::Failed(FinalFailure {
                instance: Instance { step, node, item },
                execution,
                reason,
                ..
            }) => {
                let (step, item, reason) = (step.0, item.map(|item| item.0), reason.to_owned());
                Change::InstanceFailed { run, epoch, execution, step, node, item, reason, rollout: None, at }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Outbox {
    /// Results of another run. They come before everything else: the run starts when it has all of them.
    carried: VecDeque<Execution>,
    /// Failures of instances whose last attempt ended before the turn.
    failures: VecDeque<(FinalFailure, Timestamp)>,
    added: VecDeque<Added>,
    /// The size of the values of all that is added.
    bytes: usize,
    changes: VecDeque<(Decided, Timestamp)>,
    /// The states that the run has reached: they are committed with the next portion.
    path: Vec<RunState>,
    /// Why the rest of the run is ended: it is committed with `path`, which may be empty.
    stop: Option<Stopped>,
    /// The last states and the end of the run, or of its round: they are committed with the last portion.
    end: Option<(Vec<RunState>, RunEnd)>,
    /// The bounds of one submission.
    portion: Portion,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            carried: VecDeque::new(),
            failures: VecDeque::new(),
            added: VecDeque::new(),
            bytes: 0,
            changes: VecDeque::new(),
            path: Vec::new(),
            stop: None,
            end: None,
            portion: COMMIT,
        }
    }
}

impl Outbox {
    pub(super) fn set_portion(&mut self, portion: Portion) {
        self.portion = portion;
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_moves = !self.path.is_empty() || self.stop.is_some() || self.end.is_some();
        self.carried.is_empty() && self.rows() == 0 && !has_moves
    }

    /// Returns whether a portion of failures or of executions is complete.
    fn has_portion(&self) -> bool {
        let Portion { rows, bytes } = self.portion;
        self.failures.len() >= rows || self.added.len() >= rows || self.bytes >= bytes
    }

    fn rows(&self) -> usize {
        self.failures.len() + self.added.len() + self.changes.len()
    }

    /// Adds executions that are committed together.
    pub(super) fn add_group(&mut self, group: impl IntoIterator<Item = Execution>) {
        for (index, execution) in group.into_iter().enumerate() {
            let bytes = execution.values_bytes();
            self.bytes = self.bytes.saturating_add(bytes);
            self.added.push_back(Added { execution, bytes, joins_former: index > 0 });
        }
    }

    /// Takes the first executions that fit into `left`: at least one, and all that are committed with it.
    fn take_added(&mut self, mut left: Portion) -> Vec<Execution> {
        let mut count = 0;
        for Added { bytes, joins_former, .. } in &self.added {
            if count > 0 && !joins_former && (count >= left.rows || *bytes > left.bytes) {
                break;
            }
            count += 1;
            left.bytes = left.bytes.saturating_sub(*bytes);
            self.bytes = self.bytes.saturating_sub(*bytes);
        }
        self.added.drain(..count).map(|added| added.execution).collect()
    }
}

impl Progress {
    /// Returns changes that were decided. The caller commits them as one submission. If the turn
    /// [has more](Self::has_more), it goes on with [`finish_turn`](Self::finish_turn); otherwise it passes everything
    /// that was committed to `observe`.
    #[must_use]
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        let (run, epoch) = (self.run.clone(), self.epoch);
        let has_agenda = self.has_agenda();
        let outbox = &mut self.outbox;
        let mut all = Vec::new();
        // What the portion has room for.
        let mut left = outbox.portion;
        if !outbox.carried.is_empty() {
            let count = left.fitting(outbox.carried.iter().map(Execution::values_bytes));
            let executions: Vec<Execution> = outbox.carried.drain(..count).collect();
            left.rows = left.rows.saturating_sub(count);
            let bytes = executions.iter().map(Execution::values_bytes).sum();
            left.bytes = left.bytes.saturating_sub(bytes);
            all.push(Change::ExecutionsAdded {
                run: run.clone(),
                epoch,
                executions,
                rollout: None,
                version: None,
                sessions: Vec::new(),
                after: None,
                at: now,
            });
            if !outbox.carried.is_empty() {
                return all;
            }
        }
        let most = left.rows.min(outbox.failures.len());
        left.rows -= most;
        let failures = outbox.failures.drain(..most).map(|(failure, at)| (Decided::Failed(failure), at));
        all.extend(failures.map(|(failed, at)| failed.into_change(run.clone(), epoch, at)));
        if outbox.failures.is_empty() && !outbox.added.is_empty() && left.rows > 0 {
            let executions = outbox.take_added(left);
            left.rows = left.rows.saturating_sub(executions.len());
            all.push(Change::ExecutionsAdded {
                run: run.clone(),
                epoch,
                executions,
                rollout: None,
                version: None,
                sessions: Vec::new(),
                after: None,
                at: now,
            });
        }
        if outbox.failures.is_empty() && outbox.added.is_empty() && !has_agenda {
            let most = left.rows.min(outbox.changes.len());
            let changes = outbox.changes.drain(..most);
            all.extend(changes.map(|(decided, at)| decided.into_change(run.clone(), epoch, at)));
        }
        let is_last = outbox.rows() == 0;
        let mut path = std::mem::take(&mut outbox.path);
        let end = outbox.end.take_if(|_| is_last).map(|(last, end)| {
            path.extend(last);
            end
        });
        let stop = outbox.stop.take();
        let ends_round = path.last() == Some(&RunState::Retrying);
        if !path.is_empty() || stop.is_some() {
            let moved = Change::RunMoved { run, epoch, path, room: None, stop, end, at: now };
            all.insert(if is_last { all.len() } else { 0 }, moved);
        }
        self.record_rollout(&mut all);
        if ends_round {
            self.leave_round();
        }
        all
    }

    /// Adds results of another run, to be committed before all decisions. The progress was restored with them.
    pub fn carry(&mut self, executions: Vec<Execution>) {
        self.outbox.carried.extend(executions);
    }

    /// Returns whether results of another run are left to commit.
    pub fn is_carrying(&self) -> bool {
        !self.outbox.carried.is_empty()
    }

    /// Returns whether decisions of the last turn are left to make or to commit.
    pub fn has_more(&self) -> bool {
        self.is_unfinished || !self.outbox.is_empty()
    }

    /// Returns whether a submission is complete, so that further decisions can wait. Changes of executions count after
    /// all executions of the agenda: they are not handed out before.
    pub(super) fn is_full(&self) -> bool {
        let outbox = &self.outbox;
        outbox.has_portion() || (!self.has_agenda() && outbox.rows() >= outbox.portion.rows)
    }

    /// Sets the bounds of one submission.
    #[must_use]
    pub fn with_portion(mut self, portion: Portion) -> Self {
        self.outbox.set_portion(portion);
        self
    }

    pub(super) fn add(&mut self, execution: Execution) {
        self.outbox.add_group([execution]);
    }

    /// Emits the failure of an instance whose last attempt ended before the turn.
    pub(super) fn emit_first(&mut self, failure: FinalFailure, turn: &Turn<'_>) {
        self.outbox.failures.push_back((failure, turn.now));
    }

    pub(super) fn emit(&mut self, decided: Decided, turn: &Turn<'_>) {
        self.outbox.changes.push_back((decided, turn.now));
    }

    pub(in crate::run) fn move_to(&mut self, path: &[RunState]) {
        debug_assert!(super::super::check_path(self.state, path).is_ok(), "{} to {path:?}", self.state);
        self.outbox.path.extend_from_slice(path);
        self.state = *path.last().expect("a path has an end");
    }

    /// Records why the rest of the run is ended, before anything that follows from it: another server has to decide
    /// the rest in the same way. A run may already be terminating for another reason; servers of older releases do not
    /// record that.
    pub(super) fn record_stop(&mut self, stopped: Stopped, turn: &Turn<'_>) {
        if successors(self.state).contains(&RunState::Terminating) {
            self.move_to(&[RunState::Terminating]);
        } else if self.stopped == Some(stopped.cause) || turn.level < level::CLEANUP {
            return;
        }
        self.stopped = Some(stopped.cause);
        self.outbox.stop = Some(stopped);
    }

    pub(super) fn portion(&self) -> Portion {
        self.outbox.portion
    }

    /// Ends the run with this state, instead of the state that is not committed yet.
    pub(super) fn replace_end(&mut self, last: RunState, end: RunEnd) {
        let mut path = self.outbox.end.take().map(|(path, _)| path).unwrap_or_default();
        path.pop();
        path.push(last);
        self.state = last;
        self.outbox.end = Some((path, end));
    }

    pub(super) fn end_run(&mut self, path: Vec<RunState>, end: RunEnd) {
        debug_assert!(super::super::check_path(self.state, &path).is_ok(), "{} to {path:?}", self.state);
        self.state = *path.last().expect("a path has an end");
        self.outbox.end = Some((path, end));
    }
}
