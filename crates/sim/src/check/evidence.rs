//! Owns the evidence that the checkers read, gathered once at the end of a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::plan::Plan;
use downbeat_core::run::RunRecord;
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::{
    EventFilter, Events, ExecutionFilter, Executions, MemoryStore, Nodes, Page, RunFilter, Runs,
};
use jiff::SignedDuration;

use super::feed;
use crate::cluster::Cluster;
use crate::seed::Broken;
use crate::truth::Truth;

const NEVER_FAILS: &str = "the memory store does not fail";

pub(crate) struct Evidence {
    pub(crate) events: Vec<Event>,
    pub(crate) last_seq: u64,
    pub(crate) tables: Tables,
    /// The tables that result from replaying the feed, or why the replay failed.
    pub(crate) replayed: Result<Tables, String>,
    pub(crate) plans: BTreeMap<RunId, Arc<Plan>>,
    pub(crate) truth: Truth,
    pub(crate) slots: u32,
    pub(crate) lease_ttl: Duration,
    pub(crate) stale_after: Duration,
    /// True if the servers use the store's clock, which is correct.
    pub(crate) is_shared: bool,
    pub(crate) hosts: BTreeMap<NodeId, usize>,
}

/// The contents of a store, without the fields that no change sets: when nodes were last seen.
#[derive(Debug, PartialEq)]
pub(crate) struct Tables {
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) runs: BTreeMap<RunId, RunRecord>,
    pub(crate) executions: BTreeMap<ExecutionId, Execution>,
}

impl Tables {
    pub(crate) async fn of(store: &MemoryStore) -> Self {
        let mut nodes = store.nodes(None).await.expect(NEVER_FAILS);
        for node in &mut nodes {
            node.seen_at = node.registered_at;
        }
        let runs = store.runs(&RunFilter::default(), &Page::first(u32::MAX)).await.expect(NEVER_FAILS).rows;
        let executions = store
            .executions(&ExecutionFilter::default(), &Page::first(u32::MAX))
            .await
            .expect(NEVER_FAILS)
            .rows;
        Self {
            nodes,
            runs: runs.into_iter().map(|run| (run.id.clone(), run)).collect(),
            executions: executions.into_iter().map(|each| (each.id, each)).collect(),
        }
    }
}

/// The largest error of a server's estimate of the store's clock: half of the slowest response that it accepts.
pub(super) const CLOCK_DOUBT: SignedDuration = SignedDuration::from_millis(250);

impl Evidence {
    /// Returns the true time at which an event was committed.
    pub(super) fn committed_at(&self, event: &Event) -> Option<Timestamp> {
        let index = usize::try_from(event.seq - 1).expect("sequence numbers are small here");
        self.truth.commits.get(index).copied()
    }

    /// Returns the last heartbeat of a node that was recorded by then.
    pub(super) fn last_heard(&self, node: NodeId, by: Timestamp) -> Option<Timestamp> {
        let renewals = self.truth.renewals.iter().filter(|one| one.node == node && one.applied <= by);
        renewals.map(|one| one.at).max()
    }

    pub(crate) async fn gather(cluster: &Cluster, broken: Option<Broken>) -> Self {
        let store = &cluster.memory;
        let mut events = store.events(&EventFilter::default(), u32::MAX).await.expect(NEVER_FAILS);
        if broken == Some(Broken::FeedGap) {
            events.retain(|event| event.seq % 17 != 0);
        }
        let tables = Tables::of(store).await;
        let plans = tables.runs.values().map(|run| {
            let plan = Plan::compile(run.definition.clone(), run.resolved.clone());
            (run.id.clone(), Arc::new(plan.expect("accepted jobs compile")))
        });
        let plans = plans.collect();
        let truth = cluster.world.truth(|truth| {
            truth.counts.events = events.len() as u64;
            truth.counts.runs = tables.runs.len() as u64;
            truth.counts.executions = tables.executions.len() as u64;
            for event in &events {
                match event.change {
                    Change::ExecutionLost { .. } => truth.counts.lost += 1,
                    Change::RunTaken { .. } => truth.counts.takeovers += 1,
                    Change::NodeDeleted { .. } => truth.counts.deletions += 1,
                    _ => {}
                }
            }
            let counts = truth.counts;
            Truth { counts, ..std::mem::take(truth) }
        });
        cluster.world.truth(|left| left.counts = truth.counts);
        Self {
            last_seq: store.last_seq().await.expect(NEVER_FAILS),
            replayed: feed::replay(&events).await,
            events,
            plans,
            tables,
            truth,
            slots: cluster.shape.slots,
            lease_ttl: cluster.shape.lease_ttl(),
            stale_after: cluster.shape.stale_after(),
            is_shared: cluster.shape.is_shared,
            hosts: (0..cluster.shape.agents)
                .map(|agent| (NodeId::derive(ClusterId::DEFAULT, &format!("n{agent}")), agent))
                .collect(),
        }
    }
}
