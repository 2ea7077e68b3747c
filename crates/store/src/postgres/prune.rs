//! Owns pruning on PostgreSQL: on one server at a time, many runs at once, in small transactions, so that no lock is
//! held for long. The rows of runs are removed last, so that the next call on any server continues after a crash.

use downbeat_core::{debug, limits};
use jiff::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::failure::Result;
use super::indexes;
use crate::copy::deleted_before;
use crate::filter::{CONTENTS_AT_ONCE, LAST_OLD_EVENT, REMOVE_STALE_USES, UNUSED_CONTENT, lazy};
use crate::rows::{condition, count};

/// Rows that one transaction removes.
const ROWS: i64 = 2_000;
pub(super) const CHUNKS: i64 = limits::OUTPUT_PRUNED_CHUNKS as i64;
/// The lock of the one server that prunes: "downprun". It ends with the connection.
const PRUNE_LOCK: i64 = 0x646f_776e_7072_756e;

/// Locked rows are skipped: a server of an older release may be removing them.
const ENDED: &str = concat!(
    "SELECT id FROM runs WHERE finished_at < $1 AND finished_at IS NOT NULL AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"
);
/// The same for debug commands: the index by job finds them.
const ENDED_DEBUG: &str = concat!(
    "SELECT r.id FROM runs r WHERE r.job = $1 AND ",
    condition!(debug run),
    " AND r.finished_at < $2 AND r.state ",
    condition!(ended runs),
    " ORDER BY r.finished_at, r.id LIMIT $3 FOR UPDATE SKIP LOCKED"
);
/// The next executions to remove, run by run. Each run is a lookup in the index: one condition for all runs might read the
/// whole table.
pub(super) const SOME: &str = "SELECT e.id FROM unnest($1::text[]) AS r (run) CROSS JOIN LATERAL \
     (SELECT id FROM executions WHERE run = r.run ORDER BY id LIMIT $2) e LIMIT $2";
/// Output has its own bound, because its rows are large.
pub(super) const REMOVE_OUTPUT: &str = "DELETE FROM output WHERE ctid = ANY (ARRAY (SELECT o.ctid \
     FROM unnest($1::uuid[]) AS e (id) CROSS JOIN LATERAL \
     (SELECT ctid FROM output WHERE execution = e.id ORDER BY start_byte LIMIT $2) o LIMIT $2))";
/// Also removes their cached results and output that has been added meanwhile, and subtracts them from the counts of
/// ended rows.
pub(super) const REMOVE_SOME: &str = concat!(
    "WITH gone AS (DELETE FROM executions WHERE id = ANY($1) RETURNING id, status), \
     texts AS (DELETE FROM output o USING gone WHERE o.execution = gone.id), \
     results AS (DELETE FROM cached c USING gone WHERE c.execution = gone.id) \
     INSERT INTO ended_lately (kind, code, total) SELECT 1, status, -count(*) FROM gone WHERE ",
    condition!(ended executions),
    " GROUP BY status"
);
pub(super) const REMOVE_RUNS: &str = concat!(
    "WITH gone AS (DELETE FROM runs WHERE id = ANY($1) RETURNING state), \
     fewer AS (INSERT INTO ended_lately (kind, code, total) SELECT 2, state, -count(*) FROM gone WHERE state ",
    condition!(ended runs),
    " GROUP BY state) SELECT count(*) FROM gone"
);
/// Keeps the last number when its event is removed: a trigger sets it.
const REMEMBER_NUMBER: &str = "UPDATE feed SET last_seq = last_seq WHERE one = 1";
/// Adds up the counts since the last call.
const ADD_UP: &str = "WITH gone AS (DELETE FROM ended_lately RETURNING kind, code, total) \
     INSERT INTO ended AS e (kind, code, total) SELECT kind, code, sum(total) FROM gone GROUP BY kind, code \
     ON CONFLICT (kind, code) DO UPDATE SET total = e.total + excluded.total";
const REMOVE_EVENTS: &str =
    "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq <= $1 ORDER BY seq LIMIT $2)";

/// Removes expired uses of rates. Granting leases removes them too.
const REMOVE_USES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN (SELECT execution, key FROM limit_uses \
     WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)";

const FORGET_DELETED: &str = "DELETE FROM tombstones WHERE at < $1";

const RELEASED: &str = "SELECT id, hash FROM contents_released WHERE id > $1 ORDER BY id LIMIT $2";
/// Skips contents that a commit refers to at the moment. While they are locked, no other commit does.
const LOCK_CONTENTS: &str =
    "SELECT hash FROM contents WHERE hash = ANY($1) ORDER BY hash FOR UPDATE SKIP LOCKED";
/// Contents that were skipped are checked again by the next call.
const FORGET_RELEASED: &str = "DELETE FROM contents_released r WHERE r.id = ANY($1) \
     AND (r.hash = ANY($2) OR NOT EXISTS (SELECT 1 FROM contents c WHERE c.hash = r.hash))";

lazy! {
    /// A statement after the lock: it sees all references.
    REMOVE_CONTENTS: String = format!("DELETE FROM contents WHERE hash = ANY($1) AND {UNUSED_CONTENT}");
}

/// Removes the next executions of these runs; returns false if there are none. A server of an older release may be removing
/// some of them at the same time.
async fn remove_some(client: &Client, runs: &[String]) -> Result<bool> {
    let mut executions: Vec<Uuid> = Vec::new();
    for row in client.query(SOME, &[&runs, &ROWS]).await? {
        executions.push(row.try_get(0)?);
    }
    while client.execute(REMOVE_OUTPUT, &[&executions, &CHUNKS]).await? > 0 {}
    client.execute(REMOVE_SOME, &[&executions]).await?;
    Ok(!executions.is_empty())
}

/// Removes runs and everything that belongs to them. Returns how many were removed.
async fn remove_runs(client: &Client, runs: &[String]) -> Result<u64> {
    if runs.is_empty() {
        return Ok(0);
    }
    while remove_some(client, runs).await? {}
    Ok(count(client.query_one(REMOVE_RUNS, &[&runs]).await?.try_get(0)?)?)
}

/// Returns whether no other server prunes until the connection ends.
async fn is_only_one(client: &Client) -> Result<bool> {
    Ok(client.query_one("SELECT pg_try_advisory_lock($1)", &[&PRUNE_LOCK]).await?.try_get(0)?)
}

/// Removes debug commands. Needs a connection of its own.
pub(super) async fn prune_debug(client: &Client, before: Timestamp, most: u32) -> Result<u64> {
    if !is_only_one(client).await? {
        return Ok(0);
    }
    let mut runs: Vec<String> = Vec::new();
    let args: [&(dyn ToSql + Sync); 3] = [&debug::JOB, &before.as_microsecond(), &i64::from(most)];
    for row in client.query(ENDED_DEBUG, &args).await? {
        runs.push(row.try_get(0)?);
    }
    remove_runs(client, &runs).await
}

/// Needs a connection of its own.
pub(super) async fn prune(client: &mut Client, before: Timestamp, most: u32) -> Result<u64> {
    if !is_only_one(client).await? {
        return Ok(0);
    }
    let (at, before) = (before, before.as_microsecond());
    let mut runs: Vec<String> = Vec::new();
    for row in client.query(ENDED, &[&before, &i64::from(most)]).await? {
        runs.push(row.try_get(0)?);
    }
    let gone = remove_runs(client, &runs).await?;
    client.execute(REMEMBER_NUMBER, &[]).await?;
    while let Some(row) = client.query_opt(&**LAST_OLD_EVENT, &[&before]).await? {
        let last: i64 = row.try_get(0)?;
        while client.execute(REMOVE_EVENTS, &[&last, &ROWS]).await? > 0 {}
    }
    client.execute(REMOVE_STALE_USES, &[]).await?;
    while client.execute(REMOVE_USES, &[&before, &ROWS]).await? > 0 {}
    client.execute(ADD_UP, &[]).await?;
    client.execute(FORGET_DELETED, &[&deleted_before(at).as_microsecond()]).await?;
    // Without indexes, each content would be searched in whole tables, while commits wait for its lock.
    let mut last = indexes::are_contents_indexed(client).await?.then_some(0);
    while let Some(after) = last {
        last = remove_contents(client, after).await?;
    }
    Ok(gone)
}

/// Removes those of the next released contents that nothing refers to. Returns the last one that it checked, if any.
///
/// A commit that is about to refer to a content holds a lock on it, by its foreign key, or waits for this transaction
/// and finds the content gone; then it adds the content again.
pub(super) async fn remove_contents(client: &mut Client, after: i64) -> Result<Option<i64>> {
    let transaction = client.transaction().await?;
    let (mut ids, mut hashes): (Vec<i64>, Vec<String>) = (Vec::new(), Vec::new());
    for row in transaction.query(RELEASED, &[&after, &CONTENTS_AT_ONCE]).await? {
        ids.push(row.try_get(0)?);
        hashes.push(row.try_get(1)?);
    }
    let Some(last) = ids.last().copied() else { return Ok(None) };
    let mut locked: Vec<String> = Vec::new();
    for row in transaction.query(LOCK_CONTENTS, &[&hashes]).await? {
        locked.push(row.try_get(0)?);
    }
    transaction.execute(&**REMOVE_CONTENTS, &[&locked]).await?;
    transaction.execute(FORGET_RELEASED, &[&ids, &locked]).await?;
    transaction.commit().await?;
    Ok(Some(last))
}
