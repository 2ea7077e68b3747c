//! Counts the instances of runs whose counts are not kept, on SQLite.

use downbeat_core::ids::RunId;
use downbeat_core::run::Keeps;
use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::commit::ADD_COUNTS;
use super::failure::Result;
use super::prune::complete_runs;
use super::write::fetch;
use super::writer::Writer;
use crate::counts::{for_ended, rows_of};
use crate::instances;
use crate::port::Error;
use crate::rows::{Code, condition};

const UNCOUNTED: &str = concat!(
    "SELECT id FROM runs WHERE keeps IS NULL AND finished_at IS NOT NULL AND finished_at < ?1 AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT 1"
);

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
    let mut last = Some(String::new());
    while let Some(after) = last {
        last = writer.run(move |connection| complete_runs(connection, &after)).await?;
    }
    for done in 0..most {
        if !writer.run(move |connection| keep_one(connection, before)).await? {
            return Ok(u64::from(done));
        }
    }
    Ok(u64::from(most))
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
