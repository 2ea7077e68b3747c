//! Owns snapshots on SQLite: one read transaction on one connection, so that all parts have the same sequence number.
//! Writers are not blocked; the log grows until it ends.

use downbeat_core::change::Event;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::job::{BackfillRecord, JobKey, JobLive, JobVersion};
use downbeat_core::node::Tombstone;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use tokio::sync::mpsc;

use super::failure::Result;
use super::write::fetch_each;
use crate::copy::{PART, Part, interrupted};
use crate::filter::{CHANGED_CLUSTER, HOLDS};
use crate::port::OutputChunk;
use crate::rows::{ContentRow, Contents, Record, Stored, StoredNode, StoredRun, condition, count, hashes_of};

/// Returns the bytes of a row's texts.
fn bytes(row: &Row<'_>) -> rusqlite::Result<usize> {
    let size = |column| match row.get_ref(column)? {
        ValueRef::Text(text) | ValueRef::Blob(text) => Ok(text.len()),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Ok(0),
    };
    (0..row.as_ref().column_count()).map(size).sum()
}

fn content_bytes(connection: &Connection, hashes: &[&str]) -> Result<usize> {
    let mut bytes: i64 = 0;
    for hash in hashes {
        let mut size =
            connection.prepare_cached("SELECT octet_length(text) FROM contents WHERE hash = ?1")?;
        bytes += size.query_row([hash], |row| row.get::<_, i64>(0))?;
    }
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Reads the contents that these rows refer to.
fn contents<T: Stored>(connection: &Connection, rows: &[T]) -> Result<Contents> {
    let sql = format!("{} WHERE hash = ?1", ContentRow::select());
    Ok(Contents::of(fetch_each(connection, &sql, hashes_of(rows).into_iter().map(|hash| [hash]))?))
}

/// Sends the rows of a query in parts.
fn send<T: Stored>(
    connection: &Connection,
    to: &mpsc::Sender<Part>,
    rest: &str,
    part: fn(Vec<T::Whole>) -> Part,
) -> Result<()> {
    let mut query = connection.prepare(&format!("{}{rest}", T::select()))?;
    let mut rows = query.query([])?;
    let (mut gathered, mut total) = (Vec::new(), 0);
    let flush = |gathered: &mut Vec<T>| -> Result<()> {
        let mut contents = contents(connection, gathered)?;
        let rows = gathered.drain(..).map(|row| row.whole(&mut contents)).collect::<Result<_, _>>()?;
        Ok(to.blocking_send(part(rows)).map_err(|_| interrupted())?)
    };
    while let Some(row) = rows.next()? {
        let record = T::from_row(row)?;
        let size = bytes(row)? + content_bytes(connection, &record.hashes())?;
        if !PART.holds(gathered.len() + 1, total + size) {
            flush(&mut gathered)?;
            total = 0;
        }
        total += size;
        gathered.push(record);
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
    let changed = format!(" WHERE {} AND {CHANGED_CLUSTER}", condition!(alive clusters));
    send::<ClusterRecord>(&view, to, &changed, Part::Clusters)?;
    send::<ClusterId>(&view, to, " WHERE deleted_at IS NOT NULL", Part::RemovedClusters)?;
    send::<StoredNode>(&view, to, "", Part::Nodes)?;
    send::<Tombstone>(&view, to, "", Part::Tombstones)?;
    send::<(JobKey, JobLive)>(&view, to, "", Part::Jobs)?;
    send::<JobVersion>(&view, to, "", Part::JobVersions)?;
    send::<BackfillRecord>(&view, to, "", Part::Backfills)?;
    send::<StoredRun>(&view, to, "", Part::Runs)?;
    send::<(NodeId, RunId)>(&view, to, HOLDS, Part::Holds)?;
    send::<Delivery>(&view, to, "", Part::Deliveries)?;
    send::<Execution>(&view, to, "", Part::Executions)?;
    send::<OutputChunk>(&view, to, " ORDER BY execution, start_byte", Part::Output)?;
    send::<Event>(&view, to, " ORDER BY seq", Part::Events)?;
    to.blocking_send(Part::End { seq: count(seq)? }).map_err(|_| interrupted())?;
    Ok(())
}
