//! The PostgreSQL store is a store, and what is true among several servers besides.

mod database;

use std::sync::Arc;
use std::time::Duration;

use database::Database;
use database::proxy::{Cut, Proxy};
use downbeat_core::change::Refusal;
use downbeat_store::conformance::make::{SERVER, apply, created, run_id, server};
use downbeat_store::conformance::{Snapshot, fill, fill_beside};
use downbeat_store::{Error, EventFilter, Store};

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
    // It waits for the number, and until then nobody sees one beyond the gap.
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.wait_until(waiting).await;
    assert!(!fast.is_finished());
    let seqs = async || {
        let events = store.events(&EventFilter::default(), 100).await.unwrap();
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
    let events = other.events(&EventFilter::default(), 100).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    other.close().await;
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn a_broken_connection_is_made_anew_and_nothing_is_lost_or_doubled() {
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
                // Nothing of it was kept: the same again is no second time.
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
    let events = reopened.events(&EventFilter::default(), 100).await.unwrap();
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
