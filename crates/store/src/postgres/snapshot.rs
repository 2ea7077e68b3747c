//! Owns snapshots on PostgreSQL: one REPEATABLE READ transaction, read through portals, so that all parts have the same
//! sequence number and bounded size.

use downbeat_core::change::Event;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::run::RunRecord;
use tokio::sync::mpsc;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::PostgresStore;
use super::failure::Result;
use crate::copy::{
    CHUNKS_PER_PART, EVENTS_PER_PART, EXECUTIONS_PER_PART, HOLDS_PER_PART, NODES_PER_PART, Part,
    RUNS_PER_PART, TOMBSTONES_PER_PART, interrupted,
};
use crate::filter::HOLDS;
use crate::port::OutputChunk;
use crate::read::Database;
use crate::rows::{Record, count};

/// Sends the rows of a query in parts of this size.
async fn send<T: Record>(
    view: &Transaction<'_>,
    to: &mpsc::Sender<Part>,
    rest: &str,
    size: usize,
    part: fn(Vec<T>) -> Part,
) -> Result<()> {
    let portal = view.bind(&format!("{}{rest}", T::select()), &[]).await?;
    let most = i32::try_from(size).expect("a part has few rows");
    loop {
        let rows = view.query_portal(&portal, most).await?;
        let last = rows.len() < size;
        if !rows.is_empty() {
            let rows = rows.iter().map(T::from_row).collect::<Result<Vec<_>, _>>()?;
            to.send(part(rows)).await.map_err(|_| interrupted())?;
        }
        if last {
            return Ok(());
        }
    }
}

pub(super) async fn send_all(client: &mut Client, to: &mpsc::Sender<Part>) -> Result<()> {
    let isolated = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let view = isolated.read_only(true).start().await?;
    // The receiver may be slow; the sender stops it if it takes too long.
    view.batch_execute("SET LOCAL idle_in_transaction_session_timeout = '90s'").await?;
    let seq = count(view.query_one(PostgresStore::LAST_SEQ, &[]).await?.try_get(0)?)?;
    send::<NodeRecord>(&view, to, "", NODES_PER_PART, Part::Nodes).await?;
    send::<Tombstone>(&view, to, "", TOMBSTONES_PER_PART, Part::Tombstones).await?;
    send::<RunRecord>(&view, to, "", RUNS_PER_PART, Part::Runs).await?;
    send::<(NodeId, RunId)>(&view, to, HOLDS, HOLDS_PER_PART, Part::Holds).await?;
    send::<Execution>(&view, to, "", EXECUTIONS_PER_PART, Part::Executions).await?;
    send::<OutputChunk>(&view, to, " ORDER BY execution, start_byte", CHUNKS_PER_PART, Part::Output).await?;
    send::<Event>(&view, to, " ORDER BY seq", EVENTS_PER_PART, Part::Events).await?;
    view.rollback().await?;
    to.send(Part::End { seq }).await.map_err(|_| interrupted())?;
    Ok(())
}
