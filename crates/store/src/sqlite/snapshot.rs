//! Owns snapshots on SQLite: one read transaction on one connection, so that all parts have the same sequence number.
//! Writers are not blocked; the log grows until it ends.

use downbeat_core::change::Event;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::run::RunRecord;
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::failure::Result;
use crate::copy::{
    CHUNKS_PER_PART, EVENTS_PER_PART, EXECUTIONS_PER_PART, HOLDS_PER_PART, NODES_PER_PART, Part,
    RUNS_PER_PART, TOMBSTONES_PER_PART, interrupted,
};
use crate::filter::HOLDS;
use crate::port::OutputChunk;
use crate::rows::{Record, count};

/// Sends the rows of a query in parts of this size.
fn send<T: Record>(
    connection: &Connection,
    to: &mpsc::Sender<Part>,
    rest: &str,
    size: usize,
    part: fn(Vec<T>) -> Part,
) -> Result<()> {
    let mut query = connection.prepare(&format!("{}{rest}", T::select()))?;
    let mut rows = query.query([])?;
    let mut gathered = Vec::new();
    loop {
        let row = rows.next()?.map(T::from_row).transpose()?;
        let last = row.is_none();
        gathered.extend(row);
        if gathered.len() == size || (last && !gathered.is_empty()) {
            to.blocking_send(part(std::mem::take(&mut gathered))).map_err(|_| interrupted())?;
        }
        if last {
            return Ok(());
        }
    }
}

pub(super) fn send_all(connection: &Connection, to: &mpsc::Sender<Part>) -> Result<()> {
    // Dropping it ends the transaction: there is nothing to commit.
    let view = connection.unchecked_transaction()?;
    let seq: i64 = view.query_row("SELECT last_seq FROM feed", [], |row| row.get(0))?;
    send::<NodeRecord>(&view, to, "", NODES_PER_PART, Part::Nodes)?;
    send::<Tombstone>(&view, to, "", TOMBSTONES_PER_PART, Part::Tombstones)?;
    send::<RunRecord>(&view, to, "", RUNS_PER_PART, Part::Runs)?;
    send::<(NodeId, RunId)>(&view, to, HOLDS, HOLDS_PER_PART, Part::Holds)?;
    send::<Execution>(&view, to, "", EXECUTIONS_PER_PART, Part::Executions)?;
    send::<OutputChunk>(&view, to, " ORDER BY execution, start_byte", CHUNKS_PER_PART, Part::Output)?;
    send::<Event>(&view, to, " ORDER BY seq", EVENTS_PER_PART, Part::Events)?;
    to.blocking_send(Part::End { seq: count(seq)? }).map_err(|_| interrupted())?;
    Ok(())
}
