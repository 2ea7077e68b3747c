//! Random batches have the same outcomes and leave the same tables on every store.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Decision, Execution, Lease, State, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, RunId};
use downbeat_core::node::{Former, NodeStatus};
use downbeat_core::run::{RunEnd, RunMade, RunState};
use downbeat_core::spec::Limits;
use downbeat_core::work::Parent;
use downbeat_store::conformance::limits::some_limits;
use downbeat_store::conformance::make::{
    SERVER, added, at, cluster, cluster_changed, cluster_created, cluster_deleted, cluster_id, created,
    deleted, execution, execution_id, execution_id_at, lease, leased, made, made_as, node, origin, outcome,
    pending, registered, registered_in, registration_of, run_id, server, session, standing, standing_added,
    standing_added_for, standing_created, token, with_tasks,
};
use downbeat_store::conformance::{Snapshot, executions::states};
use downbeat_store::{MemoryStore, Store};
use downbeat_testbed::Database;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use uuid::Uuid;

// Few of each, so that changes conflict.
const CLUSTERS: u32 = 2;
const NODES: u32 = 3;
const RUNS: u32 = 3;
const EXECUTIONS: u32 = 6;
const TOKENS: u32 = 3;
const KEYS: [&str; 2] = ["one", "two"];

fn status() -> impl Strategy<Value = NodeStatus> {
    select(NodeStatus::ALL.to_vec())
}

fn path() -> impl Strategy<Value = Vec<RunState>> {
    use RunState::{Cancelled, Completed, Failed, Orphaned, Running, Starting, Terminating};
    prop_oneof![
        4 => select(vec![
            vec![Starting, Running],
            vec![Running],
            vec![Terminating],
            vec![Terminating, Completed],
            vec![Terminating, Failed],
            vec![Cancelled],
            vec![Orphaned],
            vec![],
        ]),
        1 => prop::collection::vec(select(RunState::ALL.to_vec()), 0..3),
    ]
}

fn birth() -> impl Strategy<Value = State> {
    prop_oneof![3 => Just(State::Pending { not_before: None }), 2 => select(states())]
}

/// Returns the run that an execution is added to: the one with the same remainder.
fn home(number: u32) -> u32 {
    (number - 1) % RUNS + 1
}

/// A run and an execution, mostly of that run.
fn held() -> impl Strategy<Value = (RunId, ExecutionId)> {
    (1..=EXECUTIONS, prop::option::weighted(0.1, 1..=RUNS))
        .prop_map(|(number, elsewhere)| (run_id(elsewhere.unwrap_or(home(number))), execution_id(number)))
}

fn limits() -> impl Strategy<Value = Option<Arc<Limits>>> {
    select(some_limits())
}

fn cache_key() -> impl Strategy<Value = Option<Arc<str>>> {
    prop::option::of(select(KEYS.to_vec()).prop_map(Arc::from))
}

fn any_execution(of: u32) -> impl Strategy<Value = Execution> {
    let numbers: Vec<u32> = (1..=EXECUTIONS).filter(|&number| home(number) == of).collect();
    (select(numbers), birth(), 0..3_u32, prop::option::of(Just(node(1))), limits(), cache_key()).prop_map(
        move |(number, state, index, pinned, limits, cache_key)| Execution {
            of: origin(of, index, pinned.map(|_| index)),
            pinned,
            limits,
            cache_key,
            ..execution(number, of, state)
        },
    )
}

fn former(number: u32) -> Former {
    Former::Session { session: session(number), silent_since: None }
}

fn change() -> impl Strategy<Value = Change> {
    let second = 0..1_000_i64;
    let of = || (1..=RUNS).prop_map(run_id);
    let epoch = || prop_oneof![5 => Just(1_u64), 2 => Just(2), 1 => Just(3)];
    // The initial states of executions have token 1.
    let right = || prop_oneof![2 => Just(token(1)), 1 => (1..=TOKENS).prop_map(token)];
    let words = || select(vec!["", "why", "grüße 'quoted' \\ \n"]).prop_map(str::to_owned);
    let verdict = select(vec![Verdict::Succeeded, Verdict::Failed, Verdict::Cancelled]);
    let name = || select(vec!["default", "cluster-1", "cluster-2", "other"]).prop_map(str::to_owned);
    prop_oneof![
        // The ids of new clusters are new.
        1 => (any::<u128>(), name(), second.clone()).prop_map(|(id, name, second)| {
            let cluster = ClusterRecord::new(ClusterId(Uuid::from_u128(id)), name, String::new(), at(second));
            Change::ClusterCreated { cluster, by: "ada".to_owned(), at: at(second) }
        }),
        2 => (0..=CLUSTERS, 2..=3_u64, name(), second.clone()).prop_map(|(number, version, name, second)| {
            let (id, updated_at) = (if number == 0 { ClusterId::DEFAULT } else { cluster_id(number) }, at(second));
            cluster_changed(ClusterRecord { id, version, name, updated_at, ..with_tasks(&cluster(number), &[number]) })
        }),
        1 => (1..=CLUSTERS + 1).prop_map(cluster_deleted),
        1 => (1..=NODES, 1..=CLUSTERS, second.clone()).prop_map(|(node, of, at)| registered_in(node, of, at)),
        1 => (1..=CLUSTERS, 1..=3_u64, 1..=EXECUTIONS, 1..=3_u32).prop_map(|(of, version, number, attempt)| {
            standing_added(of, version, vec![standing(100 * of + number, of, 1, 1, attempt, pending())])
        }),
        // Mostly for the session with the number of the node, which is drawn most often, and late.
        3 => (1..=CLUSTERS, 1..=NODES, prop::option::weighted(0.2, 1..=4_u32), 900..1_000_i64).prop_map(
            |(of, on, by, second)| {
                let (id, created_at) = (execution_id_at(second), at(second));
                let step = Execution { id, created_at, ..standing(1, of, 1, on, 1, pending()) };
                standing_added_for(of, 1, [(step, session(by.unwrap_or(on)))])
            },
        ),
        1 => (1..=NODES, 1..=4_u32, second.clone()).prop_map(|(node, by, at)| registered(node, session(by), at)),
        1 => (1..=NODES, 1..=4_u32, status(), status(), second.clone()).prop_map(|(number, by, from, to, second)| {
            Change::NodeMoved { node: node(number), session: session(by), from, to, silent_since: None, at: at(second) }
        }),
        1 => (1..=NODES, any::<bool>(), words(), second.clone()).prop_map(|(number, draining, by, second)| {
            Change::NodeDrainSet { node: node(number), draining, by, at: at(second) }
        }),
        1 => (1..=NODES, 1..=4_u32, select(vec![Former::Any, Former::Nobody, former(1), former(2)]), second.clone())
            .prop_map(|(number, by, former, second)| Change::NodeRegistered {
                registration: registration_of(number, session(by), second, former),
            }),
        1 => (1..=NODES, 1..=4_u32, prop::collection::vec(words(), 0..3), second.clone())
            .prop_map(|(number, by, problems, second)| {
                Change::NodeProblemsSet { node: node(number), session: session(by), problems, at: at(second) }
            }),
        1 => (1..=NODES, 1..=4_u32, second.clone()).prop_map(|(node, by, at)| deleted(node, session(by), at)),
        3 => (1..=RUNS, prop::option::of(select(vec!["k1", "k2"])), second.clone()).prop_map(|(number, key, second)| {
            let key = key.map(str::to_owned);
            let (max_pending, max_open) = ((second % 3 == 0).then_some(2), (second % 3 == 1).then_some(3));
            let run = made_as(RunMade { idempotency_key: key, created_at: at(second), ..made(number) });
            Change::RunCreated { run, max_pending, max_open, firing: None }
        }),
        1 => (of(), any::<bool>(), words(), second.clone()).prop_map(|(run, paused, by, second)| {
            Change::RunPauseSet { run, paused, by, at: at(second) }
        }),
        2 => (of(), epoch(), prop::option::of(1..3_u32), prop::collection::vec(1..=NODES, 0..3), second.clone())
            .prop_map(|(run, epoch, limit, nodes, second)| {
                let nodes = nodes.into_iter().map(node).collect();
                Change::RunAdmitted { run, epoch, limit, nodes, at: at(second) }
            }),
        1 => (of(), epoch(), second.clone()).prop_map(|(run, epoch, second)| {
            Change::RunTaken { run, owner: server(1), epoch, at: at(second) }
        }),
        1 => (of(), words(), second.clone()).prop_map(|(run, by, second)| {
            Change::RunCancelRequested { run, by, at: at(second) }
        }),
        4 => (1..=RUNS).prop_flat_map(move |number| {
            (Just(number), epoch(), prop::collection::vec(any_execution(number), 0..3))
        }).prop_map(|(number, epoch, executions)| {
            Change::ExecutionsAdded { run: run_id(number), epoch, executions, rollout: None, version: None, sessions: Vec::new(), after: None, at: at(1) }
        }),
        3 => (held(), 1..=TOKENS, 1..=NODES, second.clone()).prop_map(|((run, execution), by, on, second)| {
            Change::ExecutionLeased { of: Parent::Run(run), execution, lease: Lease { granted_at: at(second), ..lease(by, on) } }
        }),
        2 => (held(), right(), second.clone()).prop_map(|((run, execution), token, second)| {
            Change::ExecutionStarted { of: Parent::Run(run), execution, token, at: at(second), received_at: None }
        }),
        3 => (held(), right(), verdict).prop_map(|((run, execution), token, verdict)| {
            Change::ExecutionFinished { of: Parent::Run(run), execution, token, outcome: outcome(verdict) }
        }),
        1 => (held(), right(), words(), second.clone()).prop_map(|((run, execution), token, reason, second)| {
            Change::ExecutionLost { of: Parent::Run(run), execution, token, silence: None, reason, at: at(second) }
        }),
        1 => (held(), any::<bool>(), words(), second.clone()).prop_map(|((run, execution), approved, by, second)| {
            let decision = Decision { approved, reason: (second % 2 == 0).then(|| by.clone()), by };
            Change::ApprovalDecided { run, execution, decision, at: at(second) }
        }),
        1 => (held(), epoch(), words(), second.clone()).prop_map(|((run, execution), epoch, reason, second)| {
            Change::ExecutionCancelRequested { run, execution, epoch, reason, at: at(second) }
        }),
        1 => (held(), epoch(), words(), second.clone()).prop_map(|((run, execution), epoch, error, second)| {
            Change::ExecutionGivenUp { run, execution, epoch, error, at: at(second) }
        }),
        1 => (held(), epoch(), words(), second.clone()).prop_map(|((run, execution), epoch, reason, second)| {
            Change::ExecutionSkipped { run, execution, epoch, reason, at: at(second) }
        }),
        2 => (held(), epoch(), words(), second.clone()).prop_map(|((run, execution), epoch, reason, second)| {
            Change::InstanceFailed { run, epoch, execution, step: 0, node: None, item: None, reason, rollout: None, at: at(second) }
        }),
        2 => (of(), epoch(), path(), prop::option::of(words()), second).prop_map(|(run, epoch, path, error, second)| {
            let end = error.map(|error| RunEnd { partial: true, error: Some(error) });
            Change::RunMoved { room: None, run, epoch, path, stop: None, end, at: at(second) }
        }),
    ]
}

/// Creates every node, and every run, each with a pending and a leased execution, most with limits, so that changes conflict.
fn ground() -> Vec<Change> {
    let births = |number| {
        let state = if number <= RUNS { pending() } else { leased(1, 1) };
        // Pending executions find some of their limits full.
        let limits = some_limits()[[0, 1, 2, 0, 7, 2][number as usize - 1]].clone();
        added(home(number), vec![Execution { limits, ..execution(number, home(number), state) }])
    };
    let clusters = (1..=CLUSTERS).flat_map(|number| [cluster_created(number), standing_created(number)]);
    let nodes = (1..=NODES).map(|number| registered_in(number, 1, 0));
    clusters.chain(nodes).chain((1..=RUNS).map(created)).chain((1..=EXECUTIONS).map(births)).collect()
}

fn batches() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let rest = prop::collection::vec(prop::collection::vec(change(), 0..8), 1..12);
    (any::<bool>(), rest).prop_map(|(grounded, rest)| {
        let first = grounded.then(ground);
        first.into_iter().chain(rest).collect()
    })
}

async fn agree(store: &Arc<dyn Store>, batches: &[Vec<Change>]) -> Result<(), TestCaseError> {
    let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for batch in batches {
        let expected = model.commit(SERVER, batch).await.unwrap();
        prop_assert_eq!(store.commit(SERVER, batch).await.unwrap(), expected, "{:?}", batch);
    }
    prop_assert_eq!(Snapshot::of(store).await, Snapshot::of(&model).await);
    prop_assert_eq!(store.open_executions().await.unwrap(), model.open_executions().await.unwrap());
    prop_assert_eq!(store.open_runs().await.unwrap(), model.open_runs().await.unwrap());
    prop_assert_eq!(
        store.standing_results(None, None, 99).await.unwrap(),
        model.standing_results(None, None, 99).await.unwrap()
    );
    let keys = KEYS.map(Arc::from);
    prop_assert_eq!(
        store.cached(ClusterId::DEFAULT, &keys).await.unwrap(),
        model.cached(ClusterId::DEFAULT, &keys).await.unwrap()
    );
    for number in 1..=NODES {
        prop_assert_eq!(
            store.held_by(&[node(number)]).await.unwrap(),
            model.held_by(&[node(number)]).await.unwrap()
        );
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    // Failures are printed in their shrunk form and become a named case of the suite.
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn random_batches_do_the_same_on_sqlite_as_in_memory() {
    let runtime = runtime();
    let outcome = runner(100).run(&batches(), |batches| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = downbeat_store::open(&format!("sqlite:{}/x.db", dir.path().display())).await.unwrap();
            let agreed = agree(&store, &batches).await;
            store.close().await;
            agreed
        })
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn random_batches_do_the_same_on_postgres_as_in_memory() {
    let runtime = runtime();
    let outcome = runner(20).run(&batches(), |batches| {
        runtime.block_on(async {
            let database = Database::create().await;
            let store = downbeat_store::open(&database.url).await.unwrap();
            let agreed = agree(&store, &batches).await;
            store.close().await;
            database.drop().await;
            agreed
        })
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Random batches are only useful if they cover every kind, applied and refused.
#[test]
fn random_batches_reach_every_kind_and_every_refusal() {
    let (applied, refused) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
    let runtime = runtime();
    // Deterministic: otherwise rare cases would be missed in some runs.
    let dice = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(Config { cases: 1_000, failure_persistence: None, ..Config::default() }, dice)
        .run(&batches(), |batches| {
            let model = MemoryStore::new();
            for batch in batches {
                let committed = runtime.block_on(model.commit(SERVER, &batch)).unwrap();
                for (change, outcome) in batch.iter().zip(committed.outcomes) {
                    match outcome {
                        Ok(()) => applied.borrow_mut().insert(change.kind().to_owned()),
                        Err(Refusal::RunExists(_)) => refused.borrow_mut().insert("run exists".to_owned()),
                        Err(Refusal::KeyInUse(_)) => refused.borrow_mut().insert("key in use".to_owned()),
                        Err(Refusal::QueueFull { .. }) => {
                            refused.borrow_mut().insert("queue full".to_owned())
                        }
                        Err(Refusal::TooManyOpen { .. }) => {
                            refused.borrow_mut().insert("too many".to_owned())
                        }
                        Err(Refusal::NoSuchMove { .. }) => refused.borrow_mut().insert("move".to_owned()),
                        Err(Refusal::NoRoom { .. }) => refused.borrow_mut().insert("no room".to_owned()),
                        Err(Refusal::NodeHeld(_)) => refused.borrow_mut().insert("node held".to_owned()),
                        Err(Refusal::LimitReached(_)) => refused.borrow_mut().insert("limit".to_owned()),
                        Err(Refusal::NameInUse(_)) => refused.borrow_mut().insert("name".to_owned()),
                        Err(Refusal::DecidedLater(_)) => refused.borrow_mut().insert("decided".to_owned()),
                        Err(refusal) => refused.borrow_mut().insert(refusal.to_string()),
                    };
                }
            }
            Ok(())
        })
        .unwrap();
    let (applied, refused) = (applied.into_inner(), refused.into_inner());
    assert_eq!((applied.len(), refused.len()), (24, 16), "{applied:?} {refused:?}");
}
