//! Owns output on SQLite: appending behind what is there, cutting at the front, reading from an offset.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use downbeat_core::execution::Stream;
use downbeat_core::ids::ExecutionId;
use rusqlite::{Connection, OptionalExtension, Rows, Transaction, TransactionBehavior, params};

use super::failure::Failure;
use crate::port::OutputChunk;
use crate::rows::{Code, count, int, time};

pub(crate) fn append(
    connection: &mut Connection,
    chunks: &[OutputChunk],
    keep_bytes: u64,
) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    append_within(&transaction, chunks, keep_bytes)?;
    Ok(transaction.commit()?)
}

/// In a transaction that does more than that.
pub(super) fn append_within(
    transaction: &Transaction<'_>,
    chunks: &[OutputChunk],
    keep_bytes: u64,
) -> Result<(), Failure> {
    let mut last = transaction.prepare_cached(
        "SELECT start_byte + octet_length(text) FROM output WHERE execution = ?1 ORDER BY start_byte DESC LIMIT 1",
    )?;
    let mut known = transaction.prepare_cached("SELECT 1 FROM executions WHERE id = ?1")?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO output (execution, start_byte, stream, at, text) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    // Of each execution where its stored output ends; nothing when it is unknown.
    let mut ends: BTreeMap<ExecutionId, Option<i64>> = BTreeMap::new();
    // Of each that got output where its last chunk begins: that one stays, for it tells where the output ends.
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
        insert.execute(params![id, start, chunk.stream.code(), chunk.at.as_microsecond(), chunk.text])?;
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

pub(crate) fn read(
    connection: &Connection,
    execution: ExecutionId,
    from: u64,
    limit: u32,
) -> Result<Vec<OutputChunk>, Failure> {
    // The first chunk wanted is the one that holds `from`; looking it up spares reading what lies before it.
    let mut query = connection.prepare_cached(
        "SELECT start_byte, stream, at, text FROM output WHERE execution = ?1 AND start_byte >= coalesce(\
         (SELECT max(start_byte) FROM output WHERE execution = ?1 AND start_byte <= ?2), 0) \
         AND start_byte + octet_length(text) > ?2 ORDER BY start_byte LIMIT ?3",
    )?;
    collect(execution, query.query(params![execution.0, int(from), limit])?)
}

pub(crate) fn read_tail(
    connection: &Connection,
    execution: ExecutionId,
    limit: u32,
) -> Result<Vec<OutputChunk>, Failure> {
    let mut query = connection.prepare_cached(
        "SELECT start_byte, stream, at, text FROM output WHERE execution = ?1 ORDER BY start_byte DESC LIMIT ?2",
    )?;
    let mut chunks = collect(execution, query.query(params![execution.0, limit])?)?;
    chunks.reverse();
    Ok(chunks)
}

fn collect(execution: ExecutionId, mut rows: Rows<'_>) -> Result<Vec<OutputChunk>, Failure> {
    let mut chunks = Vec::new();
    while let Some(row) = rows.next()? {
        chunks.push(OutputChunk {
            execution,
            offset: count(row.get(0)?)?,
            stream: Stream::decode(row.get(1)?)?,
            at: time(row.get(2)?)?,
            text: row.get(3)?,
        });
    }
    Ok(chunks)
}
