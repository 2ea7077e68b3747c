//! Owns pruning on SQLite: in small transactions, so that commits do not wait long. The output of executions is removed
//! before them, and a run's row last, so that the next call continues after a crash.

use std::collections::BTreeMap;

use downbeat_core::execution::Status;
use downbeat_core::run::RunState;
use downbeat_core::{debug, limits};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::commit::{COUNT_ENDED, forget_uses};
use super::connect;
use super::failure::Result;
use super::writer::Writer;
use crate::batch::{ENDED_EXECUTIONS, ENDED_RUNS, Ended};
use crate::copy::deleted_before;
use crate::filter::{CONTENTS_AT_ONCE, LAST_OLD_EVENT, REMOVE_STALE_USES, UNUSED_CONTENT, lazy};
use crate::port::Error;
use crate::rows::{Code, condition};

/// Rows that one transaction removes: some 20 ms of the writer's time.
const ROWS: i64 = 2_000;
/// Pages that are returned to the disk in one transaction: 1 MiB.
const PAGES: i64 = 256;
/// Free pages that stay in the file for new rows: this many, or a tenth of the file. Otherwise the file would shrink and
/// grow all the time.
const SPARE_PAGES: i64 = 1_024;

lazy! {
    OLD_EVENT: String = LAST_OLD_EVENT.replace('$', "?");
    REMOVE_CONTENTS: String = format!(
        "DELETE FROM contents WHERE hash IN (SELECT hash FROM contents_released WHERE id <= ?1) AND {UNUSED_CONTENT}"
    );
}

pub(crate) async fn prune(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let (at, before) = (before, before.as_microsecond());
    let runs = writer.run(move |connection| ended(connection, before, most)).await?;
    let gone = runs.len() as u64;
    remove(writer, runs).await?;
    while let Some(last) = writer.run(move |connection| last_old_event(connection, before)).await? {
        remove_events(writer, last).await?;
    }
    while writer.run(move |connection| remove_uses(connection, at)).await? {}
    let buried_before = deleted_before(at);
    writer.run(move |connection| forget_deleted(connection, buried_before)).await?;
    remove_contents(writer).await?;
    shrink_all(writer).await?;
    Ok(gone)
}

/// Removes debug commands.
pub(crate) async fn prune_debug(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let before = before.as_microsecond();
    let runs = writer.run(move |connection| ended_debug(connection, before, most)).await?;
    let gone = runs.len() as u64;
    remove(writer, runs).await?;
    Ok(gone)
}

/// Removes the released contents that nothing refers to.
pub(super) async fn remove_contents(writer: &Writer) -> Result<(), Error> {
    while writer.run(remove_some_contents).await? {}
    Ok(())
}

fn remove_some_contents(connection: &mut Connection) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let last: Option<i64> = transaction
        .prepare_cached("SELECT max(id) FROM (SELECT id FROM contents_released ORDER BY id LIMIT ?1)")?
        .query_row([CONTENTS_AT_ONCE], |row| row.get(0))?;
    transaction.prepare_cached(&REMOVE_CONTENTS)?.execute([last])?;
    transaction.prepare_cached("DELETE FROM contents_released WHERE id <= ?1")?.execute([last])?;
    transaction.commit()?;
    Ok(last.is_some())
}

/// Returns free pages to the disk.
pub(super) async fn shrink_all(writer: &Writer) -> Result<(), Error> {
    while writer.run(|connection| shrink(connection)).await? {}
    Ok(())
}

/// Removes runs, oldest first, and everything that belongs to them.
pub(super) async fn remove(writer: &Writer, mut runs: Vec<String>) -> Result<(), Error> {
    // A crash must leave the newest: a copy learns only which run is the oldest that is left.
    runs.reverse();
    while !runs.is_empty() {
        runs = writer.run(move |connection| remove_some(connection, runs)).await?;
    }
    Ok(())
}

/// Removes the events up to this number.
pub(super) async fn remove_events(writer: &Writer, last: i64) -> Result<(), Error> {
    let remove = move |connection: &mut Connection| {
        let sql =
            "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq <= ?1 ORDER BY seq LIMIT ?2)";
        Ok(connection.prepare_cached(sql)?.execute(params![last, ROWS])?)
    };
    while writer.run(remove).await? > 0 {}
    Ok(())
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
    pub(super) chunks: i64,
}

/// Removes as many of these runs as fit into one transaction, the last ones first. Returns those that are left.
fn remove_some(connection: &mut Connection, mut runs: Vec<String>) -> Result<Vec<String>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut room = Room { rows: ROWS, chunks: i64::from(limits::OUTPUT_PRUNED_CHUNKS) };
    remove_within(&transaction, &mut runs, &mut room)?;
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
    while let Some(run) = runs.last() {
        let chunks = remove_output(transaction, run, room)?;
        (room.chunks, gone) = (room.chunks - chunks, gone + chunks);
        if room.chunks <= 0 {
            break;
        }
        let statuses = remove_executions(transaction, run, room.rows)?;
        let removed = i64::try_from(statuses.len()).unwrap_or(i64::MAX);
        let is_ended = |status: &i16| Status::find(*status).is_some_and(|status| !status.is_open());
        for status in statuses.into_iter().filter(is_ended) {
            *totals.entry((ENDED_EXECUTIONS, status)).or_insert(0) -= 1;
        }
        gone += removed;
        if removed == room.rows {
            break;
        }
        let mut remove = transaction.prepare_cached("DELETE FROM runs WHERE id = ?1 RETURNING state")?;
        if let Some(state) = remove.query_row([run], |row| row.get(0)).optional()? {
            if RunState::find(state).is_some_and(RunState::is_terminal) {
                *totals.entry((ENDED_RUNS, state)).or_insert(0) -= 1;
            }
            gone += 1;
        }
        runs.pop();
        room.rows -= removed + 1;
        if room.rows <= 0 {
            break;
        }
    }
    let totals = totals.into_iter().map(|((kind, code), total)| Ended { kind, code, total });
    COUNT_ENDED.each(transaction, totals)?;
    Ok(u64::try_from(gone).unwrap_or_default())
}

/// Removes output of the executions that are removed next. Returns how many chunks it removed; if there is room for
/// more, none of these executions has output any more.
fn remove_output(transaction: &Transaction<'_>, run: &str, room: &Room) -> Result<i64> {
    let sql = "DELETE FROM output WHERE rowid IN (SELECT o.rowid FROM \
               (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2) chosen \
               CROSS JOIN output o WHERE o.execution = chosen.id LIMIT ?3)";
    let removed = transaction.prepare_cached(sql)?.execute(params![run, room.rows, room.chunks])?;
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

fn last_old_event(connection: &Connection, before: i64) -> Result<Option<i64>> {
    Ok(connection.prepare_cached(&OLD_EVENT)?.query_row([before], |row| row.get(0)).optional()?)
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
pub(super) fn forget_deleted(connection: &Connection, before: Timestamp) -> Result<()> {
    connection.prepare_cached("DELETE FROM tombstones WHERE at < ?1")?.execute([before.as_microsecond()])?;
    Ok(())
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
