//! Owns a commit on SQLite: loads the rows that the batch reads, lets `tables` decide, and writes each changed row
//! once, with the events, in one transaction.

use std::sync::Arc;

use downbeat_core::change::Change;
use downbeat_core::debug;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{BackfillId, ClusterId, JobId, NodeId, RunId, ServerId};
use downbeat_core::job::{BackfillRecord, JobLive};
use downbeat_core::limits;
use downbeat_core::run::RunLive;
use downbeat_core::state::{ClusterLive, Counted, Elsewhere, Home, NodeLive, Tables, Verdicts};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use uuid::Uuid;

use super::failure::Result;
use super::write::{Write, fetch, fetch_each};
use crate::batch::{Changed, Dirty, Ended, Holds, LimitChanges, LimitCheck, Needs, NewIds};
use crate::counts::{CountRow, Standing, differences, stored_keeps};
use crate::filter::{COUNT_AT_ONCE, HELD, HOLDS, lazy, writes};
use crate::port::Committed;
use crate::rows::{
    BuriedRow, CachedRow, ChangeColumns, EventRow, ExecutionDocuments, FailedRow, HoldRow, LEASE_COLUMNS,
    LimitUseRow, NewContents, NodeLiveRow, NumberColumns, OldBackfillsRow, OldVersionsRow, ProblemsRow,
    Record, RunLiveRow, StateColumns, condition, count, definition_row, description_row, execution_row, int,
    run_row, write_event,
};

writes!();

/// Counts the waiting runs, and all that wait or are active, by cluster.
const COUNT_RUNS: &str = concat!(
    "SELECT cluster, sum(",
    condition!(run waits),
    "), count(*) FROM runs WHERE state ",
    condition!(open runs),
    " AND ",
    condition!(run is due),
    " GROUP BY cluster"
);

/// Finds the active runs of a job of a cluster.
const ACTIVE_OF_JOB: &str =
    concat!("SELECT id FROM runs WHERE ", condition!(active runs of a job), " AND cluster = ?1 AND job = ?2");

/// Counts the open debug commands, which `COUNT_RUNS` includes: their ids are not in its index.
const COUNT_DEBUG: &str = concat!(
    "SELECT r.cluster, count(*) FROM runs r WHERE r.job = ?1 AND ",
    condition!(debug run),
    " AND r.state ",
    condition!(open runs),
    " GROUP BY r.cluster"
);

lazy! {
    CLUSTERS: String =
        format!("{} WHERE {}", <(ClusterId, ClusterLive)>::select(), condition!(alive clusters));
    CLUSTER: String = format!("{} AND id = ?1", *CLUSTERS);
    JOB: String = format!("{} WHERE id = ?1", <(JobId, JobLive)>::select());
    BACKFILL: String = format!("{} WHERE id = ?1", <(BackfillId, BackfillRecord)>::select());
    DELIVERY: String = format!("{} WHERE d.id = ?1", Delivery::select());
    NODE: String = format!("{} WHERE node = ?1", <(NodeId, NodeLive)>::select());
    RUN: String = format!("{} WHERE id = ?1", <(RunId, RunLive)>::select());
    EXECUTION: String = format!("{} WHERE id = ?1", Execution::select());
    EXECUTIONS_AT: String = format!("{} WHERE lease_node = ?1 AND {HELD}", Execution::select());
    /// Written so that the index of ids is used: few are so new, and a node may have many executions.
    STEPS_SINCE: String = format!(
        "{} WHERE id >= ?1 AND +pinned = ?2 AND +run >= 'standing:' AND +run < 'standing;'",
        Execution::select()
    );
    HOLD_OF_NODE: String = format!("{}{HOLDS} AND h.node = ?1", <(NodeId, RunId)>::select());
    HOLDS_OF_RUN: String = format!("{}{HOLDS} AND h.run = ?1", <(NodeId, RunId)>::select());

    /// The batch provides the cluster and hostname of a node that it also registers; those of others are stored. The
    /// upsert is for older programs, which ignore tombstones and may have accepted a session again.
    INSERT_TOMBSTONES: Write = Write::new::<BuriedRow<'_>>(
        "INSERT INTO tombstones (node, session, cluster, hostname, at) \
         SELECT ?1, ?2, coalesce(?3, n.cluster), coalesce(?4, n.hostname), ?5 \
         FROM (SELECT 1) LEFT JOIN nodes n ON n.id = ?1 WHERE true \
         ON CONFLICT (node, session) DO UPDATE SET at = excluded.at",
    );
    /// For executions whose lease did not change.
    UPDATE_UNLEASED: Write =
        Write::update::<StateColumns<'_>>("executions", |column| !LEASE_COLUMNS.contains(&column));
    INSERT_CACHED: Write = Write::new::<CachedRow<'_>>(
        "INSERT INTO cached (execution, cluster, cache_key, finished_at) \
         SELECT ?1, cluster, ?2, ?3 FROM runs WHERE id = ?4",
    );
    REMOVE_OLD_VERSIONS: Write =
        Write::new::<OldVersionsRow>("DELETE FROM job_versions WHERE job = ?1 AND version < ?2");
    REMOVE_OLD_BACKFILLS: Write = Write::new::<OldBackfillsRow>(
        "DELETE FROM backfills WHERE job = ?1 AND ended_at IS NOT NULL AND id NOT IN \
         (SELECT id FROM backfills WHERE job = ?1 ORDER BY id DESC LIMIT ?2)",
    );
    /// Adds to the counts of rows that have ended, or subtracts from them.
    pub(super) COUNT_ENDED: Write = Write::insert::<Ended>("ended")
        .then(" ON CONFLICT (kind, code) DO UPDATE SET total = total + excluded.total");
    pub(super) ADD_COUNTS: Write = Write::insert::<CountRow<'_>>("instance_counts").then(
        " ON CONFLICT (run, step, status) DO UPDATE SET total = total + excluded.total, \
         carried = carried + excluded.carried, cached = cached + excluded.cached",
    );
    pub(super) INSERT_EVENTS: Write = Write::insert::<EventRow<'_>>("events");
}

/// Returns the last event after a given one that applied a job with triggers. Few events are so new.
const TRIGGERS_APPLIED: &str =
    concat!("SELECT coalesce(max(seq), 0) FROM events WHERE seq > ?1 AND ", condition!(applied triggers));

pub(crate) fn commit(connection: &mut Connection, server: ServerId, changes: &[Change]) -> Result<Committed> {
    match attempt(connection, server, changes, NewIds::Trusted) {
        // An execution exists already: check the ids before the second try.
        Err(failure) if failure.is_violated_key() => attempt(connection, server, changes, NewIds::Checked),
        result => result,
    }
}

fn attempt(
    connection: &mut Connection,
    server: ServerId,
    changes: &[Change],
    new_ids: NewIds,
) -> Result<Committed> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut tables = load(&transaction, &Needs::of(changes, new_ids))?;
    count_uses(&transaction, changes, &mut tables)?;
    let (held, standing) = (tables.holds.clone(), Standing::of(&tables));
    let verdicts = tables.apply_all(changes);
    if verdicts.applied.is_empty() {
        return Ok(Committed::after(0, verdicts));
    }
    let dirty = Dirty::of(changes, &verdicts.applied);
    let changed = dirty.changed(&tables);
    save_clusters(&transaction, &dirty)?;
    save_nodes(&transaction, &tables, &dirty)?;
    save_jobs(&transaction, &tables, &dirty)?;
    save_runs(&transaction, &tables, &dirty)?;
    save_deliveries(&transaction, &tables, &dirty)?;
    save_executions(&transaction, &tables, &dirty, &changed)?;
    save_holds(&transaction, &Holds::of(&held, &tables.holds))?;
    save_places(&transaction, &LimitChanges::of(&tables, &dirty, &verdicts))?;
    COUNT_ENDED.each(&transaction, dirty.ended(&tables, &changed))?;
    save_counts(&transaction, differences(&standing, &tables, &changed))?;
    let last_seq = save_events(&transaction, server, changes, &verdicts)?;
    transaction.commit()?;
    Ok(Committed::after(last_seq, verdicts))
}

pub(super) fn load(transaction: &Transaction<'_>, needs: &Needs<'_>) -> Result<Tables> {
    let mut tables = Tables::default();
    if needs.all_clusters {
        tables.clusters.extend(fetch::<(ClusterId, ClusterLive)>(transaction, &CLUSTERS, [])?);
    } else {
        let ids = needs.clusters.iter().map(|cluster| [cluster.0]);
        tables.clusters.extend(fetch_each::<(ClusterId, ClusterLive), _>(transaction, &CLUSTER, ids)?);
    }
    let jobs = needs.jobs.iter().map(|job| [job.0]);
    tables.jobs.extend(fetch_each::<(JobId, JobLive), _>(transaction, &JOB, jobs)?);
    if let Some(seen) = needs.triggers_seen {
        let last = transaction.prepare_cached(TRIGGERS_APPLIED)?.query_row([int(seen)], |row| row.get(0))?;
        tables.triggers_applied = count(last)?;
    }
    let backfills = needs.backfills.iter().map(|backfill| [backfill.0]);
    tables.backfills.extend(fetch_each::<(BackfillId, BackfillRecord), _>(
        transaction,
        &BACKFILL,
        backfills,
    )?);
    let deliveries = needs.deliveries.iter().map(|delivery| [delivery.0]);
    let deliveries: Vec<Delivery> = fetch_each(transaction, &DELIVERY, deliveries)?;
    tables.deliveries.extend(deliveries.into_iter().map(|delivery| (delivery.id, delivery)));
    let nodes = needs.nodes.iter().chain(&needs.sessions);
    tables.nodes.extend(fetch_each(transaction, &NODE, nodes.map(|node| [node.0]))?);
    if !needs.deleted.is_empty() {
        let sql = "SELECT EXISTS (SELECT 1 FROM tombstones WHERE node = ?1 AND session = ?2)";
        let mut query = transaction.prepare_cached(sql)?;
        for (node, session) in &needs.deleted {
            if query.query_row([node.0, session.0], |row| row.get(0))? {
                tables.deleted.insert((*node, *session));
            }
        }
    }
    tables.runs.extend(fetch_each(transaction, &RUN, needs.runs.iter().map(|run| [run.as_str()]))?);
    let mut query = transaction.prepare_cached("SELECT cluster, job, keeps FROM runs WHERE id = ?1")?;
    for run in &needs.homes {
        let home = |row: &Row<'_>| {
            let keeps = stored_keeps(row.get(2)?);
            Ok(Home {
                cluster: ClusterId(row.get(0)?),
                job: row.get::<_, Option<String>>(1)?.map(Arc::from),
                keeps,
            })
        };
        let home = query.query_row([run.as_str()], home).optional()?;
        tables.homes.extend(home.map(|home| ((*run).clone(), home)));
    }
    let mut query = transaction.prepare_cached("SELECT cluster FROM nodes WHERE id = ?1")?;
    for node in &needs.node_homes {
        let home: Option<Uuid> = query.query_row([node.0], |row| row.get(0)).optional()?;
        tables.node_homes.extend(home.map(|cluster| (*node, ClusterId(cluster))));
    }
    if !needs.keys.is_empty() {
        let mut query =
            transaction.prepare_cached("SELECT id FROM runs WHERE cluster = ?1 AND idempotency_key = ?2")?;
        for &(cluster, key) in &needs.keys {
            let run: Option<String> =
                query.query_row(params![cluster.0, key], |row| row.get(0)).optional()?;
            tables.keys.extend(run.map(|run| ((cluster, key.to_owned()), run.into())));
        }
    }
    let executions: Vec<Execution> =
        fetch_each(transaction, &EXECUTION, needs.executions.iter().map(|id| [id.0]))?;
    let taken: Vec<Execution> =
        fetch_each(transaction, &EXECUTIONS_AT, needs.reserved.iter().map(|node| [node.0]))?;
    let steps = needs.steps.iter().map(|(node, first)| [first.0, node.0]);
    let steps: Vec<Execution> = fetch_each(transaction, &STEPS_SINCE, steps)?;
    let all = executions.into_iter().chain(taken).chain(steps);
    tables.executions.extend(all.map(|execution| (execution.id, execution)));
    if needs.holds() && any_holds(transaction)? {
        let (held, holders) = (needs.held.iter(), needs.holders.iter());
        tables.holds.extend(fetch_each(transaction, &HOLD_OF_NODE, held.map(|node| [node.0]))?);
        tables.holds.extend(fetch_each(transaction, &HOLDS_OF_RUN, holders.map(|run| [run.as_str()]))?);
    }
    if needs.counts {
        count_runs(transaction, &mut tables)?;
    }
    for job in needs.busy_jobs(&tables) {
        let mut query = transaction.prepare_cached(ACTIVE_OF_JOB)?;
        let active = query.query_map(params![job.cluster.0, &*job.name], |row| row.get::<_, String>(0))?;
        let active: Vec<RunId> = active.map(|id| id.map(RunId::from)).collect::<Result<_, _>>()?;
        let elsewhere = active.iter().filter(|run| !tables.runs.contains_key(run)).count();
        tables.active_elsewhere.insert(job, u32::try_from(elsewhere).unwrap_or(u32::MAX));
    }
    Ok(tables)
}

/// Usually there are none, which saves a lookup for each node.
fn any_holds(transaction: &Transaction<'_>) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM holds)";
    Ok(transaction.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Counts the runs that were not loaded, by cluster. Up to 10,000 may be open in each: an index has all that is counted, and
/// those that were loaded are subtracted.
fn count_runs(transaction: &Transaction<'_>, tables: &mut Tables) -> Result<()> {
    let mut query = transaction.prepare_cached(COUNT_RUNS)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (waiting, due): (u32, u32) = (row.get(1)?, row.get(2)?);
        tables.elsewhere.insert(ClusterId(row.get(0)?), Elsewhere { waiting, active: due - waiting });
    }
    let mut query = transaction.prepare_cached(COUNT_DEBUG)?;
    let mut rows = query.query([debug::JOB])?;
    while let Some(row) = rows.next()? {
        if let Some(elsewhere) = tables.elsewhere.get_mut(&ClusterId(row.get(0)?)) {
            elsewhere.active = elsewhere.active.saturating_sub(row.get(1)?);
        }
    }
    for (run, live) in tables.runs.iter().filter(|(run, _)| !run.is_debug()) {
        let home = tables.homes.get(run);
        if let Some(elsewhere) = home.and_then(|home| tables.elsewhere.get_mut(&home.cluster)) {
            elsewhere.waiting -= u32::from(live.is_waiting());
            elsewhere.active -= u32::from(live.is_active());
        }
    }
    Ok(())
}

/// Counts the uses of the limits that the batch needs.
fn count_uses(transaction: &Transaction<'_>, changes: &[Change], tables: &mut Tables) -> Result<()> {
    for check in LimitCheck::of(changes, tables) {
        // A run that neither exists nor is created has nothing to lease.
        let home = tables.homes.get(check.run).map(|home| home.cluster);
        let Some(cluster) = home.or(check.created_in) else { continue };
        let count: i64 = match check.counted {
            Counted::AtOnce => transaction
                .prepare_cached(&format!("{COUNT_AT_ONCE} AND l.cluster = ?1 AND l.key = ?2"))?
                .query_row(params![cluster.0, check.key], |row| row.get(0))?,
            Counted::Within { since, at } => {
                let (since, at) = (since.as_microsecond(), at.as_microsecond());
                transaction
                    .prepare_cached(
                        "SELECT count(*) FROM limit_uses WHERE cluster = ?1 AND key = ?2 AND granted_at > ?3 \
                         AND until > ?4",
                    )?
                    .query_row(params![cluster.0, check.key, since, at], |row| row.get(0))?
            }
        };
        check.record(cluster, u32::try_from(count).unwrap_or(u32::MAX), tables);
    }
    Ok(())
}

fn save_places(transaction: &Transaction<'_>, limits: &LimitChanges) -> Result<()> {
    for execution in &limits.removed {
        transaction
            .prepare_cached("DELETE FROM limit_uses WHERE execution = ?1 AND until IS NULL")?
            .execute([execution.0])?;
    }
    INSERT_USES.each(transaction, limits.added.iter().map(LimitUseRow::of))?;
    if let Some(at) = limits.expired_at {
        forget_uses(transaction, at, limits.max_expired())?;
    }
    Ok(())
}

/// Removes at most `most` expired uses of rates. Returns how many it removed.
pub(super) fn forget_uses(connection: &Connection, at: Timestamp, most: i64) -> Result<usize> {
    let mut remove = connection.prepare_cached(
        "DELETE FROM limit_uses WHERE (execution, key) IN \
         (SELECT execution, key FROM limit_uses WHERE until <= ?1 ORDER BY until LIMIT ?2)",
    )?;
    Ok(remove.execute(params![at.as_microsecond(), most])?)
}

pub(super) fn save_holds(transaction: &Transaction<'_>, holds: &Holds<'_>) -> Result<()> {
    for node in &holds.removed {
        transaction.prepare_cached("DELETE FROM holds WHERE node = ?1")?.execute([node.0])?;
    }
    PUT_HOLDS.each(transaction, holds.added.iter().map(|(node, run)| HoldRow::of(*node, run)))
}

pub(super) fn save_clusters(transaction: &Transaction<'_>, dirty: &Dirty<'_>) -> Result<()> {
    RENAME_CLUSTERS.each(transaction, dirty.unnamed_clusters())?;
    PUT_CLUSTERS.each(transaction, dirty.cluster_rows()?)?;
    for cluster in &dirty.clusters_created {
        // The event of its creation and all others about it come later.
        let checked = "UPDATE clusters SET checked_seq = (SELECT last_seq FROM feed) WHERE id = ?1";
        transaction.prepare_cached(checked)?.execute([cluster.0])?;
    }
    DELETE_CLUSTERS.each(transaction, dirty.deleted_clusters())
}

pub(super) fn save_nodes(transaction: &Transaction<'_>, tables: &Tables, dirty: &Dirty<'_>) -> Result<()> {
    INSERT_TOMBSTONES.each(transaction, dirty.nodes_deleted.iter().map(BuriedRow::of))?;
    for deleted in &dirty.nodes_deleted {
        // The node's presence is removed with it.
        transaction.prepare_cached("DELETE FROM nodes WHERE id = ?1")?.execute([deleted.node.0])?;
    }
    let live = |id: &NodeId| NodeLiveRow::of(*id, &tables.nodes[id]);
    let mut contents = NewContents::new(true);
    let described = dirty.nodes_registered.values().map(|one| description_row(one, &mut contents));
    PUT_NODES.try_each(transaction, described)?;
    ADD_CONTENTS.each(transaction, contents.rows())?;
    PUT_PRESENCE.each(transaction, dirty.nodes_registered.keys().map(live))?;
    UPDATE_NODES.each(transaction, dirty.nodes_altered.iter().map(live))?;
    let problems = dirty.node_problems.iter().map(|(id, problems)| ProblemsRow::of(*id, problems));
    SET_PROBLEMS.try_each(transaction, problems)
}

pub(super) fn save_jobs(transaction: &Transaction<'_>, tables: &Tables, dirty: &Dirty<'_>) -> Result<()> {
    PUT_JOBS.each(transaction, dirty.job_rows(tables))?;
    INSERT_JOB_VERSIONS.each(transaction, dirty.job_version_rows()?)?;
    REMOVE_OLD_VERSIONS.each(transaction, dirty.old_versions())?;
    PUT_BACKFILLS.each(transaction, dirty.backfill_rows(tables)?)?;
    REMOVE_OLD_BACKFILLS.each(transaction, dirty.old_backfills())
}

/// Removes deliveries of a cluster beyond the newest.
const FORGET_DELIVERIES: &str = "DELETE FROM deliveries WHERE id IN (SELECT id FROM deliveries WHERE cluster = ?1 \
     ORDER BY created_at DESC, id DESC LIMIT -1 OFFSET ?2)";

pub(super) fn save_deliveries(
    transaction: &Transaction<'_>,
    tables: &Tables,
    dirty: &Dirty<'_>,
) -> Result<()> {
    PUT_DELIVERIES.each(transaction, dirty.delivery_rows(tables)?)?;
    for cluster in &dirty.delivered {
        transaction.prepare_cached(FORGET_DELIVERIES)?.execute(params![cluster.0, limits::DELIVERIES])?;
    }
    Ok(())
}

pub(super) fn save_runs(transaction: &Transaction<'_>, tables: &Tables, dirty: &Dirty<'_>) -> Result<()> {
    let created = dirty.runs_created.values().map(|run| run_row(run, &tables.runs[&run.id]));
    CREATE_RUNS.each(transaction, created)?;
    let mut contents = NewContents::new(true);
    let defined = dirty.runs_created.values().map(|run| definition_row(run, &mut contents));
    DEFINE_RUNS.try_each(transaction, defined)?;
    ADD_CONTENTS.each(transaction, contents.rows())?;
    UPDATE_RUNS.each(transaction, dirty.runs_altered.iter().map(|id| RunLiveRow::of(id, &tables.runs[*id])))
}

pub(super) fn save_executions(
    transaction: &Transaction<'_>,
    tables: &Tables,
    dirty: &Dirty<'_>,
    changed: &Changed<'_>,
) -> Result<()> {
    let added = changed
        .added
        .iter()
        .map(|execution| Ok(execution_row(execution, ExecutionDocuments::of(execution)?)));
    INSERT_EXECUTIONS.try_each(transaction, added)?;
    let altered = changed.altered.iter().copied();
    let (leased, others): (Vec<&Execution>, Vec<&Execution>) =
        altered.partition(|execution| dirty.executions_leased.contains(&execution.id));
    UPDATE_EXECUTIONS.each(transaction, leased.into_iter().map(StateColumns::of))?;
    UPDATE_UNLEASED.each(transaction, others.into_iter().map(StateColumns::of))?;
    let failed = dirty.executions_failed.iter().map(|id| FailedRow::of(&tables.executions[id]));
    FAIL_EXECUTIONS.each(transaction, failed)?;
    INSERT_CACHED.each(transaction, changed.cached())
}

/// Adds differences to the kept counts. A run whose counts lack a change does not keep them any more.
pub(super) fn save_counts(transaction: &Transaction<'_>, rows: Vec<CountRow<'_>>) -> Result<()> {
    let (missed, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(CountRow::is_missed);
    ADD_COUNTS.each(transaction, rows)?;
    for row in missed {
        let mut forget = transaction.prepare_cached("UPDATE runs SET keeps = NULL WHERE id = ?1")?;
        forget.execute([row.run])?;
    }
    Ok(())
}

/// Numbers and writes the events. Returns the number before the first.
fn save_events(
    transaction: &Transaction<'_>,
    server: ServerId,
    changes: &[Change],
    verdicts: &Verdicts,
) -> Result<u64> {
    let added = int(verdicts.applied.len() as u64);
    let last: i64 = transaction
        .prepare_cached(
            "UPDATE feed SET last_seq = last_seq + ?1, counted_seq = last_seq + ?1 RETURNING last_seq",
        )?
        .query_row([added], |row| row.get(0))?;
    let before = count(last - added)?;
    let mut record = INSERT_EVENTS.prepare(transaction)?;
    let mut data = Vec::with_capacity(1024);
    for (seq, &index) in (before + 1..).zip(&verdicts.applied) {
        let change = &changes[index];
        data.clear();
        write_event(&mut data, change, &verdicts.abouts[index])?;
        let text = std::str::from_utf8(&data).expect("serde_json writes UTF-8");
        record.run(&(NumberColumns::of(seq, server), ChangeColumns::of(change, text)))?;
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::SQLITE;

    #[test]
    fn counting_open_runs_reads_only_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        for migration in SQLITE {
            connection.execute_batch(migration.sql).unwrap();
        }
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {COUNT_RUNS}")).unwrap();
        let plan = query.query_map([], |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<String> = plan.map(Result::unwrap).collect();
        assert_eq!(plan, ["SCAN runs USING COVERING INDEX runs_open_by_cluster"]);
    }
}
