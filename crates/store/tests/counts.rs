//! The kept counts of instances are those that counting finds, whatever happened, and whichever program did it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use downbeat_core::change::Change;
use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::work::{Origin, Parent};
use downbeat_store::conformance::make::{
    SERVER, added, apply, at, created_as, execution, execution_id, lease, leased, made, made_as, moved, node,
    outcome, pending, run_id, token,
};
use downbeat_store::{MemoryStore, SqliteStore, Store};
use downbeat_testbed::Database;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rusqlite::Connection;
use serde_json::json;

/// Runs that keep the counts of their steps, only their totals, and nothing.
const STEPS: u32 = 1;
const TOTALS: u32 = 2;
const NOTHING: u32 = 3;
const RUNS: [u32; 3] = [STEPS, TOTALS, NOTHING];

fn task() -> serde_json::Value {
    json!({"backend": "test", "action": "echo", "params": {}})
}

fn created(number: u32) -> Change {
    let tasks = match number {
        STEPS => {
            let mut each = task();
            each["for_each"] = json!({"items": [1, 2]});
            vec![each]
        }
        TOTALS => vec![task(); 40],
        _ => vec![task()],
    };
    let definition = serde_json::from_value(json!({"tasks": tasks})).unwrap();
    created_as(made_as(RunMade { definition: Arc::new(definition), ..made(number) }))
}

/// Instances on nodes, for items, and placed ones: a run, a step, and one of four.
type Place = (u32, u32, u32);

fn instance((of, step, which): Place) -> (Origin, Option<NodeId>) {
    let (pinned, item) = match which {
        0 | 1 => (Some(node(which + 1)), None),
        2 => (None, Some(0)),
        _ => (None, None),
    };
    (Origin::Step { run: run_id(of), step, item }, pinned)
}

/// Returns a change that the engine, a board or an agent might make next to an instance.
fn next(place: Place, attempts: &[Execution], choice: u32, number: u32) -> Option<Change> {
    let (of, pinned) = instance(place);
    let (number_of_run, run) = (place.0, run_id(place.0));
    let own = |each: &&Execution| each.of == of && each.pinned == pinned;
    let last = attempts.iter().filter(own).max_by_key(|each| each.attempt);
    let add = |attempt, former, state| {
        let (of, pinned) = (of.clone(), pinned);
        let new = Execution { of, pinned, attempt, former, ..execution(number, number_of_run, state) };
        Some(new)
    };
    let unsent = State::Failed { lease: None, outcome: None, error: None, at: at(1) };
    let Some(last) = last else {
        let done = State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome(Verdict::Succeeded) };
        let born =
            [pending(), leased(1, 1), State::Skipped { reason: String::new(), at: at(1) }, done.clone()];
        let new = add(1, None, born.get(choice as usize).cloned().unwrap_or(done))?;
        let reused = (choice > 3).then_some(execution_id(999));
        let cache_key = (choice > 4).then(|| "key".into());
        return Some(added(number_of_run, vec![Execution { reused, cache_key, ..new }]));
    };
    let (execution, epoch, token, at) = (last.id, 1, token(1), at(2));
    let (reason, error) = (String::new(), String::new());
    let of = Parent::Run(run.clone());
    let finished = |verdict| {
        Some(Change::ExecutionFinished { of: of.clone(), execution, token, outcome: outcome(verdict) })
    };
    match (&last.state, choice) {
        (State::Pending { .. }, 0) => Some(Change::ExecutionSkipped { run, execution, epoch, reason, at }),
        (State::Pending { .. }, 1) => {
            Some(Change::ExecutionCancelRequested { run, execution, epoch, reason, at })
        }
        (State::Pending { .. }, 2) => Some(Change::ExecutionGivenUp { run, execution, epoch, error, at }),
        (State::Pending { .. }, _) => Some(Change::ExecutionLeased { of, execution, lease: lease(1, 1) }),
        (State::Leased { .. }, 0) => {
            Some(Change::ExecutionStarted { of, execution, token, at, received_at: None })
        }
        (State::Leased { .. } | State::Running { .. }, 1) => {
            Some(Change::ExecutionLost { of, execution, token, silence: None, reason, at })
        }
        (State::Leased { .. } | State::Running { .. }, 2) => finished(Verdict::Succeeded),
        (State::Leased { .. } | State::Running { .. }, 3) => finished(Verdict::Cancelled),
        (State::Leased { .. } | State::Running { .. }, _) => finished(Verdict::Failed),
        (State::Failed { .. } | State::Lost { .. } | State::Cancelled { lease: Some(_), .. }, _) => {
            let born = [leased(1, 1), unsent].get(choice as usize).cloned().unwrap_or(pending());
            let again = add(last.attempt + 1, Some(last.state.status()), born)?;
            Some(added(number_of_run, vec![again]))
        }
        _ => None,
    }
}

fn batches() -> impl Strategy<Value = Vec<Vec<(Place, u32)>>> {
    let place = (prop::sample::select(RUNS.to_vec()), 0..2_u32, 0..4_u32);
    prop::collection::vec(prop::collection::vec((place, 0..6_u32), 0..10), 1..25)
}

async fn all_equal(store: &Arc<dyn Store>, model: &Arc<dyn Store>) -> Result<(), TestCaseError> {
    let runs: Vec<RunId> = RUNS.map(run_id).to_vec();
    for run in &runs {
        prop_assert_eq!(
            store.instance_counts(run).await.unwrap(),
            model.instance_counts(run).await.unwrap(),
            "{:?}",
            run
        );
    }
    prop_assert_eq!(store.run_counts(&runs).await.unwrap(), model.run_counts(&runs).await.unwrap());
    Ok(())
}

async fn agree(store: &Arc<dyn Store>, batches: &[Vec<(Place, u32)>]) -> Result<(), TestCaseError> {
    let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let first = RUNS.map(created);
    apply(store, &first).await;
    apply(&model, &first).await;
    let mut number = 0;
    for (place, batch) in batches.iter().enumerate() {
        let mut executions = BTreeMap::new();
        for of in RUNS {
            executions.insert(of, model.executions_of(&run_id(of)).await.unwrap());
        }
        let mut touched = BTreeSet::new();
        let mut changes = Vec::new();
        for (instance, choice) in batch {
            number += 1;
            if touched.insert(*instance) {
                changes.extend(next(*instance, &executions[&instance.0], *choice, number));
            }
        }
        let expected = model.commit(SERVER, &changes).await.unwrap();
        prop_assert!(expected.outcomes.iter().all(Result::is_ok), "{:?} {:?}", changes, expected);
        prop_assert_eq!(store.commit(SERVER, &changes).await.unwrap(), expected);
        all_equal(store, &model).await?;
        if place % 5 == 4 {
            store.keep_counts(at(0), 10).await.unwrap();
            all_equal(store, &model).await?;
        }
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Reads what a store keeps for each run, and whether it has counts.
const KEPT: &str = "SELECT keeps, EXISTS (SELECT 1 FROM instance_counts c WHERE c.run = runs.id AND c.step >= 0) \
                    FROM runs ORDER BY id";

#[test]
fn kept_counts_are_what_counting_finds_on_sqlite() {
    let runtime = runtime();
    let outcome = runner(100).run(&batches(), |batches| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.db");
            let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
            let agreed = agree(&store, &batches).await;
            store.close().await;
            agreed?;
            let file = Connection::open(&path).unwrap();
            let mut query = file.prepare(KEPT).unwrap();
            let kept = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            let kept: Vec<(Option<i16>, bool)> = kept.map(Result::unwrap).collect();
            prop_assert_eq!(
                kept.iter().map(|(keeps, _)| *keeps).collect::<Vec<_>>(),
                [Some(2), Some(1), Some(0)]
            );
            prop_assert!(!kept[1].1 && !kept[2].1);
            Ok(())
        })
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn kept_counts_are_what_counting_finds_on_postgres() {
    let runtime = runtime();
    let outcome = runner(15).run(&batches(), |batches| {
        runtime.block_on(async {
            let database = Database::create().await;
            let store = downbeat_store::open(&database.url).await.unwrap();
            let agreed = agree(&store, &batches).await;
            let rows = database.client().await.query(KEPT, &[]).await.unwrap();
            let keeps: Vec<Option<i16>> = rows.iter().map(|row| row.get(0)).collect();
            store.close().await;
            database.drop().await;
            agreed?;
            prop_assert_eq!(keeps, [Some(2), Some(1), Some(0)]);
            Ok(())
        })
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Runs with an execution that was leased, and one that is pending.
async fn fill(store: &Arc<dyn Store>) {
    apply(store, &RUNS.map(created)).await;
    for of in RUNS {
        apply(
            store,
            &[added(of, vec![execution(of * 10, of, leased(1, 1)), execution(of * 10 + 1, of, pending())])],
        )
        .await;
    }
}

async fn counts(store: &Arc<dyn Store>, of: u32) -> (BTreeMap<Status, u64>, Option<BTreeMap<Status, u64>>) {
    let own = store.instance_counts(&run_id(of)).await.unwrap();
    let own = own.into_iter().map(|count| (count.status, count.total)).collect();
    (own, store.run_counts(&[run_id(of)]).await.unwrap().remove(&run_id(of)))
}

async fn end(store: &Arc<dyn Store>, of: u32) {
    apply(
        store,
        &[moved(of, &[RunState::Starting, RunState::Running, RunState::Terminating, RunState::Completed], 3)],
    )
    .await;
}

fn statuses<const N: usize>(statuses: [(Status, u64); N]) -> BTreeMap<Status, u64> {
    BTreeMap::from(statuses)
}

#[tokio::test]
async fn a_change_of_a_program_that_keeps_no_counts_is_noticed_on_postgres() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    store.keep_counts(at(0), 10).await.unwrap();
    // Status 3 is succeeded, 0 pending, 1 leased.
    database.run("UPDATE executions SET status = 5, reason = '', ended_at = 1 WHERE status = 0").await;
    database.run("UPDATE executions SET reason = reason").await;
    let notes = "SELECT count(*) FROM instance_counts_lately WHERE status < 0";
    let notes: i64 = database.client().await.query_one(notes, &[]).await.unwrap().get(0);
    assert_eq!(notes, 2, "one for each run that keeps counts");
    let after = statuses([(Status::Leased, 1), (Status::Skipped, 1)]);
    for of in [STEPS, TOTALS] {
        assert_eq!(counts(&store, of).await, (after.clone(), None), "not known in lists: {of}");
    }
    assert_eq!(counts(&store, NOTHING).await, (after.clone(), Some(after.clone())), "always counted");
    // Counted again, once the run has ended.
    assert_eq!(store.keep_counts(at(100), 10).await.unwrap(), 0);
    for of in RUNS {
        end(&store, of).await;
    }
    assert_eq!(store.keep_counts(at(100), 10).await.unwrap(), 2);
    for of in RUNS {
        assert_eq!(counts(&store, of).await, (after.clone(), Some(after.clone())), "{of}");
    }
    store.close().await;
    database.drop().await;
}

const WAITS: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
     AND wait_event_type = 'Lock'";

#[tokio::test]
async fn a_list_never_shows_counts_that_lack_a_change() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    store.keep_counts(at(0), 10).await.unwrap();
    database.run("UPDATE executions SET status = 5, reason = '', ended_at = 1 WHERE status = 0").await;
    // A list waits in the middle, while another server adds up and finds the notes of the missing changes.
    let mut other = database.client().await;
    let gate = other.transaction().await.unwrap();
    gate.batch_execute("LOCK TABLE instance_counts").await.unwrap();
    let listing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.run_counts(&[run_id(STEPS), run_id(TOTALS)]).await.unwrap() }
    });
    database.wait_until(WAITS).await;
    gate.batch_execute("DELETE FROM instance_counts_lately; UPDATE runs SET keeps = NULL WHERE keeps > 0")
        .await
        .unwrap();
    gate.commit().await.unwrap();
    assert_eq!(listing.await.unwrap(), BTreeMap::new());
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn counts_of_a_run_that_is_being_removed_stop_nothing() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    let mut other = database.client().await;
    let pruning = other.transaction().await.unwrap();
    pruning
        .batch_execute("DELETE FROM executions WHERE run = 'run-001'; DELETE FROM runs WHERE id = 'run-001'")
        .await
        .unwrap();
    let adding_up = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.keep_counts(at(0), 10).await }
    });
    database.wait_until(WAITS).await;
    pruning.commit().await.unwrap();
    assert_eq!(adding_up.await.unwrap().unwrap(), 0);
    let added_up =
        "SELECT array_agg(DISTINCT run), (SELECT count(*) FROM instance_counts_lately) FROM instance_counts";
    let row = database.client().await.query_one(added_up, &[]).await.unwrap();
    assert_eq!((row.get::<_, Vec<String>>(0), row.get::<_, i64>(1)), (vec!["run-002".to_owned()], 0));
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_file_that_another_program_used_is_counted_again_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill(&store).await;
    store.close().await;
    // As an older program does: it raises the number of events, and knows nothing of counts.
    let file = Connection::open(&path).unwrap();
    file.execute_batch(
        "UPDATE executions SET status = 5, reason = '', ended_at = 1 WHERE status = 0; \
         UPDATE feed SET last_seq = last_seq + 3",
    )
    .unwrap();
    drop(file);
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    let after = statuses([(Status::Leased, 1), (Status::Skipped, 1)]);
    for of in [STEPS, TOTALS] {
        assert_eq!(counts(&store, of).await, (after.clone(), None), "{of}");
        end(&store, of).await;
    }
    assert_eq!(store.keep_counts(at(3), 10).await.unwrap(), 0, "they ended at that time, not before");
    assert_eq!(store.keep_counts(at(100), 1).await.unwrap(), 1);
    assert_eq!(store.keep_counts(at(100), 10).await.unwrap(), 1);
    for of in [STEPS, TOTALS] {
        assert_eq!(counts(&store, of).await, (after.clone(), Some(after.clone())), "{of}");
    }
    store.close().await;
}
