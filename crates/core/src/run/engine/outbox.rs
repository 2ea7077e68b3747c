//! Owns the changes that a turn decides on.

use jiff::Timestamp;

use super::progress::Progress;
use crate::change::Change;
use crate::execution::Execution;
use crate::limits;
use crate::run::{RunEnd, RunState};

#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    added: Vec<Execution>,
    changes: Vec<Change>,
    path: Vec<RunState>,
    end: Option<RunEnd>,
}

impl Progress {
    /// Returns the changes that this turn decided on. The caller commits them as one submission, and passes them to
    /// `observe` when they are committed.
    #[must_use]
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        let Outbox { added, changes, path, end } = std::mem::take(&mut self.outbox);
        let mut all = Vec::with_capacity(changes.len() + 2);
        let mut added = added.into_iter().peekable();
        while added.peek().is_some() {
            all.push(Change::ExecutionsAdded {
                run: self.run.clone(),
                epoch: self.epoch,
                executions: added.by_ref().take(limits::EXECUTIONS_PER_CHANGE).collect(),
                at: now,
            });
        }
        all.extend(changes);
        if !path.is_empty() {
            all.push(Change::RunMoved { run: self.run.clone(), epoch: self.epoch, path, end, at: now });
        }
        all
    }

    pub(super) fn add(&mut self, execution: Execution) {
        self.outbox.added.push(execution);
    }

    pub(super) fn emit(&mut self, change: Change) {
        self.outbox.changes.push(change);
    }

    pub(super) fn move_to(&mut self, path: &[RunState]) {
        debug_assert!(super::super::check_path(self.state, path).is_ok(), "{} to {path:?}", self.state);
        self.outbox.path.extend_from_slice(path);
        self.state = *path.last().expect("a path has an end");
    }

    pub(super) fn end_run(&mut self, end: RunEnd) {
        self.outbox.end = Some(end);
    }
}
