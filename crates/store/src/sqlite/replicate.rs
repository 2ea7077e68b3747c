//! Owns a copy on SQLite: the mark of its file, replacing it with a snapshot in one transaction, and applying events
//! with the primary's numbers.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use downbeat_core::change::Event;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::debug;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::node::{NodeRecord, Registration};
use downbeat_core::retention::{StandingKept, StandingRule};
use downbeat_core::run::RunRecord;
use downbeat_core::state::{NodeLive, Tables};
use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::mpsc;

use super::commit::{
    COUNT_ENDED, INSERT_EVENTS, INSERT_JOB_VERSIONS, PUT_BACKFILLS, PUT_DELIVERIES, PUT_JOBS, load,
    save_clusters, save_counts, save_deliveries, save_executions, save_holds, save_jobs, save_nodes,
    save_runs,
};
use super::failure::Result;
use super::output::APPEND;
use super::store::{ADD_SERVER, touch};
use super::write::{Write, fetch};
use super::{SqliteStore, counts, excess, output, prune};
use crate::batch::{Dirty, Holds, Needs, NewIds};
use crate::copy::{
    Kept, Part, Replica, Replicated, STANDING_MOST, STANDING_STEPS, Seen, follows, interrupted, refused,
    registration, replayed,
};
use crate::counts::{ListedRun, Standing, differences};
use crate::pace::Pace;
use crate::port::{DirectWrites, Error, Nodes, OutputChunk, ServerRecord};
use crate::rows::{
    BackfillRow, ChangeColumns, DeliveryRow, JobRow, JobVersionRow, NumberColumns, OutputRow, ServerRow,
    TombstoneRow, condition, count, int, write_event,
};

/// The owner of a file, stored as `PRAGMA user_version`: the schema is the same, so a migration does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Server = 0,
    /// A replica without a complete copy.
    Replica = 1,
    /// A replica with a complete copy.
    Copied = 2,
}

const OWNER: &str = "user_version";

fn owner(connection: &Connection) -> Result<i64> {
    Ok(connection.pragma_query_value(None, OWNER, |row| row.get(0))?)
}

/// Checks the owner: a server must not write to a copy, and a copy must not replace a server's state.
pub(super) fn claim(connection: &Connection, wanted: Owner, path: &Path) -> Result<()> {
    let found = owner(connection)?;
    let path = path.display();
    if wanted == Owner::Server {
        if found == Owner::Server as i64 {
            return Ok(());
        }
        let text = format!(
            "`{path}` is a replica's copy and must not be written; use another --store, or start with --replica-of"
        );
        return Err(Error::Misused(text).into());
    }
    if found != Owner::Server as i64 {
        return Ok(());
    }
    let used: bool = connection.query_row("SELECT last_seq > 0 FROM feed", [], |row| row.get(0))?;
    if used {
        let text = format!(
            "`{path}` contains a server's runs and would be overwritten by the copy; use another --store"
        );
        return Err(Error::Misused(text).into());
    }
    Ok(connection.pragma_update(None, OWNER, Owner::Replica as i64)?)
}

/// All tables of a copy, each with a column that identifies its rows. Definitions, presence and versions of jobs are
/// removed with the rows that they belong to.
const TABLES: [(&str, &str); 16] = [
    ("output", "rowid"),
    ("events", "seq"),
    ("executions", "id"),
    ("holds", "node"),
    ("cached", "execution"),
    ("limit_uses", "execution"),
    ("runs", "rowid"),
    ("nodes", "rowid"),
    ("backfills", "id"),
    ("jobs", "id"),
    ("clusters", "id"),
    ("tombstones", "node"),
    ("ended", "kind"),
    ("contents", "rowid"),
    ("contents_released", "id"),
    ("output_removed", "one"),
];
/// Rows of a deleted cluster that are removed at once.
const REMOVED_ROWS: u32 = 2_000;
/// Rows that are removed in one statement.
const ROWS: u32 = 50_000;
/// How often one part is taken from the primary while the former copy is removed: the primary disconnects a replica that
/// takes nothing.
const TAKE_EVERY: Duration = Duration::from_secs(10);

/// Removes everything. Calls `step` after each statement.
fn clear(transaction: &Transaction<'_>, rows: u32, mut step: impl FnMut()) -> Result<()> {
    for (table, key) in TABLES {
        let sql = format!("DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} LIMIT {rows})");
        let mut remove = transaction.prepare(&sql)?;
        while remove.execute([])? > 0 {
            step();
        }
    }
    Ok(())
}

fn replace(connection: &mut Connection, mut parts: mpsc::Receiver<Part>) -> Result<u64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (mut early, mut taken_at) = (VecDeque::new(), Instant::now());
    clear(&transaction, ROWS, || {
        if taken_at.elapsed() >= TAKE_EVERY {
            early.extend(parts.try_recv());
            taken_at = Instant::now();
        }
    })?;
    put_clusters(&transaction, &[ClusterRecord::default_cluster()])?;
    while let Some(part) = early.pop_front().or_else(|| parts.blocking_recv()) {
        match part {
            Part::Clusters(clusters) => put_clusters(&transaction, &clusters)?,
            Part::RemovedClusters(clusters) => put_removed(&transaction, &clusters)?,
            Part::Nodes(nodes) => put_nodes(&transaction, nodes)?,
            Part::Tombstones(tombstones) => {
                Write::insert::<TombstoneRow<'_>>("tombstones")
                    .each(&transaction, tombstones.iter().map(TombstoneRow::of))?;
            }
            Part::Jobs(jobs) => {
                PUT_JOBS.each(&transaction, jobs.iter().map(|(key, live)| JobRow::of(key, live)))?;
            }
            Part::JobVersions(versions) => {
                INSERT_JOB_VERSIONS.try_each(&transaction, versions.iter().map(JobVersionRow::of))?;
            }
            Part::Backfills(backfills) => {
                PUT_BACKFILLS.try_each(&transaction, backfills.iter().map(BackfillRow::of))?;
            }
            Part::Runs(runs) => put_runs(&transaction, &runs)?,
            Part::Holds(holds) => put_holds(&transaction, &holds)?,
            Part::Deliveries(deliveries) => {
                PUT_DELIVERIES.try_each(&transaction, deliveries.iter().map(DeliveryRow::of))?;
            }
            Part::Executions(executions) => put_executions(&transaction, executions)?,
            Part::Output(chunks) => APPEND.each(&transaction, chunks.iter().map(OutputRow::of))?,
            Part::Events(events) => put_events(&transaction, &events)?,
            Part::End { seq } => {
                count_copied(&transaction)?;
                transaction.execute("UPDATE feed SET last_seq = ?1, counted_seq = ?1", [int(seq)])?;
                transaction.pragma_update(None, OWNER, Owner::Copied as i64)?;
                transaction.commit()?;
                return Ok(seq);
            }
        }
    }
    Err(interrupted().into())
}

fn put_clusters(transaction: &Transaction<'_>, clusters: &[ClusterRecord]) -> Result<()> {
    let clusters = clusters.iter().map(|cluster| (cluster.id, cluster)).collect();
    save_clusters(transaction, &Dirty { clusters, ..Dirty::default() })
}

/// Writes rows of deleted clusters: other rows refer to them. When they were deleted does not matter here.
fn put_removed(transaction: &Transaction<'_>, removed: &[ClusterId]) -> Result<()> {
    let record = |id: &ClusterId| ClusterRecord { id: *id, ..ClusterRecord::default_cluster() };
    let records: Vec<ClusterRecord> = removed.iter().map(record).collect();
    let clusters = records.iter().map(|cluster| (cluster.id, cluster)).collect();
    let clusters_deleted = removed.iter().map(|id| (*id, Timestamp::UNIX_EPOCH)).collect();
    save_clusters(transaction, &Dirty { clusters, clusters_deleted, ..Dirty::default() })
}

fn put_nodes(transaction: &Transaction<'_>, mut nodes: Vec<NodeRecord>) -> Result<()> {
    let mut tables = Tables::default();
    tables.nodes.extend(nodes.iter().map(|node| (node.id, NodeLive::of(node))));
    let problems: Vec<(NodeId, Vec<String>)> =
        nodes.iter_mut().map(|node| (node.id, std::mem::take(&mut node.problems))).collect();
    let reported = problems.iter().filter(|(_, problems)| !problems.is_empty());
    let node_problems = reported.map(|(node, problems)| (*node, &problems[..])).collect();
    let registrations: Vec<Registration> = nodes.into_iter().map(registration).collect();
    let nodes_registered = registrations.iter().map(|one| (one.node, one)).collect();
    save_nodes(transaction, &tables, &Dirty { nodes_registered, node_problems, ..Dirty::default() })
}

fn put_runs(transaction: &Transaction<'_>, runs: &[RunRecord]) -> Result<()> {
    let mut tables = Tables::default();
    tables.runs.extend(runs.iter().map(|run| (run.id.clone(), run.live.clone())));
    let dirty = Dirty { runs_created: runs.iter().map(|run| (&run.id, run)).collect(), ..Dirty::default() };
    save_runs(transaction, &tables, &dirty)?;
    COUNT_ENDED.each(transaction, dirty.ended(&tables, &dirty.changed(&tables)))
}

fn put_holds(transaction: &Transaction<'_>, holds: &[(NodeId, RunId)]) -> Result<()> {
    let taken = holds.iter().map(|(node, run)| (*node, run)).collect();
    save_holds(transaction, &Holds { added: taken, ..Holds::default() })
}

fn put_executions(transaction: &Transaction<'_>, executions: Vec<Execution>) -> Result<()> {
    let mut tables = Tables::default();
    tables.executions.extend(executions.into_iter().map(|execution| (execution.id, execution)));
    let dirty = Dirty { executions_added: tables.executions.keys().copied().collect(), ..Dirty::default() };
    let changed = dirty.changed(&tables);
    save_executions(transaction, &tables, &dirty, &changed)?;
    COUNT_ENDED.each(transaction, dirty.ended(&tables, &changed))
}

/// Counts the instances of the runs that keep counts: events after the snapshot only change them.
fn count_copied(transaction: &Transaction<'_>) -> Result<()> {
    for ListedRun { run, keeps } in fetch(transaction, ListedRun::KEPT, [])? {
        counts::keep(transaction, &run, Some(keeps))?;
    }
    Ok(())
}

fn put_events(transaction: &Transaction<'_>, events: &[Event]) -> Result<()> {
    let rows = events.iter().map(|Event { seq, server, about, change }| {
        let mut data = Vec::new();
        write_event(&mut data, change, about)?;
        let data = String::from_utf8(data).expect("serde_json writes UTF-8");
        Ok((NumberColumns::of(*seq, *server), ChangeColumns::of(change, data)))
    });
    INSERT_EVENTS.try_each(transaction, rows)
}

fn replicate(
    connection: &mut Connection,
    events: &[Event],
    chunks: &[OutputChunk],
    keep_bytes: u64,
) -> Result<Replicated> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let last: i64 = transaction.query_row("SELECT last_seq FROM feed", [], |row| row.get(0))?;
    if let Err(gap) = follows(count(last)?, events) {
        return Ok(Replicated::Diverged(gap));
    }
    let changes = replayed(events);
    let mut tables = load(&transaction, &Needs::of(&changes, NewIds::Checked))?;
    let (held, standing) = (tables.holds.clone(), Standing::of(&tables));
    if let Err((index, refusal)) = tables.apply_in_order(&changes) {
        return Ok(refused(&events[index], refusal));
    }
    let all: Vec<usize> = (0..changes.len()).collect();
    let dirty = Dirty::of(&changes, &all);
    save_clusters(&transaction, &dirty)?;
    save_nodes(&transaction, &tables, &dirty)?;
    save_jobs(&transaction, &tables, &dirty)?;
    save_runs(&transaction, &tables, &dirty)?;
    save_deliveries(&transaction, &tables, &dirty)?;
    let changed = dirty.changed(&tables);
    save_executions(&transaction, &tables, &dirty, &changed)?;
    save_holds(&transaction, &Holds::of(&held, &tables.holds))?;
    COUNT_ENDED.each(&transaction, dirty.ended(&tables, &changed))?;
    save_counts(&transaction, differences(&standing, &tables, &changed))?;
    put_events(&transaction, events)?;
    output::append_within(&transaction, chunks, keep_bytes)?;
    let newest = events.last().map_or(last, |event| int(event.seq));
    transaction.prepare_cached("UPDATE feed SET last_seq = ?1, counted_seq = ?1")?.execute([newest])?;
    transaction.commit()?;
    Ok(Replicated::Applied)
}

/// Returns the ended runs before the first one of their kind that is kept, oldest first.
fn gone(connection: &Connection, kept: &Kept) -> Result<Vec<String>> {
    let ended = concat!(
        "SELECT r.id FROM runs r WHERE r.finished_at IS NOT NULL AND r.state ",
        condition!(ended runs)
    );
    let debug = format!("{ended} AND r.job = '{}' AND {}", debug::JOB, condition!(debug run));
    let jobs = format!("{ended} AND NOT {}", condition!(debug run));
    let mut runs = gone_before(connection, &debug, kept.first_debug.as_ref())?;
    runs.extend(gone_before(connection, &jobs, kept.first_ended.as_ref())?);
    Ok(runs)
}

fn gone_before(
    connection: &Connection,
    ended: &str,
    first: Option<&(Timestamp, RunId)>,
) -> Result<Vec<String>> {
    let runs = match first {
        Some((at, id)) => connection
            .prepare_cached(&format!("{ended} AND (r.finished_at, r.id) < (?1, ?2)"))?
            .query_map(params![at.as_microsecond(), id.as_str()], |row| row.get(0))?
            .collect::<Result<_, _>>()?,
        None => {
            connection.prepare_cached(ended)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?
        }
    };
    Ok(runs)
}

fn set_servers(connection: &mut Connection, servers: &[ServerRecord]) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("DELETE FROM servers", [])?;
    ADD_SERVER.each(&transaction, servers.iter().map(ServerRow::of))?;
    Ok(transaction.commit()?)
}

impl SqliteStore {
    /// Removes executions of standing tasks that the other store does not keep.
    async fn forget_standing(&self, rule: StandingRule) -> Result<(), Error> {
        let kept = StandingKept::of(rule, &self.clusters().await?);
        for _ in 0..STANDING_STEPS {
            if self.prune_standing_at(Pace::Fast, &kept, STANDING_MOST).await? < u64::from(STANDING_MOST) {
                break;
            }
        }
        Ok(())
    }

    /// Opens a file for a copy: a new one, or one that was a replica's before.
    pub async fn open_replica(path: &Path) -> Result<Self, Error> {
        Self::open_as(path, Owner::Replica).await
    }
}

#[async_trait]
impl Replica for SqliteStore {
    async fn is_copied(&self) -> Result<bool, Error> {
        self.readers.run(|connection| Ok(owner(connection)? == Owner::Copied as i64)).await
    }

    async fn replace(&self, parts: mpsc::Receiver<Part>) -> Result<u64, Error> {
        self.writer.run(move |connection| replace(connection, parts)).await
    }

    async fn replicate(
        &self,
        events: &[Event],
        output: &[OutputChunk],
        keep_bytes: u64,
    ) -> Result<Replicated, Error> {
        let (events, output) = (events.to_vec(), output.to_vec());
        self.writer.run(move |connection| replicate(connection, &events, &output, keep_bytes)).await
    }

    async fn forget(&self, kept: &Kept) -> Result<(), Error> {
        let kept = kept.clone();
        let first_seq = kept.first_seq.map_or(i64::MAX, int);
        let first_deleted = kept.first_deleted.unwrap_or(Timestamp::MAX);
        let (output_removed, rule) = (kept.output_removed.clone(), kept.standing);
        let gone = self.writer.run(move |connection| gone(connection, &kept)).await?;
        // The next events wait for it, and the primary removes its rows slowly.
        prune::remove(&self.writer, Pace::Fast, gone).await?;
        if let Some((at, run)) = output_removed {
            let last = (at.as_microsecond(), run.as_str().to_owned());
            excess::remove_output(&self.writer, Pace::Fast, last, u64::MAX).await?;
        }
        for cluster in self.removed_clusters().await? {
            while self.remove_cluster(cluster, REMOVED_ROWS).await? > 0 {}
        }
        if let Some(rule) = rule {
            self.forget_standing(rule).await?;
        }
        prune::remove_events(&self.writer, Pace::Fast, first_seq.saturating_sub(1)).await?;
        prune::forget_deleted(&self.writer, Pace::Fast, first_deleted).await?;
        prune::remove_contents(&self.writer, Pace::Fast).await?;
        prune::shrink_all(&self.writer, Pace::Fast).await
    }

    async fn see_nodes(&self, seen: &[Seen]) -> Result<(), Error> {
        let seen = seen.to_vec();
        self.writer.run(move |connection| touch(connection, seen).map(drop)).await
    }

    async fn set_servers(&self, servers: &[ServerRecord]) -> Result<(), Error> {
        let servers = servers.to_vec();
        self.writer.run(move |connection| set_servers(connection, &servers)).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::*;

    #[test]
    fn a_large_copy_is_removed_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = connect::writer(&dir.path().join("test.db")).unwrap();
        let transaction = connection.transaction().unwrap();
        let rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 95)";
        let insert = format!(
            "{rows} INSERT INTO events (seq, at, server, kind, data) SELECT n, 0, x'', '', '' FROM n"
        );
        transaction.execute(&insert, []).unwrap();
        let insert = format!("{rows} INSERT INTO tombstones SELECT CAST(n AS BLOB), x'', x'', '', 0 FROM n");
        transaction.execute(&insert, []).unwrap();
        let mut steps = 0;
        clear(&transaction, 10, || steps += 1).unwrap();
        // One of them removes the cluster.
        assert_eq!(steps, 21);
        for (table, _) in TABLES {
            let sql = format!("SELECT count(*) FROM {table}");
            let left: i64 = transaction.query_row(&sql, [], |row| row.get(0)).unwrap();
            assert_eq!(left, 0, "{table}");
        }
    }
}
