//! Owns pruning on PostgreSQL: on one server at a time, many runs at once, in small transactions with pauses between them,
//! so that no lock is held for long and the disk is free for commits. The rows of runs are removed last, so that the next
//! call on any server continues after a crash.

use std::time::Instant;

use downbeat_core::retention::BATCH;
use downbeat_core::{debug, limits};
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient};
use uuid::Uuid;

use super::failure::Result;
use super::indexes;
use crate::copy::deleted_before;
use crate::filter::{
    EVENTS_WITHIN, EXECUTION_BYTES, LAST_OLD_EVENT, RELEASED_CONTENTS, REMOVE_STALE_USES, RUN_BYTES,
    UNUSED_CONTENT, lazy,
};
use crate::pace::Pace;
use crate::rows::{condition, count};

/// Rows that one transaction removes.
pub(super) const ROWS: i64 = BATCH.rows as i64;
const BYTES: i64 = BATCH.bytes as i64;
pub(super) const CHUNKS: i64 = limits::OUTPUT_PRUNED_CHUNKS as i64;
/// The lock of the one server that prunes: "downprun". It ends with the connection.
const PRUNE_LOCK: i64 = 0x646f_776e_7072_756e;

/// Locked rows are skipped: a server of an older release may be removing them.
const ENDED: &str = concat!(
    "SELECT id FROM runs WHERE finished_at < $1 AND finished_at IS NOT NULL AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"
);
/// The same without debug commands: only their age counts.
const ENDED_JOBS: &str = concat!(
    "SELECT r.id FROM runs r WHERE r.finished_at < $1 AND r.finished_at IS NOT NULL AND r.state ",
    condition!(ended runs),
    " AND NOT ",
    condition!(debug run),
    " ORDER BY r.finished_at, r.id LIMIT $2 FOR UPDATE SKIP LOCKED"
);
/// The same for debug commands: the index by job finds them.
const ENDED_DEBUG: &str = concat!(
    "SELECT r.id FROM runs r WHERE r.job = $1 AND ",
    condition!(debug run),
    " AND r.finished_at < $2 AND r.state ",
    condition!(ended runs),
    " ORDER BY r.finished_at, r.id LIMIT $3 FOR UPDATE SKIP LOCKED"
);
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
const REMOVE_EVENTS: &str = "DELETE FROM events WHERE seq > $1 AND seq <= $2";

/// Removes expired uses of rates. Granting leases removes them too.
const REMOVE_USES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN (SELECT execution, key FROM limit_uses \
     WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)";

const FORGET_DELETED: &str =
    "DELETE FROM tombstones WHERE ctid = ANY (ARRAY(SELECT ctid FROM tombstones WHERE at < $1 LIMIT $2))";

/// Skips contents that a commit refers to at the moment. While they are locked, no other commit does.
const LOCK_CONTENTS: &str =
    "SELECT hash FROM contents WHERE hash = ANY($1) ORDER BY hash FOR UPDATE SKIP LOCKED";
/// Contents that were skipped are checked again by the next call.
const FORGET_RELEASED: &str = "DELETE FROM contents_released r WHERE r.id = ANY($1) \
     AND (r.hash = ANY($2) OR NOT EXISTS (SELECT 1 FROM contents c WHERE c.hash = r.hash))";

lazy! {
    /// The next executions to remove, run by run, each with the place of its run in the list and its bytes; of each run only
    /// those after an id. Each run is a lookup in the index: one condition for all runs might read the whole table. The ids
    /// pass over rows that were removed before, which stay in the index until the next VACUUM.
    pub(super) SOME: String = format!(
        "SELECT e.id, r.place, e.bytes FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS r (run, after, place) \
         CROSS JOIN LATERAL (SELECT e.id, {EXECUTION_BYTES} AS bytes FROM executions e \
         WHERE e.run = r.run AND e.id > r.after ORDER BY e.id LIMIT $3) e LIMIT $3"
    );
    /// The sizes of runs without their executions, in the order of the list. A run of many steps has many counts.
    SIZES_OF_RUNS: String = format!(
        "SELECT coalesce((SELECT {RUN_BYTES} FROM definitions d WHERE d.run = l.run), 0) + \
         100 * coalesce((SELECT r.steps FROM runs r WHERE r.id = l.run), 0) \
         FROM unnest($1::text[]) WITH ORDINALITY AS l (run, place) ORDER BY l.place"
    );
    /// A statement after the lock: it sees all references.
    REMOVE_CONTENTS: String = format!("DELETE FROM contents WHERE hash = ANY($1) AND {UNUSED_CONTENT}");
}

/// Runs one transaction of cleaning, and pauses after it.
pub(super) async fn paced<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let begun = Instant::now();
    let done = work.await?;
    Pace::Gentle.pause(begun.elapsed()).await;
    Ok(done)
}

async fn execute(client: &Client, sql: &str, args: &[&(dyn ToSql + Sync)]) -> Result<u64> {
    paced(async { Ok(client.execute(sql, args).await?) }).await
}

/// Removes executions with their output and results.
pub(super) async fn remove_executions(client: &Client, executions: &[Uuid]) -> Result<()> {
    while execute(client, REMOVE_OUTPUT, &[&executions, &CHUNKS]).await? > 0 {}
    execute(client, REMOVE_SOME, &[&executions]).await?;
    Ok(())
}

/// Executions of runs that are found portion by portion.
pub(super) struct Next {
    pub(super) executions: Vec<Uuid>,
    /// The place of the last one's run in the list.
    place: usize,
}

impl Next {
    /// Returns the next executions that fit into one transaction. `after` is the last one that was removed of the first run.
    pub(super) async fn of(
        client: &impl GenericClient,
        runs: &[String],
        after: Uuid,
        rows: i64,
    ) -> Result<Option<Self>> {
        let after: Vec<Uuid> = runs.iter().scan(after, |after, _| Some(std::mem::take(after))).collect();
        let mut found: Vec<(i64, Uuid, i64)> = Vec::new();
        for row in client.query(&**SOME, &[&runs, &after, &rows]).await? {
            found.push((row.try_get(1)?, row.try_get(0)?, row.try_get(2)?));
        }
        found.sort_unstable();
        found.truncate(BATCH.fitting(found.iter().map(|(.., bytes)| usize::try_from(*bytes).unwrap_or(0))));
        let place = |&(place, ..): &(i64, Uuid, i64)| usize::try_from(place - 1).unwrap_or(0);
        let last = found.last().map(place);
        let executions = found.into_iter().map(|(_, id, _)| id).collect();
        Ok(last.map(|place| Self { executions, place }))
    }
}

/// Removes runs and everything that belongs to them, the first ones first. Returns how many were removed. A server of an older
/// release may be removing some of them at the same time.
pub(super) async fn remove_runs(client: &Client, runs: &[String]) -> Result<u64> {
    let (mut left, mut after) = (runs, Uuid::nil());
    while let Some(next) = Next::of(client, left, after, ROWS).await? {
        remove_executions(client, &next.executions).await?;
        left = &left[next.place..];
        after = next.executions.last().copied().unwrap_or_default();
    }
    let mut sizes: Vec<i64> = Vec::new();
    for row in client.query(&**SIZES_OF_RUNS, &[&runs]).await? {
        sizes.push(row.try_get(0)?);
    }
    let (mut left, mut gone) = (runs, 0);
    while !left.is_empty() {
        let sizes = sizes[runs.len() - left.len()..].iter();
        let (some, others) =
            left.split_at(BATCH.fitting(sizes.map(|size| usize::try_from(*size).unwrap_or(0))));
        let removed = paced(async { Ok(client.query_one(REMOVE_RUNS, &[&some]).await?.try_get(0)?) });
        gone += count(removed.await?)?;
        left = others;
    }
    Ok(gone)
}

/// Removes the events up to this number.
async fn remove_events(client: &Client, last: i64) -> Result<()> {
    let mut after = 0;
    while after < last {
        let within = client.query_one(EVENTS_WITHIN, &[&after, &ROWS, &BYTES]).await?;
        let Some(within) = within.try_get::<_, Option<i64>>(1)? else { break };
        let upto = within.min(last);
        execute(client, REMOVE_EVENTS, &[&after, &upto]).await?;
        after = upto;
    }
    Ok(())
}

/// Removes the events before this time up to this number. Returns how many.
pub(super) async fn remove_old_events(client: &Client, before: i64, upto: i64) -> Result<u64> {
    client.execute(REMEMBER_NUMBER, &[]).await?;
    let mut removed = 0;
    while let Some(row) = client.query_opt(&**LAST_OLD_EVENT, &[&before]).await? {
        let (last, first): (i64, i64) = (row.try_get::<_, i64>(0)?.min(upto), row.try_get(1)?);
        if last < first {
            break;
        }
        remove_events(client, last).await?;
        removed += count(last - first + 1)?;
    }
    Ok(removed)
}

/// Returns runs that ended before this time, the first ones first.
async fn ended(client: &Client, before: i64, most: u32) -> Result<Vec<String>> {
    let rows = client.query(ENDED, &[&before, &i64::from(most)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// The same without debug commands.
pub(super) async fn ended_jobs(client: &Client, before: i64, most: u32) -> Result<Vec<String>> {
    let rows = client.query(ENDED_JOBS, &[&before, &i64::from(most)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

/// Returns whether no other server prunes until [`unlock`], or until the connection ends.
pub(super) async fn is_only_one(client: &Client) -> Result<bool> {
    Ok(client.query_one("SELECT pg_try_advisory_lock($1)", &[&PRUNE_LOCK]).await?.try_get(0)?)
}

/// The next call has another connection, and may come before the database has noticed the end of this one.
pub(super) async fn unlock(client: &Client) -> Result<()> {
    client.execute("SELECT pg_advisory_unlock($1)", &[&PRUNE_LOCK]).await?;
    Ok(())
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
    let gone = remove_runs(client, &runs).await?;
    unlock(client).await?;
    Ok(gone)
}

/// Needs a connection of its own.
pub(super) async fn prune(client: &mut Client, before: Timestamp, most: u32) -> Result<u64> {
    if !is_only_one(client).await? {
        return Ok(0);
    }
    let (at, before) = (before, before.as_microsecond());
    let gone = remove_runs(client, &ended(client, before, most).await?).await?;
    remove_old_events(client, before, i64::MAX).await?;
    client.execute(REMOVE_STALE_USES, &[]).await?;
    while execute(client, REMOVE_USES, &[&before, &ROWS]).await? > 0 {}
    let deleted_before = deleted_before(at).as_microsecond();
    while execute(client, FORGET_DELETED, &[&deleted_before, &ROWS]).await? > 0 {}
    remove_all_contents(client).await?;
    unlock(client).await?;
    Ok(gone)
}

/// Removes the released contents that nothing refers to.
pub(super) async fn remove_all_contents(client: &mut Client) -> Result<()> {
    // Without indexes, each content would be searched in whole tables, while commits wait for its lock.
    let mut last = indexes::are_contents_indexed(client).await?.then_some(0);
    while let Some(after) = last {
        last = paced(remove_contents(client, after)).await?;
    }
    Ok(())
}

/// Removes those of the next released contents that nothing refers to. Returns the last one that it checked, if any.
///
/// A commit that is about to refer to a content holds a lock on it, by its foreign key, or waits for this transaction
/// and finds the content gone; then it adds the content again.
async fn remove_contents(client: &mut Client, after: i64) -> Result<Option<i64>> {
    let transaction = client.transaction().await?;
    let (mut ids, mut hashes): (Vec<i64>, Vec<String>) = (Vec::new(), Vec::new());
    let mut sizes: Vec<usize> = Vec::new();
    for row in transaction.query(RELEASED_CONTENTS, &[&after, &ROWS]).await? {
        ids.push(row.try_get(0)?);
        hashes.push(row.try_get(1)?);
        sizes.push(usize::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0));
    }
    let fitting = BATCH.fitting(sizes);
    ids.truncate(fitting);
    hashes.truncate(fitting);
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
