//! Owns the changes that were decided and not committed yet, and hands them out in portions.
//!
//! One commit must not grow with the run: a run that skips a million instances is many small commits, between which the
//! commits of others go on. A crash between two portions loses nothing, because the next owner decides the rest again:
//! failures come first, so that readers of the feed see the end of an attempt, a wave or a step before its consequences;
//! then executions, in the order of the decisions; and changes of executions after all executions.

use std::collections::VecDeque;

use jiff::Timestamp;

use super::progress::Progress;
use crate::change::Change;
use crate::execution::Execution;
use crate::limits;
use crate::portion::Portion;
use crate::run::{RunEnd, RunState};

/// The bounds of one submission: executions that are added or changed, and the values of added ones.
pub const COMMIT: Portion = Portion::new(limits::EXECUTIONS_PER_COMMIT, limits::PARAMS_PER_COMMIT_BYTES);

#[derive(Clone, Debug)]
struct Added {
    execution: Execution,
    /// It is committed together with the one before it.
    joins_former: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Outbox {
    /// Failures of instances whose last attempt ended before the turn.
    failures: VecDeque<Change>,
    added: VecDeque<Added>,
    is_grouping: bool,
    /// The group has its first execution.
    in_group: bool,
    changes: VecDeque<Change>,
    /// The states that the run has reached: they are committed with the next portion.
    path: Vec<RunState>,
    /// The last states and the run's end: they are committed with the last portion.
    end: Option<(Vec<RunState>, RunEnd)>,
    portion: Portion,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            failures: VecDeque::new(),
            added: VecDeque::new(),
            is_grouping: false,
            in_group: false,
            changes: VecDeque::new(),
            path: Vec::new(),
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
        self.rows() == 0 && self.path.is_empty() && self.end.is_none()
    }

    /// Returns whether a portion is complete, so that further decisions can wait.
    pub(super) fn is_full(&self) -> bool {
        self.rows() >= self.portion.rows
    }

    fn rows(&self) -> usize {
        self.failures.len() + self.added.len() + self.changes.len()
    }

    /// Adds executions that are committed together.
    pub(super) fn add_group(&mut self, group: impl IntoIterator<Item = Execution>) {
        for (index, execution) in group.into_iter().enumerate() {
            self.added.push_back(Added { execution, joins_former: index > 0 || self.in_group });
            self.in_group = self.is_grouping;
        }
    }

    /// Begins or ends a group: all executions that are added within it are committed together.
    pub(super) fn set_group(&mut self, is_grouping: bool) {
        (self.is_grouping, self.in_group) = (is_grouping, false);
    }

    /// Takes the first executions that fit into a portion: at least one, and all that are committed with it.
    fn take_added(&mut self) -> Vec<Execution> {
        let Portion { rows, bytes: mut left } = self.portion;
        let mut count = 0;
        for Added { execution, joins_former } in &self.added {
            let bytes = execution.values_bytes();
            if count > 0 && !joins_former && (count >= rows || bytes > left) {
                break;
            }
            count += 1;
            left = left.saturating_sub(bytes);
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
        let outbox = &mut self.outbox;
        let most = outbox.portion.rows.min(outbox.failures.len());
        let mut all: Vec<Change> = outbox.failures.drain(..most).collect();
        if outbox.failures.is_empty() && !outbox.added.is_empty() {
            let executions = outbox.take_added();
            all.push(Change::ExecutionsAdded { run: run.clone(), epoch, executions, at: now });
        }
        if outbox.failures.is_empty() && outbox.added.is_empty() {
            let most = outbox.portion.rows.min(outbox.changes.len());
            all.extend(outbox.changes.drain(..most));
        }
        let is_last = outbox.rows() == 0;
        let mut path = std::mem::take(&mut outbox.path);
        let end = outbox.end.take_if(|_| is_last).map(|(last, end)| {
            path.extend(last);
            end
        });
        if !path.is_empty() {
            let moved = Change::RunMoved { run, epoch, path, end, at: now };
            all.insert(if is_last { all.len() } else { 0 }, moved);
        }
        all
    }

    /// Returns whether decisions of the last turn are left to make or to commit.
    pub fn has_more(&self) -> bool {
        self.is_unfinished || !self.outbox.is_empty()
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
    pub(super) fn emit_first(&mut self, failure: Change) {
        self.outbox.failures.push_back(failure);
    }

    pub(super) fn emit(&mut self, change: Change) {
        self.outbox.changes.push_back(change);
    }

    pub(super) fn move_to(&mut self, path: &[RunState]) {
        debug_assert!(super::super::check_path(self.state, path).is_ok(), "{} to {path:?}", self.state);
        self.outbox.path.extend_from_slice(path);
        self.state = *path.last().expect("a path has an end");
    }

    pub(super) fn end_run(&mut self, path: Vec<RunState>, end: RunEnd) {
        debug_assert!(super::super::check_path(self.state, &path).is_ok(), "{} to {path:?}", self.state);
        self.state = *path.last().expect("a path has an end");
        self.outbox.end = Some((path, end));
    }
}
