//! Owns the removal of deleted clusters and of single executions on PostgreSQL: on one server at a time, in small
//! transactions. A crash between two of them does no harm: the next call on any server continues.

use downbeat_core::change::{Change, Event};
use downbeat_core::ids::{ClusterId, ExecutionId};
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::commit::TRIES;
use super::failure::{Failure, Result};
use super::prune;
use crate::filter::{
    EVENTS_WITH, EVENTS_WITHIN, REMOVED_DATA, REMOVED_EVENTS_BYTES, RUNS_AT_ONCE, is_removed, lazy,
};
use crate::rows::{Record, count};

/// The lock of the one server that removes clusters: "downremv". It ends with the connection.
const LOCK: i64 = 0x646f_776e_7265_6d76;
/// Executions that one transaction removes: each may have `limits::VALUES_BYTES` of outputs.
const EXECUTIONS: usize = 100;

const IS_DELETED: &str = "SELECT 1 FROM clusters WHERE id = $1 AND deleted_at IS NOT NULL";
/// While they are locked, nothing is added to them.
const RUNS: &str = "SELECT id FROM runs WHERE cluster = $1 ORDER BY created_at, id LIMIT $2 FOR UPDATE";
/// What belongs to runs and does not go with their rows.
const OF_RUNS: [&str; 2] =
    ["DELETE FROM holds WHERE run = ANY($1)", "DELETE FROM instance_counts_lately WHERE run = ANY($1)"];
/// Removes rows of a cluster, by table, each by an index (of deleted nodes there are few): arguments are the cluster and
/// the most rows.
const REMOVALS: [&str; 8] = [
    "DELETE FROM limit_uses WHERE ctid = ANY (ARRAY(SELECT ctid FROM limit_uses WHERE cluster = $1 LIMIT $2))",
    "DELETE FROM cached WHERE ctid = ANY (ARRAY(SELECT ctid FROM cached WHERE cluster = $1 LIMIT $2))",
    "DELETE FROM holds WHERE node = ANY (ARRAY(SELECT h.node FROM nodes n JOIN holds h ON h.node = n.id \
     WHERE n.cluster = $1 LIMIT $2))",
    // The nodes' presence is removed with them.
    "DELETE FROM nodes WHERE id = ANY (ARRAY(SELECT id FROM nodes WHERE cluster = $1 LIMIT $2))",
    "DELETE FROM tombstones WHERE ctid = ANY (ARRAY(SELECT ctid FROM tombstones WHERE cluster = $1 LIMIT $2))",
    "DELETE FROM backfills WHERE id = ANY (ARRAY(SELECT id FROM backfills WHERE cluster = $1 LIMIT $2))",
    // Each may have `limits::JOB_FILE_BYTES`: four are as much as one transaction of cleaning removes.
    "DELETE FROM job_versions WHERE ctid = ANY (ARRAY(SELECT v.ctid FROM jobs j JOIN job_versions v ON v.job = j.id \
     WHERE j.cluster = $1 LIMIT least($2::bigint, 4)))",
    "DELETE FROM jobs WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE cluster = $1 LIMIT $2))",
];
const CHECKED: &str = "SELECT coalesce(checked_seq, 0) FROM clusters WHERE id = $1";
const REMOVE_EVENTS: &str = "UPDATE events SET kind = $2, run = NULL, data = $3 WHERE seq = ANY($1)";
const CHECK: &str = "UPDATE clusters SET checked_seq = $2 WHERE id = $1";
const IS_LAST: &str = "SELECT coalesce(max(seq), 0) <= $1 FROM events";
const REMOVE_ROW: &str = "DELETE FROM clusters WHERE id = $1 AND deleted_at IS NOT NULL";

lazy! {
    WITH: String = format!("{}{EVENTS_WITH}", Event::select());
}

/// Needs a connection of its own.
pub(super) async fn remove_cluster(client: &mut Client, cluster: ClusterId, most: u32) -> Result<u64> {
    if !client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let removed = remove_portion(client, cluster, most).await?;
    // The next call has another connection, and may come before the database has noticed the end of this one.
    client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await?;
    Ok(removed)
}

async fn remove_portion(client: &mut Client, cluster: ClusterId, most: u32) -> Result<u64> {
    if client.query_opt(IS_DELETED, &[&cluster.0]).await?.is_none() {
        return Ok(0);
    }
    let most = i64::from(most.max(1));
    let removed = remove_rows(client, cluster, most).await?;
    if removed > 0 {
        return Ok(removed);
    }
    // No rows are left, so no more events about the cluster come.
    let (checked, is_end) = remove_events(client, cluster, most).await?;
    if !is_end {
        return Ok(checked);
    }
    prune::remove_all_contents(client).await?;
    client.execute(REMOVE_ROW, &[&cluster.0]).await?;
    Ok(checked + 1)
}

/// Removes rows of the cluster. Returns how many. Commits lock some of them in another order.
async fn remove_rows(client: &mut Client, cluster: ClusterId, most: i64) -> Result<u64> {
    let mut tries = 1;
    loop {
        let transaction = client.transaction().await?;
        match remove_within(&transaction, cluster, most).await {
            Ok(removed) => {
                transaction.commit().await?;
                return Ok(removed);
            }
            Err(failure) if failure.is_collision() && tries < TRIES => {
                transaction.rollback().await?;
                tries += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
}

async fn remove_within(transaction: &Transaction<'_>, cluster: ClusterId, most: i64) -> Result<u64> {
    let mut runs: Vec<String> = Vec::new();
    for row in transaction.query(RUNS, &[&cluster.0, &RUNS_AT_ONCE]).await? {
        runs.push(row.try_get(0)?);
    }
    if !runs.is_empty() {
        return remove_of_runs(transaction, &runs, most).await;
    }
    for removal in REMOVALS {
        let removed = transaction.execute(removal, &[&cluster.0, &most]).await?;
        if removed > 0 {
            return Ok(removed);
        }
    }
    Ok(0)
}

/// Removes executions of these runs, or the runs if they have none.
async fn remove_of_runs(transaction: &Transaction<'_>, runs: &[String], most: i64) -> Result<u64> {
    let Some(next) = prune::Next::of(transaction, runs, Uuid::nil(), most).await? else {
        for removal in OF_RUNS {
            transaction.execute(removal, &[&runs]).await?;
        }
        return count(transaction.query_one(prune::REMOVE_RUNS, &[&runs]).await?.try_get(0)?)
            .map_err(Failure::from);
    };
    let executions = next.executions;
    let chunks = transaction.execute(prune::REMOVE_OUTPUT, &[&executions, &prune::CHUNKS]).await?;
    if chunks > 0 {
        return Ok(chunks);
    }
    transaction.execute(prune::REMOVE_SOME, &[&executions]).await?;
    Ok(executions.len() as u64)
}

/// Checks the next events, and removes the content of those that are about the cluster. Returns how many were checked, and
/// whether there are no more.
async fn remove_events(client: &mut Client, cluster: ClusterId, most: i64) -> Result<(u64, bool)> {
    let transaction = client.transaction().await?;
    let checked: i64 = transaction.query_one(CHECKED, &[&cluster.0]).await?.try_get(0)?;
    let window = transaction.query_one(EVENTS_WITHIN, &[&checked, &most, &REMOVED_EVENTS_BYTES]).await?;
    let Some(last) = window.try_get::<_, Option<i64>>(1)? else { return Ok((0, true)) };
    let mut removed: Vec<i64> = Vec::new();
    for row in transaction.query(&**WITH, &[&checked, &last, &cluster.to_string()]).await? {
        if is_removed(&Event::from_row(&row)?, cluster) {
            removed.push(row.try_get(0)?);
        }
    }
    transaction.execute(REMOVE_EVENTS, &[&removed, &Change::REMOVED, &REMOVED_DATA]).await?;
    transaction.execute(CHECK, &[&cluster.0, &last]).await?;
    let is_last: bool = transaction.query_one(IS_LAST, &[&last]).await?.try_get(0)?;
    transaction.commit().await?;
    Ok((count(window.try_get(0)?)?, is_last))
}

/// Removes ended executions with their output.
pub(super) async fn remove_executions(client: &Client, ids: &[ExecutionId]) -> Result<()> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    for some in ids.chunks(EXECUTIONS) {
        prune::remove_executions(client, some).await?;
    }
    Ok(())
}
