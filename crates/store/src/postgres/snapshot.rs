//! Owns snapshots on PostgreSQL: one REPEATABLE READ transaction, read through portals, so that all parts have the same
//! sequence number and bounded size.

use downbeat_core::change::Event;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::job::{BackfillRecord, JobKey, JobLive, JobVersion};
use downbeat_core::node::Tombstone;
use tokio::sync::mpsc;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::PostgresStore;
use super::failure::Result;
use crate::copy::{PART, Part, interrupted};
use crate::filter::{CHANGED_CLUSTER, HOLDS};
use crate::port::OutputChunk;
use crate::read::Database;
use crate::rows::{ContentRow, Contents, Record, Stored, StoredNode, StoredRun, condition, count, hashes_of};

/// The contents that rows refer to, as columns.
const DEFINITION: &str = "(SELECT c.text FROM contents c WHERE c.hash = definition_hash)";
const RESOLVED: &str = "(SELECT c.text FROM contents c WHERE c.hash = resolved_hash)";
const COMMON: &str = "(SELECT c.text FROM contents c WHERE c.hash = common_hash)";

/// Sends the rows of a query in parts. The sizes of their `large` columns are read ahead, through a second portal, so
/// that a part with large rows is never read completely.
async fn send<T: Stored>(
    view: &Transaction<'_>,
    to: &mpsc::Sender<Part>,
    (rest, large): (&str, &[&str]),
    part: fn(Vec<T::Whole>) -> Part,
) -> Result<()> {
    let select = format!("{}{rest}", T::select());
    let size = |column: &&str| format!("coalesce(octet_length({column}), 0)");
    let size = large.iter().map(size).collect::<Vec<_>>().join(" + ");
    let rows = view.bind(&select, &[]).await?;
    let sizes = view.bind(&format!("SELECT {size} FROM ({select}) AS all_rows"), &[]).await?;
    let (mut ahead, mut is_last): (Vec<usize>, bool) = (Vec::new(), false);
    loop {
        if ahead.len() < PART.rows && !is_last {
            let more = view.query_portal(&sizes, row_count(PART.rows)).await?;
            is_last = more.len() < PART.rows;
            for row in more {
                ahead.push(usize::try_from(row.try_get::<_, i32>(0)?).unwrap_or(0));
            }
        }
        if ahead.is_empty() {
            return Ok(());
        }
        let count = PART.fitting(ahead.iter().copied());
        ahead.drain(..count);
        let rows = view.query_portal(&rows, row_count(count)).await?;
        let rows = rows.iter().map(T::from_row).collect::<Result<Vec<T>, _>>()?;
        let mut contents = contents(view, &rows).await?;
        let rows = rows.into_iter().map(|row| row.whole(&mut contents)).collect::<Result<Vec<_>, _>>()?;
        to.send(part(rows)).await.map_err(|_| interrupted())?;
    }
}

/// Reads the contents that these rows refer to.
async fn contents<T: Stored>(view: &Transaction<'_>, rows: &[T]) -> Result<Contents> {
    let hashes: Vec<&str> = hashes_of(rows).into_iter().collect();
    if hashes.is_empty() {
        return Ok(Contents::default());
    }
    let sql = format!("{} WHERE hash = ANY($1)", ContentRow::select());
    let rows = view.query(&sql, &[&hashes]).await?;
    Ok(Contents::of(rows.iter().map(ContentRow::from_row).collect::<Result<_, _>>()?))
}

fn row_count(rows: usize) -> i32 {
    i32::try_from(rows).expect("a part has few rows")
}

pub(super) async fn send_all(client: &mut Client, to: &mpsc::Sender<Part>) -> Result<()> {
    let isolated = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let view = isolated.read_only(true).start().await?;
    // The receiver may be slow; the sender stops it if it takes too long.
    view.batch_execute("SET LOCAL idle_in_transaction_session_timeout = '90s'").await?;
    let seq = count(view.query_one(PostgresStore::LAST_SEQ, &[]).await?.try_get(0)?)?;
    // Two scans of one table then return its rows in the same order.
    view.batch_execute("SET LOCAL synchronize_seqscans = off").await?;
    let changed = format!(" WHERE {} AND {CHANGED_CLUSTER} ORDER BY id", condition!(alive clusters));
    send::<ClusterRecord>(&view, to, (&changed, &["list"]), Part::Clusters).await?;
    let removed = " WHERE deleted_at IS NOT NULL ORDER BY id";
    send::<ClusterId>(&view, to, (removed, &["CAST(id AS text)"]), Part::RemovedClusters).await?;
    let large = ["description", "registration", COMMON];
    send::<StoredNode>(&view, to, ("", &large), Part::Nodes).await?;
    send::<Tombstone>(&view, to, ("", &["hostname"]), Part::Tombstones).await?;
    send::<(JobKey, JobLive)>(&view, to, (" ORDER BY j.id", &["name"]), Part::Jobs).await?;
    let versions = " ORDER BY v.job, v.version";
    send::<JobVersion>(&view, to, (versions, &["definition"]), Part::JobVersions).await?;
    send::<BackfillRecord>(&view, to, (" ORDER BY b.id", &["made", "live"]), Part::Backfills).await?;
    let large = ["definition", "resolved", "params", DEFINITION, RESOLVED];
    send::<StoredRun>(&view, to, (" ORDER BY r.id", &large), Part::Runs).await?;
    send::<(NodeId, RunId)>(&view, to, (HOLDS, &["run"]), Part::Holds).await?;
    send::<Delivery>(&view, to, (" ORDER BY d.id", &["message"]), Part::Deliveries).await?;
    send::<Execution>(&view, to, ("", &["params", "outputs"]), Part::Executions).await?;
    send::<OutputChunk>(&view, to, (" ORDER BY execution, start_byte", &["text"]), Part::Output).await?;
    send::<Event>(&view, to, (" ORDER BY seq", &["data"]), Part::Events).await?;
    view.rollback().await?;
    to.send(Part::End { seq }).await.map_err(|_| interrupted())?;
    Ok(())
}
