//! Adds up the counts of instances that commits appended, counts runs whose counts are not kept, and completes rows of runs
//! that an older program wrote, on PostgreSQL: on one server at a time, in small transactions.

use downbeat_core::ids::RunId;
use jiff::Timestamp;
use tokio_postgres::Client;

use super::commit::TRIES;
use super::failure::{Failure, Result};
use super::write::Write;
use crate::counts::{CountRow, for_ended, readable, rows_of};
use crate::filter::{COMPLETED, INCOMPLETE_RUNS, lazy};
use crate::instances::{self, CountedRow};
use crate::rows::{Code, Extent, Record, condition, int, small};

/// Rows that one transaction adds up.
const ROWS: i64 = 10_000;
/// The lock of the one server that adds up: "downcnts". It ends with the connection.
const LOCK: i64 = 0x646f_776e_636e_7473;

/// A run whose counts lack a change does not keep them any more. Rows of runs that are gone are dropped.
const ADD_UP: &str = "WITH gone AS (DELETE FROM instance_counts_lately WHERE ctid = ANY (ARRAY(\
     SELECT ctid FROM instance_counts_lately LIMIT $1)) RETURNING run, step, status, total, carried, cached), \
     missed AS (UPDATE runs SET keeps = NULL WHERE id IN (SELECT run FROM gone WHERE status < 0)), \
     sums AS (INSERT INTO instance_counts AS c (run, step, status, total, carried, cached) \
     SELECT g.run, g.step, g.status, sum(g.total), sum(g.carried), sum(g.cached) \
     FROM gone g JOIN runs r ON r.id = g.run WHERE g.status >= 0 AND r.keeps > 0 \
     GROUP BY g.run, g.step, g.status ON CONFLICT (run, step, status) DO UPDATE SET \
     total = c.total + excluded.total, carried = c.carried + excluded.carried, cached = c.cached + excluded.cached) \
     SELECT count(*) FROM gone";
/// Adds up the counts of ended rows, which are appended, too.
const ADD_UP_ENDED: &str = "WITH gone AS (DELETE FROM ended_lately RETURNING kind, code, total) \
     INSERT INTO ended AS e (kind, code, total) SELECT kind, code, sum(total) FROM gone GROUP BY kind, code \
     ON CONFLICT (kind, code) DO UPDATE SET total = e.total + excluded.total";
/// Whether the sum of output lacks what was there before it was kept.
const IS_OUTPUT_MISSING: &str = "SELECT total FROM ended WHERE kind = 3 AND code = 1";
/// Adds it to the sum, once. One statement sees the output and the sum as of one time, and they change together: the difference
/// is what is missing, whatever is written meanwhile.
const COUNT_OUTPUT: &str = "WITH missing AS (DELETE FROM ended WHERE kind = 3 AND code = 1 RETURNING kind) \
     INSERT INTO ended_lately (kind, code, total) SELECT m.kind, 0, \
     coalesce((SELECT sum(length(text)) FROM output), 0) - coalesce((SELECT sum(total) FROM \
     (SELECT total FROM ended WHERE kind = 3 AND code = 0 UNION ALL \
     SELECT total FROM ended_lately WHERE kind = 3 AND code = 0) e), 0) FROM missing m";
const UNCOUNTED: &str = concat!(
    "SELECT id FROM runs WHERE keeps IS NULL AND finished_at IS NOT NULL AND finished_at < $1 AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT $2"
);
const FORGET: [&str; 2] =
    ["DELETE FROM instance_counts WHERE run = $1", "DELETE FROM instance_counts_lately WHERE run = $1"];
const MARK: &str = "UPDATE runs SET keeps = $2 WHERE id = $1 AND keeps IS NULL";
const COMPLETE_RUNS: &str = "UPDATE runs r SET steps = c.steps, nodes = c.nodes \
     FROM unnest($1::text[], $2::integer[], $3::integer[]) AS c (id, steps, nodes) WHERE r.id = c.id";

lazy! {
    INSERT: Write = Write::insert::<CountRow<'_>>("instance_counts");
    EXTENTS: String = format!("{} WHERE d.run = ANY($1) ORDER BY d.run", Extent::select());
}

/// Needs a connection of its own.
pub(super) async fn keep_counts(client: &mut Client, before: Timestamp, most: u32) -> Result<u64> {
    if !client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    while add_up(client).await? == ROWS {}
    client.execute(ADD_UP_ENDED, &[]).await?;
    if client.query_opt(IS_OUTPUT_MISSING, &[]).await?.is_some() {
        client.execute(COUNT_OUTPUT, &[]).await?;
    }
    let runs = client.query(UNCOUNTED, &[&before.as_microsecond(), &i64::from(most)]).await?;
    for run in &runs {
        keep(client, &run.try_get::<_, String>(0)?.into()).await?;
    }
    let mut last = Some(String::new());
    while let Some(after) = last {
        last = complete_runs(client, &after).await?;
    }
    Ok(runs.len() as u64)
}

/// Adds up the next rows. Returns how many. If pruning removes one of their runs at the same time, the row of a count
/// cannot refer to it; the next try does not find the run any more.
async fn add_up(client: &Client) -> Result<i64> {
    let mut tries = 1;
    loop {
        match client.query_one(ADD_UP, &[&ROWS]).await.map_err(Failure::from) {
            Err(failure) if failure.is_collision() && tries < TRIES => tries += 1,
            added => return Ok(added?.try_get(0)?),
        }
    }
}

/// Counts the instances of a run that has ended, and keeps the counts.
async fn keep(client: &mut Client, run: &RunId) -> Result<()> {
    let rows = client.query(&**instances::COUNTS, &[&run.as_str()]).await?;
    let rows: Vec<CountedRow> = rows.iter().map(CountedRow::from_row).collect::<Result<_, _>>()?;
    let counts = instances::counts(rows);
    let keeps = for_ended(&counts);
    let rows = rows_of(run, keeps, &counts);
    let transaction = client.transaction().await?;
    for forget in FORGET {
        transaction.execute(forget, &[&run.as_str()]).await?;
    }
    if transaction.execute(MARK, &[&run.as_str(), &keeps.code()]).await? == 1 && !rows.is_empty() {
        transaction.execute_raw(INSERT.sql(), INSERT.args(&rows)).await?;
    }
    Ok(transaction.commit().await?)
}

/// Completes the next rows of runs that an older program wrote. Returns the last of them, if there is any.
async fn complete_runs(client: &Client, after: &str) -> Result<Option<String>> {
    let (mut ids, mut sizes): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
    for row in client.query(INCOMPLETE_RUNS, &[&after, &int(COMPLETED.rows as u64)]).await? {
        ids.push(row.try_get(0)?);
        sizes.push(usize::try_from(row.try_get::<_, i32>(1)?).unwrap_or(0));
    }
    ids.truncate(COMPLETED.fitting(sizes));
    let rows = client.query(&**EXTENTS, &[&ids]).await?;
    let extents = rows.iter().map(Record::from_row).collect::<Result<Vec<_>, _>>()?;
    let (mut runs, mut steps, mut nodes): (Vec<String>, Vec<i32>, Vec<i32>) = Default::default();
    for extent in readable(extents) {
        runs.push(extent.run);
        steps.push(small(extent.steps));
        nodes.push(small(extent.nodes));
    }
    client.execute(COMPLETE_RUNS, &[&runs, &steps, &nodes]).await?;
    Ok(ids.pop())
}
