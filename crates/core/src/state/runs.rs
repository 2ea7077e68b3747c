//! Decides what changes do to runs: who may create, own, admit and move them.

use std::collections::BTreeSet;

use super::tables::Tables;
use crate::Timestamp;
use crate::change::{Applied, Refusal};
use crate::ids::{NodeId, RunId, ServerId};
use crate::run::{RunEnd, RunRecord, RunState, check_path};

/// The part of a run that moves.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLive {
    pub state: RunState,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub end: Option<RunEnd>,
    pub cancel_requested_at: Option<Timestamp>,
    pub paused_at: Option<Timestamp>,
    pub admitted_at: Option<Timestamp>,
    pub owner: ServerId,
    pub epoch: u64,
}

impl RunLive {
    pub fn of(run: &RunRecord) -> Self {
        Self {
            state: run.state,
            started_at: run.started_at,
            finished_at: run.finished_at,
            end: run.end.clone(),
            cancel_requested_at: run.cancel_requested_at,
            paused_at: run.paused_at,
            admitted_at: run.admitted_at,
            owner: run.owner,
            epoch: run.epoch,
        }
    }

    /// Returns the record of a run that was created as `created` and has moved since.
    pub fn of_run(self, created: RunRecord) -> RunRecord {
        let Self {
            state,
            started_at,
            finished_at,
            end,
            cancel_requested_at,
            paused_at,
            admitted_at,
            owner,
            epoch,
        } = self;
        RunRecord {
            state,
            started_at,
            finished_at,
            end,
            cancel_requested_at,
            paused_at,
            admitted_at,
            owner,
            epoch,
            ..created
        }
    }

    /// Returns true if the run waits for its turn.
    fn waits(&self) -> bool {
        self.state == RunState::Pending && self.admitted_at.is_none()
    }

    /// Returns true if the run had its turn and has not ended.
    fn is_under_way(&self) -> bool {
        !self.state.is_terminal() && self.state != RunState::PreRun && !self.waits()
    }
}

/// How many of the runs that were not loaded wait for their turn, and how many are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    pub waiting: u32,
    pub under_way: u32,
}

impl Tables {
    pub(super) fn create_run(&mut self, run: &RunRecord, max_pending: Option<u32>) -> Applied {
        if !self.clusters.contains(&run.cluster) {
            return Err(Refusal::NotFound);
        }
        if self.runs.contains_key(&run.id) {
            return Err(Refusal::RunExists(run.id.clone()));
        }
        let key = run.idempotency_key.as_ref().map(|key| (run.cluster, key.clone()));
        if let Some(first) = key.as_ref().and_then(|key| self.keys.get(key)) {
            return Err(Refusal::KeyInUse(first.clone()));
        }
        if let Some(max_pending) = max_pending {
            let pending = self.elsewhere.waiting + self.count_runs(RunLive::waits);
            if pending >= max_pending {
                return Err(Refusal::QueueFull { pending });
            }
        }
        self.keys.extend(key.map(|key| (key, run.id.clone())));
        self.runs.insert(run.id.clone(), RunLive::of(run));
        self.homes.insert(run.id.clone(), run.cluster);
        Ok(())
    }

    fn count_runs(&self, counts: impl Fn(&RunLive) -> bool) -> u32 {
        u32::try_from(self.runs.values().filter(|run| counts(run)).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn admit(
        &mut self,
        id: &RunId,
        epoch: u64,
        limit: Option<u32>,
        nodes: &[NodeId],
        at: Timestamp,
    ) -> Applied {
        let run = self.owned(id, epoch)?;
        if !run.waits() || run.paused_at.is_some() || run.cancel_requested_at.is_some() {
            return Err(Refusal::WrongState);
        }
        if let Some(limit) = limit {
            let running = self.elsewhere.under_way + self.count_runs(RunLive::is_under_way);
            if running >= limit {
                return Err(Refusal::NoRoom { running });
            }
        }
        for node in nodes {
            self.is_free(*node, id)?;
        }
        let wanted: BTreeSet<NodeId> = nodes.iter().copied().collect();
        if let Some(other) = self.at_work(&wanted).find(|execution| execution.run() != id) {
            return Err(Refusal::NodeHeld(other.run().clone()));
        }
        self.holds.extend(wanted.into_iter().map(|node| (node, id.clone())));
        self.owned(id, epoch)?.admitted_at = Some(at);
        Ok(())
    }

    /// Refuses a node that another run holds.
    pub(super) fn is_free(&self, node: NodeId, run: &RunId) -> Applied {
        match self.holds.get(&node) {
            Some(holder) if holder != run => Err(Refusal::NodeHeld(holder.clone())),
            _ => Ok(()),
        }
    }

    pub(super) fn owned(&mut self, run: &RunId, epoch: u64) -> Result<&mut RunLive, Refusal> {
        let run = self.runs.get_mut(run).ok_or(Refusal::NotFound)?;
        if run.epoch == epoch { Ok(run) } else { Err(Refusal::StaleEpoch) }
    }
}

pub(super) fn move_run(run: &mut RunLive, path: &[RunState], end: &Option<RunEnd>, at: Timestamp) -> Applied {
    let to = check_path(run.state, path).map_err(|_| Refusal::WrongState)?;
    if path.contains(&RunState::Running) {
        run.started_at.get_or_insert(at);
    }
    if to.is_terminal() && !path.is_empty() {
        run.finished_at = Some(at);
        run.end.clone_from(end);
    }
    run.state = to;
    Ok(())
}
