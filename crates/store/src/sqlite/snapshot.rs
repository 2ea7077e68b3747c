//! Owns snapshots on SQLite: one read transaction on one connection, so that all parts have the same sequence number.
//! Writers are not blocked; the log grows until it ends.

use downbeat_core::change::Event;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::run::RunRecord;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use tokio::sync::mpsc;

use super::failure::Result;
use crate::copy::{PART, Part, interrupted};
use crate::filter::HOLDS;
use crate::port::OutputChunk;
use crate::rows::{Record, count};

/// Returns the bytes of a row's texts.
fn bytes(row: &Row<'_>) -> rusqlite::Result<usize> {
    let size = |column| match row.get_ref(column)? {
        ValueRef::Text(text) | ValueRef::Blob(text) => Ok(text.len()),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Ok(0),
    };
    (0..row.as_ref().column_count()).map(size).sum()
}

/// Sends the rows of a query in parts.
fn send<T: Record>(
    connection: &Connection,
    to: &mpsc::Sender<Part>,
    rest: &str,
    part: fn(Vec<T>) -> Part,
) -> Result<()> {
    let mut query = connection.prepare(&format!("{}{rest}", T::select()))?;
    let mut rows = query.query([])?;
    let (mut gathered, mut total) = (Vec::new(), 0);
    let flush =
        |gathered: &mut Vec<T>| to.blocking_send(part(std::mem::take(gathered))).map_err(|_| interrupted());
    while let Some(row) = rows.next()? {
        let size = bytes(row)?;
        if !PART.holds(gathered.len() + 1, total + size) {
            flush(&mut gathered)?;
            total = 0;
        }
        total += size;
        gathered.push(T::from_row(row)?);
    }
    if !gathered.is_empty() {
        flush(&mut gathered)?;
    }
    Ok(())
}

pub(super) fn send_all(connection: &Connection, to: &mpsc::Sender<Part>) -> Result<()> {
    // Dropping it ends the transaction: there is nothing to commit.
    let view = connection.unchecked_transaction()?;
    let seq: i64 = view.query_row("SELECT last_seq FROM feed", [], |row| row.get(0))?;
    send::<NodeRecord>(&view, to, "", Part::Nodes)?;
    send::<Tombstone>(&view, to, "", Part::Tombstones)?;
    send::<RunRecord>(&view, to, "", Part::Runs)?;
    send::<(NodeId, RunId)>(&view, to, HOLDS, Part::Holds)?;
    send::<Execution>(&view, to, "", Part::Executions)?;
    send::<OutputChunk>(&view, to, " ORDER BY execution, start_byte", Part::Output)?;
    send::<Event>(&view, to, " ORDER BY seq", Part::Events)?;
    to.blocking_send(Part::End { seq: count(seq)? }).map_err(|_| interrupted())?;
    Ok(())
}
