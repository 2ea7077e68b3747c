//! The sum of output is right if programs of earlier schemas write and remove output, too: they do not know the sum.

use std::sync::Arc;

use downbeat_core::execution::State;
use downbeat_store::conformance::make::{added, apply, at, chunk, created, execution};
use downbeat_store::{SqliteStore, Store};
use downbeat_testbed::Database;
use rusqlite::Connection;

/// Adds an execution with four bytes of output.
async fn fill(store: &Arc<dyn Store>) {
    let skipped = State::Skipped { reason: "no".to_owned(), at: at(20) };
    apply(store, &[created(1), added(1, vec![execution(1, 1, skipped)])]).await;
    store.append_output(&[chunk(1, 0, "text")], 100).await.unwrap();
}

async fn output_bytes(store: &Arc<dyn Store>) -> u64 {
    store.volume().await.unwrap().output_bytes
}

/// What a program of an earlier schema does, which knows nothing of the sum: `TEXT` stands for ten bytes.
const WRITE: &str = "INSERT INTO output (execution, start_byte, stream, at, text) \
     SELECT id, 100 + n, 0, 1, TEXT FROM executions CROSS JOIN (SELECT 1 AS n UNION ALL SELECT 2) AS twice";
const REMOVE: &str = "DELETE FROM output WHERE start_byte >= 101";

#[tokio::test]
async fn output_of_older_programs_is_counted() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    database.run(&WRITE.replace("TEXT", "'0123456789'::bytea")).await;
    assert_eq!(output_bytes(&store).await, 24);
    store.keep_counts(at(0), 10).await.unwrap();
    assert_eq!(output_bytes(&store).await, 24);
    database.run(REMOVE).await;
    assert_eq!(output_bytes(&store).await, 4);
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill(&store).await;
    let file = Connection::open(&path).unwrap();
    file.execute_batch(&WRITE.replace("TEXT", "'0123456789'")).unwrap();
    assert_eq!(output_bytes(&store).await, 24);
    file.execute_batch(REMOVE).unwrap();
    assert_eq!(output_bytes(&store).await, 4);
    store.close().await;
}

/// Reverts to schema 9.
const SCHEMA_9: &str = "DROP TABLE backfills; DROP TABLE deliveries; DROP TABLE job_versions; DROP TABLE jobs; ALTER TABLE runs DROP COLUMN job_version; \
     ALTER TABLE runs DROP COLUMN states; ALTER TABLE runs DROP COLUMN life; \
     ALTER TABLE runs DROP COLUMN round; ALTER TABLE executions DROP COLUMN round; \
     DROP TABLE output_removed; DELETE FROM ended WHERE kind = 3; \
     DELETE FROM migrations WHERE number > 9;";

#[tokio::test]
async fn output_from_before_the_sum_was_kept_is_counted() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    store.close().await;
    database.run(&format!("DROP FUNCTION count_output CASCADE; DELETE FROM ended_lately; {SCHEMA_9}")).await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    // What is written until it is counted is counted once.
    store.append_output(&[chunk(1, 4, "more")], 100).await.unwrap();
    for _ in 0..2 {
        store.keep_counts(at(0), 10).await.unwrap();
        assert_eq!(output_bytes(&store).await, 8);
    }
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill(&store).await;
    store.close().await;
    let triggers = "DROP TRIGGER count_added_output; DROP TRIGGER count_removed_output;";
    Connection::open(&path).unwrap().execute_batch(&format!("{triggers} {SCHEMA_9}")).unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    assert_eq!(output_bytes(&store).await, 4);
    store.append_output(&[chunk(1, 4, "more")], 100).await.unwrap();
    assert_eq!(output_bytes(&store).await, 8);
    store.close().await;
}
