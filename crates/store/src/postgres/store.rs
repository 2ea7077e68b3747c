//! Owns the port on PostgreSQL: which statement answers which question. Commits are `commit`'s.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use downbeat_core::change::{Change, Event};
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::state::LimitUse;
use jiff::Timestamp;
use tokio::sync::broadcast;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Config, Row};
use uuid::Uuid;

use super::connect::{self, Use};
use super::failure::Failure;
use super::news::{Listener, NOTIFY};
use super::{commit, output, prune};
use crate::filter::{Arg, HOLDS, NODE_COUNTS, NODE_TOTALS, OPEN_EXECUTIONS, OPEN_RUNS, USES, Where};
use crate::port::{
    Committed, Error, EventFilter, ExecutionFilter, Listed, News, NodeTotals, OutputChunk, Page, RunFilter,
    ServerRecord, Store, Tally,
};
use crate::rows::{
    Code, EVENT_COLUMNS, EXECUTION_COLUMNS, NODE_COLUMNS, RUN_COLUMNS, TOMBSTONE_COLUMNS, count, event_row,
    execution_row, int, node_row, run_row, small, small_count, time, tombstone_row,
};

/// Queries, heartbeats and output at once.
const CONNECTIONS: usize = 4;

/// The events say it, and where none is left the row that remembers it.
pub(super) const LAST_SEQ: &str =
    "SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), (SELECT max(seq) FROM events))";

type Args<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The store for many servers.
pub struct PostgresStore {
    /// One connection: batches are committed one after the other.
    commits: Pool,
    pub(super) queries: Pool,
    config: Config,
    listener: Listener,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration knows a password.
        f.debug_struct("PostgresStore").field("database", &self.config.get_dbname()).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, and brings the database's schema up to date.
    pub async fn open(location: &str) -> Result<Self, Error> {
        let target = connect::target(location)?;
        let commits = connect::pool(&target, Use::Commits, 1)?;
        let queries = connect::pool(&target, Use::Queries, CONNECTIONS)?;
        let mut client = queries.get().await.map_err(Failure::from)?;
        connect::migrate(&mut client).await?;
        drop(client);
        let listener = Listener::start(target.clone());
        Ok(Self { commits, queries, config: target.config, listener })
    }

    pub(super) async fn rows(&self, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Failure> {
        let client = self.queries.get().await?;
        connect::answered(client, async |client: &mut Object| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, args).await?)
        })
        .await
    }

    async fn executions_where(&self, rest: &str, args: Args<'_>) -> Result<Vec<Execution>, Failure> {
        let rows = self.rows(&format!("SELECT {EXECUTION_COLUMNS} FROM executions{rest}"), args).await?;
        rows.into_iter().map(|row| Ok(execution_row!(row, try_get).record()?)).collect()
    }

    async fn runs_where(&self, rest: &str, args: Args<'_>) -> Result<Vec<RunRecord>, Failure> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM runs r JOIN definitions d ON d.run = r.id{rest}");
        let rows = self.rows(&sql, args).await?;
        rows.into_iter().map(|row| Ok(run_row!(row, try_get).record()?)).collect()
    }

    async fn nodes_where(&self, rest: &str, args: Args<'_>) -> Result<Vec<NodeRecord>, Failure> {
        let sql = format!("SELECT {NODE_COLUMNS} FROM presence p JOIN nodes n ON n.id = p.node{rest}");
        let rows = self.rows(&sql, args).await?;
        rows.into_iter().map(|row| Ok(node_row!(row, try_get).record()?)).collect()
    }

    async fn total(&self, from: &str, args: Args<'_>) -> Result<u64, Failure> {
        let rows = self.rows(&format!("SELECT count(*) FROM {from}"), args).await?;
        Ok(count(rows.first().map_or(Ok(0), |row| row.try_get(0))?)?)
    }

    async fn counts<C: Code>(&self, sql: &str) -> Result<Vec<(C, u64)>, Failure> {
        let rows = self.rows(sql, &[]).await?;
        rows.into_iter().map(|row| Ok((C::decode(row.try_get(0)?)?, count(row.try_get(1)?)?))).collect()
    }
}

/// What has ended of a kind: counted before, and since.
fn ended(kind: u8) -> String {
    format!(
        "UNION ALL SELECT code, sum(total)::bigint FROM (SELECT code, total FROM ended WHERE kind = {kind} \
         UNION ALL SELECT code, total FROM ended_lately WHERE kind = {kind}) e GROUP BY code HAVING sum(total) > 0"
    )
}

/// PostgreSQL's text holds no NUL. One that came with an agent's error must not fail the batch of everybody else.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

impl ToSql for Arg {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Arg::Id(id) => id.to_sql(kind, out),
            Arg::Text(value) => text(value).to_sql(kind, out),
            Arg::Step(step) => step.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        Uuid::accepts(kind) || <&str>::accepts(kind) || i32::accepts(kind)
    }

    to_sql_checked!();
}

fn args(condition: &Where) -> Vec<&(dyn ToSql + Sync)> {
    condition.args.iter().map(|arg| arg as &(dyn ToSql + Sync)).collect()
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.listener.subscribe()
    }

    async fn now(&self) -> Result<Option<Timestamp>, Error> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = self.rows(sql, &[]).await?;
        rows.first().map(|row| time(row.try_get(0).map_err(Failure::from)?)).transpose()
    }

    async fn health(&self) -> Result<(), Error> {
        let rows = self.rows("SHOW transaction_read_only", &[]).await?;
        let read_only = match rows.first() {
            Some(row) => row.try_get::<_, String>(0).map_err(Failure::from)? == "on",
            None => false,
        };
        if read_only {
            return Err(Error::Unavailable("PostgreSQL is read-only: is it a standby?".to_owned()));
        }
        Ok(())
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        // A task of its own: a caller that goes away must not leave a transaction open half-way.
        let (pool, changes) = (self.commits.clone(), changes.to_vec());
        let news = self.listener.payload(&News::Events);
        tokio::spawn(async move { commit::commit(&pool, server, &changes, &news).await })
            .await
            .map_err(|error| Error::Unavailable(format!("a commit was broken off: {error}")))?
    }

    async fn events(&self, filter: &EventFilter, limit: u32) -> Result<Vec<Event>, Error> {
        let (since, limit) = (int(filter.since), i64::from(limit));
        let rows = match &filter.run {
            None => {
                let sql = format!("SELECT {EVENT_COLUMNS} FROM events WHERE seq > $1 ORDER BY seq LIMIT $2");
                self.rows(&sql, &[&since, &limit]).await?
            }
            Some(run) => {
                let sql = format!(
                    "SELECT {EVENT_COLUMNS} FROM events WHERE run = $3 AND seq > $1 ORDER BY seq LIMIT $2"
                );
                self.rows(&sql, &[&since, &limit, &text(run.as_str())]).await?
            }
        };
        let event = |row: Row| -> Result<Event, Failure> { Ok(event_row!(row, try_get).record()?) };
        Ok(rows.into_iter().map(event).collect::<Result<_, _>>()?)
    }

    async fn last_seq(&self) -> Result<u64, Error> {
        let rows = self.rows(LAST_SEQ, &[]).await?;
        count(rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(Failure::from)?)
    }

    async fn cluster(&self, name_or_id: &str) -> Result<Option<ClusterId>, Error> {
        let id: Option<Uuid> = name_or_id.parse().ok();
        let sql =
            "SELECT id FROM clusters WHERE id = $1 OR name = $2 ORDER BY (id = $1) IS TRUE DESC LIMIT 1";
        let rows = self.rows(sql, &[&id, &text(name_or_id)]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose().map_err(Failure::from)?.map(ClusterId))
    }

    async fn nodes(&self, cluster: Option<ClusterId>) -> Result<Vec<NodeRecord>, Error> {
        Ok(match cluster {
            Some(id) => self.nodes_where(" WHERE n.cluster = $1 ORDER BY n.hostname, n.id", &[&id.0]).await?,
            None => self.nodes_where(" ORDER BY n.hostname, n.id", &[]).await?,
        })
    }

    async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>, Error> {
        Ok(self.nodes_where(" WHERE n.id = $1", &[&id.0]).await?.pop())
    }

    async fn tombstones(&self, node: Option<NodeId>) -> Result<Vec<Tombstone>, Error> {
        let order = "ORDER BY node, at, session";
        let rows = match node {
            Some(node) => {
                let sql = format!("SELECT {TOMBSTONE_COLUMNS} FROM tombstones WHERE node = $1 {order}");
                self.rows(&sql, &[&node.0]).await?
            }
            None => self.rows(&format!("SELECT {TOMBSTONE_COLUMNS} FROM tombstones {order}"), &[]).await?,
        };
        let read = |row: &Row| -> Result<Tombstone, Failure> { Ok(tombstone_row!(row, try_get).record()?) };
        Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
    }

    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error> {
        // Locked in the order of ids, as commits do.
        let sql = "WITH seen AS (SELECT p.node, p.session FROM presence p \
                   WHERE (p.node, p.session) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])) \
                   ORDER BY p.node FOR UPDATE) \
                   UPDATE presence p SET seen_at = greatest(p.seen_at, $3) FROM seen WHERE p.node = seen.node \
                   RETURNING p.node, p.session";
        let nodes: Vec<Uuid> = seen.iter().map(|(node, _)| node.0).collect();
        let sessions: Vec<Uuid> = seen.iter().map(|(_, session)| session.0).collect();
        let rows = self.rows(sql, &[&nodes, &sessions, &at.as_microsecond()]).await?;
        let touched: Result<std::collections::HashSet<(NodeId, SessionId)>, tokio_postgres::Error> =
            rows.iter().map(|row| Ok((NodeId(row.try_get(0)?), SessionId(row.try_get(1)?)))).collect();
        let touched = touched.map_err(Failure::from)?;
        Ok(seen.iter().map(|one| touched.contains(one)).collect())
    }

    async fn silent_nodes(&self, before: Timestamp) -> Result<Vec<NodeRecord>, Error> {
        let rest = " WHERE p.status <> $1 AND p.seen_at < $2 ORDER BY n.hostname, n.id";
        Ok(self.nodes_where(rest, &[&NodeStatus::Offline.code(), &before.as_microsecond()]).await?)
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, Error> {
        Ok(self.runs_where(" WHERE r.id = $1", &[&text(id.as_str())]).await?.pop())
    }

    async fn runs(&self, filter: &RunFilter, page: Page) -> Result<Listed<RunRecord>, Error> {
        let condition = Where::runs(filter);
        let (wanted, args) = (condition.sql(), args(&condition));
        let (limit, offset) = (page.limit, int(page.offset));
        let rest = format!("{wanted} ORDER BY r.created_at DESC, r.id DESC LIMIT {limit} OFFSET {offset}");
        let total = self.total(&format!("runs r{wanted}"), &args).await?;
        Ok(Listed { rows: self.runs_where(&rest, &args).await?, total })
    }

    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>, Error> {
        let sql = "SELECT id, owner FROM runs WHERE state NOT IN (10, 11, 12) ORDER BY created_at, id";
        let rows = self.rows(sql, &[]).await?;
        let owner = |row: &Row| Ok((row.try_get::<_, String>(0)?.into(), ServerId(row.try_get(1)?)));
        Ok(rows.iter().map(owner).collect::<Result<_, Failure>>()?)
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>, Error> {
        Ok(self.runs_where(" WHERE r.state NOT IN (10, 11, 12) ORDER BY r.created_at, r.id", &[]).await?)
    }

    async fn holds(&self) -> Result<Vec<(NodeId, RunId)>, Error> {
        let rows = self.rows(&format!("{HOLDS} ORDER BY h.node"), &[]).await?;
        Ok(rows.iter().map(commit::hold).collect::<Result<_, _>>()?)
    }

    async fn uses(&self) -> Result<Vec<LimitUse>, Error> {
        let rows = self.rows(USES, &[]).await?;
        Ok(rows.iter().map(commit::limit_use).collect::<Result<_, _>>()?)
    }

    async fn cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>, Error> {
        let rest = " WHERE id IN (SELECT n.execution FROM unnest($2::text[]) AS k (cache_key) CROSS JOIN LATERAL \
                    (SELECT c.execution FROM cached c JOIN executions e ON e.id = c.execution \
                    WHERE c.cluster = $1 AND c.cache_key = k.cache_key \
                    ORDER BY c.finished_at DESC, c.execution DESC LIMIT 1) n)";
        let keys: Vec<_> = keys.iter().map(|key| text(key)).collect();
        let found = self.executions_where(rest, &[&cluster.0, &keys]).await?;
        Ok(found.into_iter().filter_map(|each| Some((each.cache_key.clone()?, each))).collect())
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>, Error> {
        Ok(self.executions_where(" WHERE id = $1", &[&id.0]).await?.pop())
    }

    async fn executions(&self, filter: &ExecutionFilter, page: Page) -> Result<Listed<Execution>, Error> {
        let condition = Where::executions(filter);
        let (wanted, args) = (condition.sql(), args(&condition));
        let rest = format!("{wanted} ORDER BY id LIMIT {} OFFSET {}", page.limit, int(page.offset));
        let total = self.total(&format!("executions{wanted}"), &args).await?;
        Ok(Listed { rows: self.executions_where(&rest, &args).await?, total })
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>, Error> {
        Ok(self.executions_where(" WHERE run = $1 ORDER BY id", &[&text(run.as_str())]).await?)
    }

    async fn open_executions(&self) -> Result<Vec<Execution>, Error> {
        Ok(self.executions_where(" WHERE status <= 2 ORDER BY id", &[]).await?)
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>, Error> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        Ok(self.executions_where(" WHERE id = ANY($1) ORDER BY id", &[&ids]).await?)
    }

    async fn held_by(&self, node: NodeId) -> Result<Vec<Execution>, Error> {
        let rest = " WHERE lease_node = $1 AND status <= 2 AND status >= 1 ORDER BY id";
        Ok(self.executions_where(rest, &[&node.0]).await?)
    }

    async fn node_totals(&self, node: NodeId) -> Result<NodeTotals, Error> {
        let mut totals = NodeTotals::default();
        for row in self.rows(NODE_TOTALS, &[&node.0]).await? {
            let read = || Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
            let (status, total, claimed_at, finished_at) = read().map_err(|error: Failure| error)?;
            totals.add(status, total, claimed_at, finished_at)?;
        }
        Ok(totals)
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Error> {
        let executions: BTreeSet<ExecutionId> = chunks.iter().map(|chunk| chunk.execution).collect();
        let news = self.listener.payload(&News::Output(executions.into_iter().collect()));
        Ok(output::append(&self.queries, chunks, keep_bytes, &news).await?)
    }

    async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Result<Vec<OutputChunk>, Error> {
        Ok(output::read(&self.queries, execution, from, limit).await?)
    }

    async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Result<Vec<OutputChunk>, Error> {
        Ok(output::read_tail(&self.queries, execution, limit).await?)
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<(), Error> {
        let put = async {
            let client = self.queries.get().await?;
            connect::answered(client, async |client: &mut Object| {
                let transaction = client.transaction().await?;
                let remove = "DELETE FROM servers WHERE name = $1 OR id = $2";
                transaction.execute(remove, &[&text(&server.name), &server.id.0]).await?;
                transaction
                    .execute(
                        "INSERT INTO servers (id, name, http, grpc, version, started_at, seen_at, level) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
                     ON CONFLICT (name) DO UPDATE SET id = excluded.id, http = excluded.http, \
                     grpc = excluded.grpc, version = excluded.version, started_at = excluded.started_at, \
                     seen_at = excluded.seen_at, level = excluded.level",
                        &[
                            &server.id.0,
                            &text(&server.name),
                            &text(&server.http),
                            &text(&server.grpc),
                            &text(&server.version),
                            &server.started_at.as_microsecond(),
                            &server.seen_at.as_microsecond(),
                            &small(server.level),
                        ],
                    )
                    .await?;
                Ok(transaction.commit().await?)
            })
            .await
        };
        Ok(put.await?)
    }

    async fn remove_server(&self, id: ServerId) -> Result<(), Error> {
        self.rows("DELETE FROM servers WHERE id = $1", &[&id.0]).await?;
        self.rows(NOTIFY, &[&self.listener.payload(&News::Servers)]).await?;
        Ok(())
    }

    async fn servers(&self) -> Result<Vec<ServerRecord>, Error> {
        let sql =
            "SELECT id, name, http, grpc, version, started_at, seen_at, level FROM servers ORDER BY name";
        let server = |row: Row| -> Result<ServerRecord, Failure> {
            Ok(ServerRecord {
                id: ServerId(row.try_get(0)?),
                name: row.try_get(1)?,
                http: row.try_get(2)?,
                grpc: row.try_get(3)?,
                version: row.try_get(4)?,
                started_at: time(row.try_get(5)?)?,
                seen_at: time(row.try_get(6)?)?,
                level: small_count(row.try_get(7)?)?,
            })
        };
        Ok(self.rows(sql, &[]).await?.into_iter().map(server).collect::<Result<_, _>>()?)
    }

    async fn tally(&self) -> Result<Tally, Error> {
        Ok(Tally {
            runs: self.counts::<RunState>(&format!("{OPEN_RUNS} {} ORDER BY 1", ended(2))).await?,
            executions: self.counts::<Status>(&format!("{OPEN_EXECUTIONS} {} ORDER BY 1", ended(1))).await?,
            nodes: self.counts::<NodeStatus>(NODE_COUNTS).await?,
        })
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64, Error> {
        Ok(prune::prune(&self.queries, before, most).await?)
    }

    async fn close(&self) {
        // Whoever has the connection gives it back when its batch is committed.
        let under_way = self.commits.get().await;
        self.commits.close();
        self.queries.close();
        drop(under_way);
    }
}
