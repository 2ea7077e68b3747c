//! Owns pruning on PostgreSQL: in small transactions, so that no lock is held for long. A run's row is removed last, so
//! that the next call on any server continues after a crash.

use deadpool_postgres::Pool;
use jiff::Timestamp;

use super::failure::Result;
use crate::copy::deleted_before;
use crate::filter::REMOVE_STALE_USES;
use crate::rows::{condition, count};

/// Rows that one transaction removes.
const ROWS: i64 = 2_000;

const ENDED: &str = concat!(
    "SELECT id FROM runs WHERE finished_at < $1 AND finished_at IS NOT NULL AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT $2"
);
/// Also removes their output and cached results, and subtracts them from the counts of ended rows.
const REMOVE_SOME: &str = "WITH gone AS (DELETE FROM executions WHERE id IN (SELECT id FROM executions \
     WHERE run = $1 ORDER BY id LIMIT $2 FOR UPDATE) RETURNING id, status), \
     texts AS (DELETE FROM output o USING gone WHERE o.execution = gone.id), \
     results AS (DELETE FROM cached c USING gone WHERE c.execution = gone.id), \
     fewer AS (INSERT INTO ended_lately (kind, code, total) \
     SELECT 1, status, -count(*) FROM gone GROUP BY status) \
     SELECT count(*) FROM gone";
const REMOVE_RUN: &str = "WITH gone AS (DELETE FROM runs WHERE id = $1 RETURNING state), \
     fewer AS (INSERT INTO ended_lately (kind, code, total) SELECT 2, state, -1 FROM gone) \
     SELECT count(*) FROM gone";
/// Keeps the last number when its event is removed: a trigger sets it.
const REMEMBER_NUMBER: &str = "UPDATE feed SET last_seq = last_seq WHERE one = 1";
/// Adds up the counts since the last call.
const ADD_UP: &str = "WITH gone AS (DELETE FROM ended_lately RETURNING kind, code, total) \
     INSERT INTO ended AS e (kind, code, total) SELECT kind, code, sum(total) FROM gone GROUP BY kind, code \
     ON CONFLICT (kind, code) DO UPDATE SET total = e.total + excluded.total";
/// Only from the front, up to the first event that is not old.
const REMOVE_EVENTS: &str = "WITH front AS (SELECT seq, at FROM events ORDER BY seq LIMIT $2) \
     DELETE FROM events WHERE seq < (SELECT coalesce(min(seq) FILTER (WHERE at >= $1), max(seq) + 1) FROM front)";

/// Removes expired uses of rates. Granting leases removes them too.
const REMOVE_USES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN (SELECT execution, key FROM limit_uses \
     WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)";

const FORGET_DELETED: &str = "DELETE FROM tombstones WHERE at < $1";

pub(super) async fn prune(pool: &Pool, before: Timestamp, most: u32) -> Result<u64> {
    let client = pool.get().await?;
    let (at, before) = (before, before.as_microsecond());
    let mut gone = 0;
    for row in client.query(ENDED, &[&before, &i64::from(most)]).await? {
        let run: String = row.try_get(0)?;
        let statement = client.prepare_cached(REMOVE_SOME).await?;
        while client.query_one(&statement, &[&run, &ROWS]).await?.try_get::<_, i64>(0)? == ROWS {}
        // Another server may have removed it.
        gone += count(client.query_one(REMOVE_RUN, &[&run]).await?.try_get(0)?)?;
    }
    client.execute(REMEMBER_NUMBER, &[]).await?;
    let statement = client.prepare_cached(REMOVE_EVENTS).await?;
    while client.execute(&statement, &[&before, &ROWS]).await? > 0 {}
    client.execute(REMOVE_STALE_USES, &[]).await?;
    while client.execute(REMOVE_USES, &[&before, &ROWS]).await? > 0 {}
    client.execute(ADD_UP, &[]).await?;
    client.execute(FORGET_DELETED, &[&deleted_before(at).as_microsecond()]).await?;
    Ok(gone)
}
