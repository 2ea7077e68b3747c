//! Owns a commit on PostgreSQL: locks and loads rows, lets `tables` decide, writes, and finds the outcome of a commit
//! whose response was lost.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use downbeat_core::change::{About, Change};
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{BackfillId, ClusterId, JobId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::job::{BackfillRecord, JobLive};
use downbeat_core::run::RunLive;
use downbeat_core::state::{ClusterLive, Counted, Elsewhere, Home, NodeLive, Tables, Verdicts};
use futures_util::join;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::connect::{Connections, within, within_for};
use super::documents::Documents;
use super::failure::{Failure, Result};
use super::save::{self, Besides};
use crate::batch::{Dirty, Holds, LimitChanges, LimitCheck, Needs, NewIds};
use crate::counts::{Standing, differences, stored_keeps};
use crate::filter::{COUNT_AT_ONCE, HELD, HOLDS, lazy};
use crate::port::{Committed, Error};
use crate::rows::{ChangeColumns, Record, Text, condition, count, int};

/// How often a transaction is tried that conflicts with other servers.
pub(super) const TRIES: u32 = 5;
/// How long to query the outcome of a commit after the connection broke.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);
const OUTCOME_INTERVAL: Duration = Duration::from_millis(100);

/// The lock for changing clusters: "downclus".
const CLUSTERS_LOCK: i64 = 0x646f_776e_636c_7573;
/// The lock for counting runs: "downruns".
const COUNTS_LOCK: i64 = 0x646f_776e_7275_6e73;
/// The lock for registering a new node: "downnode".
const NODES_LOCK: i64 = 0x646f_776e_6e6f_6465;
/// The lock for using a slot of a limit: "downlims".
const LIMITS_LOCK: i64 = 0x646f_776e_6c69_6d73;
/// The lock for starting a run whose job has a maximum of active runs: "downbusy".
const BUSY_LOCK: i64 = 0x646f_776e_6275_7379;
/// The lock for applying a job with triggers: "downtrig".
const TRIGGERS_LOCK: i64 = 0x646f_776e_7472_6967;
/// Returns the last event after a given one that applied a job with triggers. Few events are so new.
const TRIGGERS_APPLIED: &str =
    concat!("SELECT coalesce(max(seq), 0) FROM events WHERE seq > $1 AND ", condition!(applied triggers));
/// Counts the waiting and the active runs among those that are not loaded, by cluster.
const COUNT_RUNS: &str = concat!(
    "SELECT cluster, count(*) FILTER (WHERE ",
    condition!(run waits),
    "), count(*) FILTER (WHERE ",
    condition!(run had its turn),
    ") FROM runs r WHERE state ",
    condition!(open runs),
    " AND ",
    condition!(run is due),
    " AND id <> ALL($1) AND NOT (",
    condition!(debug run),
    ") GROUP BY cluster"
);

/// Counts the active runs of a job of a cluster, except those that are loaded.
const ACTIVE_OF_JOB: &str = concat!(
    "SELECT count(*) FROM runs WHERE ",
    condition!(active runs of a job),
    " AND cluster = $1 AND job = $2 AND id <> ALL($3)"
);

/// Waits until no other server adds rows that rely on the versions of these clusters.
const LOCK_CLUSTERS: &str = "SELECT 1 FROM clusters WHERE id = ANY($1) ORDER BY id FOR UPDATE";

lazy! {
    CLUSTERS: String =
        format!("{} WHERE {}", <(ClusterId, ClusterLive)>::select(), condition!(alive clusters));
    /// A cluster keeps its version while rows are added to it. A foreign key takes the same lock.
    CLUSTERS_BY_ID: String = format!("{} AND id = ANY($1) ORDER BY id FOR KEY SHARE", *CLUSTERS);
    /// All that decide about a job, or start it by its schedules, wait for each other.
    DELIVERIES: String = format!("{} WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE", Delivery::select());
    JOBS: String = format!("{} WHERE id = ANY($1) ORDER BY id FOR UPDATE", <(JobId, JobLive)>::select());
    BACKFILLS: String =
        format!("{} WHERE id = ANY($1) ORDER BY id FOR UPDATE", <(BackfillId, BackfillRecord)>::select());
    NODES: String = format!("{} WHERE node = ANY($1) ORDER BY node FOR UPDATE", <(NodeId, NodeLive)>::select());
    /// A node keeps its session: a change that registers, moves or deletes it needs the stronger lock. Heartbeats do not.
    SESSIONS: String =
        format!("{} WHERE node = ANY($1) ORDER BY node FOR KEY SHARE", <(NodeId, NodeLive)>::select());
    RUNS: String = format!("{} WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE", <(RunId, RunLive)>::select());
    EXECUTIONS: String = format!("{} WHERE id = ANY($1) ORDER BY id FOR UPDATE", Execution::select());
    /// No lock: nobody grants a lease at the same time, and a refusal because of an end that is not visible yet may be
    /// retried.
    EXECUTIONS_AT: String = format!("{} WHERE lease_node = ANY($1) AND {HELD}", Execution::select());
    /// No lock: only the owner of these rows' nodes adds one, and it has locked the node.
    STEPS_SINCE: String = format!(
        "{} WHERE id >= $1 AND pinned = ANY($2) AND {}",
        Execution::select(),
        condition!(standing runs)
    );
    HELD_NODES: String =
        format!("{}{HOLDS} AND (h.node = ANY($1) OR h.run = ANY($2))", <(NodeId, RunId)>::select());
}

type Args<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// The changes of one commit.
pub(super) struct Batch<'a> {
    pub(super) server: ServerId,
    pub(super) changes: &'a [Change],
    /// The documents of each change, in their order.
    pub(super) documents: Vec<Documents<'a>>,
    /// Notifies the other servers.
    pub(super) hints: &'a str,
    /// Whether equal contents are stored once.
    pub(super) is_sharing: bool,
}

impl Batch<'_> {
    /// Returns the event of a change that was applied, with its subject.
    pub(super) fn event(&self, index: usize, about: &About) -> Result<ChangeColumns<'_>, Error> {
        self.documents[index].event.with_about(&self.changes[index], about)
    }
}

pub(crate) async fn commit(
    connections: &Connections,
    server: ServerId,
    changes: &[Change],
    hints: &str,
    is_sharing: bool,
) -> Result<Committed, Error> {
    let documents =
        changes.iter().map(|change| Documents::of(change, is_sharing)).collect::<Result<Vec<_>, Error>>()?;
    let batch = Batch { server, changes, documents, hints, is_sharing };
    let mut new_ids = NewIds::Trusted;
    for _ in 1..TRIES {
        match attempt(connections, &batch, new_ids).await {
            Err(failure) if failure.is_violated_key() => new_ids = NewIds::Checked,
            Err(failure) if failure.is_collision() => {}
            result => return Ok(result?),
        }
    }
    Ok(attempt(connections, &batch, new_ids).await?)
}

async fn attempt(connections: &Connections, batch: &Batch<'_>, new_ids: NewIds) -> Result<Committed> {
    let (client, changes) = (connections.get().await?, batch.changes);
    let begun = within(async {
        let needs = Needs::of(changes, new_ids);
        let (mut tables, transaction) = begin(&client, &needs).await?;
        find_triggers(&client, &needs, &mut tables).await?;
        count_active(&client, &needs, &mut tables).await?;
        count_uses(&client, changes, &mut tables).await?;
        Ok((tables, transaction))
    });
    let (mut tables, transaction) = match begun.await {
        Ok(begun) => begun,
        Err(failure @ Failure::Silent(_)) => {
            drop(Object::take(client));
            return Err(failure);
        }
        Err(failure) => {
            roll_back(client).await;
            return Err(failure);
        }
    };
    let held = std::mem::take(&mut tables.holds);
    tables.holds.clone_from(&held);
    let standing = Standing::of(&tables);
    let verdicts = tables.apply_all(changes);
    if verdicts.applied.is_empty() {
        roll_back(client).await;
        return Ok(Committed::after(0, verdicts));
    }
    let dirty = Dirty::of(changes, &verdicts.applied);
    let changed = dirty.changed(&tables);
    let besides = Besides {
        holds: Holds::of(&held, &tables.holds),
        limits: LimitChanges::of(&tables, &dirty, &verdicts),
        counts: differences(&standing, &tables, &changed),
    };
    let rows = tables.executions.len()
        + changes.len()
        + besides.holds.added.len()
        + besides.limits.added.len()
        + besides.counts.len();
    let saved = save::save(&client, batch, &verdicts, &tables, &dirty, &changed, &besides);
    match within_for(rows, saved).await {
        Ok(before) => Ok(Committed::after(count(before)?, verdicts)),
        Err(failure) if failure.is_disconnected() => {
            drop(Object::take(client));
            let event = |&index: &usize| batch.event(index, &verdicts.abouts[index]);
            let last = verdicts.applied.last().map(event).transpose()?;
            let last = last.as_ref().map_or("", |event| &event.data.0);
            find_outcome(connections, batch.server, &transaction, last, verdicts, failure).await
        }
        Err(failure) => {
            roll_back(client).await;
            Err(failure)
        }
    }
}

/// Rolls back, or drops the connection if that fails; PostgreSQL then ends the transaction.
async fn roll_back(client: Object) {
    if within(async { Ok(client.batch_execute("ROLLBACK").await?) }).await.is_err() {
        drop(Object::take(client));
    }
}

/// Finds the outcome after the connection broke during a commit. PostgreSQL remembers the transaction's status.
async fn find_outcome(
    connections: &Connections,
    server: ServerId,
    transaction: &str,
    last: &str,
    verdicts: Verdicts,
    failure: Failure,
) -> Result<Committed> {
    let give_up_at = tokio::time::Instant::now() + OUTCOME_TIMEOUT;
    loop {
        match ask_outcome(connections, server, transaction, last).await {
            Ok(Outcome::Committed { last_seq }) => {
                let before = last_seq - verdicts.applied.len() as u64;
                return Ok(Committed::after(before, verdicts));
            }
            Ok(Outcome::Aborted) => return Err(failure),
            Ok(Outcome::Open) | Err(_) if tokio::time::Instant::now() < give_up_at => {
                tokio::time::sleep(OUTCOME_INTERVAL).await;
            }
            Ok(Outcome::Open) | Err(_) => {
                let text = format!("{}; the last batch may have been committed", Error::from(failure));
                return Err(Error::Unavailable(text).into());
            }
        }
    }
}

enum Outcome {
    Committed { last_seq: u64 },
    Aborted,
    Open,
}

/// Queries the outcome once; `last` is the batch's last event. The transaction's id alone is not enough: after a crash
/// PostgreSQL may reuse the id of a transaction that left no trace.
async fn ask_outcome(
    connections: &Connections,
    server: ServerId,
    transaction: &str,
    last: &str,
) -> Result<Outcome> {
    connections.run(async |client: &mut Object| ask(client, server, transaction, last).await).await
}

async fn ask(client: &Object, server: ServerId, transaction: &str, last: &str) -> Result<Outcome> {
    let row = match client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&transaction]).await {
        // The id is in the future: a crash undid the transaction.
        Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => {
            return Ok(Outcome::Aborted);
        }
        row => row?,
    };
    Ok(match row.try_get::<_, Option<&str>>(0)? {
        Some("committed") => {
            // This store commits one batch at a time: the last event of this server is the last of that batch.
            let sql = "SELECT seq, data FROM events WHERE server = $1 ORDER BY seq DESC LIMIT 1";
            match client.query_opt(sql, &[&server.0]).await? {
                Some(row) if row.try_get::<_, &str>(1)? == last => {
                    Outcome::Committed { last_seq: count(row.try_get(0)?)? }
                }
                _ => Outcome::Aborted,
            }
        }
        Some("in progress") => Outcome::Open,
        _ => Outcome::Aborted,
    })
}

/// Returns the statements that take locks before any row is read, so that all servers take them in one order.
///
/// - Only one server at a time changes clusters: a name has to be free.
/// - Only one server at a time counts runs, or the active runs of a job.
/// - Only one server at a time applies jobs with triggers: they are checked against each other.
/// - Only one server at a time registers new nodes: there is no row yet that could be locked.
/// - A server that takes nodes for a run excludes all that grant leases or free nodes: each locks the table before
///   it reads, so that it sees the others' changes. Servers that only read never wait.
fn lock_statements(needs: &Needs<'_>) -> String {
    let mut sql = "BEGIN".to_owned();
    if needs.all_clusters {
        sql += &format!("; SELECT pg_advisory_xact_lock({CLUSTERS_LOCK})");
    }
    if needs.counts {
        sql += &format!("; SELECT pg_advisory_xact_lock({COUNTS_LOCK})");
    }
    if !needs.rooms.is_empty() {
        sql += &format!("; SELECT pg_advisory_xact_lock({BUSY_LOCK})");
    }
    if needs.triggers_seen.is_some() {
        sql += &format!("; SELECT pg_advisory_xact_lock({TRIGGERS_LOCK})");
    }
    if needs.new_nodes {
        sql += &format!("; SELECT pg_advisory_xact_lock({NODES_LOCK})");
    }
    if !needs.reserved.is_empty() {
        sql += "; LOCK TABLE holds IN EXCLUSIVE MODE";
    } else if needs.holds() {
        sql += "; LOCK TABLE holds IN ROW EXCLUSIVE MODE";
    }
    sql
}

/// Begins a transaction, and locks and loads the rows that the guards read, in one flight. Also returns the
/// transaction's id.
async fn begin(client: &Object, needs: &Needs<'_>) -> Result<(Tables, String)> {
    let clusters: Vec<Uuid> = needs.clusters.iter().map(|cluster| cluster.0).collect();
    let clusters_altered: Vec<Uuid> = needs.clusters_altered.iter().map(|cluster| cluster.0).collect();
    let jobs: Vec<Uuid> = needs.jobs.iter().map(|job| job.0).collect();
    let backfills: Vec<Uuid> = needs.backfills.iter().map(|backfill| backfill.0).collect();
    let deliveries: Vec<Uuid> = needs.deliveries.iter().map(|delivery| delivery.0).collect();
    let nodes: Vec<Uuid> = needs.nodes.iter().map(|node| node.0).collect();
    let sessions: Vec<Uuid> = needs.sessions.iter().map(|node| node.0).collect();
    let runs: Vec<_> = needs.runs.iter().map(|run| Text::from(run.as_str())).collect();
    let homes: Vec<_> = needs.homes.iter().map(|run| Text::from(run.as_str())).collect();
    let node_homes: Vec<Uuid> = needs.node_homes.iter().map(|node| node.0).collect();
    let deleted_nodes: Vec<Uuid> = needs.deleted.iter().map(|(node, _)| node.0).collect();
    let deleted_sessions: Vec<Uuid> = needs.deleted.iter().map(|(_, session)| session.0).collect();
    let key_clusters: Vec<Uuid> = needs.keys.iter().map(|(cluster, _)| cluster.0).collect();
    let keys: Vec<_> = needs.keys.iter().map(|(_, key)| Text::from(*key)).collect();
    let executions: Vec<Uuid> = needs.executions.iter().map(|execution| execution.0).collect();
    let held: Vec<Uuid> = needs.held.iter().map(|node| node.0).collect();
    let holders: Vec<_> = needs.holders.iter().map(|run| Text::from(run.as_str())).collect();
    let taken: Vec<Uuid> = needs.reserved.iter().map(|node| node.0).collect();

    let stepping: Vec<Uuid> = needs.steps.keys().map(|node| node.0).collect();
    let first_step = needs.steps.values().min().map_or(Uuid::nil(), |first| first.0);

    let transaction = client.prepare_cached("SELECT pg_current_xact_id()::text").await?;
    let clusters_sql = client.prepare_cached(&CLUSTERS).await?;
    let clusters_by_id_sql = client.prepare_cached(&CLUSTERS_BY_ID).await?;
    let clusters_altered_sql = client.prepare_cached(LOCK_CLUSTERS).await?;
    let jobs_sql = client.prepare_cached(&JOBS).await?;
    let backfills_sql = client.prepare_cached(&BACKFILLS).await?;
    let deliveries_sql = client.prepare_cached(&DELIVERIES).await?;
    let nodes_sql = client.prepare_cached(&NODES).await?;
    let sessions_sql = client.prepare_cached(&SESSIONS).await?;
    let deleted_sql = client
        .prepare_cached(
            "SELECT t.node, t.session FROM unnest($1::uuid[], $2::uuid[]) AS d (node, session) \
             JOIN tombstones t ON t.node = d.node AND t.session = d.session",
        )
        .await?;
    let runs_sql = client.prepare_cached(&RUNS).await?;
    let homes_sql =
        client.prepare_cached("SELECT id, cluster, job, keeps FROM runs WHERE id = ANY($1)").await?;
    let node_homes_sql = client.prepare_cached("SELECT id, cluster FROM nodes WHERE id = ANY($1)").await?;
    let keys_sql = client
        .prepare_cached(
            "SELECT r.cluster, r.idempotency_key, r.id FROM unnest($1::uuid[], $2::text[]) AS k (cluster, key) \
             JOIN runs r ON r.cluster = k.cluster AND r.idempotency_key = k.key",
        )
        .await?;
    let executions_sql = client.prepare_cached(&EXECUTIONS).await?;
    let steps_sql = client.prepare_cached(&STEPS_SINCE).await?;
    let holds_sql = client.prepare_cached(&HELD_NODES).await?;
    let taken_sql = client.prepare_cached(&EXECUTIONS_AT).await?;
    let counts_sql = client.prepare_cached(COUNT_RUNS).await?;

    let (nodes_args, runs_args, keys_args, executions_args): (Args<'_>, Args<'_>, Args<'_>, Args<'_>) =
        (vec![&nodes], vec![&runs], vec![&key_clusters, &keys], vec![&executions]);
    let (clusters_args, clusters_altered_args): (Args<'_>, Args<'_>) =
        (vec![&clusters], vec![&clusters_altered]);
    let (jobs_args, backfills_args, deliveries_args): (Args<'_>, Args<'_>, Args<'_>) =
        (vec![&jobs], vec![&backfills], vec![&deliveries]);
    let beginning = lock_statements(needs);
    let sessions_args: Args<'_> = vec![&sessions];
    let (holds_args, taken_args): (Args<'_>, Args<'_>) = (vec![&held, &holders], vec![&taken]);
    let deleted_args: Args<'_> = vec![&deleted_nodes, &deleted_sessions];
    let steps_args: Args<'_> = vec![&first_step, &stepping];
    let (homes_args, node_homes_args): (Args<'_>, Args<'_>) = (vec![&homes], vec![&node_homes]);
    let (
        begun,
        hold_rows,
        taken_rows,
        count_rows,
        transaction,
        altered_cluster_rows,
        cluster_rows,
        all_cluster_rows,
        job_rows,
        backfill_rows,
        node_rows,
        session_rows,
        deleted_rows,
        step_rows,
        run_rows,
        home_rows,
        node_home_rows,
        key_rows,
        execution_rows,
        delivery_rows,
    ) = join!(
        client.batch_execute(&beginning),
        when(needs.holds(), client.query(&holds_sql, &holds_args)),
        when(!taken.is_empty(), client.query(&taken_sql, &taken_args)),
        when(needs.counts, client.query(&counts_sql, &runs_args)),
        client.query_one(&transaction, &[]),
        // Those that the batch changes first: it cannot get this lock while others have the weaker one.
        when(!clusters_altered.is_empty(), client.query(&clusters_altered_sql, &clusters_altered_args)),
        when(!clusters.is_empty(), client.query(&clusters_by_id_sql, &clusters_args)),
        when(needs.all_clusters, client.query(&clusters_sql, &[])),
        when(!jobs.is_empty(), client.query(&jobs_sql, &jobs_args)),
        when(!backfills.is_empty(), client.query(&backfills_sql, &backfills_args)),
        when(!nodes.is_empty(), client.query(&nodes_sql, &nodes_args)),
        when(!sessions.is_empty(), client.query(&sessions_sql, &sessions_args)),
        // After the nodes are locked: a concurrent deletion has committed, or waits.
        when(!deleted_nodes.is_empty(), client.query(&deleted_sql, &deleted_args)),
        // The same is true for steps of these nodes.
        when(!stepping.is_empty(), client.query(&steps_sql, &steps_args)),
        when(!runs.is_empty(), client.query(&runs_sql, &runs_args)),
        when(!homes.is_empty(), client.query(&homes_sql, &homes_args)),
        when(!node_homes.is_empty(), client.query(&node_homes_sql, &node_homes_args)),
        when(!keys.is_empty(), client.query(&keys_sql, &keys_args)),
        when(!executions.is_empty(), client.query(&executions_sql, &executions_args)),
        when(!deliveries.is_empty(), client.query(&deliveries_sql, &deliveries_args)),
    );
    begun?;
    let mut tables = Tables::default();
    altered_cluster_rows?;
    tables.clusters.extend(records::<(ClusterId, ClusterLive)>(&cluster_rows?)?);
    tables.clusters.extend(records::<(ClusterId, ClusterLive)>(&all_cluster_rows?)?);
    tables.jobs.extend(records::<(JobId, JobLive)>(&job_rows?)?);
    tables.backfills.extend(records::<(BackfillId, BackfillRecord)>(&backfill_rows?)?);
    tables.nodes.extend(records(&node_rows?)?);
    tables.nodes.extend(records(&session_rows?)?);
    tables.runs.extend(records(&run_rows?)?);
    tables.holds.extend(records(&hold_rows?)?);
    let executions: Vec<Execution> = records(&taken_rows?)?;
    tables.executions.extend(executions.into_iter().map(|execution| (execution.id, execution)));
    let executions: Vec<Execution> = records(&step_rows?)?;
    tables.executions.extend(executions.into_iter().map(|execution| (execution.id, execution)));
    let executions: Vec<Execution> = records(&execution_rows?)?;
    tables.executions.extend(executions.into_iter().map(|execution| (execution.id, execution)));
    let deliveries: Vec<Delivery> = records(&delivery_rows?)?;
    tables.deliveries.extend(deliveries.into_iter().map(|delivery| (delivery.id, delivery)));
    for row in home_rows? {
        let keeps = stored_keeps(row.try_get(3)?);
        let home = Home {
            cluster: ClusterId(row.try_get(1)?),
            job: row.try_get::<_, Option<String>>(2)?.map(Arc::from),
            keeps,
        };
        tables.homes.insert(row.try_get::<_, String>(0)?.into(), home);
    }
    for row in node_home_rows? {
        tables.node_homes.insert(NodeId(row.try_get(0)?), ClusterId(row.try_get(1)?));
    }
    for row in deleted_rows? {
        tables.deleted.insert((NodeId(row.try_get(0)?), SessionId(row.try_get(1)?)));
    }
    for row in key_rows? {
        let run: RunId = row.try_get::<_, String>(2)?.into();
        tables.keys.insert((ClusterId(row.try_get(0)?), row.try_get(1)?), run);
    }
    for row in count_rows? {
        let count =
            |column| Ok::<_, Failure>(u32::try_from(row.try_get::<_, i64>(column)?).unwrap_or(u32::MAX));
        let elsewhere = Elsewhere { waiting: count(1)?, active: count(2)? };
        tables.elsewhere.insert(ClusterId(row.try_get(0)?), elsewhere);
    }
    Ok((tables, transaction?.try_get(0)?))
}

/// Finds jobs with triggers that were applied after the check of the batch. The batch has the lock.
async fn find_triggers(client: &Object, needs: &Needs<'_>, tables: &mut Tables) -> Result<()> {
    if let Some(seen) = needs.triggers_seen {
        let sql = client.prepare_cached(TRIGGERS_APPLIED).await?;
        tables.triggers_applied = count(client.query_one(&sql, &[&int(seen)]).await?.try_get(0)?)?;
    }
    Ok(())
}

/// Counts the active runs of the jobs that have a maximum of them. The batch has the lock.
async fn count_active(client: &Object, needs: &Needs<'_>, tables: &mut Tables) -> Result<()> {
    let jobs = needs.busy_jobs(tables);
    if jobs.is_empty() {
        return Ok(());
    }
    let loaded: Vec<Text<'_>> = tables.runs.keys().map(|run| Text::from(run.as_str())).collect();
    let sql = client.prepare_cached(ACTIVE_OF_JOB).await?;
    let mut counts = Vec::new();
    for job in jobs {
        let name = Text::from(&*job.name);
        let row = client.query_one(&sql, &[&job.cluster.0, &name, &loaded]).await?;
        counts.push((job.clone(), u32::try_from(row.try_get::<_, i64>(0)?).unwrap_or(u32::MAX)));
    }
    tables.active_elsewhere.extend(counts);
    Ok(())
}

/// Counts the uses of the limits that the batch needs, under a lock, so that no other server adds uses at the same
/// time. The lock comes after those of rows, and its owner never waits for a row of another. Freeing a slot needs no
/// lock: a slot that is not visible as free yet may be requested again.
async fn count_uses(client: &Object, changes: &[Change], tables: &mut Tables) -> Result<()> {
    let checks: Vec<LimitCheck<'_>> = LimitCheck::of(changes, tables).into_iter().collect();
    if checks.is_empty() {
        return Ok(());
    }
    let runs: Vec<_> = checks.iter().map(|each| Text::from(each.run.as_str())).collect();
    let created: Vec<Option<Uuid>> =
        checks.iter().map(|each| each.created_in.map(|cluster| cluster.0)).collect();
    let keys: Vec<_> = checks.iter().map(|each| Text::from(&*each.key)).collect();
    let (mut since, mut at): (Vec<Option<i64>>, Vec<Option<i64>>) = (Vec::new(), Vec::new());
    for each in &checks {
        let window = match each.counted {
            Counted::AtOnce => None,
            Counted::Within { since, at } => Some((since.as_microsecond(), at.as_microsecond())),
        };
        since.push(window.map(|(since, _)| since));
        at.push(window.map(|(_, at)| at));
    }
    let sql = format!(
        "SELECT q.place, c.cluster, CASE WHEN q.at IS NULL \
         THEN ({COUNT_AT_ONCE} AND l.cluster = c.cluster AND l.key = q.key) \
         ELSE (SELECT count(*) FROM limit_uses l WHERE l.cluster = c.cluster AND l.key = q.key \
         AND l.granted_at > q.since AND l.until > q.at) END \
         FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) WITH ORDINALITY \
         AS q (run, created_in, key, since, at, place) LEFT JOIN runs r ON r.id = q.run \
         CROSS JOIN LATERAL (SELECT coalesce(r.cluster, q.created_in) AS cluster) c \
         WHERE c.cluster IS NOT NULL ORDER BY q.place DESC"
    );
    let lock = client.prepare_cached(&format!("SELECT pg_advisory_xact_lock({LIMITS_LOCK})")).await?;
    let counts = client.prepare_cached(&sql).await?;
    let args: Args<'_> = vec![&runs, &created, &keys, &since, &at];
    let (locked, rows) = join!(client.query(&lock, &[]), client.query(&counts, &args));
    locked?;
    let mut counts = Vec::new();
    for row in rows? {
        let index = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or(usize::MAX);
        let count = u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX);
        counts.push((index, ClusterId(row.try_get(1)?), count));
    }
    for (index, check) in checks.into_iter().enumerate() {
        // A run that neither exists nor is created has nothing to lease.
        if let Some((_, cluster, count)) = counts.pop_if(|row| row.0 == index) {
            check.record(cluster, count, tables);
        }
    }
    Ok(())
}

fn records<T: Record>(rows: &[Row]) -> Result<Vec<T>, Error> {
    rows.iter().map(T::from_row).collect()
}

async fn when<F>(needed: bool, query: F) -> Result<Vec<Row>, tokio_postgres::Error>
where
    F: Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
{
    if needed { query.await } else { Ok(Vec::new()) }
}
