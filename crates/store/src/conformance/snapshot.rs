//! Owns a dump of a whole store through its port, to compare stores, and a store with rows of every kind.

use std::sync::Arc;

use downbeat_core::change::{Change, Event};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::{Execution, State, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::job::{BackfillRecord, JobRecord, JobVersion};
use downbeat_core::node::{Former, NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunBrief, RunEnd, RunMade, RunRecord, RunState};
use downbeat_core::spec::Limits;
use downbeat_core::state::LimitUse;

use super::limits::some_limits;
use super::make::*;
use crate::port::{
    DeliveryFilter, EventFilter, ExecutionFilter, JobVersionBrief, OutputChunk, Page, RunFilter,
    ServerRecord, Store, Tally,
};

const ALL: u32 = 100_000;

/// Everything that can be read from a store.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    pub clusters: Vec<ClusterRecord>,
    pub removed_clusters: Vec<ClusterId>,
    pub nodes: Vec<NodeRecord>,
    pub tombstones: Vec<Tombstone>,
    pub jobs: Vec<(JobRecord, Vec<JobVersion>)>,
    /// Of the jobs that are not deleted.
    pub backfills: Vec<BackfillRecord>,
    pub deliveries: Vec<Delivery>,
    pub runs: Vec<RunRecord>,
    pub holds: Vec<(NodeId, RunId)>,
    pub uses: Vec<LimitUse>,
    pub executions: Vec<Execution>,
    pub output: Vec<Vec<OutputChunk>>,
    pub servers: Vec<ServerRecord>,
    pub tally: Tally,
    pub events: Vec<Event>,
    pub last_seq: u64,
}

impl Snapshot {
    pub async fn of(store: &Arc<dyn Store>) -> Self {
        let executions = store
            .executions(&ExecutionFilter::default(), &Page::first(ALL))
            .await
            .expect("executions are read")
            .rows;
        let listed = store.runs(&RunFilter::default(), &Page::first(ALL)).await.expect("runs are read").rows;
        let mut runs = Vec::new();
        for listed in listed {
            let run = store.run(&listed.id).await.expect("a run is read").expect("it is listed");
            assert_eq!(listed, RunBrief::from(&run));
            runs.push(run);
        }
        let mut output = Vec::new();
        for execution in &executions {
            output.push(store.output(execution.id, 0, u32::MAX).await.expect("output is read"));
        }
        let (mut jobs, mut backfills) = (Vec::new(), Vec::new());
        for job in store.jobs(None, ALL).await.expect("jobs are read") {
            let id = job.key().id();
            let mut versions = Vec::new();
            for brief in store.job_versions(id).await.expect("versions are read") {
                let version = store.job_version(id, brief.version).await.expect("a version is read");
                let version = version.expect("it is listed");
                assert_eq!(brief, JobVersionBrief::of(&version));
                versions.push(version);
            }
            backfills.extend(store.backfills(id).await.expect("backfills are read"));
            jobs.push((job, versions));
        }
        Self {
            clusters: store.clusters().await.expect("clusters are read"),
            removed_clusters: store.removed_clusters().await.expect("deleted clusters are read"),
            nodes: store.nodes(None).await.expect("nodes are read"),
            tombstones: store.tombstones(None).await.expect("tombstones are read"),
            jobs,
            backfills,
            deliveries: store
                .deliveries(&DeliveryFilter::default(), None, ALL)
                .await
                .expect("deliveries are read"),
            runs,
            holds: store.holds().await.expect("holds are read"),
            uses: store.uses().await.expect("uses are read"),
            executions,
            output,
            servers: store.servers().await.expect("servers are read"),
            tally: store.tally().await.expect("a tally is read"),
            events: store.events(&EventFilter::default(), ALL_EVENTS).await.expect("events are read"),
            last_seq: store.last_seq().await.expect("the last number is read"),
        }
    }
}

/// Adds rows of every kind to a store.
pub async fn fill(store: &Arc<dyn Store>) {
    fill_clusters(store).await;
    apply(store, &[job_applied(1, 1), job_applied(2, 1), job_applied(3, 1)]).await;
    apply(store, &[job_applied(1, 2), job_deleted(2), job_paused(3, true)]).await;
    apply(store, &[job_decided(1, 2, 1, 70)]).await;
}

/// Adds rows of every kind that programs of the seventh level know.
async fn fill_clusters(store: &Arc<dyn Store>) {
    fill_final(store).await;
    let two = with_tasks(&cluster(2), &[1, 2]);
    let default =
        ClusterRecord::default_cluster().edited(at(60), |cluster| cluster.description = "old".to_owned());
    apply(store, &[cluster_created(2), cluster_created(3), cluster_changed(two), cluster_changed(default)])
        .await;
    apply(store, &[standing_created(2), registered_in(95, 2, 54), registered_in(96, 3, 55)]).await;
    let attempts = [standing(951, 2, 1, 95, 1, leased(951, 95)), standing(952, 2, 2, 95, 1, pending())];
    apply(store, &[standing_added(2, 2, attempts.to_vec())]).await;
    apply(store, &[standing_finished(2, 951, Verdict::Failed), cluster_deleted(3)]).await;
}

/// Adds rows of every kind that programs of the fifth and sixth level know.
pub async fn fill_final(store: &Arc<dyn Store>) {
    fill_nodes(store).await;
    apply(store, &[failed_for_good(84, 843, 1)]).await;
}

/// Adds rows of every kind that programs of the fourth level know.
pub async fn fill_nodes(store: &Arc<dyn Store>) {
    fill_graph(store).await;
    let former = Former::Session { session: session(91), silent_since: None };
    let registration = registration_of(91, session(92), 50, former);
    apply(store, &[registered(91, session(91), 49), Change::NodeRegistered { registration }]).await;
    apply(store, &[registered(93, session(93), 50), problems(91, session(92), &["the disk is full"])]).await;
    apply(store, &[deleted(93, session(93), 51), registered(94, session(94), 51)]).await;
    apply(store, &[deleted(94, session(94), 52)]).await;
    apply(store, &[registered(94, session(95), 53)]).await;
}

/// Adds rows of every kind that programs of the third level know.
pub async fn fill_graph(store: &Arc<dyn Store>) {
    fill_fleet(store).await;
    let graph = made_as(RunMade { no_cache: true, ..made(84) });
    let limits = || some_limits().into_iter().flatten();
    let item = |(number, limits): (u32, Arc<Limits>)| Execution {
        of: origin(84, 0, Some(number - 841)),
        limits: Some(limits),
        cache_key: Some(Arc::from("key")),
        ..execution(number, 84, pending())
    };
    let items = (841..).zip(limits()).map(item).collect();
    apply(store, &[created_as(graph), added(84, items)]).await;
    for number in [841, 843, 844] {
        apply(store, &[granted(84, number, lease(number, 1))]).await;
    }
    apply(store, &[finished(84, 841, 841, Verdict::Succeeded), finished(84, 843, 843, Verdict::Failed)])
        .await;
}

/// Adds rows of every kind that programs of the second level know.
pub async fn fill_fleet(store: &Arc<dyn Store>) {
    fill_first(store).await;
    let paused = Change::RunPauseSet { run: run_id(82), paused: true, by: "ada".to_owned(), at: at(47) };
    apply(store, &[created(81), created(82), created(83), admitted(81, Some(9), &[3, 4]), paused]).await;
    let finished = finished_with(81, 81, 81, outcome_with_outputs());
    apply(store, &[added(81, vec![execution(81, 81, leased(81, 3))]), finished, admitted(83, None, &[5])])
        .await;
    apply(store, &[moved(83, &[RunState::Cancelled], 48)]).await;
}

/// Adds rows of every kind that programs of the first level know.
pub async fn fill_first(store: &Arc<dyn Store>) {
    apply(store, &[registered(1, session(1), 1), registered(2, session(2), 2), created(1), created(2)]).await;
    apply(
        store,
        &[
            Change::NodeMoved {
                node: node(2),
                session: session(2),
                from: NodeStatus::Online,
                to: NodeStatus::Stale,
                silent_since: None,
                at: at(3),
            },
            Change::NodeDrainSet { node: node(1), draining: true, by: "ada".to_owned(), at: at(4) },
            moved(1, &[RunState::Starting, RunState::Running], 5),
            added(1, (1..=8).map(|number| execution(number, 1, pending())).collect()),
            added(1, vec![execution(9, 1, leased(9, 2))]),
            added(2, vec![execution(10, 2, State::Skipped { reason: "not now".to_owned(), at: at(6) })]),
        ],
    )
    .await;
    let leases: Vec<Change> = (1..=6).map(|number| granted(1, number, lease(number, 1))).collect();
    apply(store, &leases).await;
    let text = |text: &str| text.to_owned();
    apply(
        store,
        &[
            started(1, 1, 1, 21),
            started(1, 5, 5, 21),
            finished(1, 1, 1, Verdict::Succeeded),
            finished(1, 2, 2, Verdict::Failed),
            finished(1, 3, 3, Verdict::Cancelled),
            lost(1, 5, 5, None, 40),
            stop_requested(1, 6, 1, 41),
            given_up(1, 7, 1, 42),
            skipped(1, 8, 1, 43),
            Change::RunCancelRequested { run: run_id(2), by: text("ada"), at: at(44) },
            Change::RunTaken { run: run_id(2), owner: server(2), epoch: 2, at: at(45) },
            Change::RunMoved {
                room: None,
                run: run_id(1),
                epoch: 1,
                path: vec![RunState::Terminating, RunState::Failed],
                stop: None,
                end: Some(RunEnd { partial: true, error: Some(text("2 failed")) }),
                at: at(46),
            },
        ],
    )
    .await;
}

/// Adds output and servers, which are not changes.
pub async fn fill_beside(store: &Arc<dyn Store>) {
    store.append_output(&[chunk(1, 0, "grüße\n")], 1024).await.expect("output is written");
    store.put_server(&server_record(1, "one", 2)).await.expect("a server is written");
}
