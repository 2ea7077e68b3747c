//! Owns output on SQLite: appending behind what is there, cutting at the front, reading from an offset.

use std::collections::BTreeMap;

use downbeat_core::ids::ExecutionId;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::failure::Failure;
use crate::port::{OutputChunk, Stream};
use crate::rows::{Code, count, int, time};

pub(crate) fn append(connection: &mut Connection, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut last = transaction.prepare_cached(
            "SELECT start_byte + octet_length(text) FROM output WHERE execution = ?1 ORDER BY start_byte DESC LIMIT 1",
        )?;
        let mut known = transaction.prepare_cached("SELECT 1 FROM executions WHERE id = ?1")?;
        let mut insert = transaction.prepare_cached(
            "INSERT INTO output (execution, start_byte, stream, at, text) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        // Of each execution: where its stored output ends, and where its last chunk begins; nothing when unknown.
        let mut ends: BTreeMap<ExecutionId, Option<(i64, i64)>> = BTreeMap::new();
        for chunk in chunks.iter().filter(|chunk| !chunk.text.is_empty()) {
            let id = chunk.execution.0;
            if !ends.contains_key(&chunk.execution) {
                let end = last.query_row([id], |row| row.get(0)).optional()?;
                let end = match end {
                    Some(end) => Some((end, end)),
                    None => known.exists([id])?.then_some((0, 0)),
                };
                ends.insert(chunk.execution, end);
            }
            let Some(Some((end, last_start))) = ends.get_mut(&chunk.execution) else { continue };
            let start = int(chunk.offset);
            if start < *end {
                continue;
            }
            insert.execute(params![id, start, chunk.stream.code(), chunk.at.as_microsecond(), chunk.text])?;
            *last_start = start;
            *end = start.saturating_add(int(chunk.text.len() as u64));
        }
        // The last chunk always stays: it tells where the output ends.
        let mut trim = transaction
            .prepare_cached("DELETE FROM output WHERE execution = ?1 AND start_byte < min(?2, ?3)")?;
        for (id, end) in ends {
            if let Some((end, last_start)) = end {
                trim.execute(params![id.0, end.saturating_sub(int(keep_bytes)), last_start])?;
            }
        }
    }
    Ok(transaction.commit()?)
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
    let mut rows = query.query(params![execution.0, int(from), limit])?;
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
