//! The SQLite store passes the conformance suite; tests of its file follow.

use std::path::Path;
use std::sync::Arc;

use downbeat_core::execution::Verdict;
use downbeat_core::ids::ClusterId;
use downbeat_store::conformance::admission::clusters_have_their_own_room;
use downbeat_store::conformance::cache::clusters_have_their_own;
use downbeat_store::conformance::clusters::{fill_deleted, remove_all};
use downbeat_store::conformance::limits::clusters_count_apart;
use downbeat_store::conformance::make::{
    SERVER, added, apply, at, created, deleted, execution, finished, leased, node, registered, run_id,
    session,
};
use downbeat_store::conformance::{Snapshot, fill, fill_beside};
use downbeat_store::{Error, Replica, SqliteStore, Store};
use rusqlite::types::ValueRef;
use tempfile::TempDir;

struct Fresh {
    store: Arc<dyn Store>,
    dir: TempDir,
}

impl Fresh {
    async fn done(self) {
        self.store.close().await;
        self.dir.close().unwrap();
    }
}

async fn open(path: &Path) -> Result<Arc<dyn Store>, Error> {
    downbeat_store::open(&format!("sqlite:{}", path.display())).await
}

async fn fresh() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("data/deeper/downbeat.db")).await.unwrap();
    assert_eq!(store.name(), "sqlite");
    Fresh { store, dir }
}

downbeat_store::conformance_suite!(fresh);

struct FreshCopy {
    store: Arc<dyn Replica>,
    dir: TempDir,
}

impl FreshCopy {
    async fn done(self) {
        self.store.close().await;
        self.dir.close().unwrap();
    }
}

async fn open_replica(path: &Path) -> Result<Arc<dyn Replica>, Error> {
    downbeat_store::open_replica(&format!("sqlite:{}", path.display())).await
}

async fn fresh_copy() -> FreshCopy {
    let dir = tempfile::tempdir().unwrap();
    let store = open_replica(&dir.path().join("copy.db")).await.unwrap();
    FreshCopy { store, dir }
}

downbeat_store::replica_suite!(fresh_copy);

#[tokio::test]
async fn a_copy_is_there_after_reopening_and_no_server_may_write_to_it() {
    let FreshCopy { store, dir } = fresh_copy().await;
    let primary = downbeat_store::open("memory:").await.unwrap();
    fill(&primary).await;
    let (sender, parts) = tokio::sync::mpsc::channel(1);
    let (sent, replaced) = tokio::join!(primary.snapshot(sender), store.replace(parts));
    sent.unwrap();
    store.close().await;
    let path = dir.path().join("copy.db");
    let error = open(&path).await.unwrap_err();
    assert!(matches!(&error, Error::Misused(text) if text.contains("replica's copy")), "{error}");
    let again = open_replica(&path).await.unwrap();
    assert!(again.is_copied().await.unwrap());
    assert_eq!(again.last_seq().await.unwrap(), replaced.unwrap());
    let again: Arc<dyn Store> = again;
    // A copy has no leases, so it has no limit uses.
    assert_eq!(Snapshot::of(&again).await, Snapshot { uses: Vec::new(), ..Snapshot::of(&primary).await });
}

#[tokio::test]
async fn clusters_have_limits_results_and_room_of_their_own() {
    let Fresh { store, dir } = fresh().await;
    let other = ClusterId(uuid::Uuid::from_u128(7));
    let file = rusqlite::Connection::open(dir.path().join("data/deeper/downbeat.db")).unwrap();
    let insert = "INSERT INTO clusters (id, name, created_at) VALUES (?1, 'other', 0)";
    file.execute(insert, [other.0]).unwrap();
    clusters_have_their_own_room(Arc::clone(&store), other).await;
    clusters_count_apart(Arc::clone(&store), other).await;
    clusters_have_their_own(Arc::clone(&store), other).await;
    Fresh { store, dir }.done().await;
}

#[tokio::test]
async fn a_place_that_was_given_back_leaves_no_row() {
    let Fresh { store, dir } = fresh().await;
    fill(&store).await;
    let file = rusqlite::Connection::open(dir.path().join("data/deeper/downbeat.db")).unwrap();
    let rows: u32 = file.query_row("SELECT count(*) FROM limit_uses", [], |row| row.get(0)).unwrap();
    assert_eq!(rows as usize, store.uses().await.unwrap().len());
    assert!(rows > 0);
    Fresh { store, dir }.done().await;
}

#[tokio::test]
async fn a_servers_store_is_not_overwritten_by_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    apply(&store, &[created(1)]).await;
    store.close().await;
    let error = open_replica(&path).await.unwrap_err();
    assert!(matches!(&error, Error::Misused(text) if text.contains("contains a server's runs")), "{error}");
    let store = open(&path).await.unwrap();
    assert!(store.run(&run_id(1)).await.unwrap().is_some());
    let error = downbeat_store::open_replica("postgres://x@y/z").await.unwrap_err();
    assert!(matches!(&error, Error::Misused(text) if text.contains("cannot use PostgreSQL")), "{error}");
}

#[tokio::test]
async fn what_was_committed_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    fill(&store).await;
    fill_beside(&store).await;
    let before = Snapshot::of(&store).await;
    store.close().await;
    let again = open(&path).await.unwrap();
    assert_eq!(Snapshot::of(&again).await, before);
    apply(&again, &[created(50)]).await;
    assert_eq!(again.last_seq().await.unwrap(), before.last_seq + 1);
}

#[tokio::test]
async fn a_second_server_on_one_file_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let first = open(&path).await.unwrap();
    let error = open(&dir.path().join(".").join("downbeat.db")).await.unwrap_err();
    assert!(
        matches!(error, Error::InUse(_)) && error.to_string().contains("in use by another server"),
        "{error}"
    );
    apply(&first, &[created(1)]).await;
    first.close().await;
    let second = open(&path).await.unwrap();
    assert!(second.run(&run_id(1)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_newer_schema_and_an_altered_migration_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    open(&path).await.unwrap().close().await;
    let alter = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    alter("INSERT INTO migrations (number, checksum) VALUES (9999, 'x')");
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, Error::NewerSchema { found: 9999, .. }), "{error}");
    alter(
        "DELETE FROM migrations WHERE number = 9999; UPDATE migrations SET checksum = 'x' WHERE number = 1",
    );
    let error = open(&path).await.unwrap_err();
    assert!(matches!(error, Error::AlteredMigration { number: 1 }), "{error}");
}

#[tokio::test]
async fn an_invalid_location_or_database_is_refused() {
    for location in ["", "sqlite:", "sqlite", "mysql://x", "memory:x", "/var/db"] {
        let error = downbeat_store::open(location).await.unwrap_err();
        assert!(matches!(error, Error::BadLocation(_)), "{location}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    std::fs::write(&path, "this is not a database".repeat(100)).unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(&error, Error::Misused(text) if text.contains("not a SQLite database")), "{error}");
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let error = open(&dir.path().join("file/below.db")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

/// Simulates a full disk: `max_page_count` causes the same SQLITE_FULL as the system's ENOSPC.
#[tokio::test]
async fn a_full_disk_loses_nothing_and_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&dir.path().join("downbeat.db")).await.unwrap());
    let port: Arc<dyn Store> = store.clone();
    apply(&port, &[created(1)]).await;
    let before = Snapshot::of(&port).await;
    store.bound_pages(Some(4)).await.unwrap();
    let executions = (1..=2_000).map(|number| execution(number, 1, leased(number, 1))).collect();
    let batch = [created(2), added(1, executions), finished(1, 1, 1, Verdict::Succeeded)];
    let error = port.commit(SERVER, &batch).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(text) if text.contains("no space left")), "{error}");
    assert_eq!(Snapshot::of(&port).await, before);
    let error = port.commit(SERVER, &batch).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    store.bound_pages(None).await.unwrap();
    apply(&port, &batch).await;
    let after = Snapshot::of(&port).await;
    assert_eq!((after.executions.len(), after.last_seq), (2_000, before.last_seq + 3));
}

#[tokio::test]
async fn a_session_that_a_program_from_before_let_in_again_is_deleted_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    for change in [registered(1, session(1), 1), deleted(1, session(1), 2), registered(1, session(2), 3)] {
        apply(&store, &[change]).await;
    }
    store.close().await;
    let file = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(file.execute("UPDATE presence SET session = ?1", [session(1).0]).unwrap(), 1);
    drop(file);
    let store = open(&path).await.unwrap();
    apply(&store, &[deleted(1, session(1), 9)]).await;
    let tombstones = store.tombstones(Some(node(1))).await.unwrap();
    let remembered: Vec<_> = tombstones.iter().map(|tombstone| (tombstone.session, tombstone.at)).collect();
    assert_eq!(remembered, [(session(1), at(9))]);
}

/// Returns all rows of all tables as text, without events of deletions of clusters.
fn all_rows(path: &Path) -> Vec<String> {
    let file = rusqlite::Connection::open(path).unwrap();
    let mut tables = file.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut all = Vec::new();
    for table in tables {
        let mut query = file.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = query.column_count();
        let mut rows = query.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let value = |column| match row.get_ref_unwrap(column) {
                ValueRef::Blob(bytes) => {
                    uuid::Uuid::from_slice(bytes).map_or_else(|_| format!("{bytes:?}"), |id| id.to_string())
                }
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            };
            let values: Vec<String> = (0..columns).map(value).collect();
            if !values.contains(&"cluster_deleted".to_owned()) {
                all.push(format!("{table}: {}", values.join(", ")));
            }
        }
    }
    all
}

#[tokio::test]
async fn no_table_has_anything_of_a_removed_cluster() {
    let Fresh { store, dir } = fresh().await;
    let path = dir.path().join("data/deeper/downbeat.db");
    fill(&store).await;
    let texts = fill_deleted(&store).await;
    let before = all_rows(&path);
    remove_all(&store).await;
    let after = all_rows(&path);
    for text in &texts {
        assert!(before.iter().any(|row| row.contains(text)), "{text} was there");
        let left: Vec<&String> = after.iter().filter(|row| row.contains(text)).collect();
        assert!(left.is_empty(), "{text}: {left:#?}");
    }
    Fresh { store, dir }.done().await;
}
