//! Indexes of tables with rows are built while servers write, by one server at a time, and again if that one dies.

use std::sync::Arc;

use downbeat_store::conformance::make::{SERVER, created, server};
use downbeat_store::{PostgresStore, Store};
use downbeat_testbed::Database;

/// Whether all indexes are there and complete.
fn all_valid() -> String {
    let names = PostgresStore::index_names();
    format!(
        "SELECT count(*) = {} FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         WHERE i.indisvalid AND c.relname IN ('{}')",
        names.len(),
        names.join("', '")
    )
}
/// Whether somebody has begun to build the index that a writer holds up.
const BEGUN: &str = "SELECT count(*) = 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
     WHERE NOT i.indisvalid AND c.relname = 'runs_by_job'";
/// Whether a build has taken longer than the timeout of the next constant.
const TAKES_LONG: &str = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
     AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND state = 'active' \
     AND clock_timestamp() - query_start > interval '400 ms'";
const SHORT_TIMEOUT: &str = "DO $$ BEGIN EXECUTE format( \
     'ALTER DATABASE %I SET statement_timeout = 200', current_database()); END $$";
const NOBODY_BUILDS: &str = "SELECT count(*) = 0 FROM pg_stat_activity \
     WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND state = 'active'";

/// A store of this program without one of its indexes, and a transaction that writes and does not end.
struct HeldUp {
    database: Database,
    older: Arc<dyn Store>,
    writer: tokio_postgres::Client,
}

impl HeldUp {
    async fn new() -> Self {
        let database = Database::create().await;
        let older = downbeat_store::open(&database.url).await.unwrap();
        older.commit(SERVER, &[created(1)]).await.unwrap();
        database.wait_until(&all_valid()).await;
        database.run("DROP INDEX runs_by_job").await;
        let writer = database.client().await;
        writer.batch_execute("BEGIN; UPDATE runs SET error = error").await.unwrap();
        Self { database, older, writer }
    }

    /// Opens a store, and waits until it builds the index.
    async fn open(&self) -> Arc<dyn Store> {
        let store = downbeat_store::open(&self.database.url).await.unwrap();
        self.database.wait_until(BEGUN).await;
        store
    }

    async fn release(&self) {
        self.writer.batch_execute("ROLLBACK").await.unwrap();
        self.database.wait_until(&all_valid()).await;
    }

    async fn done(self, stores: impl IntoIterator<Item = Arc<dyn Store>>) {
        for store in stores.into_iter().chain([self.older]) {
            store.close().await;
        }
        drop(self.writer);
        self.database.drop().await;
    }
}

#[tokio::test]
async fn servers_serve_while_an_index_is_built() {
    let held_up = HeldUp::new().await;
    let newer = held_up.open().await;
    // Those that are older do not know of it.
    held_up.older.commit(server(1), &[created(2)]).await.unwrap();
    newer.commit(server(2), &[created(3)]).await.unwrap();
    held_up.release().await;
    held_up.done([newer]).await;
}

#[tokio::test]
async fn two_servers_that_start_at_once_build_an_index_once() {
    let held_up = HeldUp::new().await;
    let first = held_up.open().await;
    let second = downbeat_store::open(&held_up.database.url).await.unwrap();
    second.commit(SERVER, &[created(2)]).await.unwrap();
    held_up.release().await;
    held_up.done([first, second]).await;
}

#[tokio::test]
async fn an_index_whose_builder_died_is_built_again() {
    let held_up = HeldUp::new().await;
    let dying = held_up.open().await;
    // As if the server was killed: its connection ends in the middle, and the rest of an index stays.
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%'";
    dying.close().await;
    drop(dying);
    held_up.database.run(kill).await;
    held_up.database.wait_until(NOBODY_BUILDS).await;
    held_up.database.wait_until(BEGUN).await;
    let next = held_up.open().await;
    held_up.release().await;
    held_up.done([next]).await;
}

#[tokio::test]
async fn a_builder_that_loses_its_connection_tries_again() {
    let held_up = HeldUp::new().await;
    let store = held_up.open().await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%'";
    held_up.database.run(kill).await;
    held_up.release().await;
    held_up.done([store]).await;
}

#[tokio::test]
async fn a_timeout_of_the_database_does_not_end_a_build() {
    let held_up = HeldUp::new().await;
    held_up.database.run(SHORT_TIMEOUT).await;
    let store = held_up.open().await;
    held_up.database.wait_until(TAKES_LONG).await;
    held_up.release().await;
    held_up.done([store]).await;
}
