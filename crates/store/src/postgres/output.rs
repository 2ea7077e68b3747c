//! Owns output on PostgreSQL: appending behind what is there, cutting at the front, reading from an offset.

use std::collections::BTreeMap;

use deadpool_postgres::{Object, Pool};
use downbeat_core::execution::Stream;
use downbeat_core::ids::ExecutionId;
use tokio_postgres::Row;
use uuid::Uuid;

use super::connect::answered;
use super::failure::Failure;
use super::news::NOTIFY;
use crate::port::{Error, OutputChunk};
use crate::rows::{Code, count, int, time};

/// The executions' rows are locked: they say which are known, and two servers that append for one take turns.
const ENDS: &str = "SELECT e.id, coalesce((SELECT o.start_byte + length(o.text) FROM output o \
     WHERE o.execution = e.id ORDER BY o.start_byte DESC LIMIT 1), 0) \
     FROM executions e WHERE e.id = ANY($1) ORDER BY e.id FOR NO KEY UPDATE OF e";
const APPEND: &str = "INSERT INTO output (execution, start_byte, stream, at, text) \
     SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[])";
const TRIM: &str = "DELETE FROM output o USING unnest($1::uuid[], $2::bigint[]) AS u (execution, keep_from) \
     WHERE o.execution = u.execution AND o.start_byte < u.keep_from";
/// The first chunk wanted is the one that holds the offset; looking it up spares reading what lies before it.
const READ: &str = "SELECT start_byte, stream, at, text FROM output WHERE execution = $1 AND start_byte >= coalesce(\
     (SELECT max(start_byte) FROM output WHERE execution = $1 AND start_byte <= $2), 0) \
     AND start_byte + length(text) > $2 ORDER BY start_byte LIMIT $3";

const READ_TAIL: &str =
    "SELECT start_byte, stream, at, text FROM output WHERE execution = $1 ORDER BY start_byte DESC LIMIT $2";

pub(super) async fn append(
    pool: &Pool,
    chunks: &[OutputChunk],
    keep_bytes: u64,
    news: &str,
) -> Result<(), Failure> {
    let client = pool.get().await?;
    answered(client, async |client: &mut Object| write(client, chunks, keep_bytes, news).await).await
}

async fn write(
    client: &mut Object,
    chunks: &[OutputChunk],
    keep_bytes: u64,
    news: &str,
) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    let mut ids: Vec<Uuid> = chunks.iter().map(|chunk| chunk.execution.0).collect();
    ids.sort_unstable();
    ids.dedup();
    let statement = transaction.prepare_cached(ENDS).await?;
    let mut ends = BTreeMap::new();
    for row in transaction.query(&statement, &[&ids]).await? {
        ends.insert(ExecutionId(row.try_get(0)?), row.try_get::<_, i64>(1)?);
    }
    let mut new: Vec<&OutputChunk> = Vec::new();
    // Of each that got output where its last chunk begins: that one stays, for it tells where the output ends.
    let mut appended: BTreeMap<ExecutionId, i64> = BTreeMap::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.text.is_empty()) {
        let Some(end) = ends.get_mut(&chunk.execution) else { continue };
        let start = int(chunk.offset);
        if start >= *end {
            *end = start.saturating_add(int(chunk.text.len() as u64));
            appended.insert(chunk.execution, start);
            new.push(chunk);
        }
    }
    if !new.is_empty() {
        let executions: Vec<Uuid> = new.iter().map(|chunk| chunk.execution.0).collect();
        let starts: Vec<i64> = new.iter().map(|chunk| int(chunk.offset)).collect();
        let streams: Vec<i16> = new.iter().map(|chunk| chunk.stream.code()).collect();
        let times: Vec<i64> = new.iter().map(|chunk| chunk.at.as_microsecond()).collect();
        let texts: Vec<&[u8]> = new.iter().map(|chunk| chunk.text.as_bytes()).collect();
        let statement = transaction.prepare_cached(APPEND).await?;
        transaction.execute(&statement, &[&executions, &starts, &streams, &times, &texts]).await?;
        let trimmed: Vec<Uuid> = appended.keys().map(|id| id.0).collect();
        let keep_from: Vec<i64> =
            appended.iter().map(|(id, &start)| start.min(ends[id].saturating_sub(int(keep_bytes)))).collect();
        let statement = transaction.prepare_cached(TRIM).await?;
        transaction.execute(&statement, &[&trimmed, &keep_from]).await?;
        let statement = transaction.prepare_cached(NOTIFY).await?;
        transaction.execute(&statement, &[&news]).await?;
    }
    Ok(transaction.commit().await?)
}

pub(super) async fn read(
    pool: &Pool,
    execution: ExecutionId,
    from: u64,
    limit: u32,
) -> Result<Vec<OutputChunk>, Failure> {
    let client = pool.get().await?;
    let rows = answered(client, async |client: &mut Object| {
        let statement = client.prepare_cached(READ).await?;
        Ok(client.query(&statement, &[&execution.0, &int(from), &i64::from(limit)]).await?)
    })
    .await?;
    rows.iter().map(|row| chunk(execution, row)).collect()
}

pub(super) async fn read_tail(
    pool: &Pool,
    execution: ExecutionId,
    limit: u32,
) -> Result<Vec<OutputChunk>, Failure> {
    let client = pool.get().await?;
    let rows = answered(client, async |client: &mut Object| {
        let statement = client.prepare_cached(READ_TAIL).await?;
        Ok(client.query(&statement, &[&execution.0, &i64::from(limit)]).await?)
    })
    .await?;
    rows.iter().rev().map(|row| chunk(execution, row)).collect()
}

pub(super) fn chunk(execution: ExecutionId, row: &Row) -> Result<OutputChunk, Failure> {
    let text = String::from_utf8(row.try_get(3)?)
        .map_err(|_| Error::Corrupt(format!("the output of execution `{execution}` is not UTF-8")))?;
    Ok(OutputChunk {
        execution,
        offset: count(row.try_get(0)?)?,
        stream: Stream::decode(row.try_get(1)?)?,
        at: time(row.try_get(2)?)?,
        text,
    })
}
