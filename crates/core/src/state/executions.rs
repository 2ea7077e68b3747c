//! Applies changes to executions: adds and leases them, and counts their uses of limits.

use std::collections::BTreeSet;

use super::tables::Tables;
use crate::Timestamp;
use crate::change::{Applied, EndOf, Refusal};
use crate::execution::{self, Event, Execution, Illegal, Lease, Status};
use crate::ids::{ExecutionId, NodeId, RunId, SessionId};

impl Tables {
    /// Returns the executions that are leased to these nodes or run there.
    pub fn busy_on<'a>(&'a self, nodes: &'a BTreeSet<NodeId>) -> impl Iterator<Item = &'a Execution> {
        // The memory store has all executions here, and a batch seldom needs any of them.
        let all = if nodes.is_empty() { None } else { Some(self.executions.values()) };
        all.into_iter().flatten().filter(|execution| {
            execution.state.status().is_open()
                && execution.state.lease().is_some_and(|lease| nodes.contains(&lease.node))
        })
    }

    /// Adds all or none. Refuses if an id is in use, also within the change itself, or if an execution belongs to
    /// another run, is created leased to a node that another run holds, or has no room in one of its limits.
    pub(super) fn add_executions(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        // Leases are checked before ids: a SQL store may find out only at the insert that an id is in use.
        let takes = |each: &Execution| each.limits.is_some() && current_lease(each).is_some();
        let uses = executions.iter().any(takes).then(|| self.uses.clone());
        let added = self.add_leases(run, executions).and_then(|()| self.add_rows(run, executions));
        if let (Err(_), Some(uses)) = (&added, uses) {
            self.uses = uses;
        }
        added
    }

    /// Refuses executions of standing tasks that were decided for another session of their node.
    pub(super) fn have_sessions(&self, executions: &[Execution], sessions: &[SessionId]) -> Applied {
        if self.is_copy || sessions.is_empty() {
            return Ok(());
        }
        if sessions.len() != executions.len() {
            return Err(Refusal::WrongState);
        }
        for (execution, session) in executions.iter().zip(sessions) {
            self.has_session(execution.pinned.ok_or(Refusal::WrongState)?, *session)?;
        }
        Ok(())
    }

    /// Returns when the last standing task was decided for a node at this time or later.
    pub(super) fn last_step_since(&self, node: NodeId, at: Timestamp) -> Option<Timestamp> {
        let since = self.executions.range(ExecutionId::first_of(at)..).map(|(_, execution)| execution);
        let of_node = since.filter(|execution| execution.is_step_of(node));
        of_node.map(|execution| execution.created_at).filter(|created_at| *created_at >= at).max()
    }

    fn add_leases(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        for execution in executions {
            if let Some(lease) = current_lease(execution) {
                self.is_free(lease.node, run)?;
                self.use_limits(run, execution, lease)?;
            }
        }
        Ok(())
    }

    fn add_rows(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        for (place, execution) in executions.iter().enumerate() {
            if execution.run() != run || self.executions.contains_key(&execution.id) {
                for added in &executions[..place] {
                    self.executions.remove(&added.id);
                }
                return Err(Refusal::WrongState);
            }
            self.executions.insert(execution.id, execution.clone());
        }
        Ok(())
    }

    pub(super) fn lease(&mut self, run: &RunId, id: ExecutionId, lease: &Lease) -> Applied {
        let waiting = self.executions.get(&id).filter(|execution| {
            execution.run() == run
                && execution.limits.is_some()
                && execution.state.status() == Status::Pending
        });
        if let Some(execution) = waiting.cloned() {
            self.use_limits(run, &execution, lease)?;
        }
        self.step(run, id, &Event::Leased { lease: *lease })
    }

    /// Takes one slot of each limit of an execution, or none.
    fn use_limits(&mut self, run: &RunId, execution: &Execution, lease: &Lease) -> Applied {
        let Some(limits) = execution.limits.as_ref().filter(|_| !self.is_copy) else { return Ok(()) };
        let cluster = self.homes.get(run).ok_or(Refusal::NotFound)?.cluster;
        self.uses.take(cluster, execution.id, limits, lease.granted_at)
    }

    pub(super) fn step(&mut self, run: &RunId, id: ExecutionId, event: &Event) -> Applied {
        // A change with the wrong run must not get into that run's feed.
        let execution = self.executions.get_mut(&id).filter(|execution| execution.run() == run);
        let execution = execution.ok_or(Refusal::NotFound)?;
        execution.state = execution::step(&execution.state, event).map_err(|illegal| match illegal {
            Illegal::StaleLease => Refusal::StaleLease,
            Illegal::WrongState { .. } => Refusal::WrongState,
        })?;
        if !self.is_copy && !execution.state.status().is_open() {
            self.ended.insert(id, execution.state.status());
        }
        // Frees only slots that were taken here: a store that loads few rows removes the stored ones itself.
        if let (Some(limits), Some(lease)) = (&execution.limits, execution.state.lease())
            && !execution.state.status().is_open()
            && let Some(home) = self.homes.get(run)
        {
            self.uses.give_back(home.cluster, id, limits, lease.granted_at);
        }
        Ok(())
    }

    /// Refuses if this batch has not ended an execution in this way, or if something else follows it already.
    pub(super) fn follows(&mut self, run: &RunId, after: Option<EndOf>) -> Applied {
        let Some(EndOf { execution, status }) = after.filter(|_| !self.is_copy) else { return Ok(()) };
        let is_of_run = self.executions.get(&execution).is_some_and(|execution| execution.run() == run);
        if !is_of_run || self.ended.get(&execution) != Some(&status) {
            return Err(Refusal::NotAfter);
        }
        self.ended.remove(&execution);
        Ok(())
    }

    pub(super) fn has_ended(&self, id: ExecutionId) -> bool {
        self.executions.get(&id).is_some_and(|execution| !execution.state.status().is_open())
    }

    /// Marks the last attempt that counts of an instance that failed for good.
    pub(super) fn mark_failed(&mut self, run: &RunId, id: ExecutionId, reason: &str) -> Applied {
        let execution = self.executions.get_mut(&id).filter(|execution| execution.run() == run);
        let execution = execution.ok_or(Refusal::NotFound)?;
        let status = execution.state.status();
        if status.is_open() || status == Status::Succeeded || execution.failed_for_good.is_some() {
            return Err(Refusal::WrongState);
        }
        execution.failed_for_good = Some(reason.into());
        Ok(())
    }
}

/// Returns the lease of an execution that has not ended.
pub fn current_lease(execution: &Execution) -> Option<&Lease> {
    execution.state.lease().filter(|_| execution.state.status().is_open())
}
