//! Owns the removal of deleted clusters and of single executions on SQLite: in small transactions, so that commits do not
//! wait long. A crash between two of them does no harm: the next call continues.

use std::collections::BTreeMap;

use downbeat_core::change::{Change, Event};
use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::limits;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::commit::COUNT_ENDED;
use super::failure::Result;
use super::prune::{self, Room};
use super::write::fetch;
use super::writer::Writer;
use crate::batch::{ENDED_EXECUTIONS, Ended};
use crate::filter::{
    EVENTS_WITH, EVENTS_WITHIN, REMOVED_DATA, REMOVED_EVENTS_BYTES, RUNS_AT_ONCE, is_removed, lazy,
};
use crate::pace::Pace;
use crate::port::Error;
use crate::rows::{Code, Record, int};

/// Executions that one transaction removes: each may have `limits::VALUES_BYTES` of outputs.
const EXECUTIONS: usize = 100;

/// Removes rows of a cluster, by table, each by an index (of deleted nodes there are few): arguments are the cluster and
/// the most rows. Runs are removed before, in their own way.
const REMOVALS: [&str; 8] = [
    "DELETE FROM limit_uses WHERE (execution, key) IN \
     (SELECT execution, key FROM limit_uses WHERE cluster = ?1 LIMIT ?2)",
    "DELETE FROM cached WHERE execution IN (SELECT execution FROM cached WHERE cluster = ?1 LIMIT ?2)",
    "DELETE FROM holds WHERE node IN \
     (SELECT h.node FROM nodes n CROSS JOIN holds h WHERE n.cluster = ?1 AND h.node = n.id LIMIT ?2)",
    // The nodes' presence is removed with them.
    "DELETE FROM nodes WHERE id IN (SELECT id FROM nodes WHERE cluster = ?1 LIMIT ?2)",
    "DELETE FROM tombstones WHERE (node, session) IN \
     (SELECT node, session FROM tombstones WHERE cluster = ?1 LIMIT ?2)",
    "DELETE FROM backfills WHERE id IN (SELECT id FROM backfills WHERE cluster = ?1 LIMIT ?2)",
    // Each may have `limits::JOB_FILE_BYTES`: four are as much as one transaction of cleaning removes.
    "DELETE FROM job_versions WHERE (job, version) IN (SELECT v.job, v.version FROM jobs j \
     CROSS JOIN job_versions v WHERE j.cluster = ?1 AND v.job = j.id LIMIT min(?2, 4))",
    "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE cluster = ?1 LIMIT ?2)",
];

lazy! {
    WITHIN: String = EVENTS_WITHIN.replace('$', "?");
    WITH: String = format!("{}{}", Event::select(), EVENTS_WITH.replace("strpos", "instr").replace('$', "?"));
}

pub(super) async fn remove_cluster(writer: &Writer, cluster: ClusterId, most: u32) -> Result<u64, Error> {
    let Some(removed) = writer.run(move |connection| remove_rows(connection, cluster, most)).await? else {
        return Ok(0);
    };
    if removed > 0 {
        return Ok(removed);
    }
    // No rows are left, so no more events about the cluster come.
    let (checked, is_end) = writer.run(move |connection| remove_events(connection, cluster, most)).await?;
    if !is_end {
        return Ok(checked);
    }
    prune::remove_contents(writer, Pace::Gentle).await?;
    let remove = "DELETE FROM clusters WHERE id = ?1 AND deleted_at IS NOT NULL";
    writer.run(move |connection| Ok(connection.execute(remove, [cluster.0])?)).await?;
    Ok(checked + 1)
}

/// Removes rows of a deleted cluster. Returns how many, or none if there is no such cluster.
fn remove_rows(connection: &mut Connection, cluster: ClusterId, most: u32) -> Result<Option<u64>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let deleted = "SELECT 1 FROM clusters WHERE id = ?1 AND deleted_at IS NOT NULL";
    if transaction.prepare_cached(deleted)?.query_row([cluster.0], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let rows = i64::from(most.max(1));
    let mut runs: Vec<String> = transaction
        .prepare_cached("SELECT id FROM runs WHERE cluster = ?1 ORDER BY created_at, id LIMIT ?2")?
        .query_map(params![cluster.0, RUNS_AT_ONCE], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for run in &runs {
        transaction.prepare_cached("DELETE FROM holds WHERE run = ?1")?.execute([run])?;
    }
    let mut removed = prune::remove_within(&transaction, &mut runs, &mut Room::of_rows(rows))?;
    for removal in REMOVALS {
        if removed == 0 {
            let count = transaction.prepare_cached(removal)?.execute(params![cluster.0, rows])?;
            removed = count as u64;
        }
    }
    transaction.commit()?;
    Ok(Some(removed))
}

/// Checks the next events, and removes the content of those that are about the cluster. Returns how many were checked, and
/// whether there are no more.
fn remove_events(connection: &mut Connection, cluster: ClusterId, most: u32) -> Result<(u64, bool)> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let checked: i64 = transaction.query_row(
        "SELECT coalesce(checked_seq, 0) FROM clusters WHERE id = ?1",
        [cluster.0],
        |row| row.get(0),
    )?;
    let most = i64::from(most.max(1));
    let (count, last): (i64, Option<i64>) = transaction
        .prepare_cached(&WITHIN)?
        .query_row(params![checked, most, REMOVED_EVENTS_BYTES], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(last) = last else { return Ok((0, true)) };
    let events: Vec<Event> = fetch(&transaction, &WITH, params![checked, last, cluster.to_string()])?;
    let mut remove =
        transaction.prepare_cached("UPDATE events SET kind = ?2, run = NULL, data = ?3 WHERE seq = ?1")?;
    for event in events.iter().filter(|event| is_removed(event, cluster)) {
        remove.execute(params![int(event.seq), Change::REMOVED, REMOVED_DATA])?;
    }
    drop(remove);
    transaction.execute("UPDATE clusters SET checked_seq = ?2 WHERE id = ?1", params![cluster.0, last])?;
    let newest: i64 = transaction.query_row("SELECT last_seq FROM feed", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok((u64::try_from(count).unwrap_or_default(), last >= newest))
}

/// Removes ended executions with their output.
pub(super) async fn remove_executions(writer: &Writer, pace: Pace, ids: &[ExecutionId]) -> Result<(), Error> {
    for some in ids.chunks(EXECUTIONS) {
        let mut left = some.to_vec();
        while !left.is_empty() {
            left = prune::paced(writer, pace, move |connection| remove_some(connection, left)).await?;
        }
    }
    Ok(())
}

/// Removes as many of these executions as fit into one transaction. Returns those that are left.
fn remove_some(connection: &mut Connection, mut ids: Vec<ExecutionId>) -> Result<Vec<ExecutionId>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut totals: BTreeMap<i16, i64> = BTreeMap::new();
    let mut chunks = i64::from(limits::OUTPUT_PRUNED_CHUNKS);
    while let Some(id) = ids.last() {
        chunks -= remove_output(&transaction, *id, chunks)?;
        if chunks <= 0 {
            break;
        }
        transaction.prepare_cached("DELETE FROM cached WHERE execution = ?1")?.execute([id.0])?;
        let status: Option<i16> = transaction
            .prepare_cached("DELETE FROM executions WHERE id = ?1 RETURNING status")?
            .query_row([id.0], |row| row.get(0))
            .optional()?;
        if let Some(status) =
            status.filter(|code| Status::find(*code).is_some_and(|status| !status.is_open()))
        {
            *totals.entry(status).or_default() -= 1;
        }
        ids.pop();
    }
    let totals = totals.into_iter().map(|(code, total)| Ended { kind: ENDED_EXECUTIONS, code, total });
    COUNT_ENDED.each(&transaction, totals)?;
    transaction.commit()?;
    Ok(ids)
}

/// Removes output of an execution, at most so many chunks. Returns how many.
fn remove_output(transaction: &Transaction<'_>, id: ExecutionId, most: i64) -> Result<i64> {
    let sql = "DELETE FROM output WHERE rowid IN (SELECT rowid FROM output WHERE execution = ?1 LIMIT ?2)";
    let removed = transaction.prepare_cached(sql)?.execute(params![id.0, most])?;
    Ok(i64::try_from(removed).unwrap_or(i64::MAX))
}
