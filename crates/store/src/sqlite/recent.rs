//! Owns the open executions of the last commits. A commit reads most of the executions that it changes from here, without
//! a query: one that was added is leased and ends soon after.
//!
//! Only the writing thread has them, so they are what the file has. Whatever else removes or replaces open executions
//! forgets them all, and so does a failed commit.

use std::collections::HashMap;

use downbeat_core::execution::Execution;
use downbeat_core::ids::ExecutionId;

/// At most this many are kept, some hundred bytes each. Executions with params or limits are not: they may be large.
const MOST: usize = 20_000;

#[derive(Debug, Default)]
pub(crate) struct Recent(HashMap<ExecutionId, Execution>);

impl Recent {
    pub(super) fn get(&self, id: ExecutionId) -> Option<&Execution> {
        self.0.get(&id)
    }

    /// Keeps the executions of a commit that are open, and forgets those that have ended.
    pub(super) fn keep(&mut self, committed: impl IntoIterator<Item = Execution>) {
        for execution in committed {
            let is_small = execution.params.is_none() && execution.limits.is_none();
            if !execution.state.status().is_open() {
                self.0.remove(&execution.id);
            } else if is_small && (self.0.len() < MOST || self.0.contains_key(&execution.id)) {
                self.0.insert(execution.id, execution);
            }
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}
