//! Implements the port on SQLite. `read` has the texts of reads, `commit` the commits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use downbeat_core::change::Change;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::retention::{Excess, StandingKept};
use jiff::Timestamp;
use rusqlite::{Connection, TransactionBehavior, params, params_from_iter};
use tokio::sync::{broadcast, mpsc};

use super::failure::Failure;
use super::file::Files;
use super::readers::Readers;
use super::replicate::Owner;
use super::write::{Write, fetch, fetch_each};
use super::writer::Writer;
use super::{commit, connect, counts, excess, output, prune, remove, replicate, snapshot};
use crate::batch::OUTPUT_BYTES;
use crate::copy::{Part, Seen};
use crate::filter::{Arg, HELD};
use crate::instances::results_on;
use crate::pace::Pace;
use crate::port::{
    Committed, DirectWrites, Error, Hint, Output, OutputChunk, Removed, Result, ServerRecord, Store,
};
use crate::read::Database;
use crate::rows::{Attempt, ContentRow, Record, ServerRow, StoredDefinition, StoredRun, condition};
use crate::standing::{self, Pruned};

pub(super) static ADD_SERVER: LazyLock<Write> = LazyLock::new(|| Write::insert::<ServerRow<'_>>("servers"));

/// The embedded store: a handle to its connections.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    files: Arc<Files>,
    pub(super) writer: Arc<Writer>,
    /// For the reads of this handle.
    pub(super) readers: Readers,
    views: Readers,
    snapshots: Readers,
    pruned: Arc<Pruned>,
    /// Never sends: only one server uses the file.
    hints: broadcast::Sender<Hint>,
}

impl SqliteStore {
    /// Opens the file, creating it and its directory, and migrates the schema.
    pub async fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, Owner::Server).await
    }

    pub(super) async fn open_as(path: &Path, owner: Owner) -> Result<Self> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || {
            let path: PathBuf = connect::resolve_path(&path)?;
            let lock = connect::lock(&path)?;
            let connection = connect::writer(&path).map_err(|failure| failure.at(&path))?;
            replicate::claim(&connection, owner, &path).map_err(|failure| failure.at(&path))?;
            let files = Arc::new(Files::of(&path)?);
            Ok(Self {
                writer: Arc::new(Writer::start(Arc::clone(&files), connection, lock)?),
                readers: Readers::own(&files),
                views: Readers::views(&files),
                snapshots: Readers::snapshots(&files),
                pruned: Arc::default(),
                hints: broadcast::channel(1).0,
                files,
            })
        })
        .await
        .map_err(|error| Error::Unavailable(format!("opening the store was interrupted: {error}")))?
    }

    /// Reports the statements of every connection that this process opens from now on; for tests.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub fn record_statements(listener: fn(&str)) {
        connect::LISTENER.get_or_init(|| listener);
    }

    /// Limits the file to this many additional pages, like a full disk; for tests.
    #[doc(hidden)]
    pub async fn bound_pages(&self, more: Option<u32>) -> Result<()> {
        self.writer
            .run(move |connection| {
                let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
                let most = more.map_or(i64::from(u32::MAX) - 1, |more| pages + i64::from(more));
                connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(()))?;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl Database for SqliteStore {
    const LAST_SEQ: &'static str = "SELECT last_seq FROM feed";

    const COUNTS: &'static [&'static str] = &["instance_counts"];

    /// A column beside `max` has the value of the row with the maximum.
    const LAST_ATTEMPTS: &'static str = concat!(
        "SELECT id FROM (SELECT id, max(attempt) FROM executions INDEXED BY executions_standing WHERE ",
        condition!(standing runs),
        " AND run = $1 AND (step, pinned) > ($2, $3) GROUP BY step, pinned ORDER BY step, pinned LIMIT $4)"
    );

    const LISTED: &'static str = "SELECT value FROM json_each($1)";

    async fn fetch<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        // SQLite takes `$1` for a name.
        let sql = format!("{}{}", T::select(), rest.replace('$', "?"));
        self.readers.run(move |connection| fetch(connection, &sql, params_from_iter(args))).await
    }

    fn ended(kind: i16) -> String {
        format!("SELECT code, total FROM ended WHERE kind = {kind} AND total > 0")
    }

    fn volume() -> String {
        format!(
            "SELECT (SELECT min(seq) FROM events), (SELECT last_seq FROM feed), \
             (SELECT total FROM ended WHERE kind = {OUTPUT_BYTES} AND code = 0), \
             (SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size())"
        )
    }

    async fn fetch_contents(&self, hashes: &[String]) -> Result<Vec<ContentRow<'static>>> {
        let sql = format!("{} WHERE hash = ?1", ContentRow::select());
        let args: Vec<[String; 1]> = hashes.iter().map(|hash| [hash.clone()]).collect();
        self.readers.run(move |connection| fetch_each(connection, &sql, args)).await
    }

    async fn fetch_runs(&self, ids: &[RunId]) -> Result<Vec<StoredRun>> {
        let sql = format!("{} WHERE r.id = ?1", StoredRun::select());
        let ids: BTreeSet<RunId> = ids.iter().cloned().collect();
        let args = move || ids.into_iter().map(|id| [id.as_str().to_owned()]);
        self.readers.run(move |connection| fetch_each(connection, &sql, args())).await
    }

    async fn fetch_by_id<T: Record>(&self, ids: &[ExecutionId]) -> Result<Vec<T>> {
        let sql = format!("{} WHERE id = ?1", T::select());
        let ids: BTreeSet<ExecutionId> = ids.iter().copied().collect();
        let args = move || ids.into_iter().map(|id| [id.0]);
        self.readers.run(move |connection| fetch_each(connection, &sql, args())).await
    }

    async fn fetch_definitions(&self, runs: &[RunId]) -> Result<Vec<StoredDefinition>> {
        let runs: BTreeSet<RunId> = runs.iter().cloned().collect();
        let sql = format!("{} WHERE run = ?1", StoredDefinition::select());
        let args = move || runs.into_iter().map(|run| [run.0]);
        self.readers.run(move |connection| fetch_each(connection, &sql, args())).await
    }

    async fn fetch_held(&self, nodes: &[NodeId]) -> Result<Vec<Execution>> {
        let sql = format!("{} WHERE lease_node = ?1 AND {HELD}", Execution::select());
        let nodes: BTreeSet<NodeId> = nodes.iter().copied().collect();
        let args = move || nodes.into_iter().map(|node| [node.0]);
        let mut held: Vec<Execution> =
            self.readers.run(move |connection| fetch_each(connection, &sql, args())).await?;
        held.sort_unstable_by_key(|execution| execution.id);
        Ok(held)
    }

    async fn fetch_results_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<Attempt>> {
        let nodes: BTreeSet<NodeId> = nodes.iter().copied().collect();
        let sql = format!("{}{}", Attempt::select(), results_on("= $2").replace('$', "?"));
        let run = run.as_str().to_owned();
        let args = move || nodes.into_iter().map(move |node| (run.clone(), node.0));
        self.readers.run(move |connection| fetch_each(connection, &sql, args())).await
    }

    async fn fetch_seen(&self, nodes: &[NodeId]) -> Result<Vec<Seen>> {
        let nodes: BTreeSet<NodeId> = nodes.iter().copied().collect();
        let sql = format!("{} WHERE node = ?1", Seen::select());
        self.readers
            .run(move |connection| fetch_each(connection, &sql, nodes.into_iter().map(|node| [node.0])))
            .await
    }

    async fn fetch_cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>> {
        let sql = format!(
            "{} WHERE id = (SELECT c.execution FROM cached c JOIN executions e ON e.id = c.execution \
             WHERE c.cluster = ?1 AND c.cache_key = ?2 ORDER BY c.finished_at DESC, c.execution DESC LIMIT 1)",
            Execution::select()
        );
        let keys = keys.to_vec();
        let args = move || keys.into_iter().map(move |key| (cluster.0, key));
        let found: Vec<Execution> =
            self.readers.run(move |connection| fetch_each(connection, &sql, args())).await?;
        Ok(found.into_iter().filter_map(|each| Some((each.cache_key.clone()?, each))).collect())
    }

    async fn fetch_output(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>> {
        let mut from = from.to_vec();
        from.sort_unstable();
        let mut chunks = Vec::new();
        for (execution, from) in from {
            let room = limit.saturating_sub(u32::try_from(chunks.len()).unwrap_or(u32::MAX));
            if room == 0 {
                break;
            }
            chunks.extend(self.output(execution, from, room).await?);
        }
        Ok(chunks)
    }

    async fn send_snapshot(&self, to: mpsc::Sender<Part>) -> Result<()> {
        self.snapshots.run(move |connection| snapshot::send_all(connection, &to)).await
    }
}

/// Records when sessions were seen. Returns, for each, whether it is its node's current one.
pub(super) fn touch(
    connection: &mut Connection,
    seen: impl IntoIterator<Item = Seen>,
) -> Result<Vec<bool>, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let touched = {
        let mut update = transaction.prepare_cached(
            "UPDATE presence SET seen_at = max(seen_at, ?3) WHERE node = ?1 AND session = ?2",
        )?;
        let mut touch =
            |(node, session, at): Seen| update.execute(params![node.0, session.0, at.as_microsecond()]);
        seen.into_iter().map(|seen| touch(seen).map(|rows| rows == 1)).collect::<Result<_, _>>()?
    };
    transaction.commit()?;
    Ok(touched)
}

#[async_trait]
impl DirectWrites for SqliteStore {
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>> {
        let seen: Vec<Seen> = seen.iter().map(|&(node, session)| (node, session, at)).collect();
        self.writer.run(move |connection| touch(connection, seen)).await
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<()> {
        let chunks = chunks.to_vec();
        self.writer.run(move |connection| output::append(connection, &chunks, keep_bytes)).await
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<()> {
        let server = server.clone();
        self.writer
            .run(move |connection| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                transaction.execute(
                    "DELETE FROM servers WHERE name = ?1 OR id = ?2",
                    params![server.name, server.id.0],
                )?;
                ADD_SERVER.each(&transaction, [ServerRow::of(&server)])?;
                Ok(transaction.commit()?)
            })
            .await
    }

    async fn remove_server(&self, id: ServerId) -> Result<()> {
        self.writer
            .run(move |connection| {
                connection.execute("DELETE FROM servers WHERE id = ?1", [id.0])?;
                Ok(())
            })
            .await
    }

    /// Contents are shared from the start.
    async fn share_contents(&self) -> Result<()> {
        Ok(())
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64> {
        prune::prune(&self.writer, before, most).await
    }

    async fn prune_excess(&self, excess: &Excess, most: u32) -> Result<Removed> {
        excess::prune(&self.writer, *excess, most).await
    }

    async fn remove_cluster(&self, cluster: ClusterId, most: u32) -> Result<u64> {
        remove::remove_cluster(&self.writer, cluster, most).await
    }

    async fn prune_standing(&self, kept: &StandingKept, most: u32) -> Result<u64> {
        self.prune_standing_at(Pace::Gentle, kept, most).await
    }

    async fn prune_debug(&self, before: Timestamp, most: u32) -> Result<u64> {
        prune::prune_debug(&self.writer, before, most).await
    }

    async fn keep_counts(&self, before: Timestamp, most: u32) -> Result<u64> {
        counts::keep_counts(&self.writer, before, most).await
    }
}

impl SqliteStore {
    pub(super) async fn prune_standing_at(&self, pace: Pace, kept: &StandingKept, most: u32) -> Result<u64> {
        let gone = standing::find(self, &self.pruned, pace, kept, most).await?;
        remove::remove_executions(&self.writer, pace, &gone).await?;
        Ok(gone.len() as u64)
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn views(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self { readers: self.views.clone(), ..self.clone() }))
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn health(&self) -> Result<()> {
        let files = Arc::clone(&self.files);
        tokio::task::spawn_blocking(move || files.check_writable())
            .await
            .map_err(|error| Error::Unavailable(format!("a check of the store was interrupted: {error}")))?
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed> {
        // Cheap: large parts of a change are shared, and the thread cannot borrow.
        let changes = changes.to_vec();
        let files = Arc::clone(&self.files);
        self.writer
            .run(move |connection| {
                files.check_exist()?;
                commit::commit(connection, server, &changes)
            })
            .await
    }

    async fn close(&self) {
        for readers in [&self.readers, &self.views, &self.snapshots] {
            readers.close().await;
        }
        self.writer.close().await;
    }
}
