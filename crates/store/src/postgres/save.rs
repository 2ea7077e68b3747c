//! Owns the second flight of a commit: every changed row once, each kind as one statement over arrays, then the
//! numbers, the events and COMMIT. Statements are sent without waiting; if one fails, PostgreSQL turns the following
//! COMMIT into a ROLLBACK, so the earlier responses are checked first.

use deadpool_postgres::Object;
use downbeat_core::change::Change;
use downbeat_core::ids::NodeId;
use downbeat_core::limits;
use downbeat_core::state::{Tables, Verdicts};
use futures_util::join;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::commit::Batch;
use super::failure::Result;
use super::hints::NOTIFY;
use super::write::{Flight, Write, arrays, unnest};
use crate::batch::{Changed, Dirty, Ended, Holds, LimitChanges};
use crate::counts::CountRow;
use crate::filter::{lazy, writes};
use crate::rows::{
    BuriedRow, CachedRow, ChangeColumns, Columns, DefinedRow, ExecutionRow, FailedRow, HoldRow, LimitUseRow,
    NewContents, NodeLiveRow, OldBackfillsRow, OldVersionsRow, ProblemsRow, RunLiveRow, StateColumns,
    description_row, execution_row, list, run_row,
};

/// Removes deliveries of a cluster beyond the newest. It waits for no other server: one that sends a delivery now has its
/// row, and the next commit removes it.
const FORGET_DELIVERIES: &str = "DELETE FROM deliveries WHERE id = ANY (ARRAY(SELECT l.id FROM deliveries l \
     WHERE l.id = ANY (ARRAY(SELECT d.id FROM deliveries d WHERE d.cluster = $1 \
     ORDER BY d.created_at DESC, d.id DESC OFFSET $2)) FOR UPDATE SKIP LOCKED))";

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
    REMOVE_OLD_VERSIONS: Write = Write::new::<OldVersionsRow>(format!(
        "DELETE FROM job_versions v USING {} WHERE v.job = u.job AND v.version < u.version",
        unnest::<OldVersionsRow>()
    ));
    REMOVE_OLD_BACKFILLS: Write = Write::new::<OldBackfillsRow>(format!(
        "DELETE FROM backfills b USING {} WHERE b.job = u.job AND b.ended_at IS NOT NULL AND b.id NOT IN \
         (SELECT n.id FROM backfills n WHERE n.job = u.job ORDER BY n.id DESC LIMIT u.kept)",
        unnest::<OldBackfillsRow>()
    ));
    COUNT: Write = Write::insert::<Ended>("ended_lately");
    APPEND_COUNTS: Write = Write::insert::<CountRow<'_>>("instance_counts_lately");
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

/// The event of its creation and all others about it come later.
const CHECK_CLUSTERS: &str = "UPDATE clusters SET checked_seq = (SELECT coalesce(max(seq), 0) FROM events) \
     WHERE id = ANY($1)";
/// The nodes' presence is removed with them.
const DELETE_NODES: &str = "DELETE FROM nodes WHERE id = ANY($1)";
/// The lock for numbering events. The commit releases it.
const LOCK_NUMBERS: &str = "SELECT 1 FROM feed WHERE one = 1 FOR UPDATE";
const DELETE_HOLDS: &str = "DELETE FROM holds WHERE node = ANY($1)";
const DELETE_USES: &str = "DELETE FROM limit_uses WHERE execution = ANY($1) AND until IS NULL";
/// Requires the lock of limits; pruning skips locked rows.
const REMOVE_EXPIRED_USES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN \
     (SELECT execution, key FROM limit_uses WHERE until <= $1 ORDER BY until LIMIT $2)";

/// What a batch changes besides nodes, runs and executions.
pub(super) struct Besides<'a> {
    pub(super) holds: Holds<'a>,
    pub(super) limits: LimitChanges,
    pub(super) counts: Vec<CountRow<'a>>,
}

/// Writes and commits. Returns the number before the first event.
pub(super) async fn save(
    client: &Object,
    batch: &Batch<'_>,
    verdicts: &Verdicts,
    tables: &Tables,
    dirty: &Dirty<'_>,
    changed: &Changed<'_>,
    Besides { holds, limits, counts }: &Besides<'_>,
) -> Result<i64> {
    let executions = &tables.executions;
    let (unnamed, clusters) = (dirty.unnamed_clusters(), dirty.cluster_rows()?);
    let deleted_clusters = dirty.deleted_clusters();
    let live = |id: &NodeId| NodeLiveRow::of(*id, &tables.nodes[id]);
    let buried: Vec<_> = dirty.nodes_deleted.iter().map(BuriedRow::of).collect();
    let mut contents = NewContents::new(batch.is_sharing);
    let described = dirty.nodes_registered.values().map(|one| description_row(one, &mut contents));
    let described = described.collect::<Result<Vec<_>, _>>()?;
    let appeared: Vec<_> = dirty.nodes_registered.keys().map(live).collect();
    let altered_nodes: Vec<_> = dirty.nodes_altered.iter().map(live).collect();
    let problems = dirty.node_problems.iter().map(|(id, problems)| ProblemsRow::of(*id, problems));
    let problems = problems.collect::<Result<Vec<_>, _>>()?;
    let (jobs, job_versions) = (dirty.job_rows(tables), dirty.job_version_rows()?);
    let old_versions = dirty.old_versions();
    let (backfills, old_backfills) = (dirty.backfill_rows(tables)?, dirty.old_backfills());
    let deliveries = dirty.delivery_rows(tables)?;
    let created: Vec<_> =
        dirty.runs_created.values().map(|run| run_row(run, &tables.runs[&run.id])).collect();
    let altered_runs: Vec<_> =
        dirty.runs_altered.iter().map(|id| RunLiveRow::of(id, &tables.runs[*id])).collect();
    let (mut defined, mut added): (Vec<&DefinedRow<'_>>, Vec<ExecutionRow<'_>>) = (Vec::new(), Vec::new());
    for &index in &verdicts.applied {
        let documents = &batch.documents[index];
        defined.extend(&documents.definition);
        if let Change::ExecutionsAdded { executions: new, .. } = &batch.changes[index] {
            for (new, documents) in new.iter().zip(&documents.executions) {
                added.push(execution_row(&executions[&new.id], documents.borrowed()));
            }
        }
    }
    added.sort_unstable_by_key(|(state, _)| state.id);
    let of_runs = verdicts.applied.iter().flat_map(|&index| batch.documents[index].contents.rows());
    let mut new_contents: Vec<_> = contents.rows().chain(of_runs).collect();
    // All servers write them in the same order.
    new_contents.sort_unstable_by(|a, b| a.hash.0.cmp(&b.hash.0));
    new_contents.dedup_by(|a, b| a.hash == b.hash);
    let altered: Vec<_> = changed.altered.iter().copied().map(StateColumns::of).collect();
    let failed: Vec<_> = dirty.executions_failed.iter().map(|id| FailedRow::of(&executions[id])).collect();
    let taken: Vec<_> = holds.added.iter().map(|(node, run)| HoldRow::of(*node, run)).collect();
    let cached: Vec<_> = changed.cached().collect();
    let added_uses: Vec<_> = limits.added.iter().map(LimitUseRow::of).collect();
    let ended = dirty.ended(tables, changed);
    let event = |&index: &usize| batch.event(index, &verdicts.abouts[index]);
    let events = verdicts.applied.iter().map(event).collect::<Result<Vec<_>, _>>()?;

    let mut flight = Flight::default();
    // First: a server that waits for another one's content has written nothing that the other could wait for.
    flight.rows(&ADD_CONTENTS, &new_contents);
    flight.rows(&RENAME_CLUSTERS, &unnamed);
    flight.rows(&PUT_CLUSTERS, &clusters);
    if !dirty.clusters_created.is_empty() {
        let created: Vec<Uuid> = dirty.clusters_created.iter().map(|cluster| cluster.0).collect();
        flight.push(CHECK_CLUSTERS, vec![Box::new(created)]);
    }
    flight.rows(&DELETE_CLUSTERS, &deleted_clusters);
    flight.rows(&INSERT_TOMBSTONES, &buried);
    if !buried.is_empty() {
        let nodes: Vec<Uuid> = buried.iter().map(|buried| buried.node).collect();
        flight.push(DELETE_NODES, vec![Box::new(nodes)]);
    }
    flight.rows(&PUT_NODES, &described);
    flight.rows(&PUT_PRESENCE, &appeared);
    flight.rows(&UPDATE_NODES, &altered_nodes);
    flight.rows(&SET_PROBLEMS, &problems);
    flight.rows(&PUT_JOBS, &jobs);
    flight.rows(&INSERT_JOB_VERSIONS, &job_versions);
    flight.rows(&REMOVE_OLD_VERSIONS, &old_versions);
    flight.rows(&PUT_BACKFILLS, &backfills);
    flight.rows(&REMOVE_OLD_BACKFILLS, &old_backfills);
    flight.rows(&CREATE_RUNS, &created);
    flight.rows(&DEFINE_RUNS, defined.iter().copied());
    flight.rows(&UPDATE_RUNS, &altered_runs);
    flight.rows(&PUT_DELIVERIES, &deliveries);
    for cluster in &dirty.delivered {
        flight.push(FORGET_DELIVERIES, vec![Box::new(cluster.0), Box::new(i64::from(limits::DELIVERIES))]);
    }
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
    flight.rows(&APPEND_COUNTS, counts);
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
