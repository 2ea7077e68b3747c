//! Owns what a copy is made from on SQLite: a snapshot is one read transaction on one connection, so that it is of one
//! moment however long it takes. Writers are not held up; the log grows until it ends.

use async_trait::async_trait;
use downbeat_core::change::Event;
use downbeat_core::execution::Stream;
use downbeat_core::ids::{ExecutionId, NodeId, SessionId};
use rusqlite::{Connection, OptionalExtension, Row};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::commit::hold;
use super::failure::Failure;
use super::{SqliteStore, output};
use crate::copy::{
    CHUNKS_PER_PART, EVENTS_PER_PART, EXECUTIONS_PER_PART, HOLDS_PER_PART, Kept, NODES_PER_PART, Part,
    RUNS_PER_PART, Seen, Source, TOMBSTONES_PER_PART, broken_off,
};
use crate::filter::HOLDS;
use crate::port::{Error, OutputChunk};
use crate::rows::{
    Code, EVENT_COLUMNS, EXECUTION_COLUMNS, NODE_COLUMNS, RUN_COLUMNS, TOMBSTONE_COLUMNS, count, event_row,
    execution_row, node_row, run_row, time, time_opt, tombstone_row,
};

/// Sends the rows of a query, so many at a time.
fn send<T>(
    connection: &Connection,
    to: &mpsc::Sender<Part>,
    sql: &str,
    size: usize,
    part: fn(Vec<T>) -> Part,
    read: fn(&Row<'_>) -> Result<T, Failure>,
) -> Result<(), Failure> {
    let mut query = connection.prepare(sql)?;
    let mut rows = query.query([])?;
    let mut gathered = Vec::new();
    loop {
        let row = rows.next()?.map(read).transpose()?;
        let last = row.is_none();
        gathered.extend(row);
        if gathered.len() == size || (last && !gathered.is_empty()) {
            to.blocking_send(part(std::mem::take(&mut gathered))).map_err(|_| broken_off())?;
        }
        if last {
            return Ok(());
        }
    }
}

fn event(row: &Row<'_>) -> Result<Event, Failure> {
    Ok(event_row!(row, get).record()?)
}

fn chunk(row: &Row<'_>) -> Result<OutputChunk, Failure> {
    Ok(OutputChunk {
        execution: ExecutionId(row.get(0)?),
        offset: count(row.get(1)?)?,
        stream: Stream::decode(row.get(2)?)?,
        at: time(row.get(3)?)?,
        text: row.get(4)?,
    })
}

fn snapshot(connection: &Connection, to: &mpsc::Sender<Part>) -> Result<(), Failure> {
    // Ends with its drop: there is nothing to commit.
    let view = connection.unchecked_transaction()?;
    let seq: i64 = view.query_row("SELECT last_seq FROM feed", [], |row| row.get(0))?;
    let nodes = format!("SELECT {NODE_COLUMNS} FROM presence p JOIN nodes n ON n.id = p.node");
    send(&view, to, &nodes, NODES_PER_PART, Part::Nodes, |row| Ok(node_row!(row, get).record()?))?;
    let tombstones = format!("SELECT {TOMBSTONE_COLUMNS} FROM tombstones");
    send(&view, to, &tombstones, TOMBSTONES_PER_PART, Part::Tombstones, |row| {
        Ok(tombstone_row!(row, get).record()?)
    })?;
    let runs = format!("SELECT {RUN_COLUMNS} FROM runs r JOIN definitions d ON d.run = r.id");
    send(&view, to, &runs, RUNS_PER_PART, Part::Runs, |row| Ok(run_row!(row, get).record()?))?;
    send(&view, to, HOLDS, HOLDS_PER_PART, Part::Holds, |row| Ok(hold(row)?))?;
    let executions = format!("SELECT {EXECUTION_COLUMNS} FROM executions");
    send(&view, to, &executions, EXECUTIONS_PER_PART, Part::Executions, |row| {
        Ok(execution_row!(row, get).record()?)
    })?;
    let output = "SELECT execution, start_byte, stream, at, text FROM output ORDER BY execution, start_byte";
    send(&view, to, output, CHUNKS_PER_PART, Part::Output, chunk)?;
    let events = &format!("SELECT {EVENT_COLUMNS} FROM events ORDER BY seq");
    send(&view, to, events, EVENTS_PER_PART, Part::Events, event)?;
    to.blocking_send(Part::End { seq: count(seq)? }).map_err(|_| broken_off())?;
    Ok(())
}

fn kept(connection: &Connection) -> Result<Kept, Failure> {
    let first_seq: Option<i64> = connection
        .prepare_cached("SELECT seq FROM events ORDER BY seq LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    let first_ended: Option<(i64, String)> = connection
        .prepare_cached(
            "SELECT finished_at, id FROM runs WHERE finished_at IS NOT NULL AND state IN (10, 11, 12) \
             ORDER BY finished_at, id LIMIT 1",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let first_deleted: Option<i64> =
        connection.prepare_cached("SELECT min(at) FROM tombstones")?.query_row([], |row| row.get(0))?;
    Ok(Kept {
        first_seq: first_seq.map(count).transpose()?,
        first_deleted: time_opt(first_deleted)?,
        first_ended: first_ended.map(|(at, id)| Ok::<_, Error>((time(at)?, id.into()))).transpose()?,
    })
}

fn presence(connection: &Connection) -> Result<Vec<Seen>, Failure> {
    let mut query = connection.prepare_cached("SELECT node, session, seen_at FROM presence ORDER BY node")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let seen = |(node, session, at): (Uuid, Uuid, i64)| Ok((NodeId(node), SessionId(session), time(at)?));
    rows.map(|row| row.map_err(Failure::from).and_then(seen)).collect()
}

#[async_trait]
impl Source for SqliteStore {
    async fn snapshot(&self, to: mpsc::Sender<Part>) -> Result<(), Error> {
        self.readers.run(move |connection| snapshot(connection, &to)).await
    }

    async fn kept(&self) -> Result<Kept, Error> {
        self.readers.run(kept).await
    }

    async fn presence(&self) -> Result<Vec<Seen>, Error> {
        self.readers.run(presence).await
    }

    async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>, Error> {
        let mut from = from.to_vec();
        from.sort_unstable();
        self.readers
            .run(move |connection| {
                let mut chunks = Vec::new();
                for (execution, from) in from {
                    let room = limit.saturating_sub(u32::try_from(chunks.len()).unwrap_or(u32::MAX));
                    if room == 0 {
                        break;
                    }
                    chunks.extend(output::read(connection, execution, from, room)?);
                }
                Ok(chunks)
            })
            .await
    }
}
