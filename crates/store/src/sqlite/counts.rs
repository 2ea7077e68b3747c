//! Counts the instances of runs whose counts are not kept, and completes rows of runs that an older program wrote, on
//! SQLite.

use downbeat_core::ids::RunId;
use downbeat_core::run::Keeps;
use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::commit::ADD_COUNTS;
use super::failure::Result;
use super::write::{fetch, fetch_each};
use super::writer::Writer;
use crate::counts::{for_ended, readable, rows_of};
use crate::filter::{COMPLETED, INCOMPLETE_RUNS, lazy};
use crate::instances;
use crate::port::Error;
use crate::rows::{Code, Extent, Record, condition, int};

const UNCOUNTED: &str = concat!(
    "SELECT id FROM runs WHERE keeps IS NULL AND finished_at IS NOT NULL AND finished_at < ?1 AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT 1"
);

lazy! {
    INCOMPLETE: String = INCOMPLETE_RUNS.replace('$', "?");
    EXTENT: String = format!("{} WHERE d.run = ?1", Extent::select());
}

/// Forgets the kept counts if the last program that used the file did not keep them.
pub(super) fn check(connection: &Connection) -> Result<()> {
    let were_kept: bool =
        connection
            .query_row("SELECT counted_seq IS NOT DISTINCT FROM last_seq FROM feed", [], |row| row.get(0))?;
    if !were_kept {
        connection.execute_batch(
            "BEGIN IMMEDIATE; UPDATE runs SET keeps = NULL WHERE keeps > 0; \
             UPDATE feed SET counted_seq = last_seq; COMMIT",
        )?;
    }
    Ok(())
}

/// Counts runs one by one, so that commits do not wait for long. Returns how many.
pub(super) async fn keep_counts(writer: &Writer, before: Timestamp, most: u32) -> Result<u64, Error> {
    let mut done = 0;
    while done < most && writer.run(move |connection| keep_one(connection, before)).await? {
        done += 1;
    }
    let mut last = Some(String::new());
    while let Some(after) = last {
        last = writer.run(move |connection| complete_runs(connection, &after)).await?;
    }
    Ok(u64::from(done))
}

fn keep_one(connection: &mut Connection, before: Timestamp) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let run = {
        let mut query = transaction.prepare_cached(UNCOUNTED)?;
        let mut rows = query.query([before.as_microsecond()])?;
        match rows.next()? {
            Some(row) => RunId::from(row.get::<_, String>(0)?),
            None => return Ok(false),
        }
    };
    keep(&transaction, &run, None)?;
    transaction.commit()?;
    Ok(true)
}

/// Counts the instances of a run and keeps these counts; by default, those for a run that has ended.
pub(super) fn keep(transaction: &Transaction<'_>, run: &RunId, keeps: Option<Keeps>) -> Result<()> {
    let counts = instances::counts(fetch(transaction, &instances::COUNTS, [run.as_str()])?);
    let keeps = keeps.unwrap_or_else(|| for_ended(&counts));
    transaction.prepare_cached("DELETE FROM instance_counts WHERE run = ?1")?.execute([run.as_str()])?;
    ADD_COUNTS.each(transaction, rows_of(run, keeps, &counts))?;
    let mut mark = transaction.prepare_cached("UPDATE runs SET keeps = ?2 WHERE id = ?1")?;
    mark.execute(params![run.as_str(), keeps.code()])?;
    Ok(())
}

/// Completes the next rows of runs that an older program wrote. Returns the last of them, if there is any.
fn complete_runs(connection: &mut Connection, after: &str) -> Result<Option<String>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: Vec<(String, i64)> = transaction
        .prepare_cached(&INCOMPLETE)?
        .query_map(params![after, int(COMPLETED.rows as u64)], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let fitting = COMPLETED.fitting(found.iter().map(|(_, size)| usize::try_from(*size).unwrap_or(0)));
    let mut ids: Vec<String> = found.into_iter().take(fitting).map(|(id, _)| id).collect();
    let extents = fetch_each(&transaction, &EXTENT, ids.iter().map(|id| [id]))?;
    let mut complete = transaction.prepare_cached("UPDATE runs SET steps = ?2, nodes = ?3 WHERE id = ?1")?;
    for Extent { run, steps, nodes, .. } in readable(extents) {
        complete.execute(params![run, steps, nodes])?;
    }
    drop(complete);
    transaction.commit()?;
    Ok(ids.pop())
}
