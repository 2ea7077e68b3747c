//! Owns copies of the memory store: a snapshot is a clone; a new copy is built separately and then replaces the old
//! state.

use std::collections::BTreeMap;

use async_trait::async_trait;
use downbeat_core::change::{Change, Event, Refusal};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::ids::{BackfillId, ClusterId, DeliveryId, ExecutionId, JobId, NodeId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::portion::json_bytes;
use downbeat_core::retention::StandingKept;
use downbeat_core::run::RunRecord;
use downbeat_core::state::{ClusterLive, Home, NodeLive, Tables};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc;

use super::MemoryStore;
use super::store::{State, end_of};
use crate::batch::{Needs, NewIds};
use crate::copy::{
    Kept, PART, Part, Replica, Replicated, STANDING_MOST, STANDING_STEPS, Seen, follows, interrupted,
    refused, registration, replayed,
};
use crate::port::{OutputChunk, Result, ServerRecord, Source};

impl State {
    fn parts(&self) -> Vec<Part> {
        fn cut<T: Serialize>(mut rows: Vec<T>, part: fn(Vec<T>) -> Part) -> Vec<Part> {
            let mut parts = Vec::new();
            while !rows.is_empty() {
                parts.push(part(PART.take(&mut rows, json_bytes)));
            }
            parts
        }
        let executions: Vec<_> = self.tables.executions.values().cloned().collect();
        let holds: Vec<_> = self.tables.holds.iter().map(|(node, run)| (*node, run.clone())).collect();
        let output: Vec<_> = self.output.values().flatten().cloned().collect();
        let events: Vec<_> = self.events.iter().cloned().collect();
        let is_sent = |cluster: &&ClusterRecord| **cluster != ClusterRecord::default_cluster();
        let clusters: Vec<_> = self.clusters.values().filter(is_sent).cloned().collect();
        let mut parts = cut(clusters, Part::Clusters);
        parts.extend(cut(self.removed_clusters.iter().copied().collect(), Part::RemovedClusters));
        parts.extend(cut(self.nodes(|_| true), Part::Nodes));
        parts.extend(cut(self.tombstones(None), Part::Tombstones));
        let key = |id: &JobId| self.job_key(*id).cloned();
        let jobs = self.tables.jobs.iter().filter_map(|(id, live)| Some((key(id)?, *live)));
        parts.extend(cut(jobs.collect(), Part::Jobs));
        parts.extend(cut(self.job_versions.values().cloned().collect(), Part::JobVersions));
        parts.extend(cut(self.tables.backfills.values().cloned().collect(), Part::Backfills));
        parts.extend(cut(self.runs(|_| true), Part::Runs));
        parts.extend(cut(holds, Part::Holds));
        let deliveries: Vec<_> = self.tables.deliveries.values().cloned().collect();
        parts.extend(cut(deliveries, Part::Deliveries));
        parts.extend(cut(executions, Part::Executions));
        parts.extend(cut(output, Part::Output));
        parts.extend(cut(events, Part::Events));
        parts.push(Part::End { seq: self.last_seq });
        parts
    }

    fn put_node(&mut self, mut node: NodeRecord) {
        let live = NodeLive::of(&node);
        let problems = std::mem::take(&mut node.problems);
        if !problems.is_empty() {
            self.problems.insert(node.id, problems);
        }
        self.tables.nodes.insert(node.id, live);
        self.tables.node_homes.insert(node.id, node.cluster);
        self.registrations.insert(node.id, registration(node));
    }

    fn put_run(&mut self, run: RunRecord) {
        self.tables.runs.insert(run.id.clone(), run.live.clone());
        self.tables.homes.insert(run.id.clone(), Home::of(&run.made));
        if let Some(key) = &run.idempotency_key {
            self.tables.keys.insert((run.cluster, key.clone()), run.id.clone());
        }
        self.made.insert(run.id.clone(), run.made);
    }

    fn put(&mut self, part: Part) -> Option<u64> {
        match part {
            Part::Clusters(clusters) => {
                for cluster in clusters {
                    self.tables.clusters.insert(cluster.id, ClusterLive::of(&cluster));
                    self.clusters.insert(cluster.id, cluster);
                }
            }
            Part::RemovedClusters(clusters) => self.removed_clusters.extend(clusters),
            Part::Nodes(nodes) => nodes.into_iter().for_each(|node| self.put_node(node)),
            Part::Tombstones(tombstones) => {
                for tombstone in tombstones {
                    let key = (tombstone.node, tombstone.session);
                    self.tables.deleted.insert(key);
                    self.tombstones.insert(key, tombstone);
                }
            }
            Part::Jobs(jobs) => {
                self.tables.jobs.extend(jobs.into_iter().map(|(key, live)| (key.id(), live)));
            }
            Part::JobVersions(versions) => {
                let versions = versions.into_iter().map(|job| ((job.key.id(), job.version), job));
                self.job_versions.extend(versions);
            }
            Part::Backfills(backfills) => {
                self.tables
                    .backfills
                    .extend(backfills.into_iter().map(|backfill| (backfill.made.id, backfill)));
            }
            Part::Runs(runs) => runs.into_iter().for_each(|run| self.put_run(run)),
            Part::Holds(holds) => self.tables.holds.extend(holds),
            Part::Deliveries(rows) => {
                self.tables.deliveries.extend(rows.into_iter().map(|row| (row.id, row)));
            }
            Part::Executions(rows) => {
                self.tables.executions.extend(rows.into_iter().map(|row| (row.id, row)));
            }
            Part::Output(chunks) => {
                for chunk in chunks {
                    self.output.entry(chunk.execution).or_default().push_back(chunk);
                }
            }
            Part::Events(events) => self.events.extend(events),
            Part::End { seq } => {
                self.last_seq = seq;
                return Some(seq);
            }
        }
        None
    }

    /// Applies all of these changes or none.
    fn apply(&mut self, changes: &[Change]) -> Result<(), (usize, Refusal)> {
        let needs = Needs::of(changes, NewIds::Checked);
        let mut touched = pick(&self.tables, &needs);
        let held = touched.holds.clone();
        touched.apply_in_order(changes)?;
        put_back(&mut self.tables, touched, &needs, &held);
        Ok(())
    }
}

/// Returns a copy of the rows that are needed.
fn pick(tables: &Tables, needs: &Needs<'_>) -> Tables {
    let find_key = |&(cluster, key): &(ClusterId, &str)| {
        let key = (cluster, key.to_owned());
        tables.keys.get(&key).cloned().map(|run| (key, run))
    };
    let find_run = |&id: &&RunId| Some((id.clone(), tables.runs.get(id)?.clone()));
    let wanted = needs.executions.iter().filter_map(|id| tables.executions.get(id));
    let executions = wanted.chain(tables.busy_on(&needs.reserved));
    let held = |(node, run): &(&NodeId, &RunId)| needs.held.contains(node) || needs.holders.contains(run);
    let mut picked = Tables::default();
    picked.clusters.clone_from(&tables.clusters);
    picked.nodes.extend(
        needs.nodes.iter().chain(&needs.sessions).filter_map(|id| Some((*id, tables.nodes.get(id)?.clone()))),
    );
    picked.deleted.extend(needs.deleted.intersection(&tables.deleted));
    picked.jobs.extend(needs.jobs.iter().filter_map(|id| Some((*id, *tables.jobs.get(id)?))));
    let find_backfill = |id: &BackfillId| Some((*id, tables.backfills.get(id)?.clone()));
    picked.backfills.extend(needs.backfills.iter().filter_map(find_backfill));
    let find_delivery = |id: &DeliveryId| Some((*id, tables.deliveries.get(id)?.clone()));
    picked.deliveries.extend(needs.deliveries.iter().filter_map(find_delivery));
    picked.runs.extend(needs.runs.iter().filter_map(find_run));
    picked.keys.extend(needs.keys.iter().filter_map(find_key));
    picked.executions.extend(executions.map(|execution| (execution.id, execution.clone())));
    picked.holds.extend(tables.holds.iter().filter(held).map(|(node, run)| (*node, run.clone())));
    picked
}

/// Replaces the picked rows; `held` are the former holds of the picked runs.
fn put_back(tables: &mut Tables, picked: Tables, needs: &Needs<'_>, held: &BTreeMap<NodeId, RunId>) {
    tables.clusters = picked.clusters;
    tables.holds.retain(|node, _| !held.contains_key(node));
    tables.holds.extend(picked.holds);
    tables.nodes.retain(|node, _| !needs.nodes.contains(node));
    tables.nodes.extend(picked.nodes);
    tables.deleted.extend(picked.deleted);
    tables.jobs.extend(picked.jobs);
    tables.backfills.extend(picked.backfills);
    tables.deliveries.extend(picked.deliveries);
    tables.runs.extend(picked.runs);
    tables.keys.extend(picked.keys);
    tables.homes.extend(picked.homes);
    tables.node_homes.extend(picked.node_homes);
    tables.executions.extend(picked.executions);
}

#[async_trait]
impl Source for MemoryStore {
    async fn snapshot(&self, to: mpsc::Sender<Part>) -> Result<()> {
        let parts = self.lock().parts();
        for part in parts {
            to.send(part).await.map_err(|_| interrupted())?;
        }
        Ok(())
    }

    async fn kept(&self) -> Result<Kept> {
        let state = self.lock();
        let ended = state.runs(|run| run.live.is_ended());
        let ends: Vec<(Timestamp, RunId)> =
            ended.into_iter().filter_map(|run| Some((run.live.finished_at()?, run.id.clone()))).collect();
        Ok(Kept {
            first_seq: state.events.front().map(|event| event.seq),
            first_ended: ends.iter().filter(|(_, id)| !id.is_debug()).min().cloned(),
            first_debug: ends.into_iter().filter(|(_, id)| id.is_debug()).min(),
            first_deleted: state.tombstones.values().map(|tombstone| tombstone.at).min(),
            output_removed: state.output_removed.clone(),
            removed: state.removed_clusters.iter().copied().collect(),
            standing: None,
        })
    }

    async fn presence(&self) -> Result<Vec<Seen>> {
        let state = self.lock();
        Ok(state.tables.nodes.iter().map(|(id, node)| (*id, node.session, node.seen_at)).collect())
    }

    async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>> {
        let state = self.lock();
        let from: BTreeMap<_, _> = from.iter().copied().collect();
        let kept = from.iter().filter_map(|(id, from)| Some((state.output.get(id)?, *from)));
        let chunks = kept.flat_map(|(kept, from)| kept.iter().filter(move |chunk| end_of(chunk) > from));
        Ok(chunks.take(limit as usize).cloned().collect())
    }
}

#[async_trait]
impl Replica for MemoryStore {
    async fn is_copied(&self) -> Result<bool> {
        Ok(self.lock().copied)
    }

    async fn replace(&self, mut parts: mpsc::Receiver<Part>) -> Result<u64> {
        let mut copy = State { copied: true, ..State::empty() };
        while let Some(part) = parts.recv().await {
            if let Some(seq) = copy.put(part) {
                let mut state = self.lock();
                copy.servers = std::mem::take(&mut state.servers);
                *state = copy;
                return Ok(seq);
            }
        }
        Err(interrupted())
    }

    async fn replicate(
        &self,
        events: &[Event],
        output: &[OutputChunk],
        keep_bytes: u64,
    ) -> Result<Replicated> {
        let mut state = self.lock();
        if let Err(gap) = follows(state.last_seq, events) {
            return Ok(Replicated::Diverged(gap));
        }
        let changes = replayed(events);
        if let Err((index, refusal)) = state.apply(&changes) {
            return Ok(refused(&events[index], refusal));
        }
        for event in events {
            state.record(event.clone());
        }
        state.append(output, keep_bytes);
        Ok(Replicated::Applied)
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        let mut state = self.lock();
        let gone = state.runs(|run| {
            let is_before = |at: Timestamp, first: &Option<(Timestamp, RunId)>| {
                first.as_ref().is_none_or(|first| (at, &run.id) < (first.0, &first.1))
            };
            let first = if run.id.is_debug() { &kept.first_debug } else { &kept.first_ended };
            run.live.finished_at().is_some_and(|at| is_before(at, first))
        });
        for run in gone {
            state.remove_run(&run.id);
        }
        if let Some(last) = kept.output_removed.clone() {
            let ended = state.ended_before(Timestamp::MAX).into_iter().take_while(move |run| *run <= last);
            state.remove_output(ended, u64::MAX);
        }
        for cluster in state.removed_clusters.clone() {
            state.remove_cluster(cluster);
        }
        if let Some(rule) = kept.standing {
            let kept = StandingKept::of(rule, state.clusters.values());
            state.prune_standing(&kept, STANDING_MOST * STANDING_STEPS as u32);
        }
        state.forget_deleted(kept.first_deleted.unwrap_or(Timestamp::MAX));
        match kept.first_seq {
            Some(first) => {
                let count = state.events.partition_point(|event| event.seq < first);
                state.events.drain(..count);
            }
            None => state.events.clear(),
        }
        Ok(())
    }

    async fn see_nodes(&self, seen: &[Seen]) -> Result<()> {
        let mut state = self.lock();
        for (id, session, at) in seen {
            if let Some(node) = state.tables.nodes.get_mut(id).filter(|node| node.session == *session) {
                node.seen_at = node.seen_at.max(*at);
            }
        }
        Ok(())
    }

    async fn set_servers(&self, servers: &[ServerRecord]) -> Result<()> {
        self.lock().servers = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
        Ok(())
    }
}
