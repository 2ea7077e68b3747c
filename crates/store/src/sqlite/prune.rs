//! Owns pruning on SQLite: in small transactions with pauses between them, so that commits do not wait long. The output of
//! executions is removed before them, and a run's row last, so that the next call continues after a crash.

use std::collections::BTreeMap;
use std::time::Instant;

use downbeat_core::execution::Status;
use downbeat_core::retention::BATCH;
use downbeat_core::run::RunState;
use downbeat_core::{Portion, debug, limits};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::commit::{COUNT_ENDED, forget_uses};
use super::connect;
use super::failure::{Failure, Result};
use super::writer::Writer;
use crate::batch::{ENDED_EXECUTIONS, ENDED_RUNS, Ended};
use crate::copy::deleted_before;
use crate::filter::{
    EVENTS_WITHIN, EXECUTION_BYTES, LAST_OLD_EVENT, RELEASED_CONTENTS, REMOVE_STALE_USES, RUN_BYTES,
    UNUSED_CONTENT, lazy,
};
use crate::pace::Pace;
use crate::port::Error;
use crate::rows::{Code, condition};

/// Rows that one transaction removes.
const ROWS: i64 = BATCH.rows as i64;
const BYTES: i64 = BATCH.bytes as i64;
/// Pages that are returned to the disk in one transaction: 1 MiB.
const PAGES: i64 = 256;
/// Free pages that stay in the file for new rows: this many, or a tenth of the file. Otherwise the file would shrink and
/// grow all the time.
const SPARE_PAGES: i64 = 1_024;

lazy! {
    OLD_EVENT: String = LAST_OLD_EVENT.replace('$', "?");
    WITHIN: String = EVENTS_WITHIN.replace('$', "?");
    RELEASED: String = RELEASED_CONTENTS.replace('$', "?");
    /// The sizes of the next executions of a run.
    SIZES: String = format!("SELECT {EXECUTION_BYTES} FROM executions e WHERE e.run = ?1 ORDER BY e.id LIMIT ?2");
    SIZE_OF_RUN: String = format!("SELECT {RUN_BYTES} FROM definitions d WHERE d.run = ?1");
    REMOVE_CONTENTS: String = format!(
        "DELETE FROM contents WHERE hash IN (SELECT hash FROM contents_released WHERE id <= ?1) AND {UNUSED_CONTENT}"
    );
}

/// Runs one transaction of cleaning, and pauses after it.
pub(super) async fn paced<T, F>(writer: &Writer, pace: Pace, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
{
    let timed = move |connection: &mut Connection| {
        let begun = Instant::now();
        let done = work(connection)?;
        Ok((done, begun.elapsed()))
    };
    let (done, took) = writer.run(timed).await?;
    pace.pause(took).await;
    Ok(done)
}

pub(crate) async fn prune(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let (at, before) = (before, before.as_microsecond());
    let runs = writer.run(move |connection| ended(connection, before, most)).await?;
    let gone = runs.len() as u64;
    remove(writer, Pace::Gentle, runs).await?;
    while let Some((_, last)) = writer.run(move |connection| old_events(connection, before)).await? {
        remove_events(writer, Pace::Gentle, last).await?;
    }
    while paced(writer, Pace::Gentle, move |connection| remove_uses(connection, at)).await? {}
    let buried_before = deleted_before(at);
    forget_deleted(writer, Pace::Gentle, buried_before).await?;
    remove_contents(writer, Pace::Gentle).await?;
    shrink_all(writer, Pace::Gentle).await?;
    Ok(gone)
}

/// Removes debug commands.
pub(crate) async fn prune_debug(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let before = before.as_microsecond();
    let runs = writer.run(move |connection| ended_debug(connection, before, most)).await?;
    let gone = runs.len() as u64;
    remove(writer, Pace::Gentle, runs).await?;
    Ok(gone)
}

/// Removes the released contents that nothing refers to.
pub(super) async fn remove_contents(writer: &Writer, pace: Pace) -> Result<(), Error> {
    while paced(writer, pace, remove_some_contents).await? {}
    Ok(())
}

fn remove_some_contents(connection: &mut Connection) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: Vec<(i64, i64)> = transaction
        .prepare_cached(&RELEASED)?
        .query_map([0, ROWS], |row| Ok((row.get(0)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let fitting = BATCH.fitting(found.iter().map(|(_, size)| size_of(*size)));
    let Some((last, _)) = found[..fitting].last() else { return Ok(false) };
    transaction.prepare_cached(&REMOVE_CONTENTS)?.execute([last])?;
    transaction.prepare_cached("DELETE FROM contents_released WHERE id <= ?1")?.execute([last])?;
    transaction.commit()?;
    Ok(true)
}

fn size_of(stored: i64) -> usize {
    usize::try_from(stored).unwrap_or(0)
}

/// Returns free pages to the disk.
pub(super) async fn shrink_all(writer: &Writer, pace: Pace) -> Result<(), Error> {
    while paced(writer, pace, |connection| shrink(connection)).await? {}
    Ok(())
}

/// Removes runs, oldest first, and everything that belongs to them.
pub(super) async fn remove(writer: &Writer, pace: Pace, mut runs: Vec<String>) -> Result<(), Error> {
    // A crash must leave the newest: a copy learns only which run is the oldest that is left.
    runs.reverse();
    while !runs.is_empty() {
        runs = paced(writer, pace, move |connection| remove_some(connection, runs)).await?;
    }
    Ok(())
}

/// Removes the events up to this number.
pub(super) async fn remove_events(writer: &Writer, pace: Pace, last: i64) -> Result<(), Error> {
    while paced(writer, pace, move |connection| remove_some_events(connection, last)).await? {}
    Ok(())
}

/// Removes the first events up to this number; returns whether there may be more.
fn remove_some_events(connection: &mut Connection, last: i64) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let within: Option<i64> =
        transaction.prepare_cached(&WITHIN)?.query_row(params![0, ROWS, BYTES], |row| row.get(1))?;
    let Some(within) = within else { return Ok(false) };
    transaction.prepare_cached("DELETE FROM events WHERE seq <= ?1")?.execute([within.min(last)])?;
    transaction.commit()?;
    Ok(within < last)
}

fn ended(connection: &Connection, before: i64, most: u32) -> Result<Vec<String>> {
    let mut query = connection.prepare_cached(concat!(
        "SELECT id FROM runs WHERE finished_at < ?1 AND finished_at IS NOT NULL AND state ",
        condition!(ended runs),
        " ORDER BY finished_at, id LIMIT ?2"
    ))?;
    let runs = query.query_map(params![before, most], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(runs)
}

/// The same without debug commands: only their age counts.
pub(super) fn ended_jobs(connection: &Connection, before: i64, most: u32) -> Result<Vec<String>> {
    let mut query = connection.prepare_cached(concat!(
        "SELECT r.id FROM runs r WHERE r.finished_at < ?1 AND r.finished_at IS NOT NULL AND r.state ",
        condition!(ended runs),
        " AND NOT ",
        condition!(debug run),
        " ORDER BY r.finished_at, r.id LIMIT ?2"
    ))?;
    let runs = query.query_map(params![before, most], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(runs)
}

/// The index by job finds them.
fn ended_debug(connection: &Connection, before: i64, most: u32) -> Result<Vec<String>> {
    let mut query = connection.prepare_cached(concat!(
        "SELECT r.id FROM runs r WHERE r.job = ?1 AND ",
        condition!(debug run),
        " AND r.finished_at < ?2 AND r.state ",
        condition!(ended runs),
        " ORDER BY r.finished_at, r.id LIMIT ?3"
    ))?;
    let runs =
        query.query_map(params![debug::JOB, before, most], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(runs)
}

/// What one transaction may still remove. Output has its own bound, because its rows are large.
pub(super) struct Room {
    pub(super) rows: i64,
    pub(super) bytes: i64,
    pub(super) chunks: i64,
}

impl Room {
    pub(super) fn of_rows(rows: i64) -> Self {
        Self { rows, bytes: BYTES, chunks: i64::from(limits::OUTPUT_PRUNED_CHUNKS) }
    }

    fn is_over(&self) -> bool {
        self.rows <= 0 || self.bytes <= 0 || self.chunks <= 0
    }
}

/// Removes as many of these runs as fit into one transaction, the last ones first. Returns those that are left.
fn remove_some(connection: &mut Connection, mut runs: Vec<String>) -> Result<Vec<String>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    remove_within(&transaction, &mut runs, &mut Room::of_rows(ROWS))?;
    transaction.commit()?;
    Ok(runs)
}

/// The same as part of a larger transaction. Returns how many rows were removed.
pub(super) fn remove_within(
    transaction: &Transaction<'_>,
    runs: &mut Vec<String>,
    room: &mut Room,
) -> Result<u64> {
    let (mut totals, mut gone) = (BTreeMap::new(), 0);
    while let Some(run) = runs.last().filter(|_| !room.is_over()) {
        let Next { executions, bytes, is_all } = Next::of(transaction, run, room)?;
        let chunks = remove_output(transaction, run, executions, room)?;
        (room.chunks, gone) = (room.chunks - chunks, gone + chunks);
        if room.chunks <= 0 {
            break;
        }
        let statuses = remove_executions(transaction, run, executions)?;
        let is_ended = |status: &i16| Status::find(*status).is_some_and(|status| !status.is_open());
        for status in statuses.into_iter().filter(is_ended) {
            *totals.entry((ENDED_EXECUTIONS, status)).or_insert(0) -= 1;
        }
        (room.rows, room.bytes, gone) = (room.rows - executions, room.bytes - bytes, gone + executions);
        if !is_all || room.is_over() {
            break;
        }
        let counts = remove_counts(transaction, run, room.rows)?;
        (room.rows, gone) = (room.rows - counts, gone + counts);
        if room.rows <= 0 {
            break;
        }
        let size = transaction.prepare_cached(&SIZE_OF_RUN)?.query_row([run], |row| row.get(0)).optional()?;
        let mut remove = transaction.prepare_cached("DELETE FROM runs WHERE id = ?1 RETURNING state")?;
        if let Some(state) = remove.query_row([run], |row| row.get(0)).optional()? {
            if RunState::find(state).is_some_and(RunState::is_terminal) {
                *totals.entry((ENDED_RUNS, state)).or_insert(0) -= 1;
            }
            gone += 1;
        }
        runs.pop();
        (room.rows, room.bytes) = (room.rows - 1, room.bytes - size.unwrap_or(0));
    }
    let totals = totals.into_iter().map(|((kind, code), total)| Ended { kind, code, total });
    COUNT_ENDED.each(transaction, totals)?;
    Ok(u64::try_from(gone).unwrap_or_default())
}

/// The next executions of a run that fit into a transaction.
struct Next {
    /// At least one, if there is any.
    executions: i64,
    bytes: i64,
    /// Whether the run has no others.
    is_all: bool,
}

impl Next {
    fn of(transaction: &Transaction<'_>, run: &str, room: &Room) -> Result<Self> {
        // One more than fits shows whether there are others.
        let sizes: Vec<i64> = transaction
            .prepare_cached(&SIZES)?
            .query_map(params![run, room.rows + 1], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let portion = Portion::new(size_of(room.rows), size_of(room.bytes));
        let fitting = portion.fitting(sizes.iter().map(|size| size_of(*size)));
        let executions = i64::try_from(fitting).unwrap_or(i64::MAX);
        Ok(Self { executions, bytes: sizes[..fitting].iter().sum(), is_all: fitting == sizes.len() })
    }
}

/// Removes kept counts of a run: a run of many steps has many. Returns how many it removed.
fn remove_counts(transaction: &Transaction<'_>, run: &str, most: i64) -> Result<i64> {
    let sql = "DELETE FROM instance_counts WHERE (run, step, status) IN \
               (SELECT run, step, status FROM instance_counts WHERE run = ?1 LIMIT ?2)";
    let removed = transaction.prepare_cached(sql)?.execute(params![run, most])?;
    Ok(i64::try_from(removed).unwrap_or(i64::MAX))
}

/// Removes output of the next executions of a run, which are removed next. Returns how many chunks it removed; if there is
/// room for more, none of these executions has output any more.
fn remove_output(transaction: &Transaction<'_>, run: &str, executions: i64, room: &Room) -> Result<i64> {
    let sql = "DELETE FROM output WHERE rowid IN (SELECT o.rowid FROM \
               (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2) chosen \
               CROSS JOIN output o WHERE o.execution = chosen.id LIMIT ?3)";
    let removed = transaction.prepare_cached(sql)?.execute(params![run, executions, room.chunks])?;
    Ok(i64::try_from(removed).unwrap_or(i64::MAX))
}

/// Removes executions of a run, at most `most`, with their results. Returns their statuses.
fn remove_executions(transaction: &Transaction<'_>, run: &str, most: i64) -> Result<Vec<i16>> {
    transaction
        .prepare_cached(
            "DELETE FROM cached WHERE execution IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2)",
        )?
        .execute(params![run, most])?;
    let statuses = transaction
        .prepare_cached(
            "DELETE FROM executions WHERE id IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2) \
             RETURNING status",
        )?
        .query_map(params![run, most], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(statuses)
}

/// Returns the numbers of the first event and of one after it, if both are from before this time, or later ones are.
pub(super) fn old_events(connection: &Connection, before: i64) -> Result<Option<(i64, i64)>> {
    let both = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(0)?));
    Ok(connection.prepare_cached(&OLD_EVENT)?.query_row([before], both).optional()?)
}

/// Returns a part of the free pages to the disk; returns whether there are more. Does nothing with a file of an earlier
/// release, which SQLite cannot shrink in parts.
fn shrink(connection: &Connection) -> Result<bool> {
    let read = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let spare = SPARE_PAGES.max(read("page_count")? / 10);
    let excess = read("freelist_count")? - spare;
    if excess <= 0 || read("auto_vacuum")? != connect::INCREMENTAL {
        return Ok(false);
    }
    // Each step frees one page.
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({})", excess.min(PAGES)))?;
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}
    Ok(true)
}

/// Forgets nodes that were deleted before this time.
pub(super) async fn forget_deleted(writer: &Writer, pace: Pace, before: Timestamp) -> Result<(), Error> {
    let before = before.as_microsecond();
    while paced(writer, pace, move |connection| forget_some(connection, before)).await? {}
    Ok(())
}

/// Forgets some of them; returns whether there may be more.
fn forget_some(connection: &Connection, before: i64) -> Result<bool> {
    let sql = "DELETE FROM tombstones WHERE (node, session) IN \
               (SELECT node, session FROM tombstones WHERE at < ?1 LIMIT ?2)";
    Ok(connection.prepare_cached(sql)?.execute([before, ROWS])? as i64 == ROWS)
}

/// Removes a part of the limit uses that no longer count: of expired rates, and of executions that ended without
/// freeing them.
fn remove_uses(connection: &mut Connection, before: Timestamp) -> Result<bool> {
    connection.prepare_cached(REMOVE_STALE_USES)?.execute([])?;
    Ok(forget_uses(connection, before, ROWS)? as i64 == ROWS)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::migrate::SQLITE;

    /// A store with one run that ended, and executions with this many chunks of output each.
    fn store(chunks: &[u32]) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        for migration in SQLITE {
            connection.execute_batch(migration.sql).unwrap();
        }
        connection
            .execute_batch(
                "INSERT INTO runs (id, cluster, state, submitted_by, created_at, finished_at, owner, epoch) \
                 SELECT 'run', id, 10, 'api', 1, 2, x'01', 1 FROM clusters",
            )
            .unwrap();
        for (number, chunks) in chunks.iter().enumerate() {
            let execution = "INSERT INTO executions (id, run, step, attempt, created_at, status, stop) \
                             VALUES (?1, 'run', 0, 1, 1, 3, false)";
            let id = u128::try_from(number).unwrap().to_be_bytes();
            connection.execute(execution, [id]).unwrap();
            for start in 0..*chunks {
                let chunk =
                    "INSERT INTO output (execution, start_byte, stream, at, text) VALUES (?1, ?2, 0, 1, 'x')";
                connection.execute(chunk, params![id, start]).unwrap();
            }
        }
        connection
    }

    fn rows(connection: &Connection, table: &str) -> u32 {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// Removes the run, and returns how many executions and counts are left after each transaction.
    fn left_after_each(connection: &mut Connection) -> Vec<(u32, u32)> {
        let (mut runs, mut left) = (vec!["run".to_owned()], Vec::new());
        while !runs.is_empty() {
            runs = remove_some(connection, runs).unwrap();
            left.push((rows(connection, "executions"), rows(connection, "instance_counts")));
        }
        left
    }

    #[test]
    fn one_transaction_removes_so_many_rows_at_most() {
        let most = u32::try_from(BATCH.rows).unwrap();
        let mut connection = store(&vec![0; 2 * BATCH.rows + 1]);
        let counts = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT ?1) \
                      INSERT INTO instance_counts SELECT 'run', n, 3, 1, 0, 0 FROM n";
        connection.execute(counts, [most]).unwrap();
        let left = left_after_each(&mut connection);
        assert_eq!(left, [(most + 1, most), (1, most), (0, 1), (0, 0)]);
    }

    #[test]
    fn one_transaction_removes_so_many_bytes_at_most() {
        let mut connection = store(&[0; 10]);
        // Three fit, and one is larger than a batch.
        let size = "UPDATE executions SET outputs = printf('%.*c', iif(id = (SELECT max(id) FROM executions), 2 * ?1, ?1 / 3), 'x')";
        connection.execute(size, [BYTES]).unwrap();
        let left: Vec<u32> = left_after_each(&mut connection).into_iter().map(|(left, _)| left).collect();
        assert_eq!(left, [7, 4, 1, 0, 0]);
    }

    #[test]
    fn one_transaction_removes_so_many_bytes_of_events_at_most() {
        let mut connection = store(&[]);
        let events = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 10) \
                      INSERT INTO events (seq, at, server, kind, data) SELECT n, 1, x'01', 'k', printf('%.*c', ?1 / 3, 'x') FROM n";
        connection.execute(events, [BYTES]).unwrap();
        let mut left = Vec::new();
        while remove_some_events(&mut connection, 8).unwrap() {
            left.push(rows(&connection, "events"));
        }
        assert_eq!((left, rows(&connection, "events")), (vec![7, 4], 2));
    }

    #[test]
    fn one_transaction_removes_so_much_output_at_most() {
        let most = limits::OUTPUT_PRUNED_CHUNKS;
        let mut connection = store(&[1, 2 * most, 0, most - 1, 1]);
        let (mut runs, mut left) = (vec!["run".to_owned()], Vec::new());
        while !runs.is_empty() {
            runs = remove_some(&mut connection, runs).unwrap();
            left.push((
                rows(&connection, "output"),
                rows(&connection, "executions"),
                rows(&connection, "runs"),
            ));
        }
        // The last transaction has room for the rest.
        assert_eq!(left, [(2 * most + 1, 5, 1), (most + 1, 5, 1), (1, 5, 1), (0, 0, 0)]);
    }
}
