//! Equal contents of runs and nodes are stored once on both databases; on PostgreSQL also while several servers create
//! and prune runs. Older programs never take such a row for a whole one.

use std::path::Path;
use std::sync::Arc;

use downbeat_core::change::Change;
use downbeat_core::ids::RunId;
use downbeat_core::limits::SHARED_CONTENT_BYTES;
use downbeat_core::node::Description;
use downbeat_core::plan::Resolved;
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::spec::Definition;
use downbeat_store::conformance::contents::{
    each_content_is_stored_once, equipped, large, large_definition, large_made,
};
use downbeat_store::conformance::make::{
    SERVER, apply, at, created_as, made, made_as, moved, node, registration, run_id, server, session,
};
use downbeat_store::conformance::{Snapshot, fill};
use downbeat_store::{SqliteStore, Store};
use downbeat_testbed::Database;
use rusqlite::Connection;
use tempfile::TempDir;

const COUNT: &str = "SELECT count(*) FROM contents";

async fn postgres() -> (Arc<dyn Store>, Database) {
    let database = Database::create().await;
    (downbeat_store::open(&database.url).await.unwrap(), database)
}

async fn sqlite() -> (Arc<dyn Store>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Arc::new(SqliteStore::open(&file(&dir)).await.unwrap()), dir)
}

fn file(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("downbeat.db")
}

async fn number(database: &Database, sql: &str) -> i64 {
    database.client().await.query_one(sql, &[]).await.unwrap().get(0)
}

fn number_in(path: &Path, sql: &str) -> i64 {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Rows in which a released content is remembered.
const RELEASED: &str = "SELECT count(*) FROM contents_released";

#[tokio::test]
async fn each_content_is_stored_once_and_goes_with_its_last_reference() {
    let (store, database) = postgres().await;
    each_content_is_stored_once(Arc::clone(&store), async || number(&database, COUNT).await).await;
    assert_eq!(number(&database, RELEASED).await, 0);
    store.close().await;
    database.drop().await;

    let (store, dir) = sqlite().await;
    let path = file(&dir);
    each_content_is_stored_once(Arc::clone(&store), async || number_in(&path, COUNT)).await;
    assert_eq!(number_in(&path, RELEASED), 0);
    store.close().await;
}

#[tokio::test]
async fn records_that_are_read_together_share_their_contents() {
    let check = async |store: Arc<dyn Store>| {
        store.share_contents().await.unwrap();
        let registered = |number| Change::NodeRegistered { registration: equipped(number, 1, 7) };
        apply(&store, &[large(1), large(2), registered(1), registered(2)]).await;
        let runs = store.runs_by_id(&[run_id(1), run_id(2)]).await.unwrap();
        assert!(Arc::ptr_eq(&runs[0].definition, &runs[1].definition));
        assert!(Arc::ptr_eq(&runs[0].resolved, &runs[1].resolved));
        let nodes = store.nodes(None).await.unwrap();
        let backends = [0, 1].map(|number: usize| &nodes[number].description.backends);
        assert!(backends[0].iter().zip(backends[1]).all(|(one, other)| Arc::ptr_eq(one, other)));
        store.close().await;
    };
    let (store, database) = postgres().await;
    check(store).await;
    database.drop().await;
    let (store, _dir) = sqlite().await;
    check(store).await;
}

#[tokio::test]
async fn all_contents_are_found_however_many_there_are() {
    const RUNS: u32 = 210;
    let check = async |store: Arc<dyn Store>| {
        store.share_contents().await.unwrap();
        let made = |number: u32| {
            let definition = Arc::new(large_definition(SHARED_CONTENT_BYTES + number as usize));
            RunMade { definition, ..made(number) }
        };
        let create: Vec<Change> = (1..=RUNS).map(|number| created_as(made_as(made(number)))).collect();
        apply(&store, &create).await;
        let ids: Vec<RunId> = (1..=RUNS).map(run_id).collect();
        for (number, run) in (1..=RUNS).zip(store.runs_by_id(&ids).await.unwrap()) {
            assert_eq!(*run.made, made(number));
        }
        assert_eq!(store.open_runs().await.unwrap().len(), RUNS as usize);
        store.close().await;
    };
    let (store, database) = postgres().await;
    check(store).await;
    assert_eq!(number(&database, COUNT).await, i64::from(RUNS));
    database.drop().await;
    let (store, _dir) = sqlite().await;
    check(store).await;
}

#[tokio::test]
async fn contents_stay_until_their_users_can_be_found_by_an_index() {
    let (store, database) = postgres().await;
    store.share_contents().await.unwrap();
    apply(&store, &[large(1), moved(1, &[RunState::Cancelled], 10)]).await;
    let built =
        "CREATE INDEX definitions_by_resolved ON definitions (resolved_hash) WHERE resolved_hash IS NOT NULL";
    database.run("DROP INDEX definitions_by_resolved").await;
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 1);
    assert_eq!((number(&database, COUNT).await, number(&database, RELEASED).await), (2, 2));
    database.run(built).await;
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 0);
    assert_eq!((number(&database, COUNT).await, number(&database, RELEASED).await), (0, 0));
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn while_an_older_server_is_live_rows_have_their_texts() {
    let (store, database) = postgres().await;
    apply(&store, &[large(1), Change::NodeRegistered { registration: equipped(1, 1, 7) }]).await;
    assert_eq!(number(&database, COUNT).await, 0);
    let client = database.client().await;
    let row = client.query_one("SELECT definition, resolved FROM definitions", &[]).await.unwrap();
    let (definition, resolved): (&str, &str) = (row.get(0), row.get(1));
    let made = large_made(1, 50);
    assert_eq!(serde_json::from_str::<Definition>(definition).unwrap(), *made.definition);
    assert_eq!(serde_json::from_str::<Resolved>(resolved).unwrap(), *made.resolved);
    let row = client.query_one("SELECT description FROM nodes", &[]).await.unwrap();
    let description: Description = serde_json::from_str(row.get(0)).unwrap();
    assert_eq!(description, equipped(1, 1, 7).description);
    assert_eq!(number(&database, "SELECT works_since::bigint FROM migrations WHERE number = 8").await, 1);
    // Servers that start later know that contents are shared.
    store.share_contents().await.unwrap();
    assert_eq!(number(&database, "SELECT works_since::bigint FROM migrations WHERE number = 8").await, 8);
    let other = downbeat_store::open(&database.url).await.unwrap();
    apply(&other, &[large(2)]).await;
    assert_eq!(number(&database, COUNT).await, 2);
    store.close().await;
    other.close().await;
    database.drop().await;
}

#[tokio::test]
async fn an_older_program_does_not_take_a_row_without_its_content_for_a_whole_one() {
    let (store, database) = postgres().await;
    store.share_contents().await.unwrap();
    apply(&store, &[large(1), Change::NodeRegistered { registration: equipped(1, 1, 7) }]).await;
    let client = database.client().await;
    let row = client.query_one("SELECT definition, resolved FROM definitions", &[]).await.unwrap();
    let (definition, resolved): (&str, &str) = (row.get(0), row.get(1));
    assert!(serde_json::from_str::<Definition>(definition).is_err());
    assert!(serde_json::from_str::<Resolved>(resolved).is_err());
    let row = client.query_one("SELECT description FROM nodes", &[]).await.unwrap();
    assert!(serde_json::from_str::<Description>(row.get(0)).is_err());
    // A server of schema 7 that was silent and comes back registers the node with a whole description.
    let description = serde_json::to_string(&registration(1, session(1), 1).description).unwrap();
    client.execute("UPDATE nodes SET description = $1", &[&description]).await.unwrap();
    let found = store.node(node(1)).await.unwrap().unwrap();
    assert_eq!(found.description, registration(1, session(1), 1).description);
    store.close().await;
    database.drop().await;
}

/// A commit that has inserted its rows, and one that is about to: pruning takes the content of neither.
#[tokio::test]
async fn pruning_does_not_remove_what_a_commit_refers_to() {
    let (store, database) = postgres().await;
    store.share_contents().await.unwrap();
    apply(&store, &[large(1), moved(1, &[RunState::Cancelled], 10)]).await;
    // Another server, stopped before its commit.
    let mut slow = database.client().await;
    let open = slow.transaction().await.unwrap();
    open.batch_execute(
        "INSERT INTO runs (id, cluster, state, submitted_by, created_at, owner, epoch, steps, nodes) \
         SELECT 'run-002', cluster, 0, submitted_by, created_at, owner, epoch, steps, nodes FROM runs; \
         INSERT INTO definitions (run, definition, resolved, definition_hash, resolved_hash) \
         SELECT 'run-002', definition, resolved, definition_hash, resolved_hash FROM definitions",
    )
    .await
    .unwrap();
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 1);
    assert_eq!((number(&database, COUNT).await, number(&database, RELEASED).await), (2, 2));
    open.commit().await.unwrap();
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 0);
    assert_eq!((number(&database, COUNT).await, number(&database, RELEASED).await), (2, 0));
    assert_eq!(store.run(&run_id(2)).await.unwrap().unwrap().resolved, large_made(1, 50).resolved);

    // The commit has found the content and waits; meanwhile its last reference and then the content itself go.
    let gate = slow.transaction().await.unwrap();
    gate.batch_execute("LOCK TABLE definitions IN SHARE MODE").await.unwrap();
    let commit = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.commit(SERVER, &[large(3)]).await.unwrap() }
    });
    database
        .wait_until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
             AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO definitions%'",
        )
        .await;
    gate.batch_execute("DELETE FROM runs WHERE id = 'run-002'; DELETE FROM contents").await.unwrap();
    gate.commit().await.unwrap();
    assert_eq!(commit.await.unwrap().outcomes, [Ok(())]);
    assert_eq!(*store.run(&run_id(3)).await.unwrap().unwrap().made, large_made(3, 50));
    store.close().await;
    database.drop().await;
}

#[tokio::test]
async fn servers_that_create_and_prune_equal_runs_lose_no_content() {
    const EACH: u32 = 60;
    let (store, database) = postgres().await;
    store.share_contents().await.unwrap();
    let other = downbeat_store::open(&database.url).await.unwrap();
    let create = |store: &Arc<dyn Store>, first: u32| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for number in first..first + EACH {
                let outcomes = store.commit(server(1), &[large(number)]).await.unwrap().outcomes;
                assert_eq!(outcomes, [Ok(())]);
                let run = store.run(&run_id(number)).await.unwrap().unwrap();
                assert_eq!(*run.made, large_made(number, 50));
                apply(&store, &[moved(number, &[RunState::Cancelled], 10)]).await;
            }
        })
    };
    let (one, two) = (create(&store, 100), create(&other, 200));
    while !one.is_finished() || !two.is_finished() {
        other.prune(at(20), 1_000).await.unwrap();
    }
    one.await.unwrap();
    two.await.unwrap();
    store.prune(at(20), 1_000).await.unwrap();
    assert_eq!(number(&database, COUNT).await, 0);
    store.close().await;
    other.close().await;
    database.drop().await;
}

/// The statements in `docs/upgrade.md` that make a store readable for the release before.
fn back() -> String {
    let document = include_str!("../../../docs/upgrade.md");
    let (_, rest) = document.split_once("```sql\n").expect("the document has the statements");
    rest.split_once("```").expect("the statements end").0.to_owned()
}

/// As a server of schema 7 writes it that was silent and comes back: the description is whole, and the hash stays.
fn described_again() -> String {
    let description = serde_json::to_string(&equipped(72, 70, 7).description).unwrap().replace('\'', "''");
    format!("UPDATE nodes SET description = '{description}' WHERE hostname = 'web-72'")
}

#[tokio::test]
async fn a_store_is_given_back_its_texts_as_the_documentation_says() {
    let fill = async |store: &Arc<dyn Store>| {
        fill(store).await;
        store.share_contents().await.unwrap();
        let registered = |registration| Change::NodeRegistered { registration };
        let mut confusing = equipped(73, 70, 7);
        confusing.description.labels.insert("slots".to_owned(), "{}}".to_owned());
        confusing.description.capabilities.insert("slots".to_owned(), 4.into());
        let nodes = [equipped(71, 70, 7), equipped(72, 70, 7), confusing].map(registered);
        apply(store, &[large(71), large(72)]).await;
        apply(store, &nodes).await;
        Snapshot::of(store).await
    };
    let whole = |definition: &str, resolved: &str, description: &str| {
        serde_json::from_str::<Definition>(definition).unwrap();
        serde_json::from_str::<Resolved>(resolved).unwrap();
        serde_json::from_str::<Description>(description).unwrap();
    };
    let all = "SELECT d.definition, d.resolved, n.description FROM definitions d CROSS JOIN nodes n";
    let since = "SELECT works_since FROM migrations WHERE number = 8";

    let (store, database) = postgres().await;
    let before = fill(&store).await;
    store.close().await;
    database.run(&described_again()).await;
    database.run(&back()).await;
    for row in database.client().await.query(all, &[]).await.unwrap() {
        whole(row.get(0), row.get(1), row.get(2));
    }
    assert_eq!(number(&database, &since.replace("works_since", "works_since::bigint")).await, 1);
    let store = downbeat_store::open(&database.url).await.unwrap();
    assert_eq!(Snapshot::of(&store).await, before);
    store.prune(at(0), 1).await.unwrap();
    assert_eq!((number(&database, COUNT).await, number(&database, RELEASED).await), (0, 0));
    store.close().await;
    database.drop().await;

    let (store, dir) = sqlite().await;
    let before = fill(&store).await;
    store.close().await;
    assert_eq!(number_in(&file(&dir), since), 8);
    let connection = Connection::open(file(&dir)).unwrap();
    connection.execute_batch(&described_again()).unwrap();
    connection.execute_batch(&back()).unwrap();
    let mut query = connection.prepare(all).unwrap();
    let mut rows = query.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let text = |column| row.get::<_, String>(column).unwrap();
        whole(&text(0), &text(1), &text(2));
    }
    assert_eq!(number_in(&file(&dir), since), 1);
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file(&dir)).await.unwrap());
    assert_eq!(Snapshot::of(&store).await, before);
    store.close().await;
}
