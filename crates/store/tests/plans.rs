//! The query plans of all statements on record, on stores with 100,000 runs and executions: none reads a large table from
//! one end to the other, except those that are listed here with a reason.

mod filled;

use std::fs;
use std::path::PathBuf;

use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::run::RunState;
use downbeat_core::{Portion, Timestamp, limits};
use downbeat_store::{ExecutionFilter, InstanceFilter, Page, RunFilter, RunOrder, Store};
use downbeat_testbed::Database;
use filled::ROWS;
use rusqlite::Connection;
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

/// Tables that grow with what was executed. Nodes and servers are few: reading all of them takes milliseconds.
const LARGE: [&str; 8] =
    ["runs", "definitions", "executions", "events", "output", "cached", "limit_uses", "contents"];

/// Indexes of rows that are few: of what is open.
const OF_OPEN_ROWS: [&str; 3] = ["runs_open", "executions_open_by_node", "limit_uses_at_once"];

/// The starts and ends of statements that read a whole table, and why they may.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("UPDATE runs SET keeps = NULL WHERE keeps > 0", "", "once, after a program that keeps no counts"),
    ("WITH missing AS (DELETE FROM ended", "", "once, after a program that keeps no sum of output"),
    ("SELECT id, keeps FROM runs WHERE keeps > 0", "", "a copy is everything"),
    ("SELECT coalesce(octet_length(", ") AS all_rows", "a copy is everything"),
    ("SELECT (SELECT min(seq) FROM events)", "", "only the first row of each, by an index"),
    ("SELECT r.id, r.state", "JOIN definitions d ON d.run = r.id ORDER BY r.id", "a copy is everything"),
    ("SELECT r.id, r.state", "JOIN definitions d ON d.run = r.id", "a copy is everything"),
    ("SELECT id, status, not_before", "FROM executions", "a copy is everything"),
    ("SELECT o.execution", "FROM output o ORDER BY execution, start_byte", "a copy is everything"),
    ("SELECT d.id, d.cluster, d.run", "FROM deliveries d", "a copy is everything"),
    ("SELECT seq, server, at", "FROM events ORDER BY seq", "a copy is everything"),
    (
        "SELECT l.execution, l.key",
        "ORDER BY l.cluster, l.key, l.granted_at, l.execution",
        "once, at the start",
    ),
];

fn is_allowed(sql: &str) -> bool {
    ALLOWED.iter().any(|(start, end, _)| sql.starts_with(start) && sql.ends_with(end))
}

/// Returns the statements of the newest schema.
fn recorded(dialect: &str) -> Vec<String> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/statements").join(dialect);
    let newest = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).max().unwrap();
    let all: Vec<String> = fs::read_to_string(newest).unwrap().lines().map(str::to_owned).collect();
    assert!(all.len() > 50);
    all
}

/// Returns the first text of a response.
async fn text(client: &Client, sql: &str) -> Option<String> {
    let messages = client.simple_query(sql).await.unwrap();
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// Finds the parts of a plan that read a large table from one end to the other.
fn whole_reads(plan: &Value, is_cut: bool, found: &mut Vec<String>) {
    let word = |name: &str| plan[name].as_str().unwrap_or_default();
    let (kind, table, index) = (word("Node Type"), word("Relation Name"), word("Index Name"));
    let by_index = kind.starts_with("Index");
    if LARGE.contains(&table)
        && (kind == "Seq Scan" || by_index && plan["Index Cond"].is_null())
        && !(by_index && (is_cut || OF_OPEN_ROWS.contains(&index)))
    {
        found.push(format!("{kind} of {table} {index}"));
    }
    // An aggregate or a sort reads everything before the limit counts.
    let is_cut = match kind {
        "Limit" => true,
        "Aggregate" | "Sort" | "Hash" | "Materialize" => false,
        _ => is_cut,
    };
    for part in plan["Plans"].as_array().into_iter().flatten() {
        whole_reads(part, is_cut, found);
    }
}

#[tokio::test]
async fn no_statement_reads_a_whole_table_of_postgres() {
    let database = filled::postgres().await;
    let client = database.client().await;
    client.batch_execute("SET plan_cache_mode = force_generic_plan; SET jit = off").await.unwrap();
    let mut failed = Vec::new();
    for (number, sql) in recorded("postgres").iter().enumerate() {
        // The plan of a list depends on the filters that are set, and that of a deletion with a limit on the limit: see
        // the next tests.
        let is_list = sql.contains(" OR $1 IS NULL)") || sql.contains(" OR $3 IS NULL)");
        let is_limited = sql.starts_with("DELETE") && sql.contains(" LIMIT $2");
        if is_list
            || is_limited
            || is_allowed(sql)
            || sql.contains("pg_")
            || sql.contains("information_schema")
        {
            continue;
        }
        let name = format!("statement_{number}");
        client.batch_execute(&format!("PREPARE {name} AS {sql}")).await.unwrap();
        let count = format!(
            "SELECT array_length(parameter_types, 1) FROM pg_prepared_statements WHERE name = '{name}'"
        );
        let count: usize = text(&client, &count).await.map_or(0, |count| count.parse().unwrap());
        let nulls = vec!["NULL"; count].join(", ");
        let args = if count == 0 { String::new() } else { format!("({nulls})") };
        let plan = text(&client, &format!("EXPLAIN (FORMAT JSON) EXECUTE {name}{args}")).await.unwrap();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let mut found = Vec::new();
        whole_reads(&plan[0]["Plan"], false, &mut found);
        failed.extend(found.into_iter().map(|what| format!("{what}: {sql}")));
    }
    database.drop().await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Filters of every kind; some match nothing, or only the oldest rows.
fn filters() -> (Vec<RunFilter>, Vec<ExecutionFilter>) {
    let runs = RunFilter::default;
    let (job, text) = (Some("job-7".to_owned()), Some("run-0000001".to_owned()));
    let (cluster, at) = (Some(ClusterId::DEFAULT), Timestamp::from_second(1).unwrap());
    let runs = vec![
        runs(),
        RunFilter { cluster, ..runs() },
        RunFilter { cluster, text: text.clone(), ..runs() },
        RunFilter { job: job.clone(), ..runs() },
        RunFilter { job: job.clone(), text: text.clone(), ..runs() },
        RunFilter { job, cluster, states: vec![RunState::Failed], ..runs() },
        RunFilter { states: vec![RunState::Failed], ..runs() },
        RunFilter { states: vec![RunState::Cancelled], ..runs() },
        RunFilter { states: vec![RunState::Cancelled], text, ..runs() },
        RunFilter { states: vec![RunState::Cancelled, RunState::Failed], ..runs() },
        RunFilter { states: vec![RunState::Running, RunState::Starting], ..runs() },
        RunFilter { paused: Some(true), ..runs() },
        RunFilter { by: Some("nobody".to_owned()), ..runs() },
        RunFilter { node: Some(NodeId(Uuid::nil())), ..runs() },
        RunFilter { from: Some(at), ..runs() },
        RunFilter { to: Some(at), ..runs() },
        RunFilter { order: RunOrder::OldestFirst, cluster, ..runs() },
        RunFilter { order: RunOrder::LastEndedFirst, ..runs() },
        RunFilter { order: RunOrder::FirstEndedFirst, ..runs() },
        RunFilter { order: RunOrder::LastEndedFirst, from: Some(at), cluster, ..runs() },
    ];
    let (run, failed) = (Some(RunId::from("run-0000010")), vec![Status::Failed]);
    let node = Some(NodeId(Uuid::parse_str("a3c5f1f0-0000-4000-8000-000000000000").unwrap()));
    let all = ExecutionFilter::default;
    let executions = vec![
        all(),
        ExecutionFilter { run: run.clone(), ..all() },
        ExecutionFilter { run: run.clone(), statuses: failed.clone(), ..all() },
        ExecutionFilter { run: run.clone(), step: Some(1), item: Some(1), ..all() },
        ExecutionFilter { run, node, ..all() },
        ExecutionFilter { node, ..all() },
        ExecutionFilter { node, statuses: failed.clone(), ..all() },
        ExecutionFilter { statuses: vec![Status::Lost], ..all() },
    ];
    (runs, executions)
}

const NOBODY_ELSE: &str = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() \
     AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
/// How often large tables were read from one end to the other, and how many entries of their indexes were read.
const READS: &str = "SELECT sum(seq_scan)::bigint, (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes) \
     FROM pg_stat_user_tables WHERE relname = ANY($1)";

/// Returns how often a read of the store reads a large table whole, and how many entries of indexes it reads.
async fn count_reads(database: &Database, read: impl AsyncFnOnce(&dyn Store)) -> (i64, i64) {
    database.run("SELECT pg_stat_reset()").await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    read(&*store).await;
    store.close().await;
    drop(store);
    // PostgreSQL adds up what a connection did when it ends.
    database.wait_until(NOBODY_ELSE).await;
    let row = database.client().await.query_one(READS, &[&LARGE.as_slice()]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_page_of_a_list_reads_so_many_rows_at_most_whatever_its_filters() {
    let database = filled::postgres().await;
    database.wait_until(NOBODY_ELSE).await;
    // The end of the page, the page and the total.
    let most = 3 * i64::from(limits::ROWS_READ);
    let check = |filter: String, (whole, entries): (i64, i64)| {
        assert_eq!(whole, 0, "{filter} reads a table whole");
        assert!(entries > 0 && entries <= most, "{filter} reads {entries} entries, {most} are allowed");
    };
    let (runs, executions) = filters();
    for filter in &runs {
        let read = async |store: &dyn Store| _ = store.runs(filter, &Page::first(100)).await.unwrap();
        check(format!("{filter:?}"), count_reads(&database, read).await);
    }
    for filter in &executions {
        let read = async |store: &dyn Store| _ = store.executions(filter, &Page::first(100)).await.unwrap();
        check(format!("{filter:?}"), count_reads(&database, read).await);
    }
    database.drop().await;
}

/// Rows that pruning removes at once.
const PRUNED: usize = 2_000;
/// The settings of the connection that prunes.
const PRUNING: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
     SET plan_cache_mode = force_generic_plan; SET jit = off";

/// Adds up the rows of large tables that a plan has read.
fn rows_read(plan: &Value) -> f64 {
    let number = |name: &str| plan[name].as_f64().unwrap_or_default();
    let is_scan = plan["Node Type"].as_str().is_some_and(|kind| kind.contains("Scan"));
    let is_large = plan["Relation Name"].as_str().is_some_and(|table| LARGE.contains(&table));
    let own = if is_scan && is_large {
        (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops")
    } else {
        0.0
    };
    own + plan["Plans"].as_array().into_iter().flatten().map(rows_read).sum::<f64>()
}

#[tokio::test]
async fn pruning_reads_only_the_rows_that_it_removes() {
    let database = filled::postgres().await;
    let client = database.client().await;
    client.batch_execute(PRUNING).await.unwrap();
    let runs: Vec<String> = (1..=PRUNED / 2).map(|number| format!("run-{number:07}")).collect();
    let (runs, half) = (format!("'{{{}}}'", runs.join(",")), u64::from(ROWS) * 500);
    let limited = format!("{half}, {PRUNED}");
    let after = vec![Uuid::nil().to_string(); PRUNED / 2].join(",");
    let (some_runs, half) = (format!("{runs}, '{{{after}}}', {PRUNED}"), half.to_string());
    let (first_events, next_run) = (format!("0, {PRUNED}"), format!("0, '', {}, ''", u64::from(ROWS) * 500));
    let some = format!(
        "SELECT quote_literal(array_agg(id)) FROM (SELECT id FROM executions ORDER BY id LIMIT {}) first",
        PRUNED / 2
    );
    let executions = text(&client, &some).await.unwrap();
    let some_output = format!("{executions}, {PRUNED}");
    let mut checked = 0;
    for (start, args) in [
        ("SELECT id FROM runs WHERE finished_at < $1", &limited),
        ("SELECT e.id, r.place, e.bytes FROM unnest(", &some_runs),
        ("SELECT coalesce((SELECT CAST(octet_length(d.definition)", &runs),
        ("SELECT finished_at, id FROM runs WHERE", &next_run),
        ("WITH gone AS (DELETE FROM output", &some_output),
        ("DELETE FROM output WHERE ctid", &some_output),
        ("WITH gone AS (DELETE FROM executions", &executions),
        ("WITH gone AS (DELETE FROM runs", &runs),
        ("WITH distances", &half),
        ("DELETE FROM events WHERE seq", &first_events),
        ("DELETE FROM limit_uses WHERE (execution, key) IN", &limited),
        ("DELETE FROM limit_uses WHERE until IS NULL", &String::new()),
    ] {
        for sql in recorded("postgres").iter().filter(|sql| sql.starts_with(start)) {
            checked += 1;
            let args = if args.is_empty() { String::new() } else { format!("({args})") };
            client.batch_execute(&format!("BEGIN; PREPARE pruning AS {sql}")).await.unwrap();
            let explain = format!("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE pruning{args}");
            let plan: Value = serde_json::from_str(&text(&client, &explain).await.unwrap()).unwrap();
            client.batch_execute("ROLLBACK; DEALLOCATE pruning").await.unwrap();
            let mut found = Vec::new();
            whole_reads(&plan[0]["Plan"], false, &mut found);
            let (read, most) = (rows_read(&plan[0]["Plan"]), 5.0 * PRUNED as f64);
            assert!(found.is_empty() && read <= most, "{read} rows, {found:?}: {sql}\n{plan:#}");
        }
    }
    assert_eq!(checked, 13, "all statements of pruning are on record");
    // The store has these settings: it removes 1,000 runs with one definition, execution, output, result and use each,
    // and 2,000 events.
    drop(client);
    database.wait_until(NOBODY_ELSE).await;
    let before = Timestamp::from_microsecond(PRUNED as i64 / 2 * 1_000 + 501).unwrap();
    let prune = async |store: &dyn Store| {
        assert_eq!(store.prune(before, 10 * ROWS).await.unwrap(), PRUNED as u64 / 2);
    };
    let (whole, entries) = count_reads(&database, prune).await;
    assert_eq!(whole, 0, "nothing is read whole");
    assert!(entries <= 20 * PRUNED as i64, "{entries} entries were read");
    database.drop().await;
}

/// Returns the parts of the plans of all statements that read a large table whole.
fn whole_reads_of_sqlite(connection: &Connection) -> Vec<String> {
    let mut found = Vec::new();
    for sql in recorded("sqlite") {
        if is_allowed(&sql) || sql.contains("migrations") || sql.contains("sqlite_schema") {
            continue;
        }
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let nulls = vec![rusqlite::types::Null; query.parameter_count()];
        let steps =
            query.query_map(rusqlite::params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
        for step in steps.map(Result::unwrap) {
            let words: Vec<&str> = step.split(' ').collect();
            let table = words.get(1).copied().unwrap_or_default();
            // An alias is the first letter of its table.
            let is_large = LARGE.iter().any(|large| *large == table || large[..1] == *table);
            let of_open_rows = OF_OPEN_ROWS.iter().any(|index| step.contains(index));
            // Events are stored in their order.
            let in_order = step.contains(" USING ") || table == "events";
            let cut = in_order && sql.contains("LIMIT");
            if words[0] == "SCAN" && is_large && !of_open_rows && !cut {
                found.push(format!("{step}: {sql}"));
            }
        }
    }
    found
}

#[tokio::test]
async fn no_statement_reads_a_whole_table_of_sqlite() {
    let (_directory, connection) = filled::sqlite().await;
    let count: u32 = connection.query_row("SELECT count(*) FROM executions", [], |row| row.get(0)).unwrap();
    assert_eq!(count, ROWS);
    let found = whole_reads_of_sqlite(&connection);
    assert!(found.is_empty(), "{}", found.join("\n"));
    // The program makes no statistics. Those that an administrator makes do no harm.
    connection.execute_batch("ANALYZE").unwrap();
    let found = whole_reads_of_sqlite(&connection);
    assert!(found.is_empty(), "{}", found.join("\n"));
    // The checks find what is missing.
    connection.execute_batch("DROP INDEX runs_ended").unwrap();
    assert!(!whole_reads_of_sqlite(&connection).is_empty());
}

#[tokio::test]
async fn a_search_for_what_is_rare_ends_each_page_after_so_many_rows() {
    let database = filled::postgres().await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    // The oldest run.
    let filter = RunFilter { text: Some("run-0000001".to_owned()), ..RunFilter::default() };
    let mut page = Page::first(100);
    let (mut pages, mut found) = (0, Vec::new());
    loop {
        let listed = store.runs(&filter, &page).await.unwrap();
        assert_eq!(listed.total, None, "counting would read all");
        found.extend(listed.rows);
        pages += 1;
        match listed.next {
            Some(start) => page.start = start,
            None => break,
        }
    }
    // The last one finds nothing more to read.
    assert_eq!((found.len(), pages), (1, 1 + ROWS / limits::ROWS_READ));
    assert_eq!((found[0].id.as_str(), found[0].steps, found[0].nodes), ("run-0000001", 1, 0));
    // What is skipped is skipped on later pages, too.
    let mut page = Page::first(100);
    page.start.skip = 1;
    while let Some(start) = store.runs(&filter, &page).await.unwrap().next {
        page.start = start;
    }
    assert_eq!(store.runs(&filter, &page).await.unwrap().rows, []);
    // A list that an index serves has its rows at once, and no total: there are too many.
    for filter in [
        RunFilter::default(),
        RunFilter { cluster: Some(ClusterId::DEFAULT), ..RunFilter::default() },
        RunFilter { states: vec![RunState::Completed], ..RunFilter::default() },
    ] {
        let listed = store.runs(&filter, &Page::first(100)).await.unwrap();
        assert_eq!((listed.rows.len(), listed.total, listed.next.is_some()), (100, None, true), "{filter:?}");
    }
    let open = RunFilter { states: vec![RunState::Running], ..RunFilter::default() };
    assert_eq!(store.runs(&open, &Page::first(10)).await.unwrap().total, Some(100));
    let executions = store.executions(&ExecutionFilter::default(), &Page::first(10)).await.unwrap();
    assert_eq!((executions.rows.len(), executions.total), (10, None));
    store.close().await;
    database.drop().await;
}

/// How many entries of the indexes of executions were read.
const EXECUTIONS_READ: &str =
    "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'executions'";

#[tokio::test]
async fn instances_of_a_node_are_searched_among_those_as_old_as_the_run() {
    let database = filled::postgres().await;
    // A run with two executions on a node that had as many as all nodes together.
    let node = "a3c5f1f0-0000-4000-8000-000000000000";
    let all_on_one = format!(
        "UPDATE executions SET lease_node = '{node}'; \
         UPDATE executions SET run = 'run-0050000', step = 1 WHERE run = 'run-0050001'; VACUUM ANALYZE executions"
    );
    for sql in all_on_one.split("; ") {
        database.run(sql).await;
    }
    database.wait_until(NOBODY_ELSE).await;
    database.run("SELECT pg_stat_reset()").await;
    let store = downbeat_store::open(&database.url).await.unwrap();
    let node = Some(NodeId(Uuid::parse_str(node).unwrap()));
    let filter = InstanceFilter { node, ..InstanceFilter::default() };
    let found = store.instances(&RunId::from("run-0050000"), &filter, Portion::of_rows(100)).await.unwrap();
    store.close().await;
    drop(store);
    database.wait_until(NOBODY_ELSE).await;
    let read: i64 = database.client().await.query_one(EXECUTIONS_READ, &[]).await.unwrap().get(0);
    database.drop().await;
    assert_eq!(found.iter().map(|execution| execution.step()).collect::<Vec<_>>(), [0, 1]);
    // Each end of the run, and its executions.
    assert!((3..20).contains(&read), "{read} entries were read");
}
