//! Owns the evidence that the checkers read, gathered once at the end of a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use downbeat_core::change::About;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId};
use downbeat_core::job::JobRecord;
use downbeat_core::node::NodeRecord;
use downbeat_core::plan::Plan;
use downbeat_core::run::{RunBrief, RunRecord};
use downbeat_core::{Change, Event, Portion, Timestamp};
use downbeat_store::{
    EventFilter, Events, ExecutionFilter, Executions, Jobs, MemoryStore, Nodes, Page, RunFilter, Runs,
};
use jiff::SignedDuration;
use uuid::Uuid;

use super::clusters::Homes;
use super::feed;
use crate::cluster::Cluster;
use crate::seed::Broken;
use crate::truth::{Commit, Truth};

const NEVER_FAILS: &str = "the memory store does not fail";

pub(crate) struct Evidence {
    /// All events, as they were committed.
    pub(crate) events: Vec<Event>,
    /// The events that the store has.
    pub(crate) kept: Vec<Event>,
    pub(crate) last_seq: u64,
    /// With the rows that pruning removed, if they can be replayed.
    pub(crate) tables: Tables,
    /// The tables that result from replaying the feed, or why the replay failed.
    pub(crate) replayed: Result<Tables, String>,
    pub(crate) plans: BTreeMap<RunId, Arc<Plan>>,
    pub(crate) truth: Truth,
    pub(crate) slots: u32,
    pub(crate) lease_ttl: Duration,
    pub(crate) stale_after: Duration,
    pub(crate) max_concurrent_runs: Option<u32>,
    pub(crate) hosts: BTreeMap<NodeId, usize>,
    pub(super) homes: Homes,
    pub(super) left: Left,
}

/// What the store has of deleted clusters.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) clusters: Vec<ClusterId>,
    pub(super) nodes: usize,
    pub(super) runs: usize,
    pub(super) executions: usize,
}

impl Left {
    async fn of(store: &MemoryStore, homes: &Homes) -> Self {
        let mut left = Self {
            clusters: store.removed_clusters().await.expect(NEVER_FAILS),
            executions: store.executions_by_id(&homes.deleted_executions()).await.expect(NEVER_FAILS).len(),
            ..Self::default()
        };
        for cluster in &homes.deleted {
            left.nodes += store.nodes(Some(*cluster)).await.expect(NEVER_FAILS).len();
        }
        for run in homes.deleted_runs() {
            left.runs += usize::from(store.run(run).await.expect(NEVER_FAILS).is_some());
        }
        left
    }
}

/// The contents of a store, without the fields that no change sets: when nodes were last seen.
#[derive(Debug, PartialEq)]
pub(crate) struct Tables {
    pub(crate) clusters: Vec<ClusterRecord>,
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) jobs: Vec<JobRecord>,
    pub(crate) runs: BTreeMap<RunId, RunRecord>,
    pub(crate) executions: BTreeMap<ExecutionId, Execution>,
}

/// Everything that a replica copies.
#[derive(Debug, PartialEq)]
pub(crate) struct Contents {
    events: Vec<Event>,
    tables: Tables,
}

impl Contents {
    pub(crate) async fn of(store: &MemoryStore) -> Self {
        let all = Portion::of_rows(usize::MAX);
        let mut events = store.events(&EventFilter::default(), all).await.expect(NEVER_FAILS);
        let mut tables = Tables::of(store).await;
        // A replica does not get tokens.
        let hidden = LeaseToken(Uuid::nil());
        events.iter_mut().flat_map(|event| event.change.tokens_mut()).for_each(|token| *token = hidden);
        let leases = tables.executions.values_mut().filter_map(|execution| execution.state.lease_mut());
        leases.for_each(|lease| lease.token = hidden);
        Self { events, tables }
    }

    /// Returns the first difference from `other`, in short.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.events != other.events {
            let range =
                |events: &[Event]| (events.first().map(|one| one.seq), events.last().map(|one| one.seq));
            let differs = self.events.iter().zip(&other.events).find(|(one, two)| one != two);
            let (own, theirs) = (range(&self.events), range(&other.events));
            return Some(format!("events {own:?} and {theirs:?}; the first that differs: {differs:?}"));
        }
        if self.tables.clusters != other.tables.clusters {
            let (own, theirs) = (&self.tables.clusters, &other.tables.clusters);
            return Some(format!("clusters {own:?} and {theirs:?}"));
        }
        if self.tables.jobs != other.tables.jobs {
            return Some(format!("jobs {:?} and {:?}", self.tables.jobs, other.tables.jobs));
        }
        let run = self.tables.runs.iter().find(|(id, run)| other.tables.runs.get(id) != Some(run));
        let execution =
            self.tables.executions.iter().find(|(id, one)| other.tables.executions.get(id) != Some(one));
        (self.tables != other.tables).then(|| format!("rows: {run:?}, {execution:?}"))
    }
}

impl Tables {
    pub(crate) async fn of(store: &MemoryStore) -> Self {
        let mut nodes = store.nodes(None).await.expect(NEVER_FAILS);
        for node in &mut nodes {
            node.seen_at = node.registered_at;
        }
        let listed = store.runs(&RunFilter::default(), &Page::first(u32::MAX)).await.expect(NEVER_FAILS).rows;
        let mut runs = BTreeMap::new();
        for RunBrief { id, .. } in listed {
            let run = store.run(&id).await.expect(NEVER_FAILS).expect("it is listed");
            runs.insert(id, run);
        }
        let clusters = store.clusters().await.expect(NEVER_FAILS);
        // Lists do not show standing runs.
        for cluster in &clusters {
            let id = RunId::standing(cluster.id);
            runs.extend(store.run(&id).await.expect(NEVER_FAILS).map(|run| (id, run)));
        }
        let filter = ExecutionFilter::default();
        let executions = store.executions(&filter, &Page::first(u32::MAX)).await.expect(NEVER_FAILS).rows;
        let jobs = store.jobs(None, u32::MAX).await.expect(NEVER_FAILS);
        Self {
            clusters,
            nodes,
            jobs,
            runs,
            executions: executions.into_iter().map(|each| (each.id, each)).collect(),
        }
    }
}

/// How far the clocks of two servers may differ.
const CLOCK_DOUBT: SignedDuration = SignedDuration::from_millis(500);

/// Returns the true time that must pass before servers conclude that `duration` has passed. Their clock gains at most
/// one part in a hundred on the true time.
pub(super) fn at_least(duration: Duration) -> SignedDuration {
    let duration = SignedDuration::try_from(duration).expect("durations are short");
    duration - duration / 100 - CLOCK_DOUBT
}

impl Tables {
    /// Adds runs that ended before `before` and are only in `replayed`, with their executions. Returns their number.
    fn restore(&mut self, replayed: &Self, before: Timestamp) -> u64 {
        let is_old = |run: &RunRecord| run.live.finished_at().is_some_and(|at| at < before);
        let is_removed = |run: &RunRecord| is_old(run) && !self.runs.contains_key(&run.id);
        let removed: BTreeMap<RunId, RunRecord> = replayed
            .runs
            .values()
            .filter(|run| is_removed(run))
            .map(|run| (run.id.clone(), run.clone()))
            .collect();
        let executions = replayed.executions.values().filter(|each| removed.contains_key(each.run()));
        self.executions.extend(executions.map(|each| (each.id, each.clone())));
        let count = removed.len() as u64;
        self.runs.extend(removed);
        count
    }

    /// Adds executions that are only in `replayed`: those of deleted clusters, and ended ones of standing tasks that a
    /// later attempt followed.
    fn restore_executions(&mut self, replayed: &Self, homes: &Homes) {
        let mut last: BTreeMap<_, u32> = BTreeMap::new();
        for each in replayed.executions.values().filter(|each| each.run().is_standing()) {
            let attempt = last.entry((each.run(), each.step(), each.pinned)).or_default();
            *attempt = each.attempt.max(*attempt);
        }
        let is_followed = |each: &Execution| {
            let last = last.get(&(each.run(), each.step(), each.pinned));
            !each.state.status().is_open() && last.is_some_and(|last| each.attempt < *last)
        };
        let is_removed = |each: &&Execution| homes.is_deleted(each.id) || is_followed(each);
        for each in replayed.executions.values().filter(is_removed) {
            self.executions.entry(each.id).or_insert_with(|| each.clone());
        }
    }
}

impl Evidence {
    /// Returns the commit of an event.
    pub(super) fn commit_of(&self, event: &Event) -> Option<&Commit> {
        let index = usize::try_from(event.seq - 1).expect("sequence numbers are small here");
        self.truth.commits.get(index)
    }

    /// Returns the true time at which an event was committed.
    pub(super) fn committed_at(&self, event: &Event) -> Option<Timestamp> {
        self.commit_of(event).map(|commit| commit.at)
    }

    /// Returns the last heartbeat of a node that was recorded by then.
    pub(super) fn last_heard(&self, node: NodeId, by: Timestamp) -> Option<Timestamp> {
        self.last_heard_within(node, Timestamp::MIN, by)
    }

    /// Returns the last heartbeat of a node that was recorded within this time.
    pub(super) fn last_heard_within(
        &self,
        node: NodeId,
        from: Timestamp,
        by: Timestamp,
    ) -> Option<Timestamp> {
        let renewals = self.truth.renewals.iter().filter(|one| one.node == node);
        renewals.filter(|one| (from..=by).contains(&one.applied)).map(|one| one.at).max()
    }

    pub(crate) async fn gather(cluster: &Cluster, broken: Option<Broken>) -> Self {
        let store = &cluster.memory;
        let mut kept =
            store.events(&EventFilter::default(), Portion::of_rows(usize::MAX)).await.expect(NEVER_FAILS);
        if broken == Some(Broken::FeedGap) {
            kept.retain(|event| event.seq % 17 != 0);
        }
        let (events, pruned_before) = cluster.world.truth(|truth| {
            let mut events: Vec<Event> = truth.commits.iter().map(|commit| commit.event.clone()).collect();
            if broken == Some(Broken::ForgedMove) {
                events
                    .iter_mut()
                    .filter(|event| event.seq % 3 == 0)
                    .for_each(|event| forge(&mut event.change));
            }
            (events, truth.pruned_before)
        });
        let replayed = feed::replay(&events).await;
        let mut tables = Tables::of(store).await;
        let homes = Homes::of(&events);
        let left = Left::of(store, &homes).await;
        let mut pruned = 0;
        if let (Ok(replayed), Some(before)) = (&replayed, pruned_before) {
            pruned = tables.restore(replayed, before);
        }
        if let Ok(replayed) = &replayed {
            tables.restore_executions(replayed, &homes);
        }
        // Of every run, whether it still exists or not.
        let plans = events.iter().filter_map(|event| match &event.change {
            Change::RunCreated { run, .. } if !run.id.is_standing() => {
                let plan = Plan::compile(run.definition.clone(), run.resolved.clone());
                Some((run.id.clone(), Arc::new(plan.expect("accepted jobs compile"))))
            }
            _ => None,
        });
        let plans = plans.collect();
        let truth = cluster.world.truth(|truth| {
            truth.counts.events = events.len() as u64;
            truth.counts.runs = tables.runs.len() as u64;
            truth.counts.executions = tables.executions.len() as u64;
            truth.counts.pruned = pruned;
            for event in &events {
                match event.change {
                    Change::ExecutionLost { ref reason, .. } if !reason.contains("by force") => {
                        truth.counts.lost += 1;
                        truth.counts.unreported += u64::from(reason.contains("did not report the end"));
                    }
                    Change::RunTaken { .. } => truth.counts.takeovers += 1,
                    Change::NodeDeleted { .. } => truth.counts.deletions += 1,
                    Change::ClusterDeleted { .. } => truth.counts.clusters_deleted += 1,
                    Change::RunCreated { firing: Some(_), .. } => truth.counts.firings += 1,
                    Change::JobDecided { ref skipped, ref refused, .. } => {
                        let skipped: usize = skipped.iter().map(|skipped| skipped.count).sum();
                        truth.counts.not_fired += (skipped + refused.len()) as u64;
                    }
                    _ => {}
                }
            }
            let counts = truth.counts;
            Truth { counts, ..std::mem::take(truth) }
        });
        cluster.world.truth(|left| left.counts = truth.counts);
        Self {
            last_seq: store.last_seq().await.expect(NEVER_FAILS),
            replayed,
            events,
            kept,
            plans,
            tables,
            truth,
            slots: cluster.shape.slots,
            lease_ttl: cluster.shape.lease_ttl(),
            stale_after: cluster.shape.stale_after(),
            max_concurrent_runs: cluster.shape.max_concurrent_runs,
            hosts: (0..cluster.shape.all_agents())
                .filter_map(|agent| Some((cluster.node(agent)?, agent)))
                .collect(),
            homes,
            left,
        }
    }
}

/// Removes the last state of a run that a schedule started.
fn forge(change: &mut Change) {
    if let Change::RunMoved { run, path, .. } = change
        && run.schedule().is_some()
        && path.last().is_some_and(|state| state.is_terminal())
    {
        path.pop();
    }
}

#[cfg(test)]
impl Evidence {
    /// Returns the evidence of these commits of one server, each with its second.
    pub(super) async fn of(commits: Vec<(i64, Vec<Change>)>) -> Self {
        use downbeat_store::conformance::make::{SERVER, at};

        let mut truth = Truth::default();
        for (number, (second, changes)) in (1..).zip(commits) {
            for change in changes {
                let (seq, about) = (truth.commits.len() as u64 + 1, About::default());
                let event = Event { seq, server: SERVER, about, change };
                truth.commits.push(Commit { number, event, at: at(second) });
            }
        }
        let events: Vec<Event> = truth.commits.iter().map(|commit| commit.event.clone()).collect();
        let tables = feed::replay(&events).await.expect("the changes are legal");
        let submitted = tables.runs.values().filter(|run| !run.id.is_standing());
        let plans = submitted.map(|run| {
            let plan = Plan::compile(run.definition.clone(), run.resolved.clone());
            (run.id.clone(), Arc::new(plan.expect("the job compiles")))
        });
        Self {
            homes: Homes::of(&events),
            left: Left::default(),
            kept: events.clone(),
            last_seq: events.len() as u64,
            plans: plans.collect(),
            events,
            tables,
            replayed: Err("it is not replayed".to_owned()),
            truth,
            slots: 1,
            lease_ttl: Duration::from_secs(3),
            stale_after: Duration::from_secs(3),
            max_concurrent_runs: None,
            hosts: BTreeMap::new(),
        }
    }
}
