//! The PostgreSQL store passes the conformance suite, and several servers can share it.

mod proxy;

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, Lease, State, Verdict};
use downbeat_core::ids::ClusterId;
use downbeat_core::limits::{OUTPUT_PRUNED_CHUNKS, VIEWS_AT_ONCE};
use downbeat_core::retention::Excess;
use downbeat_core::run::RunState;
use downbeat_core::spec::Limits;
use downbeat_core::work::Parent;
use downbeat_store::conformance::admission::clusters_have_their_own_room;
use downbeat_store::conformance::cache::clusters_have_their_own;
use downbeat_store::conformance::clusters::{fill_deleted, remove_all};
use downbeat_store::conformance::limits::clusters_count_apart;
use downbeat_store::conformance::make::{
    ALL_EVENTS, SERVER, added, admitted, apply, at, chunk, cluster, cluster_changed, cluster_created,
    created, execution, execution_id, finished, lease, moved, node, pending, registered, run, run_id, server,
    server_record, session, standing, standing_added, standing_created,
};
use downbeat_store::conformance::{Snapshot, fill, fill_beside};
use downbeat_store::{Error, EventFilter, Hint, Removed, Store};
use downbeat_testbed::{Database, Postgres, eventually};
use proxy::{Cut, Proxy};

struct Fresh {
    store: Arc<dyn Store>,
    database: Database,
}

impl Fresh {
    async fn done(self) {
        self.store.close().await;
        self.database.drop().await;
    }
}

async fn fresh() -> Fresh {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    assert_eq!(store.name(), "postgres");
    Fresh { store, database }
}

downbeat_store::conformance_suite!(fresh);

#[tokio::test]
async fn what_was_committed_is_there_after_reopening() {
    let Fresh { store, database } = fresh().await;
    fill(&store).await;
    fill_beside(&store).await;
    let before = Snapshot::of(&store).await;
    store.close().await;
    let again = downbeat_store::open(&database.url).await.unwrap();
    assert_eq!(Snapshot::of(&again).await, before);
    apply(&again, &[created(50)]).await;
    assert_eq!(again.last_seq().await.unwrap(), before.last_seq + 1);
    again.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_newer_schema_and_an_altered_migration_are_refused() {
    let Fresh { store, database } = fresh().await;
    store.close().await;
    database.run("INSERT INTO migrations (number, checksum) VALUES (9999, 'x')").await;
    let error = downbeat_store::open(&database.url).await.unwrap_err();
    assert!(matches!(error, Error::NewerSchema { found: 9999, .. }), "{error}");
    database.run("DELETE FROM migrations WHERE number = 9999; UPDATE migrations SET checksum = 'x'").await;
    let error = downbeat_store::open(&database.url).await.unwrap_err();
    assert!(matches!(error, Error::AlteredMigration { number: 1 }), "{error}");
    database.drop().await;
}

#[tokio::test]
async fn servers_that_start_together_migrate_once() {
    let database = Database::create().await;
    let open = || downbeat_store::open(&database.url);
    let (a, b, c) = tokio::join!(open(), open(), open());
    for store in [a.unwrap(), b.unwrap(), c.unwrap()] {
        assert_eq!(store.last_seq().await.unwrap(), 0);
        store.close().await;
    }
    database.drop().await;
}

#[tokio::test]
async fn a_server_that_is_slow_to_commit_is_waited_for_and_leaves_no_gap() {
    let Fresh { store, database } = fresh().await;
    apply(&store, &[created(1)]).await;
    // Another server, stopped between taking its number and committing.
    let mut slow = database.client().await;
    let open = slow.transaction().await.unwrap();
    let row =
        open.query_one("UPDATE feed SET last_seq = last_seq + 1 RETURNING last_seq", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 2);
    let fast = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.commit(SERVER, &[created(3)]).await.unwrap() }
    });
    // It waits for the number, and until then no reader sees a number beyond the gap.
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.wait_until(waiting).await;
    assert!(!fast.is_finished());
    let seqs = async || {
        let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
        events.into_iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!((seqs().await, store.last_seq().await.unwrap()), (vec![1], 1));
    open.batch_execute(
        "INSERT INTO events (seq, at, server, kind, run, data) \
         SELECT 2, at, server, kind, run, data FROM events WHERE seq = 1",
    )
    .await
    .unwrap();
    open.commit().await.unwrap();
    assert_eq!(fast.await.unwrap().seqs, [Some(3)]);
    assert_eq!((seqs().await, store.last_seq().await.unwrap()), (vec![1, 2, 3], 3));
    store.close().await;
    database.drop().await;
}

/// Statements of the store that are active in PostgreSQL.
const ACTIVE: &str = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                      AND application_name = 'downbeat' AND state = 'active'";

#[tokio::test]
async fn what_keeps_a_server_alive_does_not_wait_for_the_queries_of_users() {
    let Fresh { store, database } = fresh().await;
    fill(&store).await;
    let views = store.views().unwrap();
    let mut other = database.client().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE cached IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // More than can run at once.
    let stuck = VIEWS_AT_ONCE + 2;
    let stuck: Vec<_> = (0..stuck)
        .map(|_| {
            let views = Arc::clone(&views);
            tokio::spawn(async move { views.cached(ClusterId::DEFAULT, &["key".into()]).await.map(drop) })
        })
        .collect();
    database.wait_until(&format!("SELECT count(*) = {} {ACTIVE}", VIEWS_AT_ONCE)).await;
    store.put_server(&server_record(1, "a", 2)).await.unwrap();
    store.touch_nodes(&[(node(1), session(1))], at(90)).await.unwrap();
    assert!(store.now().await.unwrap().is_some());
    store.health().await.unwrap();
    assert_eq!(store.servers().await.unwrap().len(), 1);
    store.silent_nodes(at(100)).await.unwrap();
    store.held_by(&[node(1)]).await.unwrap();
    store.open_run_owners().await.unwrap();
    let last = store.last_seq().await.unwrap();
    assert_eq!(store.events(&EventFilter { since: last - 1, run: None }, ALL_EVENTS).await.unwrap().len(), 1);
    assert_eq!(store.prune(at(0), 10).await.unwrap(), 0);
    store.append_output(&[chunk(1, 0, "text")], 100).await.unwrap();
    assert!(stuck.iter().all(|query| !query.is_finished()));

    // Nobody waits for the queries any more: PostgreSQL ends them, although the lock is still held.
    stuck.iter().for_each(tokio::task::JoinHandle::abort);
    database.wait_until(&format!("SELECT count(*) = 0 {ACTIVE}")).await;
    lock.rollback().await.unwrap();
    assert!(views.run(&run_id(1)).await.unwrap().is_some());
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn any_number_of_executions_of_a_run_can_be_read() {
    const ALL: u32 = 12_000;
    let Fresh { store, database } = fresh().await;
    apply(&store, &[created(1)]).await;
    for first in (1..=ALL).step_by(2_000) {
        let some = (first..first + 2_000).map(|number| execution(number, 1, pending())).collect();
        apply(&store, &[added(1, some)]).await;
    }
    let ids: Vec<_> = (1..=ALL).map(execution_id).collect();
    let found = store.executions_of(&run_id(1)).await.unwrap();
    assert!(found.iter().map(|execution| execution.id).eq(ids.iter().copied()));
    let open = store.open_executions().await.unwrap();
    assert!(open.iter().map(|execution| execution.id).eq(ids));
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn one_server_prunes_at_a_time_and_many_runs_at_once() {
    const RUNS: u32 = 300;
    let Fresh { store, database } = fresh().await;
    let numbers = || 1..=RUNS;
    apply(&store, &numbers().map(created).collect::<Vec<_>>()).await;
    apply(&store, &numbers().map(|run| moved(run, &[RunState::Cancelled], 100)).collect::<Vec<_>>()).await;
    let other = database.client().await;
    let lock = i64::from_be_bytes(*b"downprun");
    other.query_one("SELECT pg_advisory_lock($1)", &[&lock]).await.unwrap();
    assert_eq!(store.prune(at(1_000), 1_000).await.unwrap(), 0);
    let all = Excess { before: at(1_000), runs: 9, events_upto: 9, output_bytes: 9 };
    assert_eq!(store.prune_excess(&all, 1_000).await.unwrap(), Removed::default());
    assert!(store.run(&run_id(1)).await.unwrap().is_some());
    other.query_one("SELECT pg_advisory_unlock($1)", &[&lock]).await.unwrap();
    assert_eq!(store.prune(at(1_000), 1_000).await.unwrap(), u64::from(RUNS));
    assert_eq!(store.tally().await.unwrap().runs, []);
    // The lock ends with each call.
    assert_eq!(store.prune(at(1_000), 1_000).await.unwrap(), 0);
    other.query_one("SELECT pg_advisory_lock($1)", &[&lock]).await.unwrap();
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn pruning_removes_output_in_small_transactions_and_ignores_timeouts_of_the_database() {
    const WAITS: &str = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
         AND query LIKE 'DELETE FROM output%' AND wait_event_type = 'Lock' \
         AND clock_timestamp() - query_start > interval '400 ms'";
    let Fresh { store, database } = fresh().await;
    let skipped = State::Skipped { reason: "no".to_owned(), at: at(20) };
    apply(&store, &[created(1), added(1, vec![execution(1, 1, skipped)])]).await;
    apply(&store, &[moved(1, &[RunState::Cancelled], 100)]).await;
    let most = u64::from(OUTPUT_PRUNED_CHUNKS);
    let chunks: Vec<_> = (0..=most).map(|start| chunk(1, start, "x")).collect();
    store.append_output(&chunks, 1_000_000).await.unwrap();
    // The second transaction has to wait for this one.
    let other = database.client().await;
    let lock = format!("BEGIN; SELECT 1 FROM output WHERE start_byte = {most} FOR UPDATE");
    other.batch_execute(&lock).await.unwrap();
    let timeout = "DO $$ BEGIN EXECUTE format( \
         'ALTER DATABASE %I SET statement_timeout = 200', current_database()); END $$";
    database.run(timeout).await;
    let pruning = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.prune(at(1_000), 1_000).await }
    });
    database.wait_until(WAITS).await;
    assert_eq!(store.output(execution_id(1), 0, 10).await.unwrap(), chunks[chunks.len() - 1..]);
    apply(&store, &[created(2)]).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(pruning.await.unwrap().unwrap(), 1);
    assert!(store.execution(execution_id(1)).await.unwrap().is_none());
    store.close().await;
    database.drop().await;
}

/// The lock of the whole database that PostgreSQL takes when a transaction with a notification commits, and holds until
/// that commit is done.
const NOTIFYING: &str =
    "FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 0";

#[tokio::test]
async fn output_is_stored_while_the_commit_of_another_server_holds_the_lock_of_notifications() {
    let directory = tempfile::tempdir().unwrap();
    let postgres = Postgres::start_in(directory.path().join("postgres"));
    let admin = postgres.client().await.unwrap();
    let is = async |condition: &str| admin.query_one(condition, &[]).await.unwrap().get::<_, bool>(0);
    let becomes =
        async |condition: &str| eventually(condition, async || is(condition).await.then_some(())).await;
    // There is no such standby: a commit that waits for one never ends. Only the slow one does.
    for setting in ["synchronous_commit = local", "synchronous_standby_names = nobody"] {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    becomes("SELECT current_setting('synchronous_standby_names') = 'nobody'").await;
    let store = downbeat_store::open(&postgres.url).await.unwrap();
    let other = downbeat_store::open(&postgres.url).await.unwrap();
    fill(&store).await;
    let mut hints = other.hints();
    let slow = postgres.client().await.unwrap();
    slow.batch_execute("SET synchronous_commit = on").await.unwrap();
    let pid: i32 = slow.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let committing = "BEGIN; CREATE TABLE written (); SELECT pg_notify('downbeat', 'x anything'); COMMIT";
    let slow = tokio::spawn(async move { slow.batch_execute(committing).await });
    becomes(&format!("SELECT count(*) = 1 {NOTIFYING} AND granted AND pid = {pid}")).await;

    store.append_output(&[chunk(1, 1_000, "text")], 100).await.unwrap();
    let stored = other.output(execution_id(1), 1_000, 10).await.unwrap();
    assert_eq!(stored.iter().map(|chunk| chunk.text.as_str()).collect::<Vec<_>>(), ["text"]);
    assert!(!slow.is_finished(), "the lock is still held");
    // The announcement and a commit need the lock.
    let commit = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.commit(SERVER, &[created(50)]).await }
    });
    becomes(&format!("SELECT count(*) = 2 {NOTIFYING} AND NOT granted")).await;
    assert!(!commit.is_finished());
    assert!(is(&format!("SELECT pg_cancel_backend({pid})")).await);
    slow.await.unwrap().unwrap();
    assert_eq!(commit.await.unwrap().unwrap().outcomes, [Ok(())]);
    while !matches!(hints.recv().await, Ok(Hint::Output(executions)) if *executions == [execution_id(1)]) {}
    other.close().await;
    store.close().await;
}

#[tokio::test]
async fn two_servers_that_create_one_run_at_once_make_it_once() {
    let Fresh { store, database } = fresh().await;
    let other = downbeat_store::open(&database.url).await.unwrap();
    for number in 1..=40 {
        let batch = [created(number)];
        let (a, b) = tokio::join!(store.commit(server(1), &batch), other.commit(server(2), &batch));
        let mut outcomes = [a.unwrap().outcomes.remove(0), b.unwrap().outcomes.remove(0)];
        outcomes.sort_by_key(Result::is_err);
        assert_eq!(outcomes, [Ok(()), Err(Refusal::RunExists(run_id(number)))]);
    }
    assert_eq!(store.last_seq().await.unwrap(), 40);
    let events = other.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    other.close().await;
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_nothing_is_lost_or_doubled() {
    let Fresh { store, database } = fresh().await;
    apply(&store, &[created(1)]).await;
    for number in 2..=20 {
        let commit = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.commit(SERVER, &[created(number)]).await }
        });
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE datname = current_database() AND application_name = 'downbeat'";
        database.run(kill).await;
        match commit.await.unwrap() {
            Ok(committed) => assert_eq!(committed.outcomes, [Ok(())]),
            Err(error) => {
                assert!(matches!(error, Error::Unavailable(_)), "{error}");
                // The commit had no effect, so the retry is applied.
                let again = tokio::time::timeout(Duration::from_secs(20), async {
                    loop {
                        if let Ok(committed) = store.commit(SERVER, &[created(number)]).await {
                            return committed;
                        }
                    }
                });
                assert_eq!(again.await.expect("the store comes back").outcomes, [Ok(())], "run {number}");
            }
        }
    }
    let reopened = downbeat_store::open(&database.url).await.unwrap();
    let events = reopened.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    reopened.close().await;
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_to_have_happened() {
    let database = Database::create().await;
    let proxy = Proxy::to(database.port()).await;
    let store = downbeat_store::open(&database.url_at(proxy.port)).await.unwrap();
    apply(&store, &[created(1)]).await;
    proxy.cut(Cut::AfterCommit);
    let committed = store.commit(SERVER, &[created(2), created(1), created(3)]).await.unwrap();
    assert_eq!(committed.outcomes, [Ok(()), Err(Refusal::RunExists(run_id(1))), Ok(())]);
    assert_eq!(committed.seqs, [Some(2), None, Some(3)]);
    assert_eq!(store.last_seq().await.unwrap(), 3);
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_unavailable_and_may_be_repeated() {
    let database = Database::create().await;
    let proxy = Proxy::to(database.port()).await;
    let store = downbeat_store::open(&database.url_at(proxy.port)).await.unwrap();
    apply(&store, &[created(1)]).await;
    proxy.cut(Cut::BeforeCommit);
    let error = store.commit(SERVER, &[created(2)]).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(store.last_seq().await.unwrap(), 1);
    apply(&store, &[created(2)]).await;
    assert_eq!(store.last_seq().await.unwrap(), 2);
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_database_that_is_away_or_no_location_is_said_so() {
    let error = downbeat_store::open("postgres://postgres@127.0.0.1:1/none").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let error = downbeat_store::open("postgres://postgres@127.0.0.1:notaport/none").await.unwrap_err();
    assert!(matches!(error, Error::BadLocation(_)), "{error}");
}

/// Two servers at once, many rounds: no node ever has two holders, no execution of another run is leased to a held
/// node, and the run limit is never exceeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_never_share_a_held_node_nor_exceed_a_limit() {
    const ROUNDS: u32 = 60;
    const LIMIT: u32 = 3;
    let Fresh { store, database } = fresh().await;
    let other = downbeat_store::open(&database.url).await.unwrap();
    let mut met = std::collections::BTreeSet::new();
    for round in 0..ROUNDS {
        let first = round * 10 + 1;
        let runs: Vec<u32> = (first..first + 5).collect();
        let creations: Vec<Change> = runs.iter().map(|&number| created(number)).collect();
        apply(&store, &creations).await;
        let (plain, mine, theirs) = (runs[0], runs[1], runs[2]);
        let work =
            added(plain, vec![execution(first, plain, pending()), execution(first + 1, plain, pending())]);
        apply(&store, &[work]).await;
        let give = |number: u32, on: u32| Change::ExecutionLeased {
            of: Parent::Run(run_id(plain)),
            execution: execution_id(number),
            lease: lease(number, on),
        };
        // One takes nodes 1 and 2, the other leases work on them and takes node 2 itself; both admit runs.
        let batch_a =
            [admitted(mine, Some(LIMIT), &[1, 2]), admitted(runs[3], Some(LIMIT), &[]), give(first, 3)];
        let batch_b = if round % 2 == 0 {
            vec![give(first + 1, 1), admitted(runs[4], Some(LIMIT), &[])]
        } else {
            vec![admitted(theirs, Some(LIMIT), &[2, 4]), admitted(runs[4], Some(LIMIT), &[])]
        };
        let (a, b) = tokio::join!(
            tokio::spawn({
                let store = Arc::clone(&store);
                async move { store.commit(server(1), &batch_a).await.unwrap() }
            }),
            tokio::spawn({
                let other = Arc::clone(&other);
                async move { other.commit(server(2), &batch_b).await.unwrap() }
            }),
        );
        let (a, b) = (a.unwrap().outcomes, b.unwrap().outcomes);
        met.insert(format!(
            "{} {:?} {:?}",
            round % 2,
            a.iter().map(Result::is_ok).collect::<Vec<_>>(),
            b.iter().map(Result::is_ok).collect::<Vec<_>>()
        ));
        let holds = store.holds().await.unwrap();
        for (on, holder) in &holds {
            for execution in store.held_by(&[*on]).await.unwrap() {
                assert_eq!(execution.run(), holder, "round {round}: {a:?} {b:?}");
            }
        }
        assert!(a[0].is_ok() != b[0].is_ok(), "round {round}: exactly one gets its nodes: {a:?} {b:?}");
        let open = store.open_runs().await.unwrap();
        let active = open.iter().filter(|run| run.live.admitted_at.is_some()).count();
        assert!(active <= LIMIT as usize, "round {round}: {active} are active: {a:?} {b:?}");
        // All runs and leases end.
        let mut ends: Vec<Change> =
            runs.iter().map(|&number| moved(number, &[RunState::Cancelled], 50)).collect();
        for number in [first, first + 1] {
            ends.push(finished(plain, number, number, Verdict::Cancelled));
        }
        store.commit(SERVER, &ends).await.unwrap();
        assert_eq!(other.holds().await.unwrap(), []);
    }
    assert!(met.len() >= 3, "too few conflicts: {met:?}");
    other.close().await;
    store.close().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_together_fill_a_queue_exactly() {
    let Fresh { store, database } = fresh().await;
    let other = downbeat_store::open(&database.url).await.unwrap();
    let queued =
        |number| Change::RunCreated { run: run(number), max_pending: Some(25), max_open: None, firing: None };
    let submit = |store: Arc<dyn Store>, numbers: std::ops::Range<u32>| async move {
        let mut taken = 0;
        for number in numbers {
            taken += usize::from(store.commit(SERVER, &[queued(number)]).await.unwrap().outcomes[0].is_ok());
        }
        taken
    };
    let (a, b) = tokio::join!(
        tokio::spawn(submit(Arc::clone(&store), 1..31)),
        tokio::spawn(submit(Arc::clone(&other), 101..131))
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a + b, 25, "{a} and {b} were accepted");
    assert!(a > 0 && b > 0, "{a} and {b} were accepted");
    assert_eq!(store.open_runs().await.unwrap().len(), 25);
    other.close().await;
    store.close().await;
    database.drop().await;
}

/// Another server adds standing tasks for the session of a node, and has not committed yet.
#[tokio::test]
async fn a_registration_waits_for_the_standing_tasks_of_the_former_session_and_heartbeats_do_not() {
    let Fresh { store, database } = fresh().await;
    apply(&store, &[registered(1, session(1), 1)]).await;
    let mut other = database.client().await;
    let open = other.transaction().await.unwrap();
    open.query("SELECT session FROM presence FOR KEY SHARE", &[]).await.unwrap();
    assert_eq!(store.touch_nodes(&[(node(1), session(1))], at(90)).await.unwrap(), [true]);
    let registering = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.commit(SERVER, &[registered(1, session(2), 100)]).await.unwrap() }
    });
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.wait_until(waiting).await;
    assert!(!registering.is_finished());
    open.commit().await.unwrap();
    assert_eq!(registering.await.unwrap().outcomes, [Ok(())]);
    store.close().await;
    database.drop().await;
}

/// A backup or a snapshot for a replica reads for a long time; neither prevents servers from taking nodes.
#[tokio::test]
async fn a_reader_does_not_prevent_taking_nodes() {
    let Fresh { store, database } = fresh().await;
    let mut backup = database.client().await;
    let long = backup.transaction().await.unwrap();
    long.query("SELECT node FROM holds", &[]).await.unwrap();
    apply(&store, &[created(1), admitted(1, None, &[1])]).await;
    long.commit().await.unwrap();
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn clusters_have_limits_results_and_room_of_their_own() {
    let Fresh { store, database } = fresh().await;
    let other = ClusterId(uuid::Uuid::from_u128(7));
    database
        .run(&format!("INSERT INTO clusters (id, name, created_at) VALUES ('{}', 'other', 0)", other.0))
        .await;
    clusters_have_their_own_room(Arc::clone(&store), other).await;
    clusters_count_apart(Arc::clone(&store), other).await;
    clusters_have_their_own(Arc::clone(&store), other).await;
    Fresh { store, database }.done().await;
}

#[tokio::test]
async fn a_place_that_was_given_back_leaves_no_row() {
    let Fresh { store, database } = fresh().await;
    fill(&store).await;
    let rows = database.client().await.query("SELECT 1 FROM limit_uses", &[]).await.unwrap();
    assert_eq!(rows.len(), store.uses().await.unwrap().len());
    assert!(!rows.is_empty());
    Fresh { store, database }.done().await;
}

/// Two servers lease executions with limits at once, many rounds, and end some of them: no limit is exceeded, and every
/// slot is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_never_give_out_more_than_a_limit_has() {
    const ROUNDS: u32 = 60;
    let Fresh { store, database } = fresh().await;
    let other = downbeat_store::open(&database.url).await.unwrap();
    apply(&store, &[created(1)]).await;
    let text = [("db", "3"), ("api", "4/1m")];
    let read = |(key, limit): (&str, &str)| (key.to_owned(), limit.parse().unwrap());
    let limits: Arc<Limits> = Arc::new(text.into_iter().map(read).collect());
    let mut met = std::collections::BTreeSet::new();
    for round in 0..ROUNDS {
        let first = round * 10 + 1;
        let waiting =
            |number| Execution { limits: Some(Arc::clone(&limits)), ..execution(number, 1, pending()) };
        apply(&store, &[added(1, (first..first + 6).map(waiting).collect())]).await;
        // Each round is a minute after the one before.
        let now = i64::from(round) * 60;
        let give = |number: u32| Change::ExecutionLeased {
            of: Parent::Run(run_id(1)),
            execution: execution_id(number),
            lease: Lease { granted_at: at(now), ..lease(number, 1) },
        };
        // One of its executions is leased and ended in the same batch.
        let batch_a = [give(first), give(first + 1), finished(1, first, first, Verdict::Succeeded)];
        let batch_b = [give(first + 3), give(first + 4), give(first + 5)];
        let commit = |store: &Arc<dyn Store>, by: u32, batch: &[Change]| {
            let (store, batch) = (Arc::clone(store), batch.to_vec());
            tokio::spawn(async move { store.commit(server(by), &batch).await.unwrap().outcomes })
        };
        // Each server is sometimes first.
        let (a, b) = if round % 2 == 0 {
            let a = commit(&store, 1, &batch_a);
            (a, commit(&other, 2, &batch_b))
        } else {
            let b = commit(&other, 2, &batch_b);
            (commit(&store, 1, &batch_a), b)
        };
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        let given = |outcomes: &[Result<(), Refusal>]| outcomes.iter().filter(|each| each.is_ok()).count();
        met.insert((given(&a), given(&b)));
        let uses = store.uses().await.unwrap();
        let count = |at_once: bool| uses.iter().filter(|used| used.until.is_none() == at_once).count();
        let (at_once, rate) = (count(true), count(false));
        assert!(at_once <= 3 && rate <= 4, "round {round}: {at_once} at once, {rate} leased: {a:?} {b:?}");
        // The second server got the remaining slots: one was freed in the first server's batch, if that was a.
        assert!(at_once == 3, "round {round}: {at_once} at once: {a:?} {b:?}");
        let held = store.held_by(&[lease(1, 1).node]).await.unwrap();
        assert_eq!(held.len(), at_once, "round {round}");
        let ends: Vec<Change> = held
            .iter()
            .map(|each| Change::ExecutionFinished {
                of: Parent::Run(run_id(1)),
                execution: each.id,
                token: each.state.lease().unwrap().token,
                outcome: downbeat_store::conformance::make::outcome(Verdict::Succeeded),
            })
            .collect();
        apply(&other, &ends).await;
        assert!(store.uses().await.unwrap().iter().all(|used| used.until.is_some()));
    }
    assert!(met.len() >= 2, "too few conflicts: {met:?}");
    other.close().await;
    store.close().await;
    database.drop().await;
}

/// Returns all rows of all tables as text, without events of deletions of clusters.
async fn all_rows(database: &Database) -> Vec<String> {
    let client = database.client().await;
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()";
    let mut all = Vec::new();
    for table in client.query(tables, &[]).await.unwrap() {
        let table: String = table.get(0);
        let kept = if table == "events" { " WHERE kind <> 'cluster_deleted'" } else { "" };
        let rows = client.query(&format!("SELECT t::text FROM {table} t{kept}"), &[]).await.unwrap();
        all.extend(rows.iter().map(|row| format!("{table}: {}", row.get::<_, String>(0))));
    }
    all
}

#[tokio::test]
async fn no_table_has_anything_of_a_removed_cluster() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    let texts = fill_deleted(&store).await;
    let before = all_rows(&database).await;
    remove_all(&store).await;
    let after = all_rows(&database).await;
    for text in &texts {
        assert!(before.iter().any(|row| row.contains(text)), "{text} was there");
        let left: Vec<&String> = after.iter().filter(|row| row.contains(text)).collect();
        assert!(left.is_empty(), "{text}: {left:#?}");
    }
    store.close().await;
    database.drop().await;
}

/// Two servers cannot both create a cluster with one name, change one version, or add executions to a version that changes.
#[tokio::test]
async fn servers_that_change_clusters_at_once_take_turns() {
    let database = Database::create().await;
    let one = downbeat_store::open(&database.url).await.unwrap();
    let other = downbeat_store::open(&database.url).await.unwrap();
    apply(&one, &[cluster_created(1), standing_created(1)]).await;
    for round in 1..=20 {
        let name = format!("round-{round}");
        let create = |number| Change::ClusterCreated {
            cluster: ClusterRecord { name: name.clone(), ..cluster(100 * round + number) },
            by: "ada".to_owned(),
            at: at(1),
        };
        let (first, second) = (vec![create(1)], vec![create(2)]);
        let (first, second) = tokio::join!(one.commit(SERVER, &first), other.commit(server(2), &second));
        let outcomes = [first.unwrap().outcomes.remove(0), second.unwrap().outcomes.remove(0)];
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        let version = u64::from(round);
        let next = ClusterRecord { version, ..cluster(1) }.edited(at(2), |_| {});
        let attempt = standing(round, 1, 1, 1, round, pending());
        let (changed, also) = (vec![cluster_changed(next.clone())], vec![cluster_changed(next)]);
        let added = vec![standing_added(1, version, vec![attempt])];
        let (first, second, third) = tokio::join!(
            one.commit(SERVER, &changed),
            other.commit(server(2), &also),
            other.commit(server(2), &added)
        );
        let outcomes = [first.unwrap().outcomes.remove(0), second.unwrap().outcomes.remove(0)];
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        // What was added relied on the version that was stored at its place in the order of events.
        let third = third.unwrap();
        if third.outcomes[0].is_ok() {
            let events = one.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
            let changed = events.iter().rfind(|event| event.change.kind() == "cluster_changed").unwrap();
            assert!(third.seqs[0].unwrap() < changed.seq, "round {round}");
        }
    }
    one.close().await;
    other.close().await;
    database.drop().await;
}
