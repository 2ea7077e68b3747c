//! Checks that a deleted cluster is gone: nothing is recorded of it after its deletion, its rows are removed, its events
//! are blank, and nothing runs on its nodes.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::{Change, Event};

use super::evidence::Evidence;
use super::{Checker, Findings};

/// To which cluster everything belongs, by the feed.
#[derive(Debug, Default)]
pub(super) struct Homes {
    nodes: BTreeMap<NodeId, ClusterId>,
    runs: BTreeMap<RunId, ClusterId>,
    pub(super) executions: BTreeMap<ExecutionId, ClusterId>,
    pub(super) deleted: BTreeSet<ClusterId>,
    /// The cluster of each event, by its number.
    of_event: BTreeMap<u64, ClusterId>,
}

impl Homes {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut homes = Self::default();
        events.iter().for_each(|event| homes.add(event));
        homes
    }

    fn add(&mut self, event: &Event) {
        match &event.change {
            Change::NodeRegistered { registration } => {
                self.nodes.insert(registration.node, registration.cluster);
            }
            Change::RunCreated { run, .. } => {
                self.runs.insert(run.id.clone(), run.cluster);
            }
            Change::ExecutionsAdded { run, executions, .. } => {
                if let Some(cluster) = self.runs.get(run) {
                    self.executions.extend(executions.iter().map(|each| (each.id, *cluster)));
                }
            }
            Change::ClusterDeleted { cluster, .. } => {
                self.deleted.insert(*cluster);
            }
            _ => {}
        }
        if let Some(cluster) = self.concerns(&event.change) {
            self.of_event.insert(event.seq, cluster);
        }
    }

    /// Returns the cluster that a change concerns.
    fn concerns(&self, change: &Change) -> Option<ClusterId> {
        match change {
            Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                Some(cluster.id)
            }
            Change::ClusterDeleted { cluster, .. } => Some(*cluster),
            Change::NodeRegistered { registration } => Some(registration.cluster),
            Change::JobApplied { job, .. } => Some(job.key.cluster),
            Change::JobPauseSet { job, .. }
            | Change::JobDeleted { job, .. }
            | Change::JobDecided { job, .. }
            | Change::BackfillMoved { job, .. }
            | Change::BackfillCancelled { job, .. } => Some(job.cluster),
            Change::BackfillCreated { backfill } => Some(backfill.job.cluster),
            Change::JobNotTriggered { job, .. } => Some(job.cluster),
            Change::NodeMoved { node, .. }
            | Change::NodeDrainSet { node, .. }
            | Change::NodeProblemsSet { node, .. }
            | Change::NodeDeleted { node, .. } => self.nodes.get(node).copied(),
            change => self.runs.get(change.run()?).copied(),
        }
    }

    /// Returns the deleted cluster that an event belonged to. The event of the deletion itself stays.
    pub(super) fn removed(&self, event: &Event) -> Option<ClusterId> {
        let of = self.of_event.get(&event.seq).copied().filter(|cluster| self.deleted.contains(cluster));
        of.filter(|_| !matches!(event.change, Change::ClusterDeleted { .. }))
    }

    pub(super) fn is_deleted(&self, execution: ExecutionId) -> bool {
        self.executions.get(&execution).is_some_and(|cluster| self.deleted.contains(cluster))
    }

    pub(super) fn deleted_executions(&self) -> Vec<ExecutionId> {
        self.executions.keys().copied().filter(|execution| self.is_deleted(*execution)).collect()
    }

    pub(super) fn deleted_runs(&self) -> impl Iterator<Item = &RunId> {
        self.runs.iter().filter(|(_, cluster)| self.deleted.contains(cluster)).map(|(run, _)| run)
    }

    pub(super) fn of_run(&self, run: &RunId) -> Option<ClusterId> {
        self.runs.get(run).copied()
    }

    pub(super) fn is_deleted_run(&self, run: &RunId) -> bool {
        self.runs.get(run).is_some_and(|cluster| self.deleted.contains(cluster))
    }
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Clusters);
    let homes = &evidence.homes;
    let mut deleted = BTreeMap::new();
    for event in &evidence.events {
        // A server that has not learnt of the deletion may still record what happened to something that exists.
        let adds = matches!(
            event.change,
            Change::ClusterChanged { .. }
                | Change::NodeRegistered { .. }
                | Change::RunCreated { .. }
                | Change::ExecutionsAdded { .. }
        );
        let of = homes.of_event.get(&event.seq).filter(|_| adds);
        if let Some(at) = of.and_then(|cluster| deleted.get(cluster)) {
            let (seq, kind) = (event.seq, event.change.kind());
            findings.add(format!("event {seq} ({kind}) is of a cluster that was deleted with event {at}"));
        }
        if let Change::ClusterDeleted { cluster, .. } = &event.change {
            deleted.insert(*cluster, event.seq);
        }
    }
    for (what, left) in [
        ("clusters", evidence.left.clusters.len()),
        ("nodes", evidence.left.nodes),
        ("runs", evidence.left.runs),
        ("executions", evidence.left.executions),
    ] {
        if left > 0 {
            findings.add(format!("{left} {what} of a deleted cluster are left"));
        }
    }
    for event in &evidence.kept {
        let committed = usize::try_from(event.seq - 1).ok().and_then(|index| evidence.events.get(index));
        if committed.is_some_and(|committed| homes.removed(committed).is_some()) && !is_blank(event) {
            findings.add(format!("event {} of a deleted cluster still says {event:?}", event.seq));
        }
    }
    for process in &evidence.truth.processes {
        let id = process.identity;
        if homes.is_deleted(id.execution) && process.ended.is_none() {
            findings.add(format!("n{} still runs {id} of a deleted cluster", process.agent));
        }
    }
    findings
}

/// Returns whether an event says nothing but its number.
pub(super) fn is_blank(event: &Event) -> bool {
    event.about.is_empty()
        && matches!(&event.change, Change::Unknown { name, run: None, .. } if name == "removed")
}
