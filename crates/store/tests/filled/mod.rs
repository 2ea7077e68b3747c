//! Stores with 100,000 runs, executions and outputs, and 200,000 events.

use downbeat_testbed::Database;
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) const ROWS: u32 = 100_000;

const FILL: &str = include_str!("fill.sql");

/// What differs between the databases.
struct Dialect {
    /// Returns an id from a kind of things and a number.
    id: fn(kind: &str, number: &str) -> String,
    /// Returns a number as text with seven digits.
    digits: fn(number: &str) -> String,
}

const POSTGRES: Dialect = Dialect {
    id: |kind, number| format!("(lpad(to_hex({number}), 12, '0') || lpad('{kind}', 20, '0'))::uuid"),
    digits: |number| format!("lpad(({number})::text, 7, '0')"),
};

const SQLITE: Dialect = Dialect {
    id: |kind, number| format!("unhex(printf('%012x%020d', {number}, {kind}))"),
    digits: |number| format!("printf('%07d', {number})"),
};

impl Dialect {
    fn fill(&self) -> String {
        let sql = FILL.replace(":rows", &ROWS.to_string());
        let sql = expand(&sql, ":numbers(", |last| {
            format!(
                "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
            )
        });
        let sql = expand(&sql, ":name(", |number| format!("'run-' || {}", (self.digits)(number)));
        expand(&sql, ":id(", |args| {
            let (kind, number) = args.split_once(", ").unwrap();
            (self.id)(kind, number)
        })
    }
}

/// Replaces each call of a function by its result for the call's arguments.
fn expand(sql: &str, call: &str, result: impl Fn(&str) -> String) -> String {
    let mut parts = sql.split(call);
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut open = 1;
        let is_end = |letter: char| {
            open += i32::from(letter == '(') - i32::from(letter == ')');
            open == 0
        };
        let end = part.find(is_end).unwrap();
        expanded += &result(&part[..end]);
        expanded += &part[end + 1..];
    }
    expanded
}

/// Returns a full PostgreSQL store with statistics.
pub(crate) async fn postgres() -> Database {
    let database = Database::create().await;
    downbeat_store::open(&database.url).await.unwrap().close().await;
    database.run(&format!("{}; ANALYZE", POSTGRES.fill())).await;
    database
}

/// Returns a full SQLite store. It has no statistics, as in production.
pub(crate) async fn sqlite() -> (TempDir, Connection) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("downbeat.db");
    downbeat_store::open(&format!("sqlite:{}", path.display())).await.unwrap().close().await;
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(&format!("BEGIN; {} COMMIT", SQLITE.fill())).unwrap();
    (directory, connection)
}
