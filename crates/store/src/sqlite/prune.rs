//! Owns pruning on SQLite: in small transactions, so that commits do not wait long. A run's row is removed last, so
//! that the next call continues after a crash.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::execution::Status;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::commit::{COUNT_ENDED, forget_uses};
use super::failure::Result;
use super::writer::Writer;
use crate::batch::{ENDED_EXECUTIONS, ENDED_RUNS, Ended};
use crate::copy::deleted_before;
use crate::filter::REMOVE_STALE_USES;
use crate::port::Error;
use crate::rows::{Code, condition, count};

/// Rows that one transaction removes: some 20 ms of the writer's time.
const ROWS: i64 = 2_000;

pub(crate) async fn prune(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let (at, before) = (before, before.as_microsecond());
    let mut gone = 0;
    for run in writer.run(move |connection| ended(connection, before, most)).await? {
        remove(writer, run.into()).await?;
        gone += 1;
    }
    while writer.run(move |connection| remove_events(connection, before)).await? {}
    while writer.run(move |connection| remove_uses(connection, at)).await? {}
    let buried_before = deleted_before(at);
    writer.run(move |connection| forget_deleted(connection, buried_before)).await?;
    Ok(gone)
}

/// Removes a run and everything that belongs to it.
pub(super) async fn remove(writer: &Writer, run: Arc<str>) -> Result<(), Error> {
    loop {
        let run = Arc::clone(&run);
        if !writer.run(move |connection| remove_some(connection, &run)).await? {
            return Ok(());
        }
    }
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

/// Removes a part of a run; returns whether there is more.
fn remove_some(connection: &mut Connection, run: &str) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .prepare_cached(
            "DELETE FROM output WHERE execution IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2)",
        )?
        .execute(params![run, ROWS])?;
    transaction
        .prepare_cached(
            "DELETE FROM cached WHERE execution IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2)",
        )?
        .execute(params![run, ROWS])?;
    let statuses: Vec<i16> = transaction
        .prepare_cached(
            "DELETE FROM executions WHERE id IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2) \
             RETURNING status",
        )?
        .query_map(params![run, ROWS], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let more = count(ROWS)? == statuses.len() as u64;
    let mut gone: Vec<(i16, i16)> = statuses
        .into_iter()
        .filter(|&status| Status::find(status).is_some_and(|status| !status.is_open()))
        .map(|status| (ENDED_EXECUTIONS, status))
        .collect();
    if !more {
        let mut remove = transaction.prepare_cached("DELETE FROM runs WHERE id = ?1 RETURNING state")?;
        gone.extend(remove.query_row([run], |row| row.get(0)).optional()?.map(|state| (ENDED_RUNS, state)));
    }
    let mut totals = BTreeMap::new();
    for kind in gone {
        *totals.entry(kind).or_insert(0) -= 1;
    }
    let totals = totals.into_iter().map(|((kind, code), total)| Ended { kind, code, total });
    COUNT_ENDED.each(&transaction, totals)?;
    transaction.commit()?;
    Ok(more)
}

/// Removes a part of the old events, only from the front, so that the rest has no gaps.
fn remove_events(connection: &mut Connection, before: i64) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // The end of the first rows, or the first of them that is not old.
    let end: Option<i64> = transaction
        .prepare_cached(
            "WITH front AS (SELECT seq, at FROM events ORDER BY seq LIMIT ?2) \
             SELECT coalesce(min(seq) FILTER (WHERE at >= ?1), max(seq) + 1) FROM front",
        )?
        .query_row(params![before, ROWS], |row| row.get(0))?;
    let Some(end) = end else { return Ok(false) };
    let removed = transaction.prepare_cached("DELETE FROM events WHERE seq < ?1")?.execute([end])?;
    transaction.commit()?;
    Ok(removed > 0)
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
