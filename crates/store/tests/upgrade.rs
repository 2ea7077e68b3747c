//! This program on a store that the next one has migrated: it works if the migration allows it, and refuses otherwise.
//! The next program is invented: its schema adds one of everything that a migration may add.

use std::path::Path;
use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::execution::Execution;
use downbeat_core::limits;
use downbeat_core::node::Former;
use downbeat_core::run::{RunBrief, StateTimes};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::work::Parent;
use downbeat_store::conformance::make::{
    ALL_EVENTS, added, admitted, apply, at, created, execution, execution_id, lease, node, pending, refuse,
    registration_of, run_id, server, session,
};
use downbeat_store::conformance::{
    Snapshot, fill, fill_beside, fill_final, fill_first, fill_fleet, fill_graph, fill_nodes,
};
use downbeat_store::{Error, EventFilter, Hint, Page, RunFilter, ServerRecord, SqliteStore, Store};
use downbeat_testbed::Database;
use rusqlite::Connection;
use tempfile::TempDir;

/// Returns additions of every kind, in SQL that both databases accept. Each table gets a new column.
fn expansion(tables: &[String]) -> String {
    let mut sql = "CREATE TABLE next_things (id integer PRIMARY KEY, name text NOT NULL);".to_owned();
    for table in tables {
        sql += &format!(
            "ALTER TABLE {table} ADD COLUMN next_note text; \
             ALTER TABLE {table} ADD COLUMN next_count integer NOT NULL DEFAULT 7; \
             CREATE INDEX next_{table} ON {table} (next_count);"
        );
    }
    sql
}

/// Returns the row of a later program's migration, the `nth` after this program's.
fn migration(nth: u32, works_since: &str) -> String {
    format!(
        "INSERT INTO migrations (number, checksum, works_since, program) \
         SELECT max(number) + 1, 'next', {works_since}, '9.{nth}.0' FROM migrations"
    )
}

/// It works with programs of the newest schema.
const WORKS: &str = "max(number)";
/// It only works with the program that adds it.
const WORKS_NOT: &str = "max(number) + 1";

async fn migrate_postgres(database: &Database) {
    let client = database.client().await;
    let sql = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()";
    let rows = client.query(sql, &[]).await.unwrap();
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(tables.len() > 10);
    client.batch_execute(&expansion(&tables)).await.unwrap();
    client.batch_execute(&migration(1, WORKS)).await.unwrap();
}

fn migrate_sqlite(path: &Path) {
    let connection = Connection::open(path).unwrap();
    let mut query = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> = query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert!(tables.len() > 10);
    connection.execute_batch(&expansion(&tables)).unwrap();
    connection.execute_batch(&migration(1, WORKS)).unwrap();
}

struct Fresh {
    store: Arc<dyn Store>,
    database: Option<Database>,
    dir: Option<TempDir>,
}

impl Fresh {
    async fn done(self) {
        self.store.close().await;
        if let Some(database) = self.database {
            database.drop().await;
        }
        drop(self.dir);
    }
}

/// Created by this program, migrated by the next, opened by this one again.
async fn fresh_postgres() -> Fresh {
    let database = Database::create().await;
    downbeat_store::open(&database.url).await.unwrap().close().await;
    migrate_postgres(&database).await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    Fresh { store, database: Some(database), dir: None }
}

async fn fresh_sqlite() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    migrate_sqlite(&path);
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    Fresh { store, database: None, dir: Some(dir) }
}

mod on_the_next_schema_of_postgres {
    use super::fresh_postgres;
    downbeat_store::conformance_suite!(fresh_postgres);
}

mod on_the_next_schema_of_sqlite {
    use super::fresh_sqlite;
    downbeat_store::conformance_suite!(fresh_sqlite);
}

/// After one migration that works with this program, and one that does not.
fn check_refusal(error: &Error) {
    let Error::NewerSchema { found, known, .. } = error else { panic!("{error}") };
    assert_eq!(*found, known + 2);
    let text = error.to_string();
    assert!(text.contains("does not work with this downbeat"), "{text}");
    assert!(text.ends_with("start downbeat 9.2.0 or newer"), "{text}");
}

#[tokio::test]
async fn a_migration_that_does_not_work_with_this_program_is_refused_by_name() {
    let database = Database::create().await;
    downbeat_store::open(&database.url).await.unwrap().close().await;
    database.run(&migration(1, WORKS)).await;
    downbeat_store::open(&database.url).await.unwrap().close().await;
    database.run(&migration(2, WORKS_NOT)).await;
    check_refusal(&downbeat_store::open(&database.url).await.unwrap_err());
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    let run = |sql: &str| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    run(&migration(1, WORKS));
    SqliteStore::open(&path).await.unwrap().close().await;
    run(&migration(2, WORKS_NOT));
    check_refusal(&SqliteStore::open(&path).await.unwrap_err());
}

fn seqs(store_events: &[downbeat_core::change::Event]) -> Vec<u64> {
    store_events.iter().map(|event| event.seq).collect()
}

#[tokio::test]
async fn old_and_new_servers_commit_side_by_side_and_leave_no_gap() {
    const EACH: u32 = 40;
    let database = Database::create().await;
    let old = downbeat_store::open(&database.url).await.unwrap();
    // Its statements are prepared before the schema changes.
    fill(&old).await;
    fill_beside(&old).await;
    let before = Snapshot::of(&old).await;
    migrate_postgres(&database).await;
    assert_eq!(Snapshot::of(&old).await, before);
    let new = downbeat_store::open(&database.url).await.unwrap();
    let mut hints = old.hints();
    let commit = |store: &Arc<dyn Store>, number: u32| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut seqs = Vec::new();
            for round in 0..EACH {
                let run = created(1_000 * number + round);
                seqs.extend(store.commit(server(number), &[run]).await.unwrap().seqs);
            }
            seqs
        })
    };
    let (by_old, by_new) = (commit(&old, 1), commit(&new, 2));
    let mut given: Vec<u64> = by_old.await.unwrap().into_iter().flatten().collect();
    given.extend(by_new.await.unwrap().into_iter().flatten());
    given.sort_unstable();
    let first = before.last_seq + 1;
    assert_eq!(given, (first..first + 2 * u64::from(EACH)).collect::<Vec<_>>());
    let filter = EventFilter { since: before.last_seq, run: None };
    let (seen_by_old, seen_by_new) =
        tokio::join!(old.events(&filter, ALL_EVENTS), new.events(&filter, ALL_EVENTS));
    assert_eq!(seen_by_old.as_ref().unwrap(), seen_by_new.as_ref().unwrap());
    assert_eq!(seqs(&seen_by_old.unwrap()), given);
    assert!(
        new.run(&run_id(1_000)).await.unwrap().is_some() && old.run(&run_id(2_000)).await.unwrap().is_some()
    );
    let heard = tokio::time::timeout(std::time::Duration::from_secs(20), hints.recv());
    assert!(matches!(heard.await.expect("a hint arrives"), Ok(Hint::Events | Hint::Anything)));
    old.close().await;
    new.close().await;
    database.drop().await;
}

/// A newer program's event: of an unknown kind, or with an unknown field. Only raw text can express it.
const NEWER_EVENT: &str = "INSERT INTO events (seq, at, server, kind, run, data) SELECT max(seq) + 1, max(at), \
     max(CAST(server AS text)), 'job_stored', 'run-001', '{\"kind\":\"job_stored\",\"job\":{\"a\":[1]}}' FROM events";

fn check_newer_events(events: &[downbeat_core::change::Event]) {
    assert_eq!(seqs(events), [1, 2, 3]);
    assert_eq!(events[0].change, created(1), "unknown fields are ignored");
    let run = Some(run_id(1));
    assert_eq!(events[1].change, Change::Unknown { name: "job_stored".to_owned(), run, at: at(1) });
    assert_eq!(events[1].change.kind(), "job_stored");
    assert_eq!(events[2].change, created(2));
}

#[tokio::test]
async fn an_event_of_the_next_program_stops_nothing() {
    let newer_fields = "UPDATE events SET data = '{\"next\":{\"a\":1},' || substr(data, 2)";
    let Fresh { store, database, dir } = fresh_postgres().await;
    store.commit(server(1), &[created(1)]).await.unwrap();
    let database = database.unwrap();
    let newer_event = NEWER_EVENT.replace("max(CAST(server AS text))", "max(CAST(server AS text))::uuid");
    database.run(&format!("{newer_event}; {newer_fields}")).await;
    store.commit(server(1), &[created(2)]).await.unwrap();
    check_newer_events(&store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap());
    Fresh { store, database: Some(database), dir }.done().await;

    let Fresh { store, database, dir } = fresh_sqlite().await;
    store.commit(server(1), &[created(1)]).await.unwrap();
    let connection = Connection::open(dir.as_ref().unwrap().path().join("downbeat.db")).unwrap();
    let newer_event = NEWER_EVENT.replace("max(CAST(server AS text))", "max(server)");
    let numbered = "UPDATE feed SET last_seq = last_seq + 1";
    connection.execute_batch(&format!("{newer_event}; {newer_fields}; {numbered}")).unwrap();
    store.commit(server(1), &[created(2)]).await.unwrap();
    check_newer_events(&store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap());
    Fresh { store, database, dir }.done().await;
}

fn record(number: u32) -> ServerRecord {
    ServerRecord {
        id: server(number),
        name: format!("server-{number}"),
        http: String::new(),
        grpc: String::new(),
        version: String::new(),
        started_at: at(1),
        seen_at: at(2),
        level: 5,
    }
}

/// The table of migrations before the rule: schema 2, with two columns.
const BEFORE_THE_RULE: &str =
    "ALTER TABLE migrations DROP COLUMN works_since; ALTER TABLE migrations DROP COLUMN program";
/// Drops what schema 10 has in one of the databases only.
const VOLUME_POSTGRES: &str = "DROP FUNCTION count_output CASCADE;";
const VOLUME_SQLITE: &str = "DROP TRIGGER count_added_output; DROP TRIGGER count_removed_output;";
/// Drops what schema 8 has in one of the databases only.
const ONLY_POSTGRES: &str = "DROP FUNCTION release_contents CASCADE; DROP FUNCTION counts_miss_a_change CASCADE; \
     DROP TABLE instance_counts_lately;";
const ONLY_SQLITE: &str = "DROP INDEX runs_open_by_cluster; DROP TRIGGER definitions_release; \
     DROP TRIGGER nodes_release; DROP TRIGGER nodes_replace; ALTER TABLE feed DROP COLUMN counted_seq;";
/// Reverts to schema 8: drops what later migrations added.
const SCHEMA_8: &str = "DROP TABLE backfills; DROP TABLE deliveries; DROP TABLE job_versions; DROP TABLE jobs; ALTER TABLE runs DROP COLUMN job_version; \
     ALTER TABLE runs DROP COLUMN states; ALTER TABLE runs DROP COLUMN life; \
     ALTER TABLE runs DROP COLUMN round; ALTER TABLE executions DROP COLUMN round; \
     DROP TABLE output_removed; DELETE FROM ended WHERE kind = 3; \
     DROP INDEX executions_standing; DROP INDEX executions_of_task; \
     ALTER TABLE clusters DROP COLUMN description; ALTER TABLE clusters DROP COLUMN on_register; \
     ALTER TABLE clusters DROP COLUMN version; ALTER TABLE clusters DROP COLUMN updated_at; \
     ALTER TABLE clusters DROP COLUMN deleted_at; ALTER TABLE clusters DROP COLUMN checked_seq; \
     ALTER TABLE clusters DROP COLUMN list; DELETE FROM migrations WHERE number > 8;";
/// Reverts from schema 8 to schema 7.
const SCHEMA_7: &str = "DROP INDEX definitions_by_definition; DROP INDEX definitions_by_resolved; \
     DROP INDEX nodes_by_common; ALTER TABLE definitions DROP COLUMN definition_hash; \
     ALTER TABLE definitions DROP COLUMN resolved_hash; ALTER TABLE nodes DROP COLUMN common_hash; \
     DROP TABLE contents; DROP TABLE contents_released; DROP INDEX runs_by_cluster; DROP INDEX runs_by_job; DROP INDEX runs_by_end; \
     DROP INDEX runs_incomplete; DROP INDEX executions_unsuccessful; DROP INDEX executions_ended; DROP INDEX executions_open_by_node; DROP INDEX executions_of_node; \
     CREATE INDEX executions_by_node ON executions (coalesce(pinned, lease_node)); \
     CREATE INDEX executions_open ON executions (lease_node) WHERE status <= 2; DROP INDEX executions_again; \
     DROP INDEX executions_reused; DROP INDEX limit_uses_at_once; ALTER TABLE runs DROP COLUMN request_hash; \
     ALTER TABLE runs DROP COLUMN stop_cause; ALTER TABLE runs DROP COLUMN stopped_at; ALTER TABLE runs DROP COLUMN steps; \
     ALTER TABLE runs DROP COLUMN nodes; ALTER TABLE runs DROP COLUMN waves; ALTER TABLE runs DROP COLUMN budget; \
     ALTER TABLE runs DROP COLUMN wave; ALTER TABLE runs DROP COLUMN wave_failures; DROP TABLE instance_counts; DROP INDEX runs_uncounted; \
     ALTER TABLE runs DROP COLUMN keeps; ALTER TABLE executions DROP COLUMN former; \
     DELETE FROM migrations WHERE number > 7;";
/// Reverts from schema 7 to schema 6.
const SCHEMA_6: &str =
    "ALTER TABLE executions DROP COLUMN failed_for_good; DELETE FROM migrations WHERE number > 6;";
/// Reverts from schema 6 to schema 5.
const SCHEMA_5: &str = "DROP TABLE tombstones; ALTER TABLE nodes DROP COLUMN registration; \
     ALTER TABLE nodes DROP COLUMN problems; DELETE FROM migrations WHERE number > 5;";
/// Reverts from schema 5 to schema 4.
const SCHEMA_4: &str = "DROP TABLE cached; DROP TABLE limit_uses; ALTER TABLE runs DROP COLUMN no_cache; \
     ALTER TABLE executions DROP COLUMN item; ALTER TABLE executions DROP COLUMN limits; \
     ALTER TABLE executions DROP COLUMN cache_key; DELETE FROM migrations WHERE number > 4;";
/// Reverts from schema 4 to schema 2.
const SCHEMA_2: &str = "ALTER TABLE servers DROP COLUMN level; DROP TABLE holds; \
     ALTER TABLE runs DROP COLUMN paused_at; ALTER TABLE runs DROP COLUMN admitted_at; \
     ALTER TABLE runs DROP COLUMN retry_of; ALTER TABLE definitions DROP COLUMN params; \
     ALTER TABLE executions DROP COLUMN params; ALTER TABLE executions DROP COLUMN reused; \
     ALTER TABLE executions DROP COLUMN outputs; DELETE FROM migrations WHERE number > 2;";
const SERVER_BEFORE_LEVELS: &str = "INSERT INTO servers (id, name, http, grpc, version, started_at, seen_at) \
     SELECT id, name || '-old', http, grpc, version, started_at, seen_at FROM servers";

/// Returns what is left after the column of the states was dropped: older programs do not record them.
fn without_states(mut snapshot: Snapshot) -> Snapshot {
    snapshot.runs.iter_mut().for_each(|run| run.live.states = StateTimes::default());
    snapshot
}

#[tokio::test]
async fn a_store_from_before_the_rule_is_taken_on_with_all_that_it_holds() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill_first(&store).await;
    let before = without_states(Snapshot::of(&store).await);
    store.close().await;
    let undo = format!("{SCHEMA_8} {SCHEMA_7} {SCHEMA_6} {SCHEMA_5} {SCHEMA_4} {SCHEMA_2} {BEFORE_THE_RULE}");
    database.run(&format!("{VOLUME_POSTGRES} {ONLY_POSTGRES} {undo}")).await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    assert_eq!(Snapshot::of(&store).await, before);
    // An older server still writes its row without a level.
    store.put_server(&record(1)).await.unwrap();
    let old = SERVER_BEFORE_LEVELS.replace("SELECT id", "SELECT gen_random_uuid()");
    database.run(&format!("{old}; DELETE FROM servers WHERE name <> 'server-1-old'")).await;
    assert_eq!(store.servers().await.unwrap()[0].level, 1);
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill_first(&store).await;
    let before = without_states(Snapshot::of(&store).await);
    store.close().await;
    Connection::open(&path).unwrap().execute_batch(&format!("{VOLUME_SQLITE} {ONLY_SQLITE} {undo}")).unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    assert_eq!(Snapshot::of(&store).await, before);
    store.close().await;
}

/// Creates more runs than one transaction completes, as an older program would have left them.
async fn fill_incomplete(store: &Arc<dyn Store>) -> (RunFilter, Vec<RunBrief>) {
    let count = u32::try_from(limits::RUNS_COMPLETED).unwrap() + 2;
    apply(store, &(1..=count).map(created).collect::<Vec<_>>()).await;
    let filter = RunFilter::default();
    let before = store.runs(&filter, &Page::first(1_000)).await.unwrap().rows;
    assert!(before.len() > limits::RUNS_COMPLETED && before.iter().all(|run| run.steps > 0));
    (filter, before)
}

const INCOMPLETE: &str = "UPDATE runs SET steps = NULL, nodes = NULL";
const LEFT: &str = "SELECT count(*) FROM runs WHERE steps IS NULL OR nodes IS NULL";

#[tokio::test]
async fn upkeep_completes_the_rows_of_an_older_program() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    let (filter, before) = fill_incomplete(&store).await;
    database.run(INCOMPLETE).await;
    assert_eq!(store.runs(&filter, &Page::first(1_000)).await.unwrap().rows, before);
    assert_eq!(store.keep_counts(at(0), 10).await.unwrap(), 0);
    assert_eq!(database.client().await.query_one(LEFT, &[]).await.unwrap().get::<_, i64>(0), 0);
    assert_eq!(store.runs(&filter, &Page::first(1_000)).await.unwrap().rows, before);
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    let (filter, before) = fill_incomplete(&store).await;
    let file = Connection::open(&path).unwrap();
    file.execute_batch(INCOMPLETE).unwrap();
    assert_eq!(store.runs(&filter, &Page::first(1_000)).await.unwrap().rows, before);
    assert_eq!(store.keep_counts(at(0), 10).await.unwrap(), 0);
    assert_eq!(file.query_row(LEFT, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    assert_eq!(store.runs(&filter, &Page::first(1_000)).await.unwrap().rows, before);
    store.close().await;
}

/// One definition cannot be read, and one run has ended and is not counted.
const UNREADABLE: &str = "UPDATE definitions SET definition = '?' WHERE run = 'run-001'; \
     UPDATE runs SET keeps = NULL, state = 12, finished_at = 1 WHERE id = 'run-002'";

#[tokio::test]
async fn a_definition_that_cannot_be_read_does_not_stop_upkeep() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill_incomplete(&store).await;
    database.run(&format!("{INCOMPLETE}; {UNREADABLE}")).await;
    assert_eq!(store.keep_counts(at(1), 10).await.unwrap(), 1);
    assert_eq!(database.client().await.query_one(LEFT, &[]).await.unwrap().get::<_, i64>(0), 1);
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill_incomplete(&store).await;
    let file = Connection::open(&path).unwrap();
    file.execute_batch(&format!("{INCOMPLETE}; {UNREADABLE}")).unwrap();
    assert_eq!(store.keep_counts(at(1), 10).await.unwrap(), 1);
    assert_eq!(file.query_row(LEFT, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    store.close().await;
}

#[tokio::test]
async fn a_page_reads_so_much_of_the_definitions_of_an_older_program_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    apply(&store, &(1..=5).map(created).collect::<Vec<_>>()).await;
    let all = store.runs(&RunFilter::default(), &Page::first(10)).await.unwrap();
    // Spaces do not change what the text means.
    let half = i64::try_from(limits::PAGE_BYTES / 2).unwrap();
    let file = Connection::open(&path).unwrap();
    file.execute_batch(INCOMPLETE).unwrap();
    file.execute("UPDATE definitions SET definition = definition || printf('%*s', ?1, '')", [half]).unwrap();
    let (mut page, mut pages) = (Page::first(10), Vec::new());
    loop {
        let listed = store.runs(&RunFilter::default(), &page).await.unwrap();
        pages.push(listed.rows);
        match listed.next {
            Some(next) => page.start = next,
            None => break,
        }
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat(), all.rows);
    store.close().await;
}

#[tokio::test]
async fn a_migration_that_has_to_wait_silences_nobody() {
    let database = Database::create().await;
    let other = downbeat_store::open(&database.url).await.unwrap();
    let undo = format!("{SCHEMA_8} {SCHEMA_7} {SCHEMA_6} {SCHEMA_5} {SCHEMA_4} {SCHEMA_2}");
    database.run(&format!("{VOLUME_POSTGRES} {ONLY_POSTGRES} {undo}")).await;
    // A reader keeps the table in use for a long time, as a backup does.
    let mut backup = database.client().await;
    let long = backup.transaction().await.unwrap();
    long.query("SELECT 1 FROM servers", &[]).await.unwrap();
    let opening = tokio::spawn({
        let url = database.url.clone();
        async move { downbeat_store::open(&url).await }
    });
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock' AND query LIKE '%ALTER TABLE servers%'";
    database.wait_until(waiting).await;
    // A server of the previous schema can still write its heartbeat.
    let old = database.client().await;
    let sign = "INSERT INTO servers (id, name, http, grpc, version, started_at, seen_at) \
                VALUES (gen_random_uuid(), 'old', '', '', '', 1, 2)";
    let signed = tokio::time::timeout(std::time::Duration::from_secs(20), old.batch_execute(sign));
    signed.await.expect("a heartbeat does not wait for a backup").unwrap();
    assert!(!opening.is_finished());
    long.commit().await.unwrap();
    let store = opening.await.unwrap().unwrap();
    assert_eq!(store.servers().await.unwrap()[0].level, 1);
    store.close().await;
    other.close().await;
    database.drop().await;
}

#[tokio::test]
async fn nodes_that_an_older_program_did_not_give_back_are_free() {
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    apply(&store, &[created(1), created(2), admitted(1, None, &[1])]).await;
    // A program of schema 3 ends a run without removing its holds.
    database.run("UPDATE runs SET state = 12, finished_at = 1 WHERE id = 'run-001'").await;
    assert_eq!(store.holds().await.unwrap(), []);
    apply(&store, &[admitted(2, None, &[1])]).await;
    assert_eq!(store.holds().await.unwrap(), [(node(1), run_id(2))]);
    store.close().await;
    database.drop().await;
}

/// Fills stores, reverts their schema with `undo`, and opens them again.
async fn is_taken_on(fill: impl AsyncFn(&Arc<dyn Store>), undo: &str) {
    let only = |dialect: &'static str| if undo.is_empty() { "" } else { dialect };
    let (only_postgres, only_sqlite) = (only(ONLY_POSTGRES), only(ONLY_SQLITE));
    let undo = format!("{SCHEMA_8} {undo}");
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    fill(&store).await;
    let before = without_states(Snapshot::of(&store).await);
    store.close().await;
    database.run(&format!("{VOLUME_POSTGRES} {only_postgres} {undo}")).await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    assert_eq!(Snapshot::of(&store).await, before);
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    fill(&store).await;
    let before = without_states(Snapshot::of(&store).await);
    store.close().await;
    Connection::open(&path).unwrap().execute_batch(&format!("{VOLUME_SQLITE} {only_sqlite} {undo}")).unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    assert_eq!(Snapshot::of(&store).await, before);
    store.close().await;
}

#[tokio::test]
async fn a_store_of_schema_4_is_taken_on_with_all_that_it_holds() {
    is_taken_on(fill_fleet, &format!("{SCHEMA_7} {SCHEMA_6} {SCHEMA_5} {SCHEMA_4}")).await;
}

#[tokio::test]
async fn a_store_of_schema_5_is_taken_on_with_all_that_it_holds() {
    is_taken_on(fill_graph, &format!("{SCHEMA_7} {SCHEMA_6} {SCHEMA_5}")).await;
}

#[tokio::test]
async fn a_store_of_schema_6_is_taken_on_with_all_that_it_holds() {
    is_taken_on(fill_nodes, &format!("{SCHEMA_7} {SCHEMA_6}")).await;
}

#[tokio::test]
async fn a_store_of_schema_7_is_taken_on_with_all_that_it_holds() {
    is_taken_on(fill_final, SCHEMA_7).await;
}

#[tokio::test]
async fn a_store_of_schema_8_is_taken_on_with_all_that_it_holds() {
    is_taken_on(fill_final, "").await;
}

#[tokio::test]
async fn a_session_that_an_older_program_registered_is_of_no_installation() {
    let registered = Change::NodeRegistered { registration: registration_of(1, session(1), 5, Former::Any) };
    let check = async |store: &Arc<dyn Store>| {
        let found = store.node(node(1)).await.unwrap().unwrap();
        assert_eq!((found.session, found.installation, found.undelivered), (session(2), None, Vec::new()));
    };
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    apply(&store, std::slice::from_ref(&registered)).await;
    // A program of schema 5 registers without the new column.
    database.run(&format!("UPDATE presence SET session = '{}'", session(2))).await;
    check(&store).await;
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    apply(&store, &[registered]).await;
    Connection::open(&path).unwrap().execute("UPDATE presence SET session = ?1", [session(2).0]).unwrap();
    check(&store).await;
    store.close().await;
}

#[tokio::test]
async fn places_that_an_older_program_did_not_give_back_are_free() {
    let limits = Some(Arc::new(Limits::from([("db".to_owned(), Limit::AtOnce(1))])));
    let limited = |number| Execution { limits: limits.clone(), ..execution(number, 1, pending()) };
    let give = |number| Change::ExecutionLeased {
        of: Parent::Run(run_id(1)),
        execution: execution_id(number),
        lease: lease(number, 1),
    };
    // A program of schema 4 ends an execution without freeing its slot.
    let end = "UPDATE executions SET status = 7, reason = '', ended_at = 1 WHERE status = 1";
    let check = async |store: &Arc<dyn Store>, place: u32| {
        apply(store, &[give(place)]).await;
        let used: Vec<_> = store.uses().await.unwrap().into_iter().map(|used| used.execution).collect();
        assert_eq!(used, [execution_id(place)]);
    };
    let prepare = async |store: &Arc<dyn Store>| {
        apply(store, &[created(1), added(1, (1..=3).map(limited).collect()), give(1)]).await;
        refuse(store, give(2), Refusal::LimitReached("db".to_owned())).await;
    };
    let database = Database::create().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    prepare(&store).await;
    database.run(end).await;
    assert_eq!(store.uses().await.unwrap(), []);
    check(&store, 2).await;
    store.prune(at(0), 1).await.unwrap();
    let left = database.client().await.query("SELECT 1 FROM limit_uses", &[]).await.unwrap();
    assert_eq!(left.len(), 1, "stale rows are removed");
    store.close().await;
    database.drop().await;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
    prepare(&store).await;
    let file = Connection::open(&path).unwrap();
    file.execute(end, []).unwrap();
    assert_eq!(store.uses().await.unwrap(), []);
    check(&store, 2).await;
    store.prune(at(0), 1).await.unwrap();
    let left: u32 = file.query_row("SELECT count(*) FROM limit_uses", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1, "stale rows are removed");
    store.close().await;
}
