//! The statements of each schema's programs are recorded, and the newest schema accepts all supported ones: servers of
//! two releases share a store.
//!
//! `UPDATE_GOLDEN=1` rewrites the record of the newest schema. Records of earlier schemas never change, because their
//! programs are released.

mod proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use downbeat_core::Timestamp;
use downbeat_core::execution::Status;
use downbeat_core::run::RunState;
use downbeat_store::conformance::make::{SERVER, at, created, run_id};
use downbeat_store::{ExecutionFilter, Page, Position, RunFilter, SqliteStore, Store};
use downbeat_testbed::Database;
use futures_util::{StreamExt as _, stream};
use proxy::{Cut, Proxy};
use rusqlite::Connection;
use tempfile::TempDir;

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the numbers of all schemas with the SQL that leads to each.
fn migrations(dialect: &str) -> BTreeMap<u32, String> {
    let files = fs::read_dir(here("migrations").join(dialect)).unwrap();
    let read = |file: fs::DirEntry| {
        let number = file.file_name().to_str().unwrap()[..4].parse().unwrap();
        (number, fs::read_to_string(file.path()).unwrap())
    };
    files.map(|file| read(file.unwrap())).collect()
}

fn record(dialect: &str, schema: u32) -> PathBuf {
    here("tests/golden/statements").join(dialect).join(format!("{schema:04}.sql"))
}

/// Returns a statement in the form of the records: on one line.
fn normal(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Keeps only statements that read or write: the others do not depend on the schema.
fn is_kept(sql: &str) -> bool {
    ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "].iter().any(|word| sql.starts_with(word))
}

/// Checks the record of the newest schema against the program's statements.
fn check_record(dialect: &str, recorded_sql: &BTreeSet<String>) {
    let kept: BTreeSet<String> =
        recorded_sql.iter().map(|sql| normal(sql)).filter(|sql| is_kept(sql)).collect();
    let actual = kept.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    let path = record(dialect, *migrations(dialect).keys().last().unwrap());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        actual == expected,
        "{} differs; if this is intended, run with UPDATE_GOLDEN=1:\n{actual}",
        path.display()
    );
}

/// Returns the schemas whose programs still work on a store with these migrations and their `works_since`.
fn still_counting(works_since: &BTreeMap<u32, u32>) -> Vec<u32> {
    let counts = |schema: &u32| works_since.range(schema + 1..).all(|(_, since)| since <= schema);
    works_since.keys().copied().filter(counts).collect()
}

/// Returns the statements of all supported schemas, each with its schema.
fn recorded(dialect: &str, works_since: &BTreeMap<u32, u32>) -> Vec<(u32, String)> {
    let mut all = Vec::new();
    for schema in still_counting(works_since) {
        let path = record(dialect, schema);
        let text = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{} is missing", path.display()));
        let before = all.len();
        all.extend(text.lines().map(|sql| (schema, sql.to_owned())));
        assert!(all.len() - before > 50, "{} has too few statements", path.display());
    }
    all
}

#[test]
fn a_schema_counts_for_as_long_as_all_later_ones_say_so() {
    let counting = |since: &[u32]| still_counting(&(1..).zip(since.iter().copied()).collect());
    assert_eq!(counting(&[1, 1, 1]), [1, 2, 3]);
    assert_eq!(counting(&[1, 1, 2]), [2, 3]);
    assert_eq!(counting(&[1, 1, 1, 3, 3]), [3, 4, 5]);
    assert_eq!(counting(&[1, 2, 2]), [2, 3]);
}

/// Makes the rows of runs as an older program would have written them.
const INCOMPLETE: &str = "UPDATE runs SET steps = NULL, nodes = NULL";

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
        if let Some(dir) = self.dir {
            LISTENING.store(false, Ordering::SeqCst);
            dir.close().unwrap();
        }
    }
}

/// Leaves the run as a program that keeps no counts does.
const UNCOUNTED: &str = "UPDATE runs SET keeps = NULL, state = 12, finished_at = 1";

/// Leaves the output as a program that keeps no sum of it does.
const UNCOUNTED_OUTPUT: &str = "INSERT INTO ended (kind, code, total) VALUES (3, 1, 1)";

/// Counts a run that has ended, and shows it in a list.
async fn count(store: &Arc<dyn Store>) {
    assert_eq!(store.keep_counts(at(1), 10).await.unwrap(), 1);
    assert_eq!(store.run_counts(&[run_id(1)]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_statements_of_this_schema_are_on_record_for_postgres() {
    let probe = Database::create().await;
    let proxy = Proxy::to(probe.port()).await;
    probe.drop().await;
    let fresh = async || {
        let database = Database::create().await;
        // Statements of migrations are not recorded: they run once.
        downbeat_store::open(&database.url).await.unwrap().close().await;
        let store = downbeat_store::open(&database.url_at(proxy.port)).await.unwrap();
        Fresh { store, database: Some(database), dir: None }
    };
    // A few at a time: creating and dropping databases is mostly waiting.
    let cases = stream::iter(downbeat_store::conformance_futures!(fresh));
    cases.buffer_unordered(8).collect::<()>().await;
    // The suite itself breaks no connection, and has no rows of older programs.
    let last = fresh().await;
    proxy.cut(Cut::AfterCommit);
    last.store.commit(SERVER, &[created(1)]).await.unwrap();
    last.database.as_ref().unwrap().run(INCOMPLETE).await;
    last.store.runs(&RunFilter::default(), &Page::first(1)).await.unwrap();
    last.store.prune(Timestamp::UNIX_EPOCH, 1).await.unwrap();
    // Nor does it use a program that keeps no counts.
    last.database.as_ref().unwrap().run(&format!("{UNCOUNTED}; {UNCOUNTED_OUTPUT}")).await;
    count(&last.store).await;
    last.done().await;
    check_record("postgres", &proxy.statements());
}

/// Connections cache their prepared statements, and forget none.
#[tokio::test]
async fn however_many_pages_are_read_the_statements_are_few() {
    const PAGES: u64 = 2_000;
    let database = Database::create().await;
    let proxy = Proxy::to(database.port()).await;
    let store = downbeat_store::open(&database.url_at(proxy.port)).await.unwrap();
    let before = proxy.statements();
    let states =
        |number: u64| RunState::ALL.into_iter().filter(move |state| number >> *state as u64 & 1 == 1);
    for number in 0..PAGES {
        let filter = RunFilter {
            states: states(number).collect(),
            job: (number % 2 == 1).then(|| format!("job-{number}")),
            text: (number % 3 == 1).then(|| format!("text-{number}")),
            ..RunFilter::default()
        };
        let limit = 1 + u32::try_from(number).unwrap() % 1_000;
        let page = Page { limit, start: Position { after: None, skip: number } };
        store.runs(&filter, &page).await.unwrap();
        let statuses = Status::ALL.into_iter().filter(|status| number >> *status as u64 & 1 == 1);
        let filter = ExecutionFilter { statuses: statuses.collect(), ..ExecutionFilter::default() };
        let page = Page { limit, start: Position { after: None, skip: number } };
        store.executions(&filter, &page).await.unwrap();
    }
    let added = proxy.statements().difference(&before).count();
    store.close().await;
    database.drop().await;
    assert!((4..=24).contains(&added), "{added} statements for {PAGES} pages");
}

static HEARD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Records the statements of all files that the process opens: no other test here opens one.
#[tokio::test]
async fn the_statements_of_this_schema_are_on_record_for_sqlite() {
    SqliteStore::record_statements(|sql| {
        if LISTENING.load(Ordering::SeqCst) {
            HEARD.lock().unwrap().insert(sql.to_owned());
        }
    });
    let fresh = async || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("downbeat.db");
        SqliteStore::open(&path).await.unwrap().close().await;
        LISTENING.store(true, Ordering::SeqCst);
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path).await.unwrap());
        Fresh { store, database: None, dir: Some(dir) }
    };
    for case in downbeat_store::conformance_futures!(fresh) {
        case.await;
    }
    let last = fresh().await;
    last.store.commit(SERVER, &[created(1)]).await.unwrap();
    let path = last.dir.as_ref().unwrap().path().join("downbeat.db");
    Connection::open(&path).unwrap().execute_batch(INCOMPLETE).unwrap();
    last.store.runs(&RunFilter::default(), &Page::first(1)).await.unwrap();
    last.store.prune(Timestamp::UNIX_EPOCH, 1).await.unwrap();
    Connection::open(&path).unwrap().execute_batch(UNCOUNTED).unwrap();
    count(&last.store).await;
    last.done().await;
    check_record("sqlite", &HEARD.lock().unwrap());
}

/// Returns `works_since` of each migration in a store of this program.
async fn works_since(database: &Database) -> BTreeMap<u32, u32> {
    downbeat_store::open(&database.url).await.unwrap().close().await;
    let sql = "SELECT number, works_since FROM migrations";
    let rows = database.client().await.query(sql, &[]).await.unwrap();
    let number = |value: i32| u32::try_from(value).unwrap();
    rows.iter().map(|row| (number(row.get(0)), number(row.get(1)))).collect()
}

#[tokio::test]
async fn every_statement_that_still_counts_is_understood_by_the_newest_schema() {
    let database = Database::create().await;
    let works_since = works_since(&database).await;
    let client = database.client().await;
    let mut failed = Vec::new();
    for (schema, sql) in recorded("postgres", &works_since) {
        if let Err(error) = client.prepare(&sql).await {
            failed.push(format!("PostgreSQL, schema {schema}: {error:?}: {sql}"));
        }
    }
    database.drop().await;
    let connection = Connection::open_in_memory().unwrap();
    for sql in migrations("sqlite").values().map(String::as_str).chain([SQLITE_MIGRATIONS]) {
        connection.execute_batch(sql).unwrap();
    }
    for (schema, sql) in recorded("sqlite", &works_since) {
        if let Err(error) = connection.prepare(&sql) {
            failed.push(format!("SQLite, schema {schema}: {error}: {sql}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The only table that no migration creates.
const SQLITE_MIGRATIONS: &str =
    "CREATE TABLE migrations (number INTEGER, checksum TEXT, works_since INTEGER, program TEXT)";

/// A column of a table, with its type.
type Columns = BTreeMap<(String, String), (String, Demand)>;

/// Whether a row can be written without naming the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Optional,
    Needed,
}

impl Demand {
    fn of(not_null: bool, default: Option<&str>) -> Self {
        if not_null && default.is_none() { Demand::Needed } else { Demand::Optional }
    }
}

/// Checks that the newest schema has every column of an older one, and that new columns are optional.
fn check_expansion(schema: u32, older: &Columns, newest: &Columns) {
    assert!(older.len() > 50, "schema {schema} has too few columns");
    for (column, old) in older {
        assert_eq!(newest.get(column), Some(old), "{column:?} of schema {schema}");
    }
    let tables: BTreeSet<&str> = older.keys().map(|(table, _)| table.as_str()).collect();
    for (column, (_, demand)) in newest.iter().filter(|(column, _)| tables.contains(column.0.as_str())) {
        let is_new = !older.contains_key(column);
        assert!(
            !is_new || *demand == Demand::Optional,
            "{column:?} is new, but programs of schema {schema} write rows without it: add a default"
        );
    }
}

async fn postgres_columns(up_to: u32) -> Columns {
    let database = Database::create().await;
    for sql in migrations("postgres").range(..=up_to).map(|(_, sql)| sql) {
        database.run(sql).await;
    }
    let sql = "SELECT table_name::text, column_name::text, data_type::text, is_nullable = 'NO', column_default::text \
               FROM information_schema.columns WHERE table_schema = current_schema()";
    let rows = database.client().await.query(sql, &[]).await.unwrap();
    let columns = rows.iter().map(|row| {
        let demand = Demand::of(row.get(3), row.get(4));
        ((row.get(0), row.get(1)), (row.get(2), demand))
    });
    let columns = columns.collect();
    database.drop().await;
    columns
}

fn sqlite_columns(up_to: u32) -> Columns {
    let connection = Connection::open_in_memory().unwrap();
    for sql in migrations("sqlite").range(..=up_to).map(|(_, sql)| sql) {
        connection.execute_batch(sql).unwrap();
    }
    let sql = "SELECT t.name, c.name, c.type, c.\"notnull\", c.dflt_value \
               FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'";
    let mut query = connection.prepare(sql).unwrap();
    let rows = query.query_map([], |row| {
        let demand = Demand::of(row.get(3)?, row.get::<_, Option<String>>(4)?.as_deref());
        Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, demand)))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn what_a_schema_has_the_later_ones_have_and_ask_for_no_more() {
    let database = Database::create().await;
    let works_since = works_since(&database).await;
    database.drop().await;
    let (&newest, _) = works_since.last_key_value().unwrap();
    for schema in still_counting(&works_since) {
        check_expansion(schema, &sqlite_columns(schema), &sqlite_columns(newest));
        check_expansion(schema, &postgres_columns(schema).await, &postgres_columns(newest).await);
    }
}
