//! Owns output on PostgreSQL: appending chunks and dropping the oldest.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use deadpool_postgres::Object;
use downbeat_core::ids::ExecutionId;
use uuid::Uuid;

use super::connect::Connections;
use super::failure::Result;
use super::write::Write;
use crate::port::OutputChunk;
use crate::rows::{OutputRow, int};

/// Locks the executions' rows: they show which are known, and two servers that append to one take turns.
const ENDS: &str = "SELECT e.id, coalesce((SELECT o.start_byte + length(o.text) FROM output o \
     WHERE o.execution = e.id ORDER BY o.start_byte DESC LIMIT 1), 0) \
     FROM executions e WHERE e.id = ANY($1) ORDER BY e.id FOR NO KEY UPDATE OF e";
static APPEND: LazyLock<Write> = LazyLock::new(|| Write::insert::<OutputRow<'_>>("output"));
const TRIM: &str = "DELETE FROM output o USING unnest($1::uuid[], $2::bigint[]) AS u (execution, keep_from) \
     WHERE o.execution = u.execution AND o.start_byte < u.keep_from";

/// Appends chunks. Returns the executions with new output.
pub(super) async fn append(
    connections: &Connections,
    chunks: &[OutputChunk],
    keep_bytes: u64,
) -> Result<Vec<ExecutionId>> {
    connections.run(async |client: &mut Object| write(client, chunks, keep_bytes).await).await
}

async fn write(client: &mut Object, chunks: &[OutputChunk], keep_bytes: u64) -> Result<Vec<ExecutionId>> {
    let transaction = client.transaction().await?;
    let mut ids: Vec<Uuid> = chunks.iter().map(|chunk| chunk.execution.0).collect();
    ids.sort_unstable();
    ids.dedup();
    let statement = transaction.prepare_cached(ENDS).await?;
    let mut ends = BTreeMap::new();
    for row in transaction.query(&statement, &[&ids]).await? {
        ends.insert(ExecutionId(row.try_get(0)?), row.try_get::<_, i64>(1)?);
    }
    let mut new: Vec<OutputRow<'_>> = Vec::new();
    // The start of the last chunk of each execution with new output. That chunk stays, because it marks the end of the
    // output.
    let mut appended: BTreeMap<ExecutionId, i64> = BTreeMap::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.text.is_empty()) {
        let Some(end) = ends.get_mut(&chunk.execution) else { continue };
        let start = int(chunk.offset);
        if start >= *end {
            *end = start.saturating_add(int(chunk.text.len() as u64));
            appended.insert(chunk.execution, start);
            new.push(OutputRow::of(chunk));
        }
    }
    if !new.is_empty() {
        let statement = transaction.prepare_cached(APPEND.sql()).await?;
        transaction.execute_raw(&statement, APPEND.args(&new.iter())).await?;
        let trimmed: Vec<Uuid> = appended.keys().map(|id| id.0).collect();
        let keep_from: Vec<i64> =
            appended.iter().map(|(id, &start)| start.min(ends[id].saturating_sub(int(keep_bytes)))).collect();
        let statement = transaction.prepare_cached(TRIM).await?;
        transaction.execute(&statement, &[&trimmed, &keep_from]).await?;
    }
    transaction.commit().await?;
    Ok(appended.into_keys().collect())
}
