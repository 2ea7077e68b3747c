//! Owns the port on SQLite: which statement answers which question. Commits are `commit`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::change::{Change, Event};
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::state::LimitUse;
use jiff::Timestamp;
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OptionalExtension, Params, ToSql, TransactionBehavior, params};
use tokio::sync::broadcast;

use super::failure::Failure;
use super::file::Files;
use super::readers::Readers;
use super::replicate::Owner;
use super::writer::Writer;
use super::{commit, connect, output, prune, replicate};
use crate::filter::{Arg, HOLDS, NODE_COUNTS, NODE_TOTALS, OPEN_EXECUTIONS, OPEN_RUNS, USES, Where};
use crate::port::{
    Committed, Error, EventFilter, ExecutionFilter, Listed, News, NodeTotals, OutputChunk, Page, RunFilter,
    ServerRecord, Store, Tally,
};
use crate::rows::{
    Code, EVENT_COLUMNS, EXECUTION_COLUMNS, NODE_COLUMNS, RUN_COLUMNS, TOMBSTONE_COLUMNS, count, event_row,
    execution_row, int, node_row, run_row, time, tombstone_row,
};

/// The embedded store.
#[derive(Debug)]
pub struct SqliteStore {
    files: Arc<Files>,
    pub(super) writer: Writer,
    pub(super) readers: Readers,
    /// Nobody speaks here: one server has the file.
    news: broadcast::Sender<News>,
}

impl SqliteStore {
    /// Opens the file, creating it and its directory, and brings its schema up to date.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        Self::open_as(path, Owner::Server).await
    }

    pub(super) async fn open_as(path: &Path, owner: Owner) -> Result<Self, Error> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || {
            let path: PathBuf = connect::settle(&path)?;
            let lock = connect::lock(&path)?;
            let connection = connect::writer(&path).map_err(|failure| failure.at(&path))?;
            replicate::claim(&connection, owner, &path).map_err(|failure| failure.at(&path))?;
            let files = Arc::new(Files::of(&path)?);
            let writer = Writer::start(Arc::clone(&files), connection, lock)?;
            let readers = Readers::new(Arc::clone(&files));
            Ok(Self { files, writer, readers, news: broadcast::channel(1).0 })
        })
        .await
        .map_err(|error| Error::Unavailable(format!("opening the store was broken off: {error}")))?
    }

    /// Lets every connection of this process that is opened from now on tell its statements, for tests.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub fn tell_statements(listener: fn(&str)) {
        connect::LISTENER.get_or_init(|| listener);
    }

    /// Bounds the file to this many pages more than it has: a full disk, for tests.
    #[doc(hidden)]
    pub async fn bound_pages(&self, more: Option<u32>) -> Result<(), Error> {
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

impl ToSql for Arg {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Arg::Id(id) => id.to_sql(),
            Arg::Text(text) => text.to_sql(),
            Arg::Step(step) => step.to_sql(),
        }
    }
}

/// Statements are written with `$1`, which SQLite takes for a name.
fn dialect(sql: &str) -> String {
    sql.replace('$', "?")
}

fn executions(connection: &Connection, rest: &str, args: impl Params) -> Result<Vec<Execution>, Failure> {
    let mut query =
        connection.prepare_cached(&format!("SELECT {EXECUTION_COLUMNS} FROM executions{rest}"))?;
    let rows = query.query_map(args, |row| Ok(execution_row!(row, get)))?;
    rows.map(|row| Ok(row?.record()?)).collect()
}

fn runs(connection: &Connection, rest: &str, args: impl Params) -> Result<Vec<RunRecord>, Failure> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM runs r JOIN definitions d ON d.run = r.id{rest}");
    let mut query = connection.prepare_cached(&sql)?;
    let rows = query.query_map(args, |row| Ok(run_row!(row, get)))?;
    rows.map(|row| Ok(row?.record()?)).collect()
}

fn nodes(connection: &Connection, rest: &str, args: impl Params) -> Result<Vec<NodeRecord>, Failure> {
    let sql = format!("SELECT {NODE_COLUMNS} FROM presence p JOIN nodes n ON n.id = p.node{rest}");
    let mut query = connection.prepare_cached(&sql)?;
    let rows = query.query_map(args, |row| Ok(node_row!(row, get)))?;
    rows.map(|row| Ok(row?.record()?)).collect()
}

fn total(connection: &Connection, from: &str, args: impl Params) -> Result<u64, Failure> {
    let total = connection
        .prepare_cached(&format!("SELECT count(*) FROM {from}"))?
        .query_row(args, |row| row.get(0))?;
    Ok(count(total)?)
}

/// What has ended of a kind.
fn ended(kind: u8) -> String {
    format!("UNION ALL SELECT code, total FROM ended WHERE kind = {kind} AND total > 0")
}

fn counts<C: Code>(connection: &Connection, sql: &str) -> Result<Vec<(C, u64)>, Failure> {
    let mut query = connection.prepare_cached(sql)?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.map(|row| row.map_err(Failure::from).and_then(|(code, n)| Ok((C::decode(code)?, count(n)?))))
        .collect()
}

fn node_totals(connection: &Connection, node: NodeId) -> Result<NodeTotals, Failure> {
    let mut query = connection.prepare_cached(&dialect(NODE_TOTALS))?;
    let mut rows = query.query([node.0])?;
    let mut totals = NodeTotals::default();
    while let Some(row) = rows.next()? {
        totals.add(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)?;
    }
    Ok(totals)
}

fn cached(
    connection: &Connection,
    cluster: ClusterId,
    keys: Vec<Arc<str>>,
) -> Result<BTreeMap<Arc<str>, Execution>, Failure> {
    let rest = " WHERE id = (SELECT c.execution FROM cached c JOIN executions e ON e.id = c.execution \
                WHERE c.cluster = ?1 AND c.cache_key = ?2 ORDER BY c.finished_at DESC, c.execution DESC LIMIT 1)";
    let mut found = BTreeMap::new();
    for key in keys {
        let newest = executions(connection, rest, params![cluster.0, key])?.pop();
        found.extend(newest.map(|execution| (key, execution)));
    }
    Ok(found)
}

fn events(connection: &Connection, filter: &EventFilter, limit: u32) -> Result<Vec<Event>, Failure> {
    let of_run = if filter.run.is_some() { "run = ?3 AND " } else { "" };
    let sql = format!("SELECT {EVENT_COLUMNS} FROM events WHERE {of_run}seq > ?1 ORDER BY seq LIMIT ?2");
    let mut query = connection.prepare_cached(&sql)?;
    let (since, read) = (int(filter.since), |row: &rusqlite::Row<'_>| Ok(event_row!(row, get)));
    let rows = match &filter.run {
        None => query.query_map(params![since, limit], read)?,
        Some(run) => query.query_map(params![since, limit, run.as_str()], read)?,
    };
    rows.map(|row| Ok(row?.record()?)).collect()
}

fn touch(connection: &mut Connection, seen: &[(NodeId, SessionId)], at: i64) -> Result<Vec<bool>, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let touched = {
        let mut update = transaction.prepare_cached(
            "UPDATE presence SET seen_at = max(seen_at, ?3) WHERE node = ?1 AND session = ?2",
        )?;
        let touch = |(node, session): &(NodeId, SessionId)| update.execute(params![node.0, session.0, at]);
        seen.iter().map(touch).map(|touched| touched.map(|rows| rows == 1)).collect::<Result<_, _>>()?
    };
    transaction.commit()?;
    Ok(touched)
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        // Cheap: what is large in a change is shared, and the thread cannot borrow.
        let changes = changes.to_vec();
        let files = Arc::clone(&self.files);
        self.writer
            .run(move |connection| {
                files.are_there()?;
                commit::commit(connection, server, &changes)
            })
            .await
    }

    async fn health(&self) -> Result<(), Error> {
        let files = Arc::clone(&self.files);
        tokio::task::spawn_blocking(move || files.can_be_written())
            .await
            .map_err(|error| Error::Unavailable(format!("a look at the store was broken off: {error}")))?
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    async fn now(&self) -> Result<Option<Timestamp>, Error> {
        Ok(None)
    }

    async fn events(&self, filter: &EventFilter, limit: u32) -> Result<Vec<Event>, Error> {
        let filter = filter.clone();
        self.readers.run(move |connection| events(connection, &filter, limit)).await
    }

    async fn last_seq(&self) -> Result<u64, Error> {
        self.readers
            .run(|connection| {
                let last = connection
                    .prepare_cached("SELECT last_seq FROM feed")?
                    .query_row([], |row| row.get(0))?;
                Ok(count(last)?)
            })
            .await
    }

    async fn cluster(&self, name_or_id: &str) -> Result<Option<ClusterId>, Error> {
        let name = name_or_id.to_owned();
        let id = name_or_id.parse().ok().map(|id: ClusterId| id.0);
        self.readers
            .run(move |connection| {
                let mut query = connection.prepare_cached(
                    "SELECT id FROM clusters WHERE id = ?1 OR name = ?2 ORDER BY id = ?1 DESC LIMIT 1",
                )?;
                Ok(query.query_row(params![id, name], |row| row.get(0)).optional()?.map(ClusterId))
            })
            .await
    }

    async fn nodes(&self, cluster: Option<ClusterId>) -> Result<Vec<NodeRecord>, Error> {
        self.readers
            .run(move |connection| match cluster {
                Some(id) => nodes(connection, " WHERE n.cluster = ?1 ORDER BY n.hostname, n.id", [id.0]),
                None => nodes(connection, " ORDER BY n.hostname, n.id", []),
            })
            .await
    }

    async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>, Error> {
        self.readers.run(move |connection| Ok(nodes(connection, " WHERE n.id = ?1", [id.0])?.pop())).await
    }

    async fn tombstones(&self, node: Option<NodeId>) -> Result<Vec<Tombstone>, Error> {
        self.readers
            .run(move |connection| {
                let of_node = if node.is_some() { " WHERE node = ?1" } else { "" };
                let sql =
                    format!("SELECT {TOMBSTONE_COLUMNS} FROM tombstones{of_node} ORDER BY node, at, session");
                let mut query = connection.prepare_cached(&sql)?;
                let args = rusqlite::params_from_iter(node.map(|node| node.0));
                let rows = query.query_map(args, |row| Ok(tombstone_row!(row, get)))?;
                rows.map(|row| Ok(row?.record()?)).collect()
            })
            .await
    }

    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error> {
        let seen = seen.to_vec();
        self.writer.run(move |connection| touch(connection, &seen, at.as_microsecond())).await
    }

    async fn silent_nodes(&self, before: Timestamp) -> Result<Vec<NodeRecord>, Error> {
        let offline = NodeStatus::Offline.code();
        self.readers
            .run(move |connection| {
                let rest = " WHERE p.status <> ?1 AND p.seen_at < ?2 ORDER BY n.hostname, n.id";
                nodes(connection, rest, params![offline, before.as_microsecond()])
            })
            .await
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, Error> {
        let id = id.clone();
        self.readers
            .run(move |connection| Ok(runs(connection, " WHERE r.id = ?1", [id.as_str()])?.pop()))
            .await
    }

    async fn runs(&self, filter: &RunFilter, page: Page) -> Result<Listed<RunRecord>, Error> {
        let condition = Where::runs(filter);
        self.readers
            .run(move |connection| {
                let wanted = dialect(&condition.sql());
                let args = || rusqlite::params_from_iter(&condition.args);
                let rest = format!(
                    "{wanted} ORDER BY r.created_at DESC, r.id DESC LIMIT {} OFFSET {}",
                    page.limit,
                    int(page.offset)
                );
                let total = total(connection, &format!("runs r{wanted}"), args())?;
                Ok(Listed { rows: runs(connection, &rest, args())?, total })
            })
            .await
    }

    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>, Error> {
        let sql = "SELECT id, owner FROM runs WHERE state NOT IN (10, 11, 12) ORDER BY created_at, id";
        self.readers
            .run(move |connection| {
                let mut query = connection.prepare_cached(sql)?;
                let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
                rows.map(|row| row.map(|(run, owner)| (run.into(), ServerId(owner))).map_err(Into::into))
                    .collect()
            })
            .await
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>, Error> {
        let rest = " WHERE r.state NOT IN (10, 11, 12) ORDER BY r.created_at, r.id";
        self.readers.run(move |connection| runs(connection, rest, [])).await
    }

    async fn holds(&self) -> Result<Vec<(NodeId, RunId)>, Error> {
        self.readers
            .run(|connection| {
                let mut query = connection.prepare_cached(&format!("{HOLDS} ORDER BY h.node"))?;
                let rows = query.query_map([], commit::hold)?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    async fn uses(&self) -> Result<Vec<LimitUse>, Error> {
        self.readers
            .run(|connection| {
                let mut query = connection.prepare_cached(USES)?;
                let mut rows = query.query([])?;
                let mut uses = Vec::new();
                while let Some(row) = rows.next()? {
                    uses.push(commit::limit_use(row)?);
                }
                Ok(uses)
            })
            .await
    }

    async fn cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>, Error> {
        let keys = keys.to_vec();
        self.readers.run(move |connection| cached(connection, cluster, keys)).await
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>, Error> {
        self.readers.run(move |connection| Ok(executions(connection, " WHERE id = ?1", [id.0])?.pop())).await
    }

    async fn executions(&self, filter: &ExecutionFilter, page: Page) -> Result<Listed<Execution>, Error> {
        let condition = Where::executions(filter);
        self.readers
            .run(move |connection| {
                let wanted = dialect(&condition.sql());
                let args = || rusqlite::params_from_iter(&condition.args);
                let rest = format!("{wanted} ORDER BY id LIMIT {} OFFSET {}", page.limit, int(page.offset));
                let total = total(connection, &format!("executions{wanted}"), args())?;
                Ok(Listed { rows: executions(connection, &rest, args())?, total })
            })
            .await
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error> {
        let run = run.clone();
        self.readers
            .run(move |connection| executions(connection, " WHERE run = ?1 ORDER BY id", [run.as_str()]))
            .await
    }

    async fn open_executions(&self) -> Result<Vec<Execution>, Error> {
        self.readers.run(|connection| executions(connection, " WHERE status <= 2 ORDER BY id", [])).await
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>, Error> {
        let ids: BTreeSet<ExecutionId> = ids.iter().copied().collect();
        self.readers
            .run(move |connection| {
                let mut found = Vec::new();
                for id in ids {
                    found.extend(executions(connection, " WHERE id = ?1", [id.0])?);
                }
                Ok(found)
            })
            .await
    }

    async fn held_by(&self, node: NodeId) -> Result<Vec<Execution>, Error> {
        // The lower bound leaves out pending ones; the upper one lets the index of open executions answer.
        let rest = " WHERE lease_node = ?1 AND status <= 2 AND status >= 1 ORDER BY id";
        self.readers.run(move |connection| executions(connection, rest, [node.0])).await
    }

    async fn node_totals(&self, node: NodeId) -> Result<NodeTotals, Error> {
        self.readers.run(move |connection| node_totals(connection, node)).await
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Error> {
        let chunks = chunks.to_vec();
        self.writer.run(move |connection| output::append(connection, &chunks, keep_bytes)).await
    }

    async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Result<Vec<OutputChunk>, Error> {
        self.readers.run(move |connection| output::read(connection, execution, from, limit)).await
    }

    async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Result<Vec<OutputChunk>, Error> {
        self.readers.run(move |connection| output::read_tail(connection, execution, limit)).await
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<(), Error> {
        let server = server.clone();
        self.writer
            .run(move |connection| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                transaction.execute(
                    "DELETE FROM servers WHERE name = ?1 OR id = ?2",
                    params![server.name, server.id.0],
                )?;
                transaction.execute(
                    "INSERT INTO servers (id, name, http, grpc, version, started_at, seen_at, level) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![
                        server.id.0,
                        server.name,
                        server.http,
                        server.grpc,
                        server.version,
                        server.started_at.as_microsecond(),
                        server.seen_at.as_microsecond(),
                        server.level
                    ],
                )?;
                Ok(transaction.commit()?)
            })
            .await
    }

    async fn remove_server(&self, id: ServerId) -> Result<(), Error> {
        self.writer
            .run(move |connection| {
                connection.execute("DELETE FROM servers WHERE id = ?1", [id.0])?;
                Ok(())
            })
            .await
    }

    async fn servers(&self) -> Result<Vec<ServerRecord>, Error> {
        self.readers
            .run(|connection| {
                let mut query = connection.prepare_cached(
                    "SELECT id, name, http, grpc, version, started_at, seen_at, level FROM servers ORDER BY name",
                )?;
                let mut rows = query.query([])?;
                let mut servers = Vec::new();
                while let Some(row) = rows.next()? {
                    servers.push(ServerRecord {
                        id: ServerId(row.get(0)?),
                        name: row.get(1)?,
                        http: row.get(2)?,
                        grpc: row.get(3)?,
                        version: row.get(4)?,
                        started_at: time(row.get(5)?)?,
                        seen_at: time(row.get(6)?)?,
                        level: row.get(7)?,
                    });
                }
                Ok(servers)
            })
            .await
    }

    async fn tally(&self) -> Result<Tally, Error> {
        self.readers
            .run(|connection| {
                Ok(Tally {
                    runs: counts::<RunState>(connection, &format!("{OPEN_RUNS} {} ORDER BY 1", ended(2)))?,
                    executions: counts::<Status>(
                        connection,
                        &format!("{OPEN_EXECUTIONS} {} ORDER BY 1", ended(1)),
                    )?,
                    nodes: counts::<NodeStatus>(connection, NODE_COUNTS)?,
                })
            })
            .await
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64, Error> {
        prune::prune(&self.writer, before, most).await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
