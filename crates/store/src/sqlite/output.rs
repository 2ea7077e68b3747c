//! Owns output on SQLite: appending chunks and dropping the oldest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::LazyLock;

use downbeat_core::ids::ExecutionId;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::failure::Result;
use super::write::Write;
use crate::port::OutputChunk;
use crate::rows::{OutputRow, int};

pub(super) static APPEND: LazyLock<Write> = LazyLock::new(|| Write::insert::<OutputRow<'_>>("output"));

pub(crate) fn append(connection: &mut Connection, chunks: &[OutputChunk], keep_bytes: u64) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    append_within(&transaction, chunks, keep_bytes)?;
    Ok(transaction.commit()?)
}

/// Appends as part of a larger transaction.
pub(super) fn append_within(
    transaction: &Transaction<'_>,
    chunks: &[OutputChunk],
    keep_bytes: u64,
) -> Result<()> {
    let mut last = transaction.prepare_cached(
        "SELECT start_byte + octet_length(text) FROM output WHERE execution = ?1 ORDER BY start_byte DESC LIMIT 1",
    )?;
    let mut known = transaction.prepare_cached("SELECT 1 FROM executions WHERE id = ?1")?;
    let mut insert = APPEND.prepare(transaction)?;
    // The end of each execution's stored output; none if the execution is unknown.
    let mut ends: BTreeMap<ExecutionId, Option<i64>> = BTreeMap::new();
    // The start of the last chunk of each execution with new output. That chunk stays, because it marks the end of the
    // output.
    let mut appended: BTreeMap<ExecutionId, i64> = BTreeMap::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.text.is_empty()) {
        let id = chunk.execution.0;
        let end = match ends.entry(chunk.execution) {
            Entry::Occupied(end) => end.into_mut(),
            Entry::Vacant(unseen) => {
                unseen.insert(match last.query_row([id], |row| row.get(0)).optional()? {
                    Some(end) => Some(end),
                    None => known.exists([id])?.then_some(0),
                })
            }
        };
        let Some(end) = end else { continue };
        let start = int(chunk.offset);
        if start < *end {
            continue;
        }
        insert.run(&OutputRow::of(chunk))?;
        *end = start.saturating_add(int(chunk.text.len() as u64));
        appended.insert(chunk.execution, start);
    }
    let mut trim =
        transaction.prepare_cached("DELETE FROM output WHERE execution = ?1 AND start_byte < min(?2, ?3)")?;
    for (id, start) in appended {
        let end = ends.get(&id).copied().flatten().unwrap_or(start);
        trim.execute(params![id.0, end.saturating_sub(int(keep_bytes)), start])?;
    }
    Ok(())
}
