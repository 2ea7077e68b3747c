//! Owns the removal of what a PostgreSQL store holds too much of: the oldest runs, events and output. On one server at a
//! time.

use downbeat_core::retention::Excess;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::failure::Result;
use super::prune::{self, Next, paced};
use crate::filter::{NEXT_ENDED, OUTPUT_REMOVED, REMOVED_OUTPUT};
use crate::port::Removed;
use crate::rows::{count, int};

/// The same as `prune::REMOVE_OUTPUT`, with the bytes.
const REMOVE_OUTPUT: &str = "WITH gone AS (DELETE FROM output WHERE ctid = ANY (ARRAY (SELECT o.ctid \
     FROM unnest($1::uuid[]) AS e (id) CROSS JOIN LATERAL \
     (SELECT ctid FROM output WHERE execution = e.id ORDER BY start_byte LIMIT $2) o LIMIT $2)) \
     RETURNING length(text) AS bytes) SELECT count(*), coalesce(sum(bytes), 0) FROM gone";

/// Needs a connection of its own.
pub(super) async fn prune(client: &mut Client, excess: &Excess, most: u32) -> Result<Removed> {
    if !prune::is_only_one(client).await? {
        return Ok(Removed::default());
    }
    let before = excess.before.as_microsecond();
    let mut removed = Removed::default();
    let runs = u32::try_from(excess.runs).unwrap_or(u32::MAX).min(most);
    if runs > 0 {
        let runs = prune::ended_jobs(client, before, runs).await?;
        removed.runs = prune::remove_runs(client, &runs).await?;
    }
    if excess.events_upto > 0 {
        removed.events = prune::remove_old_events(client, before, int(excess.events_upto)).await?;
    }
    if excess.output_bytes > 0 {
        removed.output_bytes = remove_output(client, before, excess.output_bytes).await?;
    }
    if removed.runs > 0 {
        prune::remove_all_contents(client).await?;
    }
    prune::unlock(client).await?;
    Ok(removed)
}

/// Removes the output of the first runs that have any and ended before this time, until so much is removed. Returns how much
/// was.
async fn remove_output(client: &Client, before: i64, bytes: u64) -> Result<u64> {
    let mut removed = 0;
    while removed < bytes {
        let (mut at, mut run) = (i64::MIN, String::new());
        if let Some(row) = client.query_opt(OUTPUT_REMOVED, &[]).await? {
            (at, run) = (row.try_get(0)?, row.try_get(1)?);
        }
        // No run has an empty id.
        let args: [&(dyn ToSql + Sync); 4] = [&at, &run, &before, &""];
        let Some(row) = client.query_opt(NEXT_ENDED, &args).await? else { break };
        let (at, runs): (i64, [String; 1]) = (row.try_get(0)?, [row.try_get(1)?]);
        let mut after = Uuid::nil();
        while let Some(next) = Next::of(client, &runs, after, prune::ROWS).await? {
            loop {
                let gone = paced(async {
                    let row = client.query_one(REMOVE_OUTPUT, &[&next.executions, &prune::CHUNKS]).await?;
                    Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?))
                });
                let (chunks, size) = gone.await?;
                removed += count(size)?;
                if chunks < prune::CHUNKS {
                    break;
                }
            }
            after = next.executions.last().copied().unwrap_or_default();
        }
        client.execute(REMOVED_OUTPUT, &[&at, &runs[0]]).await?;
    }
    Ok(removed)
}
