//! Owns the second flight of a commit: every changed row once, each kind as one statement over arrays, then the
//! numbers, the events and COMMIT. Statements are sent without waiting; if one fails, PostgreSQL turns the following
//! COMMIT into a ROLLBACK, so the earlier responses are checked first.

use deadpool_postgres::Object;
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::state::{Tables, Verdicts};
use futures_util::join;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::commit::Batch;
use super::failure::Result;
use super::hints::NOTIFY;
use super::write::{Flight, Write, arrays, unnest};
use crate::batch::{Dirty, Ended, Holds, LimitChanges};
use crate::filter::{lazy, writes};
use crate::rows::{
    BuriedRow, CachedRow, ChangeColumns, Columns, FailedRow, HoldRow, LimitUseRow, NewContents, NodeLiveRow,
    ProblemsRow, RunLiveRow, StateColumns, definition_row, description_row, execution_row, list, run_row,
};

writes!();

lazy! {
    /// The batch provides the cluster and hostname of a node that it also registers; those of others are stored. The
    /// upsert is for older servers, which ignore tombstones and may have accepted a session again.
    INSERT_TOMBSTONES: Write = Write::new::<BuriedRow<'_>>(format!(
        "INSERT INTO tombstones (node, session, cluster, hostname, at) \
         SELECT u.node, u.session, coalesce(u.cluster, n.cluster), coalesce(u.hostname, n.hostname), u.at \
         FROM {} LEFT JOIN nodes n ON n.id = u.node \
         ON CONFLICT (node, session) DO UPDATE SET at = excluded.at",
        unnest::<BuriedRow<'_>>()
    ));
    COUNT: Write = Write::insert::<Ended>("ended_lately");
    /// A separate statement after the lock, so that it sees the last committer's events. `feed` has the last number if
    /// the events themselves were pruned.
    INSERT_EVENTS: String = {
        let (names, server) = (ChangeColumns::names(), ChangeColumns::COUNT + 1);
        let arrays = list(&ChangeColumns::columns(), |number, column| format!("${number}::{}[]", column.kind));
        format!(
            "WITH last AS (SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), \
             (SELECT max(seq) FROM events)) AS seq), \
             recorded AS (INSERT INTO events (seq, server, {names}) \
             SELECT last.seq + u.place, ${server}::uuid, {} \
             FROM last, unnest({arrays}) WITH ORDINALITY AS u ({names}, place)) \
             SELECT seq FROM last",
            ChangeColumns::names_in("u")
        )
    };
    INSERT_CACHED: Write = Write::new::<CachedRow<'_>>(format!(
        "INSERT INTO cached (execution, cluster, cache_key, finished_at) \
         SELECT u.execution, r.cluster, u.cache_key, u.finished_at FROM {} JOIN runs r ON r.id = u.run",
        unnest::<CachedRow<'_>>()
    ));
}

/// The nodes' presence is removed with them.
const DELETE_NODES: &str = "DELETE FROM nodes WHERE id = ANY($1)";
/// The lock for numbering events. The commit releases it.
const LOCK_NUMBERS: &str = "SELECT 1 FROM feed WHERE one = 1 FOR UPDATE";
const DELETE_HOLDS: &str = "DELETE FROM holds WHERE node = ANY($1)";
const DELETE_USES: &str = "DELETE FROM limit_uses WHERE execution = ANY($1) AND until IS NULL";
/// Requires the lock of limits; pruning skips locked rows.
const REMOVE_EXPIRED_USES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN \
     (SELECT execution, key FROM limit_uses WHERE until <= $1 ORDER BY until LIMIT $2)";

/// Writes and commits. Returns the number before the first event.
pub(super) async fn save(
    client: &Object,
    batch: &Batch<'_>,
    verdicts: &Verdicts,
    tables: &Tables,
    dirty: &Dirty<'_>,
    holds: &Holds<'_>,
    limits: &LimitChanges,
) -> Result<i64> {
    let executions = &tables.executions;
    let live = |id: &NodeId| NodeLiveRow::of(*id, &tables.nodes[id]);
    let state = |id: &ExecutionId| StateColumns::of(&executions[id]);
    let buried: Vec<_> = dirty.nodes_deleted.iter().map(BuriedRow::of).collect();
    let mut contents = NewContents::new(batch.is_sharing);
    let described = dirty.nodes_registered.values().map(|one| description_row(one, &mut contents));
    let described = described.collect::<Result<Vec<_>, _>>()?;
    let appeared: Vec<_> = dirty.nodes_registered.keys().map(live).collect();
    let altered_nodes: Vec<_> = dirty.nodes_altered.iter().map(live).collect();
    let problems = dirty.node_problems.iter().map(|(id, problems)| ProblemsRow::of(*id, problems));
    let problems = problems.collect::<Result<Vec<_>, _>>()?;
    let created: Vec<_> =
        dirty.runs_created.values().map(|run| run_row(run, &tables.runs[&run.id])).collect();
    let defined = dirty.runs_created.values().map(|run| definition_row(run, &mut contents));
    let defined = defined.collect::<Result<Vec<_>, _>>()?;
    let new_contents: Vec<_> = contents.rows().collect();
    let altered_runs: Vec<_> =
        dirty.runs_altered.iter().map(|id| RunLiveRow::of(id, &tables.runs[*id])).collect();
    let added = dirty.executions_added.iter().map(|id| execution_row(&executions[id]));
    let added = added.collect::<Result<Vec<_>, _>>()?;
    let altered: Vec<_> = dirty.executions_altered.iter().map(state).collect();
    let failed: Vec<_> = dirty.executions_failed.iter().map(|id| FailedRow::of(&executions[id])).collect();
    let taken: Vec<_> = holds.added.iter().map(|(node, run)| HoldRow::of(*node, run)).collect();
    let cached: Vec<_> = dirty.cached(tables).collect();
    let added_uses: Vec<_> = limits.added.iter().map(LimitUseRow::of).collect();
    let ended = dirty.ended(tables);
    let event = |&index: &usize| batch.events[index].with_about(&verdicts.abouts[index]);
    let events = verdicts.applied.iter().map(event).collect::<Result<Vec<_>, _>>()?;

    let mut flight = Flight::default();
    // First: a server that waits for another one's content has written nothing that the other could wait for.
    flight.rows(&ADD_CONTENTS, &new_contents);
    flight.rows(&INSERT_TOMBSTONES, &buried);
    if !buried.is_empty() {
        let nodes: Vec<Uuid> = buried.iter().map(|buried| buried.node).collect();
        flight.push(DELETE_NODES, vec![Box::new(nodes)]);
    }
    flight.rows(&PUT_NODES, &described);
    flight.rows(&PUT_PRESENCE, &appeared);
    flight.rows(&UPDATE_NODES, &altered_nodes);
    flight.rows(&SET_PROBLEMS, &problems);
    flight.rows(&CREATE_RUNS, &created);
    flight.rows(&DEFINE_RUNS, &defined);
    flight.rows(&UPDATE_RUNS, &altered_runs);
    flight.rows(&INSERT_EXECUTIONS, &added);
    flight.rows(&UPDATE_EXECUTIONS, &altered);
    flight.rows(&FAIL_EXECUTIONS, &failed);
    if !holds.removed.is_empty() {
        let nodes: Vec<Uuid> = holds.removed.iter().map(|node| node.0).collect();
        flight.push(DELETE_HOLDS, vec![Box::new(nodes)]);
    }
    flight.rows(&PUT_HOLDS, &taken);
    flight.rows(&INSERT_CACHED, &cached);
    if !limits.removed.is_empty() {
        let executions: Vec<Uuid> = limits.removed.iter().map(|execution| execution.0).collect();
        flight.push(DELETE_USES, vec![Box::new(executions)]);
    }
    flight.rows(&INSERT_USES, &added_uses);
    if let Some(at) = limits.expired_at {
        flight.push(REMOVE_EXPIRED_USES, vec![Box::new(at.as_microsecond()), Box::new(limits.max_expired())]);
    }
    flight.rows(&COUNT, &ended);
    let flight = flight.prepare(client).await?;
    let lock_numbers = client.prepare_cached(LOCK_NUMBERS).await?;
    let record = client.prepare_cached(&INSERT_EVENTS).await?;
    let mut record_args = arrays(&events.iter(), 0..ChangeColumns::COUNT);
    record_args.push(Box::new(batch.server.0));
    let record_args: Vec<_> = record_args.iter().map(|arg| &**arg as &(dyn ToSql + Sync)).collect();
    let notify = client.prepare_cached(NOTIFY).await?;
    let notify_args: [&(dyn ToSql + Sync); 1] = [&batch.hints];

    let (written, locked, recorded, notified, committed) = join!(
        flight.send(client),
        client.execute(&lock_numbers, &[]),
        client.query_one(&record, &record_args),
        client.execute(&notify, &notify_args),
        client.batch_execute("COMMIT"),
    );
    written?;
    locked?;
    let recorded = recorded?;
    notified?;
    committed?;
    Ok(recorded.try_get(0)?)
}
