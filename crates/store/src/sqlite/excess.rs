//! Owns the removal of what a SQLite store holds too much of: the oldest runs, events and output.

use downbeat_core::limits;
use downbeat_core::retention::{BATCH, Excess};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use uuid::Uuid;

use super::failure::Result;
use super::prune::{self, paced};
use super::writer::Writer;
use crate::filter::{NEXT_ENDED, OUTPUT_REMOVED, REMOVED_OUTPUT, lazy};
use crate::pace::Pace;
use crate::port::{Error, Removed};
use crate::rows::int;

lazy! {
    NEXT: String = NEXT_ENDED.replace('$', "?");
    ADVANCE: String = REMOVED_OUTPUT.replace('$', "?");
}

pub(super) async fn prune(writer: &Writer, excess: Excess, most: u32) -> Result<Removed, Error> {
    let before = excess.before.as_microsecond();
    let mut removed = Removed::default();
    let runs = u32::try_from(excess.runs).unwrap_or(u32::MAX).min(most);
    if runs > 0 {
        let runs = writer.run(move |connection| prune::ended_jobs(connection, before, runs)).await?;
        removed.runs = runs.len() as u64;
        prune::remove(writer, Pace::Gentle, runs).await?;
    }
    let upto = int(excess.events_upto);
    while let Some((first, last)) =
        writer.run(move |connection| prune::old_events(connection, before)).await?
    {
        let last = last.min(upto);
        if last < first {
            break;
        }
        prune::remove_events(writer, Pace::Gentle, last).await?;
        removed.events += u64::try_from(last - first + 1).unwrap_or(0);
    }
    if excess.output_bytes > 0 {
        // No run has an empty id.
        let last = (before, String::new());
        removed.output_bytes = remove_output(writer, Pace::Gentle, last, excess.output_bytes).await?;
    }
    if removed != Removed::default() {
        prune::remove_contents(writer, Pace::Gentle).await?;
        prune::shrink_all(writer, Pace::Gentle).await?;
    }
    Ok(removed)
}

/// A run whose output is being removed, by its end and id, and its last execution that has none any more.
struct Place {
    run: (i64, String),
    after: Uuid,
}

/// Removes the output of the first ended runs that have any, up to the run `last`, until so much is removed. Returns how much
/// was.
pub(super) async fn remove_output(
    writer: &Writer,
    pace: Pace,
    last: (i64, String),
    bytes: u64,
) -> Result<u64, Error> {
    let (mut removed, mut place) = (0, None);
    while place.is_some() || removed < bytes {
        let (last, from) = (last.clone(), place.take());
        let step = paced(writer, pace, move |connection| remove_some(connection, &last, from)).await?;
        let Some((size, next)) = step else { break };
        (removed, place) = (removed + size, next);
    }
    Ok(removed)
}

/// Removes as much output of one run as fits into one transaction. Returns how much it was, and where to continue if the run
/// has more; none if there is no further run.
fn remove_some(
    connection: &mut Connection,
    last: &(i64, String),
    from: Option<Place>,
) -> Result<Option<(u64, Option<Place>)>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut place = match from {
        Some(place) => place,
        None => match next_run(&transaction, last)? {
            Some(run) => Place { run, after: Uuid::nil() },
            None => return Ok(None),
        },
    };
    let rows = int(BATCH.rows as u64);
    let executions: Vec<Uuid> = transaction
        .prepare_cached("SELECT id FROM executions WHERE run = ?1 AND id > ?2 ORDER BY id LIMIT ?3")?
        .query_map(params![place.run.1, place.after, rows], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let is_last = executions.len() < BATCH.rows;
    let (mut chunks, mut bytes) = (i64::from(limits::OUTPUT_PRUNED_CHUNKS), 0);
    let mut remove = transaction.prepare_cached(
        "DELETE FROM output WHERE rowid IN (SELECT rowid FROM output WHERE execution = ?1 LIMIT ?2) \
         RETURNING octet_length(text)",
    )?;
    for execution in executions {
        let sizes: Vec<i64> =
            remove.query_map(params![execution, chunks], |row| row.get(0))?.collect::<Result<_, _>>()?;
        bytes += sizes.iter().sum::<i64>();
        chunks -= int(sizes.len() as u64);
        if chunks <= 0 {
            break;
        }
        place.after = execution;
    }
    drop(remove);
    let is_done = is_last && chunks > 0;
    if is_done {
        transaction.prepare_cached(&ADVANCE)?.execute(params![place.run.0, place.run.1])?;
    }
    transaction.commit()?;
    Ok(Some((u64::try_from(bytes).unwrap_or(0), Some(place).filter(|_| !is_done))))
}

/// Returns the first ended run that may have output.
fn next_run(transaction: &Transaction<'_>, last: &(i64, String)) -> Result<Option<(i64, String)>> {
    let both = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let removed: Option<(i64, String)> =
        transaction.prepare_cached(OUTPUT_REMOVED)?.query_row([], both).optional()?;
    let (at, run) = removed.unwrap_or((i64::MIN, String::new()));
    Ok(transaction.prepare_cached(&NEXT)?.query_row(params![at, run, last.0, last.1], both).optional()?)
}
