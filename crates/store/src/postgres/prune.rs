//! Owns pruning on PostgreSQL: on one server at a time, many runs at once, in small transactions, so that no lock is
//! held for long. The rows of runs are removed last, so that the next call on any server continues after a crash.

use jiff::Timestamp;
use tokio_postgres::Client;

use super::failure::Result;
use crate::copy::deleted_before;
use crate::filter::{LAST_OLD_EVENT, REMOVE_STALE_USES};
use crate::rows::{condition, count};

/// Rows that one transaction removes.
const ROWS: i64 = 2_000;
/// The lock of the one server that prunes: "downprun". It ends with the connection.
const PRUNE_LOCK: i64 = 0x646f_776e_7072_756e;

/// Locked rows are skipped: a server of an older release may be removing them.
const ENDED: &str = concat!(
    "SELECT id FROM runs WHERE finished_at < $1 AND finished_at IS NOT NULL AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"
);
/// Also removes their output and cached results, and subtracts them from the counts of ended rows.
const REMOVE_SOME: &str = "WITH gone AS (DELETE FROM executions WHERE id IN (SELECT id FROM executions \
     WHERE run = ANY($1) LIMIT $2 FOR UPDATE) RETURNING id, status), \
     texts AS (DELETE FROM output o USING gone WHERE o.execution = gone.id), \
     results AS (DELETE FROM cached c USING gone WHERE c.execution = gone.id), \
     fewer AS (INSERT INTO ended_lately (kind, code, total) \
     SELECT 1, status, -count(*) FROM gone GROUP BY status) \
     SELECT count(*) FROM gone";
const REMOVE_RUNS: &str = "WITH gone AS (DELETE FROM runs WHERE id = ANY($1) RETURNING state), \
     fewer AS (INSERT INTO ended_lately (kind, code, total) SELECT 2, state, -count(*) FROM gone GROUP BY state) \
     SELECT count(*) FROM gone";
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

/// Needs a connection of its own.
pub(super) async fn prune(client: &Client, before: Timestamp, most: u32) -> Result<u64> {
    if !client.query_one("SELECT pg_try_advisory_lock($1)", &[&PRUNE_LOCK]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let (at, before) = (before, before.as_microsecond());
    let mut runs: Vec<String> = Vec::new();
    for row in client.query(ENDED, &[&before, &i64::from(most)]).await? {
        runs.push(row.try_get(0)?);
    }
    let mut gone = 0;
    if !runs.is_empty() {
        let statement = client.prepare(REMOVE_SOME).await?;
        while client.query_one(&statement, &[&runs, &ROWS]).await?.try_get::<_, i64>(0)? == ROWS {}
        gone = count(client.query_one(REMOVE_RUNS, &[&runs]).await?.try_get(0)?)?;
    }
    client.execute(REMEMBER_NUMBER, &[]).await?;
    while let Some(row) = client.query_opt(&**LAST_OLD_EVENT, &[&before]).await? {
        let last: i64 = row.try_get(0)?;
        while client.execute(REMOVE_EVENTS, &[&last, &ROWS]).await? > 0 {}
    }
    client.execute(REMOVE_STALE_USES, &[]).await?;
    while client.execute(REMOVE_USES, &[&before, &ROWS]).await? > 0 {}
    client.execute(ADD_UP, &[]).await?;
    client.execute(FORGET_DELETED, &[&deleted_before(at).as_microsecond()]).await?;
    Ok(gone)
}
