//! Owns what a copy is made from on PostgreSQL: a snapshot is one transaction of isolation REPEATABLE READ, read through
//! portals, so that it is of one moment and in bounded pieces. The last number is of that moment too.

use async_trait::async_trait;
use deadpool_postgres::Transaction;
use downbeat_core::change::Event;
use downbeat_core::ids::{ExecutionId, NodeId, SessionId};
use tokio::sync::mpsc;
use tokio_postgres::{IsolationLevel, Row};
use uuid::Uuid;

use super::commit::hold;
use super::failure::Failure;
use super::store::LAST_SEQ;
use super::{PostgresStore, output};
use crate::copy::{
    CHUNKS_PER_PART, EVENTS_PER_PART, EXECUTIONS_PER_PART, HOLDS_PER_PART, Kept, NODES_PER_PART, Part,
    RUNS_PER_PART, Seen, Source, TOMBSTONES_PER_PART, broken_off,
};
use crate::filter::HOLDS;
use crate::port::{Error, OutputChunk};
use crate::rows::{
    EVENT_COLUMNS, EXECUTION_COLUMNS, NODE_COLUMNS, RUN_COLUMNS, TOMBSTONE_COLUMNS, count, event_row,
    execution_row, int, node_row, run_row, time, time_opt, tombstone_row,
};

/// Each execution's first chunk wanted is the one that holds its offset; looking it up spares reading what lies before.
const OUTPUT_OF: &str = "SELECT o.start_byte, o.stream, o.at, o.text, o.execution \
     FROM unnest($1::uuid[], $2::bigint[]) AS u (execution, from_byte) \
     CROSS JOIN LATERAL (SELECT * FROM output o WHERE o.execution = u.execution AND o.start_byte >= coalesce(\
     (SELECT max(start_byte) FROM output WHERE execution = u.execution AND start_byte <= u.from_byte), 0) \
     AND o.start_byte + length(o.text) > u.from_byte ORDER BY o.start_byte LIMIT $3) o \
     ORDER BY o.execution, o.start_byte LIMIT $3";

/// Sends the rows of a query, so many at a time.
async fn send<T>(
    view: &Transaction<'_>,
    to: &mpsc::Sender<Part>,
    sql: &str,
    size: usize,
    part: fn(Vec<T>) -> Part,
    read: fn(&Row) -> Result<T, Failure>,
) -> Result<(), Failure> {
    let portal = view.bind(sql, &[]).await?;
    let most = i32::try_from(size).expect("a part has few rows");
    loop {
        let rows = view.query_portal(&portal, most).await?;
        let last = rows.len() < size;
        if !rows.is_empty() {
            let rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            to.send(part(rows)).await.map_err(|_| broken_off())?;
        }
        if last {
            return Ok(());
        }
    }
}

fn event(row: &Row) -> Result<Event, Failure> {
    Ok(event_row!(row, try_get).record()?)
}

fn chunk(row: &Row) -> Result<OutputChunk, Failure> {
    output::chunk(ExecutionId(row.try_get(4)?), row)
}

impl PostgresStore {
    async fn send_snapshot(&self, to: &mpsc::Sender<Part>) -> Result<(), Failure> {
        let mut client = self.queries.get().await?;
        let isolated = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let view = isolated.read_only(true).start().await?;
        // Whoever takes the snapshot may be slow, and is let go by whoever sends it.
        view.batch_execute("SET LOCAL idle_in_transaction_session_timeout = '90s'").await?;
        let seq = count(view.query_one(LAST_SEQ, &[]).await?.try_get(0)?)?;
        let nodes = format!("SELECT {NODE_COLUMNS} FROM presence p JOIN nodes n ON n.id = p.node");
        send(&view, to, &nodes, NODES_PER_PART, Part::Nodes, |row| Ok(node_row!(row, try_get).record()?))
            .await?;
        let tombstones = format!("SELECT {TOMBSTONE_COLUMNS} FROM tombstones");
        send(&view, to, &tombstones, TOMBSTONES_PER_PART, Part::Tombstones, |row| {
            Ok(tombstone_row!(row, try_get).record()?)
        })
        .await?;
        let runs = format!("SELECT {RUN_COLUMNS} FROM runs r JOIN definitions d ON d.run = r.id");
        send(&view, to, &runs, RUNS_PER_PART, Part::Runs, |row| Ok(run_row!(row, try_get).record()?)).await?;
        send(&view, to, HOLDS, HOLDS_PER_PART, Part::Holds, hold).await?;
        let executions = format!("SELECT {EXECUTION_COLUMNS} FROM executions");
        send(&view, to, &executions, EXECUTIONS_PER_PART, Part::Executions, |row| {
            Ok(execution_row!(row, try_get).record()?)
        })
        .await?;
        let output =
            "SELECT start_byte, stream, at, text, execution FROM output ORDER BY execution, start_byte";
        send(&view, to, output, CHUNKS_PER_PART, Part::Output, chunk).await?;
        let events = &format!("SELECT {EVENT_COLUMNS} FROM events ORDER BY seq");
        send(&view, to, events, EVENTS_PER_PART, Part::Events, event).await?;
        view.rollback().await?;
        to.send(Part::End { seq }).await.map_err(|_| broken_off())?;
        Ok(())
    }
}

#[async_trait]
impl Source for PostgresStore {
    async fn snapshot(&self, to: mpsc::Sender<Part>) -> Result<(), Error> {
        Ok(self.send_snapshot(&to).await?)
    }

    async fn kept(&self) -> Result<Kept, Error> {
        let sql = "SELECT (SELECT min(seq) FROM events), r.finished_at, r.id, (SELECT min(at) FROM tombstones) \
                   FROM (SELECT 1) one LEFT JOIN \
                   (SELECT finished_at, id FROM runs WHERE finished_at IS NOT NULL AND state IN (10, 11, 12) \
                   ORDER BY finished_at, id LIMIT 1) r ON true";
        let rows = self.rows(sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(Kept::default()) };
        let first_seq: Option<i64> = row.try_get(0).map_err(Failure::from)?;
        let at: Option<i64> = row.try_get(1).map_err(Failure::from)?;
        let id: Option<String> = row.try_get(2).map_err(Failure::from)?;
        let first_ended = match (at, id) {
            (Some(at), Some(id)) => Some((time(at)?, id.into())),
            _ => None,
        };
        let first_deleted = time_opt(row.try_get(3).map_err(Failure::from)?)?;
        Ok(Kept { first_seq: first_seq.map(count).transpose()?, first_ended, first_deleted })
    }

    async fn presence(&self) -> Result<Vec<Seen>, Error> {
        let rows = self.rows("SELECT node, session, seen_at FROM presence ORDER BY node", &[]).await?;
        let seen = |row: &Row| -> Result<Seen, Failure> {
            Ok((NodeId(row.try_get(0)?), SessionId(row.try_get(1)?), time(row.try_get(2)?)?))
        };
        Ok(rows.iter().map(seen).collect::<Result<_, _>>()?)
    }

    async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>, Error> {
        let executions: Vec<Uuid> = from.iter().map(|(execution, _)| execution.0).collect();
        let starts: Vec<i64> = from.iter().map(|(_, start)| int(*start)).collect();
        let rows = self.rows(OUTPUT_OF, &[&executions, &starts, &i64::from(limit)]).await?;
        Ok(rows.iter().map(chunk).collect::<Result<_, _>>()?)
    }
}
