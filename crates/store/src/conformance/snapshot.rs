//! Owns a dump of a whole store through its port, to compare stores, and a store with rows of every kind.

use std::sync::Arc;

use downbeat_core::change::{Change, Event};
use downbeat_core::execution::{Execution, State, Stream, Verdict};
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::{Former, NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunEnd, RunMade, RunRecord, RunState};
use downbeat_core::spec::Limits;
use downbeat_core::state::LimitUse;
use downbeat_core::work::Parent;

use super::limits::some_limits;
use super::make::{
    added, admitted, apply, at, created, deleted, execution, execution_id, failed_for_good, finished, lease,
    leased, made, made_as, moved, node, origin, outcome_with_outputs, pending, problems, registered,
    registration_of, run_id, server, session, token,
};
use crate::port::{EventFilter, ExecutionFilter, OutputChunk, Page, RunFilter, ServerRecord, Store, Tally};

const ALL: Page = Page { limit: 100_000, offset: 0 };

/// Everything that can be read from a store.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    pub nodes: Vec<NodeRecord>,
    pub tombstones: Vec<Tombstone>,
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
        let executions =
            store.executions(&ExecutionFilter::default(), ALL).await.expect("executions are read").rows;
        let mut output = Vec::new();
        for execution in &executions {
            output.push(store.output(execution.id, 0, u32::MAX).await.expect("output is read"));
        }
        Self {
            nodes: store.nodes(None).await.expect("nodes are read"),
            tombstones: store.tombstones(None).await.expect("tombstones are read"),
            runs: store.runs(&RunFilter::default(), ALL).await.expect("runs are read").rows,
            holds: store.holds().await.expect("holds are read"),
            uses: store.uses().await.expect("uses are read"),
            executions,
            output,
            servers: store.servers().await.expect("servers are read"),
            tally: store.tally().await.expect("a tally is read"),
            events: store.events(&EventFilter::default(), u32::MAX).await.expect("events are read"),
            last_seq: store.last_seq().await.expect("the last number is read"),
        }
    }
}

/// Adds rows of every kind to a store.
pub async fn fill(store: &Arc<dyn Store>) {
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
    apply(store, &[Change::RunCreated { run: graph, max_pending: None }, added(84, items)]).await;
    for number in [841, 843, 844] {
        let (run, execution) = (run_id(84), execution_id(number));
        apply(store, &[Change::ExecutionLeased { of: Parent::Run(run), execution, lease: lease(number, 1) }])
            .await;
    }
    apply(store, &[finished(84, 841, 841, Verdict::Succeeded), finished(84, 843, 843, Verdict::Failed)])
        .await;
}

/// Adds rows of every kind that programs of the second level know.
pub async fn fill_fleet(store: &Arc<dyn Store>) {
    fill_first(store).await;
    let paused = Change::RunPauseSet { run: run_id(82), paused: true, by: "ada".to_owned(), at: at(47) };
    apply(store, &[created(81), created(82), created(83), admitted(81, Some(9), &[3, 4]), paused]).await;
    let finished = Change::ExecutionFinished {
        of: Parent::Run(run_id(81)),
        execution: execution_id(81),
        token: token(81),
        outcome: outcome_with_outputs(),
    };
    apply(store, &[added(81, vec![execution(81, 81, leased(81, 3))]), finished, admitted(83, None, &[5])])
        .await;
    apply(store, &[moved(83, &[RunState::Cancelled], 48)]).await;
}

/// Adds rows of every kind that programs of the first level know.
pub async fn fill_first(store: &Arc<dyn Store>) {
    let (run, epoch) = (run_id(1), 1);
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
    let leases = (1..=6).map(|number| Change::ExecutionLeased {
        of: Parent::Run(run.clone()),
        execution: execution_id(number),
        lease: lease(number, 1),
    });
    apply(store, &leases.collect::<Vec<_>>()).await;
    let text = |text: &str| text.to_owned();
    apply(
        store,
        &[
            Change::ExecutionStarted {
                of: Parent::Run(run.clone()),
                execution: execution_id(1),
                token: token(1),
                at: at(21),
                received_at: None,
            },
            Change::ExecutionStarted {
                of: Parent::Run(run.clone()),
                execution: execution_id(5),
                token: token(5),
                at: at(21),
                received_at: None,
            },
            finished(1, 1, 1, Verdict::Succeeded),
            finished(1, 2, 2, Verdict::Failed),
            finished(1, 3, 3, Verdict::Cancelled),
            Change::ExecutionLost {
                of: Parent::Run(run.clone()),
                execution: execution_id(5),
                token: token(5),
                silence: None,
                reason: text("silence"),
                at: at(40),
            },
            Change::ExecutionCancelRequested {
                run: run.clone(),
                execution: execution_id(6),
                epoch,
                reason: text("enough"),
                at: at(41),
            },
            Change::ExecutionGivenUp {
                run: run.clone(),
                execution: execution_id(7),
                epoch,
                error: text("no node fits"),
                at: at(42),
            },
            Change::ExecutionSkipped {
                run: run.clone(),
                execution: execution_id(8),
                epoch,
                reason: text("another failed"),
                at: at(43),
            },
            Change::RunCancelRequested { run: run_id(2), by: text("ada"), at: at(44) },
            Change::RunTaken { run: run_id(2), owner: server(2), epoch: 2, at: at(45) },
            Change::RunMoved {
                run,
                epoch,
                path: vec![RunState::Terminating, RunState::Failed],
                end: Some(RunEnd { partial: true, error: Some(text("2 failed")) }),
                at: at(46),
            },
        ],
    )
    .await;
}

/// Adds output and servers, which are not changes.
pub async fn fill_beside(store: &Arc<dyn Store>) {
    let chunk = OutputChunk {
        execution: execution_id(1),
        offset: 0,
        stream: Stream::Stderr,
        text: "grüße\n".to_owned(),
        at: at(30),
    };
    store.append_output(&[chunk], 1024).await.expect("output is written");
    let record = ServerRecord {
        id: server(1),
        name: "one".to_owned(),
        http: "127.0.0.1:1".to_owned(),
        grpc: "127.0.0.1:2".to_owned(),
        version: "1".to_owned(),
        started_at: at(1),
        seen_at: at(2),
        level: 1,
    };
    store.put_server(&record).await.expect("a server is written");
}
