//! Implements the port on PostgreSQL. `read` has the texts of reads, `commit` the commits.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use deadpool_postgres::Object;
use downbeat_core::change::Change;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::retention::{Excess, StandingKept};
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc};
use tokio_postgres::types::ToSql;
use tokio_util::sync::DropGuard;
use uuid::Uuid;

use super::connect::{self, Connections, Purpose, Target};
use super::failure::Failure;
use super::hints::{Listener, NOTIFY};
use super::write::{self, Write};
use super::{commit, counts, excess, indexes, output, prune, remove, snapshot};
use crate::batch::OUTPUT_BYTES;
use crate::copy::{Part, Seen};
use crate::filter::{Arg, HELD};
use crate::instances::results_on;
use crate::migrate::CONTENTS;
use crate::pace::Pace;
use crate::port::{Committed, DirectWrites, Error, Hint, OutputChunk, Removed, Result, ServerRecord, Store};
use crate::read::Database;
use crate::rows::{
    Attempt, Columns, ContentRow, OutputRow, Record, ServerRow, StoredDefinition, StoredRun, Text, condition,
    int, small, time,
};
use crate::standing::{self, Pruned};

type Args<'a> = &'a [&'a (dyn ToSql + Sync)];

const IS_SHARING: &str = "SELECT works_since >= number FROM migrations WHERE number = $1";
/// Programs of older schemas refuse the store from then on.
const SHARE: &str = "UPDATE migrations SET works_since = number WHERE number = $1";

static PUT_SERVER: LazyLock<Write> = LazyLock::new(|| Write::upsert::<ServerRow<'_>>("servers"));

/// The store for many servers: a handle to its connections.
#[derive(Clone)]
pub struct PostgresStore {
    /// One connection: batches are committed one after the other.
    commits: Connections,
    vital: Connections,
    /// The reads of this handle, and its reads of events.
    reads: Connections,
    feed: Connections,
    views: Connections,
    is_view: bool,
    target: Target,
    /// Whether equal contents are stored once.
    is_sharing: Arc<AtomicBool>,
    pruned: Arc<Pruned>,
    listener: Arc<Listener>,
    _indexing: Option<Arc<DropGuard>>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration contains a password.
        f.debug_struct("PostgresStore")
            .field("database", &self.target.config.get_dbname())
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects and migrates the schema.
    pub async fn open(location: &str) -> Result<Self> {
        let target = connect::target(location)?;
        let mut client = target.connect(Purpose::Upkeep).await?;
        connect::migrate(&mut client).await?;
        let is_sharing = client.query_one(IS_SHARING, &[&small(CONTENTS)]).await.map_err(Failure::from)?;
        let is_sharing: bool = is_sharing.try_get(0).map_err(Failure::from)?;
        let indexing = match indexes::build_small(&mut client).await? {
            true => None,
            false => Some(Arc::new(indexes::build_in_background(target.clone()))),
        };
        Ok(Self {
            commits: Connections::new(&target, Purpose::Commits)?,
            vital: Connections::new(&target, Purpose::Vital)?,
            reads: Connections::new(&target, Purpose::Work)?,
            feed: Connections::new(&target, Purpose::Feed)?,
            views: Connections::new(&target, Purpose::Views)?,
            is_view: false,
            is_sharing: Arc::new(AtomicBool::new(is_sharing)),
            pruned: Arc::default(),
            listener: Arc::new(Listener::start(target.clone())),
            target,
            _indexing: indexing,
        })
    }

    /// Returns the names of the indexes that are built while servers write; for tests.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub fn index_names() -> Vec<&'static str> {
        indexes::names()
    }

    /// Reads the rows of a record's SELECT, followed by `rest`.
    async fn records<T: Record>(&self, rest: &str, args: Args<'_>) -> Result<Vec<T>> {
        records(&self.reads, rest, args).await
    }
}

async fn records<T: Record>(connections: &Connections, rest: &str, args: Args<'_>) -> Result<Vec<T>> {
    let rows = connections.rows(&format!("{}{rest}", T::select()), args).await?;
    rows.iter().map(T::from_row).collect()
}

#[async_trait]
impl Database for PostgresStore {
    /// From the events, or from `feed` if no event is left.
    const LAST_SEQ: &'static str =
        "SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), (SELECT max(seq) FROM events))";

    const COUNTS: &'static [&'static str] = &["instance_counts", "instance_counts_lately"];

    const LAST_ATTEMPTS: &'static str = concat!(
        "SELECT id FROM (SELECT DISTINCT ON (step, pinned) id FROM executions WHERE ",
        condition!(standing runs),
        " AND run = $1 AND (step, pinned) > ($2, $3) ORDER BY step, pinned, attempt DESC LIMIT $4) last"
    );

    const LISTED: &'static str = "SELECT jsonb_array_elements_text(CAST($1 AS text)::jsonb)";

    async fn fetch<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        let args: Vec<_> = args.iter().map(|arg| write::Arg(&**arg)).collect();
        let args: Vec<_> = args.iter().map(|arg| arg as &(dyn ToSql + Sync)).collect();
        self.records(rest, &args).await
    }

    async fn fetch_feed<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        let args: Vec<_> = args.iter().map(|arg| write::Arg(&**arg)).collect();
        let args: Vec<_> = args.iter().map(|arg| arg as &(dyn ToSql + Sync)).collect();
        records(&self.feed, rest, &args).await
    }

    /// An array: PostgreSQL does not know how few ids there are, and could read the whole table to join them.
    fn is_among(ids: &str) -> String {
        format!("id = ANY(ARRAY({ids}))")
    }

    /// The counts at the last pruning, plus those since.
    fn ended(kind: i16) -> String {
        format!(
            "SELECT code, sum(total)::bigint FROM (SELECT code, total FROM ended WHERE kind = {kind} \
             UNION ALL SELECT code, total FROM ended_lately WHERE kind = {kind}) e GROUP BY code HAVING sum(total) > 0"
        )
    }

    fn volume() -> String {
        format!(
            "SELECT (SELECT min(seq) FROM events), ({}), (SELECT sum(total)::bigint FROM \
             (SELECT total FROM ended WHERE kind = {OUTPUT_BYTES} AND code = 0 UNION ALL \
             SELECT total FROM ended_lately WHERE kind = {OUTPUT_BYTES} AND code = 0) e), \
             pg_database_size(current_database())",
            Self::LAST_SEQ
        )
    }

    async fn fetch_many<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        if self.is_view {
            return self.fetch(rest, args).await;
        }
        let args: Vec<_> = args.iter().map(|arg| write::Arg(&**arg)).collect();
        let args: Vec<_> = args.iter().map(|arg| arg as &(dyn ToSql + Sync)).collect();
        Ok(self.reads.records_in_portions(&format!("{}{rest}", T::select()), &args).await?)
    }

    async fn fetch_contents(&self, hashes: &[String]) -> Result<Vec<ContentRow<'static>>> {
        self.records(" WHERE hash = ANY($1)", &[&hashes]).await
    }

    async fn fetch_runs(&self, ids: &[RunId]) -> Result<Vec<StoredRun>> {
        let ids: Vec<_> = ids.iter().map(|id| Text::from(id.as_str())).collect();
        self.records(" WHERE r.id = ANY($1) ORDER BY r.id", &[&ids]).await
    }

    async fn fetch_by_id<T: Record>(&self, ids: &[ExecutionId]) -> Result<Vec<T>> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        self.records(" WHERE id = ANY($1) ORDER BY id", &[&ids]).await
    }

    async fn fetch_definitions(&self, runs: &[RunId]) -> Result<Vec<StoredDefinition>> {
        let runs: Vec<_> = runs.iter().map(|run| Text::from(run.as_str())).collect();
        self.records(" WHERE run = ANY($1)", &[&runs]).await
    }

    async fn fetch_held(&self, nodes: &[NodeId]) -> Result<Vec<Execution>> {
        let nodes: Vec<Uuid> = nodes.iter().map(|node| node.0).collect();
        self.records(&format!(" WHERE lease_node = ANY($1) AND {HELD} ORDER BY id"), &[&nodes]).await
    }

    async fn fetch_results_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<Attempt>> {
        let nodes: Vec<Uuid> = nodes.iter().map(|node| node.0).collect();
        self.records(&results_on("= ANY($2)"), &[&Text::from(run.as_str()), &nodes]).await
    }

    async fn fetch_seen(&self, nodes: &[NodeId]) -> Result<Vec<Seen>> {
        let nodes: Vec<Uuid> = nodes.iter().map(|node| node.0).collect();
        self.records(" WHERE node = ANY($1) ORDER BY node", &[&nodes]).await
    }

    async fn fetch_cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>> {
        let rest = " WHERE id IN (SELECT n.execution FROM unnest($2::text[]) AS k (cache_key) CROSS JOIN LATERAL \
                    (SELECT c.execution FROM cached c JOIN executions e ON e.id = c.execution \
                    WHERE c.cluster = $1 AND c.cache_key = k.cache_key \
                    ORDER BY c.finished_at DESC, c.execution DESC LIMIT 1) n)";
        let keys: Vec<_> = keys.iter().map(|key| Text::from(&**key)).collect();
        let found: Vec<Execution> = self.records(rest, &[&cluster.0, &keys]).await?;
        Ok(found.into_iter().filter_map(|each| Some((each.cache_key.clone()?, each))).collect())
    }

    async fn fetch_output(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>> {
        // Each execution's first chunk is the one that contains its offset: looking it up avoids reading all chunks
        // before it.
        let sql = format!(
            "SELECT {} FROM unnest($1::uuid[], $2::bigint[]) AS u (execution, from_byte) \
             CROSS JOIN LATERAL (SELECT * FROM output o WHERE o.execution = u.execution AND o.start_byte >= coalesce(\
             (SELECT max(start_byte) FROM output WHERE execution = u.execution AND start_byte <= u.from_byte), 0) \
             AND o.start_byte + length(o.text) > u.from_byte ORDER BY o.start_byte LIMIT $3) o \
             ORDER BY o.execution, o.start_byte LIMIT $3",
            OutputRow::names_in("o")
        );
        let executions: Vec<Uuid> = from.iter().map(|(execution, _)| execution.0).collect();
        let starts: Vec<i64> = from.iter().map(|(_, start)| int(*start)).collect();
        let rows = self.reads.rows(&sql, &[&executions, &starts, &i64::from(limit)]).await?;
        rows.iter().map(OutputChunk::from_row).collect()
    }

    async fn send_snapshot(&self, to: mpsc::Sender<Part>) -> Result<()> {
        let mut client = self.target.connect(Purpose::Upkeep).await?;
        Ok(snapshot::send_all(&mut client, &to).await?)
    }
}

#[async_trait]
impl DirectWrites for PostgresStore {
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>> {
        // Locks rows by id, as commits do. A commit that only relies on the sessions of nodes does not wait for heartbeats,
        // nor they for it.
        let sql = "WITH seen AS (SELECT p.node, p.session FROM presence p \
                   WHERE (p.node, p.session) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])) \
                   ORDER BY p.node FOR NO KEY UPDATE) \
                   UPDATE presence p SET seen_at = greatest(p.seen_at, $3) FROM seen WHERE p.node = seen.node \
                   RETURNING p.node, p.session";
        let nodes: Vec<Uuid> = seen.iter().map(|(node, _)| node.0).collect();
        let sessions: Vec<Uuid> = seen.iter().map(|(_, session)| session.0).collect();
        let rows = self.vital.rows(sql, &[&nodes, &sessions, &at.as_microsecond()]).await?;
        let touched: Result<HashSet<(NodeId, SessionId)>, tokio_postgres::Error> =
            rows.iter().map(|row| Ok((NodeId(row.try_get(0)?), SessionId(row.try_get(1)?)))).collect();
        let touched = touched.map_err(Failure::from)?;
        Ok(seen.iter().map(|one| touched.contains(one)).collect())
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<()> {
        self.listener.announce_output(output::append(&self.reads, chunks, keep_bytes).await?);
        Ok(())
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<()> {
        let rows = [ServerRow::of(server)];
        let put = self.vital.run(async |client: &mut Object| {
            let transaction = client.transaction().await?;
            let remove = "DELETE FROM servers WHERE name = $1 OR id = $2";
            transaction.execute(remove, &[&Text::from(&*server.name), &server.id.0]).await?;
            transaction.execute_raw(PUT_SERVER.sql(), PUT_SERVER.args(&rows)).await?;
            Ok(transaction.commit().await?)
        });
        Ok(put.await?)
    }

    async fn remove_server(&self, id: ServerId) -> Result<()> {
        self.vital.rows("DELETE FROM servers WHERE id = $1", &[&id.0]).await?;
        self.vital.rows(NOTIFY, &[&self.listener.payload(&Hint::Servers)]).await?;
        Ok(())
    }

    async fn share_contents(&self) -> Result<()> {
        if !self.is_sharing.load(Ordering::Acquire) {
            self.vital.rows(SHARE, &[&small(CONTENTS)]).await?;
            self.is_sharing.store(true, Ordering::Release);
        }
        Ok(())
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64> {
        let mut client = self.target.connect(Purpose::Pruning).await?;
        Ok(prune::prune(&mut client, before, most).await?)
    }

    async fn prune_excess(&self, excess: &Excess, most: u32) -> Result<Removed> {
        let mut client = self.target.connect(Purpose::Pruning).await?;
        Ok(excess::prune(&mut client, excess, most).await?)
    }

    async fn remove_cluster(&self, cluster: ClusterId, most: u32) -> Result<u64> {
        let mut client = self.target.connect(Purpose::Pruning).await?;
        Ok(remove::remove_cluster(&mut client, cluster, most).await?)
    }

    async fn prune_standing(&self, kept: &StandingKept, most: u32) -> Result<u64> {
        let client = self.target.connect(Purpose::Pruning).await?;
        if !prune::is_only_one(&client).await? {
            return Ok(0);
        }
        let gone = standing::find(self, &self.pruned, Pace::Gentle, kept, most).await?;
        remove::remove_executions(&client, &gone).await?;
        prune::unlock(&client).await?;
        Ok(gone.len() as u64)
    }

    async fn prune_debug(&self, before: Timestamp, most: u32) -> Result<u64> {
        let client = self.target.connect(Purpose::Pruning).await?;
        Ok(prune::prune_debug(&client, before, most).await?)
    }

    async fn keep_counts(&self, before: Timestamp, most: u32) -> Result<u64> {
        let mut client = self.target.connect(Purpose::Upkeep).await?;
        Ok(counts::keep_counts(&mut client, before, most).await?)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.listener.subscribe()
    }

    fn views(&self) -> Option<Arc<dyn Store>> {
        let (reads, feed) = (self.views.clone(), self.views.clone());
        Some(Arc::new(Self { reads, feed, is_view: true, ..self.clone() }))
    }

    async fn now(&self) -> Result<Option<Timestamp>> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = self.vital.rows(sql, &[]).await?;
        rows.first().map(|row| time(row.try_get(0).map_err(Failure::from)?)).transpose()
    }

    async fn health(&self) -> Result<()> {
        let read_only: Vec<String> = records(&self.vital, "SHOW transaction_read_only", &[]).await?;
        if read_only == ["on"] {
            return Err(Error::Unavailable("PostgreSQL is read-only: is it a standby?".to_owned()));
        }
        Ok(())
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed> {
        // A separate task: a dropped caller must not leave a transaction open.
        let (pool, changes) = (self.commits.clone(), changes.to_vec());
        let hints = self.listener.payload(&Hint::Events);
        let is_sharing = self.is_sharing.load(Ordering::Acquire);
        tokio::spawn(async move { commit::commit(&pool, server, &changes, &hints, is_sharing).await })
            .await
            .map_err(|error| Error::Unavailable(format!("a commit was interrupted: {error}")))?
    }

    async fn close(&self) {
        // The owner of the connection returns it when its batch is committed.
        let commit_permit = self.commits.get().await;
        for connections in [&self.commits, &self.vital, &self.reads, &self.feed, &self.views] {
            connections.close();
        }
        drop(commit_permit);
    }
}
