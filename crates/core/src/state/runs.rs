//! Applies changes to runs: creates, takes over, admits and moves them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tables::Tables;
use crate::change::{Applied, Refusal};
use crate::execution::Execution;
use crate::ids::{ClusterId, NodeId, RunId};
use crate::job::JobKey;
use crate::run::constraints::is_active;
use crate::run::{self, Illegal, Keeps, RolloutProgress, RunEvent, RunLive, RunMade, RunRecord};

/// The cluster of a run, the name of its job, and which counts of its instances the store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub cluster: ClusterId,
    pub job: Option<Arc<str>>,
    pub keeps: Keeps,
}

impl Home {
    pub fn of(run: &RunMade) -> Self {
        Self { cluster: run.cluster, job: run.job.as_deref().map(Arc::from), keeps: run.keeps() }
    }
}

/// How many of a cluster's runs that were not loaded wait for admission, and how many are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    pub waiting: u32,
    pub active: u32,
}

impl Tables {
    pub(super) fn create_run(
        &mut self,
        run: &RunRecord,
        max_pending: Option<u32>,
        max_open: Option<u32>,
    ) -> Applied {
        if !self.clusters.contains_key(&run.cluster) {
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
            let pending = self.waiting_runs(run.cluster);
            if pending >= max_pending {
                return Err(Refusal::QueueFull { pending });
            }
        }
        if let Some(max_open) = max_open {
            let open = self.waiting_runs(run.cluster) + self.active_runs(run.cluster);
            if open >= max_open {
                return Err(Refusal::TooManyOpen { open });
            }
        }
        self.keys.extend(key.map(|key| (key, run.id.clone())));
        self.runs.insert(run.id.clone(), run.live.clone());
        self.homes.insert(run.id.clone(), Home::of(&run.made));
        Ok(())
    }

    fn waiting_runs(&self, cluster: ClusterId) -> u32 {
        let elsewhere = self.elsewhere.get(&cluster).map_or(0, |counts| counts.waiting);
        elsewhere + self.count_runs(cluster, RunLive::is_waiting)
    }

    fn active_runs(&self, cluster: ClusterId) -> u32 {
        let elsewhere = self.elsewhere.get(&cluster).map_or(0, |counts| counts.active);
        elsewhere + self.count_runs(cluster, RunLive::is_active)
    }

    fn count_runs(&self, cluster: ClusterId, counts: impl Fn(&RunLive) -> bool) -> u32 {
        let is_counted = |(id, run): &(&RunId, &RunLive)| {
            counts(run) && !id.is_debug() && self.homes.get(*id).is_some_and(|home| home.cluster == cluster)
        };
        u32::try_from(self.runs.iter().filter(is_counted).count()).unwrap_or(u32::MAX)
    }

    /// Refuses a run if as many other runs of its job are active as may be.
    pub(super) fn has_room(&self, id: &RunId, room: Option<u32>) -> Applied {
        let Some(room) = room.filter(|_| !self.is_copy) else { return Ok(()) };
        let home = self.homes.get(id).ok_or(Refusal::NotFound)?;
        let Some(job) = &home.job else { return Ok(()) };
        let key = JobKey::new(home.cluster, Arc::clone(job));
        let is_counted = |(other, live): &(&RunId, &RunLive)| {
            let is_same = |other: &Home| other.cluster == home.cluster && other.job.as_ref() == Some(job);
            *other != id && is_active(live.state()) && self.homes.get(*other).is_some_and(is_same)
        };
        let loaded = u32::try_from(self.runs.iter().filter(is_counted).count()).unwrap_or(u32::MAX);
        let active = loaded.saturating_add(self.active_elsewhere.get(&key).copied().unwrap_or_default());
        if active >= room { Err(Refusal::JobBusy { active }) } else { Ok(()) }
    }

    /// Applies an event to a run.
    pub(super) fn step_run(&mut self, id: &RunId, event: &RunEvent<'_>) -> Applied {
        let next = self.next_of(id, event)?;
        if matches!(event, RunEvent::Moved { path, .. } if run::frees_nodes(path)) {
            self.holds.retain(|_, holder| holder != id);
        }
        self.runs.insert(id.clone(), next);
        Ok(())
    }

    fn next_of(&self, id: &RunId, event: &RunEvent<'_>) -> Result<RunLive, Refusal> {
        let live = self.runs.get(id).ok_or(Refusal::NotFound)?;
        if matches!(event, RunEvent::Admitted { .. } | RunEvent::Moved { .. }) {
            self.was_created(id)?;
        }
        run::step(live, event).map_err(|illegal| match illegal {
            Illegal::StaleEpoch => Refusal::StaleEpoch,
            Illegal::WrongState { .. } => Refusal::WrongState,
            Illegal::NoSuchMove { from, to } => Refusal::NoSuchMove { from, to },
        })
    }

    /// Admits a run if there is room and its nodes are free.
    pub(super) fn admit(
        &mut self,
        id: &RunId,
        event: &RunEvent<'_>,
        limit: Option<u32>,
        nodes: &[NodeId],
    ) -> Applied {
        let next = self.next_of(id, event)?;
        if let Some(limit) = limit {
            let cluster = self.homes.get(id).ok_or(Refusal::NotFound)?.cluster;
            let running = self.active_runs(cluster);
            if running >= limit {
                return Err(Refusal::NoRoom { running });
            }
        }
        for node in nodes {
            self.is_free(*node, id)?;
        }
        let wanted: BTreeSet<NodeId> = nodes.iter().copied().collect();
        let is_other = |execution: &&Execution| execution.run() != id && !execution.run().is_debug();
        if let Some(other) = self.busy_on(&wanted).find(is_other) {
            return Err(Refusal::NodeHeld(other.run().clone()));
        }
        self.holds.extend(wanted.into_iter().map(|node| (node, id.clone())));
        self.runs.insert(id.clone(), next);
        Ok(())
    }

    /// Refuses a node that another run holds. Debug commands reach it all the same.
    pub(super) fn is_free(&self, node: NodeId, run: &RunId) -> Applied {
        match self.holds.get(&node) {
            Some(holder) if holder != run && !run.is_debug() => Err(Refusal::NodeHeld(holder.clone())),
            _ => Ok(()),
        }
    }

    /// Records how far a roll-out is.
    pub(super) fn record_rollout(&mut self, run: &RunId, progress: Option<RolloutProgress>) -> Applied {
        if progress.is_some() {
            self.runs.get_mut(run).ok_or(Refusal::NotFound)?.rollout = progress;
        }
        Ok(())
    }

    /// Refuses an epoch that is not the run's current one.
    pub(super) fn has_epoch(&self, run: &RunId, epoch: u64) -> Applied {
        let live = self.runs.get(run).ok_or(Refusal::NotFound)?;
        self.was_created(run)?;
        if live.epoch == epoch { Ok(()) } else { Err(Refusal::StaleEpoch) }
    }

    /// Refuses the first decisions for a run that the same batch could not create: they are those of another server.
    fn was_created(&self, run: &RunId) -> Applied {
        if self.not_created.contains(run) { Err(Refusal::StaleEpoch) } else { Ok(()) }
    }
}
