//! Owns what the memory store removes of clusters and of standing tasks.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::change::{About, Change};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::retention::StandingKept;

use super::store::State;
use crate::filter::is_removed;

impl State {
    /// Removes all rows of a deleted cluster. Returns how many.
    pub(super) fn remove_cluster(&mut self, cluster: ClusterId) -> u64 {
        if !self.removed_clusters.remove(&cluster) {
            return 0;
        }
        // The row of the cluster.
        let mut removed = 1;
        let runs: Vec<RunId> =
            self.made.values().filter(|run| run.cluster == cluster).map(|run| run.id.clone()).collect();
        removed += runs.len() as u64;
        for run in &runs {
            self.remove_run(run);
        }
        self.tables.holds.retain(|_, run| !runs.contains(run));
        let nodes: Vec<NodeId> =
            self.tables.node_homes.iter().filter(|(_, home)| **home == cluster).map(|(id, _)| *id).collect();
        removed += nodes.len() as u64;
        for node in &nodes {
            self.tables.nodes.remove(node);
            self.tables.node_homes.remove(node);
            self.registrations.remove(node);
            self.problems.remove(node);
        }
        removed += self.remove_jobs(cluster);
        let uses = self.tables.uses.list().into_iter().filter(|each| each.cluster == cluster);
        let uses: BTreeSet<ExecutionId> = uses.map(|each| each.execution).collect();
        self.tables.uses.retain(|execution, _| !uses.contains(&execution));
        self.tombstones.retain(|_, tombstone| tombstone.cluster != cluster);
        let tombstones = &self.tombstones;
        self.tables.deleted.retain(|deleted| tombstones.contains_key(deleted));
        for event in &mut self.events {
            if is_removed(event, cluster) {
                let (name, at) = (Change::REMOVED.to_owned(), event.change.at());
                event.change = Change::Unknown { name, run: None, at };
                event.about = About::default();
                removed += 1;
            }
        }
        removed
    }

    /// Removes ended executions of standing tasks. Returns how many.
    pub(super) fn prune_standing(&mut self, kept: &StandingKept, most: u32) -> u64 {
        let mut nodes: BTreeSet<NodeId> = self.tables.nodes.keys().copied().collect();
        let deleted = self.tombstones.values().filter(|tombstone| tombstone.at >= kept.nodes_since);
        nodes.extend(deleted.map(|tombstone| tombstone.node));
        let standing = || self.tables.executions.values().filter(|each| each.run().is_standing());
        let mut last: BTreeMap<(&RunId, u32, Option<NodeId>), u32> = BTreeMap::new();
        for execution in standing() {
            let attempt = last
                .entry((execution.run(), execution.step(), execution.pinned))
                .or_insert(execution.attempt);
            *attempt = execution.attempt.max(*attempt);
        }
        let gone = standing().filter(|execution| {
            let last = last[&(execution.run(), execution.step(), execution.pinned)];
            let has_node = execution.pinned.is_some_and(|node| nodes.contains(&node));
            let upto = kept.gone_upto(execution.run(), execution.step(), has_node, last);
            !execution.state.status().is_open() && upto.is_some_and(|upto| execution.attempt <= upto)
        });
        let gone: Vec<ExecutionId> = gone.take(most as usize).map(|execution| execution.id).collect();
        for execution in &gone {
            self.tables.executions.remove(execution);
            self.output.remove(execution);
        }
        gone.len() as u64
    }
}
