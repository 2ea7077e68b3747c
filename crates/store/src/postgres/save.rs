//! Owns the second flight of a commit: every altered row once, each kind as one statement over arrays, then the
//! numbers, the events and COMMIT. Statements are sent without waiting; when one fails, PostgreSQL turns the COMMIT
//! that follows into a ROLLBACK, so the earlier answers are looked at first.

use std::borrow::Cow;

use deadpool_postgres::Object;
use downbeat_core::change::Change;
use downbeat_core::ids::ServerId;
use downbeat_core::state::{Tables, Verdicts};
use futures_util::future::join_all;
use futures_util::join;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::failure::Failure;
use super::news::NOTIFY;
use super::store::text;
use crate::batch::{Deleted, Dirty, Holds, Places};
use crate::rows::{
    Code, StateColumns, int, json, micros, params_column, problems_column, registration_column, small,
};

const REGISTER: &str = "INSERT INTO nodes (id, cluster, hostname, description, registration, problems) \
     SELECT u.id, u.cluster, u.hostname, u.description, u.registration, NULL \
     FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) \
     AS u (id, cluster, hostname, description, registration) \
     ON CONFLICT (id) DO UPDATE SET cluster = excluded.cluster, hostname = excluded.hostname, \
     description = excluded.description, registration = excluded.registration, problems = excluded.problems";
const APPEAR: &str = "INSERT INTO presence (node, session, status, draining, registered_at, seen_at) \
     SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::boolean[], $5::bigint[], $6::bigint[]) \
     ON CONFLICT (node) DO UPDATE SET session = excluded.session, status = excluded.status, \
     draining = excluded.draining, registered_at = excluded.registered_at, seen_at = excluded.seen_at";
const ALTER_NODES: &str = "UPDATE presence p SET status = u.status, draining = u.draining \
     FROM unnest($1::uuid[], $2::smallint[], $3::boolean[]) AS u (node, status, draining) WHERE p.node = u.node";
const SET_PROBLEMS: &str = "UPDATE nodes n SET problems = u.problems \
     FROM unnest($1::uuid[], $2::text[]) AS u (id, problems) WHERE n.id = u.id";
/// Of nodes that were registered in the same batch, their own cluster and hostname; of others, those that are stored. A
/// server from before, which knows no tombstones, may have let a session in again.
const BURY: &str = "INSERT INTO tombstones (node, session, cluster, hostname, at) \
     SELECT u.node, u.session, coalesce(u.cluster, n.cluster), coalesce(u.hostname, n.hostname), u.at \
     FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[]) \
     AS u (node, session, cluster, hostname, at) LEFT JOIN nodes n ON n.id = u.node \
     ON CONFLICT (node, session) DO UPDATE SET at = excluded.at";
/// Their presence goes with them.
const DELETE_NODES: &str = "DELETE FROM nodes WHERE id = ANY($1)";
const CREATE_RUNS: &str = "INSERT INTO runs (id, state, started_at, finished_at, partial, error, \
     cancel_requested_at, paused_at, admitted_at, owner, epoch, cluster, job, submitted_by, idempotency_key, \
     created_at, retry_of, no_cache) \
     SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[], \
     $7::bigint[], $8::bigint[], $9::bigint[], $10::uuid[], $11::bigint[], $12::uuid[], $13::text[], $14::text[], \
     $15::text[], $16::bigint[], $17::text[], $18::boolean[])";
const DEFINE_RUNS: &str = "INSERT INTO definitions (run, definition, resolved, params) \
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])";
const ALTER_RUNS: &str = "UPDATE runs r SET state = u.state, started_at = u.started_at, \
     finished_at = u.finished_at, partial = u.partial, error = u.error, \
     cancel_requested_at = u.cancel_requested_at, paused_at = u.paused_at, admitted_at = u.admitted_at, \
     owner = u.owner, epoch = u.epoch \
     FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[], $7::bigint[], \
     $8::bigint[], $9::bigint[], $10::uuid[], $11::bigint[]) AS u (id, state, started_at, finished_at, partial, \
     error, cancel_requested_at, paused_at, admitted_at, owner, epoch) WHERE r.id = u.id";
const ADD_EXECUTIONS: &str = "INSERT INTO executions (id, status, not_before, token, lease_node, session, \
     granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, \
     step, pinned, attempt, created_at, params, reused, item, limits, cache_key) \
     SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::uuid[], \
     $7::bigint[], $8::boolean[], $9::bigint[], $10::smallint[], $11::integer[], $12::text[], $13::bigint[], \
     $14::text[], $15::bigint[], $16::text[], $17::text[], $18::integer[], $19::uuid[], $20::integer[], \
     $21::bigint[], $22::text[], $23::uuid[], $24::integer[], $25::text[], $26::text[])";
const ALTER_EXECUTIONS: &str = "UPDATE executions e SET status = u.status, not_before = u.not_before, \
     token = u.token, lease_node = u.lease_node, session = u.session, granted_at = u.granted_at, stop = u.stop, \
     started_at = u.started_at, verdict = u.verdict, exit_code = u.exit_code, error = u.error, \
     finished_at = u.finished_at, reason = u.reason, ended_at = u.ended_at, outputs = u.outputs \
     FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], \
     $8::boolean[], $9::bigint[], $10::smallint[], $11::integer[], $12::text[], $13::bigint[], $14::text[], \
     $15::bigint[], $16::text[]) AS u (id, status, not_before, token, lease_node, session, granted_at, stop, \
     started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs) WHERE e.id = u.id";
const COUNT: &str = "INSERT INTO ended_lately (kind, code, total) \
     SELECT * FROM unnest($1::smallint[], $2::smallint[], $3::bigint[])";
/// Whoever has this lock, and nobody else, numbers events. It is let go by the commit.
const LOCK_NUMBERS: &str = "SELECT 1 FROM feed WHERE one = 1 FOR UPDATE";
/// A statement of its own, after the lock: it sees what the last committer wrote. `feed` knows the last number where
/// the events themselves are past retention.
const RECORD: &str = "WITH last AS (SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), \
     (SELECT max(seq) FROM events)) AS seq), \
     recorded AS (INSERT INTO events (seq, server, at, kind, run, data) \
     SELECT last.seq + u.place, $1::uuid, u.at, u.kind, u.run, u.data \
     FROM last, unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY \
     AS u (at, kind, run, data, place)) \
     SELECT seq FROM last";

type Text<'a> = Cow<'a, str>;
type Args<'a> = Vec<&'a (dyn ToSql + Sync)>;

const GIVE_BACK: &str = "DELETE FROM holds WHERE node = ANY($1)";
const TAKE: &str = "INSERT INTO holds (node, run) SELECT * FROM unnest($1::uuid[], $2::text[]) \
     ON CONFLICT (node) DO UPDATE SET run = excluded.run";

const TAKE_PLACES: &str = "INSERT INTO limit_uses (execution, key, cluster, granted_at, until) \
     SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::bigint[])";
const GIVE_PLACES_BACK: &str = "DELETE FROM limit_uses WHERE execution = ANY($1) AND until IS NULL";
/// Only by whoever has the lock of limits; who prunes passes over what is locked.
const FORGET_PLACES: &str = "DELETE FROM limit_uses WHERE (execution, key) IN \
     (SELECT execution, key FROM limit_uses WHERE until <= $1 ORDER BY until LIMIT $2)";
const CACHE: &str = "INSERT INTO cached (execution, cluster, cache_key, finished_at) \
     SELECT u.execution, r.cluster, u.cache_key, u.finished_at \
     FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS u (execution, run, cache_key, finished_at) \
     JOIN runs r ON r.id = u.run";

/// Writes and commits. Answers the number before the first event.
#[expect(clippy::too_many_arguments, reason = "all that one commit writes")]
pub(super) async fn save(
    client: &Object,
    server: ServerId,
    changes: &[Change],
    verdicts: &Verdicts,
    tables: &Tables,
    dirty: &Dirty<'_>,
    holds: &Holds<'_>,
    places: &Places,
    news: &str,
) -> Result<i64, Failure> {
    let registered = Registered::of(tables, dirty)?;
    let altered_nodes = AlteredNodes::of(tables, dirty);
    let buried = Buried::of(dirty);
    let complaining: Vec<Uuid> = dirty.node_problems.keys().map(|node| node.0).collect();
    let problems: Vec<Option<String>> =
        dirty.node_problems.values().map(|problems| problems_column(problems)).collect();
    let created = Created::of(tables, dirty)?;
    let altered_runs = Runs::of(tables, dirty.runs_altered.iter().copied());
    let added = Added::of(tables, dirty)?;
    let altered = Executions::of(tables, dirty.executions_altered.iter());
    let events = Events::of(changes, verdicts)?;
    let ended = dirty.ended(tables);
    let kinds: Vec<i16> = ended.iter().map(|ended| ended.kind).collect();
    let codes: Vec<i16> = ended.iter().map(|ended| ended.code).collect();
    let totals: Vec<i64> = ended.iter().map(|ended| ended.total).collect();

    let given_back: Vec<Uuid> = holds.given_back.iter().map(|node| node.0).collect();
    let taken: Vec<Uuid> = holds.taken.iter().map(|(node, _)| node.0).collect();
    let takers: Vec<_> = holds.taken.iter().map(|(_, run)| text(run.as_str())).collect();

    let cached = Cached::of(tables, dirty);
    let given_places: Vec<Uuid> = places.given_back.iter().map(|execution| execution.0).collect();
    let taken_places = Taken::of(places);
    let (over_at, most_over) = (micros(places.over_at), places.most_over());

    let mut flight: Vec<(&str, Args<'_>)> = Vec::new();
    if !buried.node.is_empty() {
        flight.push((BURY, buried.args().into()));
        flight.push((DELETE_NODES, vec![&buried.node]));
    }
    if !registered.id.is_empty() {
        flight.push((REGISTER, registered.descriptions().into()));
        flight.push((APPEAR, registered.presences().into()));
    }
    if !altered_nodes.node.is_empty() {
        flight.push((ALTER_NODES, altered_nodes.args().into()));
    }
    if !complaining.is_empty() {
        flight.push((SET_PROBLEMS, vec![&complaining, &problems]));
    }
    if !created.runs.id.is_empty() {
        flight.push((CREATE_RUNS, created.runs.args().into_iter().chain(created.args()).collect()));
        flight.push((DEFINE_RUNS, created.definitions().into()));
    }
    if !altered_runs.id.is_empty() {
        flight.push((ALTER_RUNS, altered_runs.args().into()));
    }
    if !added.executions.id.is_empty() {
        flight.push((ADD_EXECUTIONS, added.executions.args().into_iter().chain(added.args()).collect()));
    }
    if !altered.id.is_empty() {
        flight.push((ALTER_EXECUTIONS, altered.args().into()));
    }
    if !given_back.is_empty() {
        flight.push((GIVE_BACK, vec![&given_back]));
    }
    if !taken.is_empty() {
        flight.push((TAKE, vec![&taken, &takers]));
    }
    if !cached.execution.is_empty() {
        flight.push((CACHE, cached.args().into()));
    }
    if !given_places.is_empty() {
        flight.push((GIVE_PLACES_BACK, vec![&given_places]));
    }
    if !taken_places.execution.is_empty() {
        flight.push((TAKE_PLACES, taken_places.args().into()));
    }
    if over_at.is_some() {
        flight.push((FORGET_PLACES, vec![&over_at, &most_over]));
    }
    if !ended.is_empty() {
        flight.push((COUNT, vec![&kinds, &codes, &totals]));
    }
    let mut statements = Vec::with_capacity(flight.len());
    for (sql, args) in flight {
        statements.push((client.prepare_cached(sql).await?, args));
    }
    let lock_numbers = client.prepare_cached(LOCK_NUMBERS).await?;
    let record = client.prepare_cached(RECORD).await?;
    let record_args: Args<'_> = vec![&server.0, &events.at, &events.kind, &events.run, &events.data];

    let notify = client.prepare_cached(NOTIFY).await?;
    let notify_args: Args<'_> = vec![&news];

    let writes = join_all(statements.iter().map(|(statement, args)| client.execute(statement, args)));
    let (written, locked, recorded, notified, committed) = join!(
        writes,
        client.execute(&lock_numbers, &[]),
        client.query_one(&record, &record_args),
        client.execute(&notify, &notify_args),
        client.batch_execute("COMMIT"),
    );
    for answer in written {
        answer?;
    }
    locked?;
    let recorded = recorded?;
    notified?;
    committed?;
    Ok(recorded.try_get(0)?)
}

#[derive(Default)]
struct Registered<'a> {
    id: Vec<Uuid>,
    cluster: Vec<Uuid>,
    hostname: Vec<Text<'a>>,
    description: Vec<String>,
    registration: Vec<Option<String>>,
    session: Vec<Uuid>,
    status: Vec<i16>,
    draining: Vec<bool>,
    registered_at: Vec<i64>,
    seen_at: Vec<i64>,
}

impl<'a> Registered<'a> {
    fn of(tables: &Tables, dirty: &Dirty<'a>) -> Result<Self, Failure> {
        let mut columns = Self::default();
        for (id, registration) in &dirty.nodes_registered {
            let live = &tables.nodes[id];
            columns.id.push(id.0);
            columns.cluster.push(registration.cluster.0);
            columns.hostname.push(text(&registration.description.hostname));
            columns.description.push(json(&registration.description)?);
            columns.registration.push(registration_column(registration)?);
            columns.session.push(live.session.0);
            columns.status.push(live.status.code());
            columns.draining.push(live.draining);
            columns.registered_at.push(live.registered_at.as_microsecond());
            columns.seen_at.push(live.seen_at.as_microsecond());
        }
        Ok(columns)
    }

    fn descriptions(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.id, &self.cluster, &self.hostname, &self.description, &self.registration]
    }

    fn presences(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.id, &self.session, &self.status, &self.draining, &self.registered_at, &self.seen_at]
    }
}

#[derive(Default)]
struct Buried<'a> {
    node: Vec<Uuid>,
    session: Vec<Uuid>,
    cluster: Vec<Option<Uuid>>,
    hostname: Vec<Option<Text<'a>>>,
    at: Vec<i64>,
}

impl<'a> Buried<'a> {
    fn of(dirty: &Dirty<'a>) -> Self {
        let mut columns = Self::default();
        for Deleted { node, session, at, registration } in &dirty.nodes_deleted {
            columns.node.push(node.0);
            columns.session.push(session.0);
            columns.cluster.push(registration.map(|registration| registration.cluster.0));
            columns.hostname.push(registration.map(|registration| text(&registration.description.hostname)));
            columns.at.push(at.as_microsecond());
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.node, &self.session, &self.cluster, &self.hostname, &self.at]
    }
}

#[derive(Default)]
struct AlteredNodes {
    node: Vec<Uuid>,
    status: Vec<i16>,
    draining: Vec<bool>,
}

impl AlteredNodes {
    fn of(tables: &Tables, dirty: &Dirty<'_>) -> Self {
        let mut columns = Self::default();
        for id in &dirty.nodes_altered {
            let live = &tables.nodes[id];
            columns.node.push(id.0);
            columns.status.push(live.status.code());
            columns.draining.push(live.draining);
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.node, &self.status, &self.draining]
    }
}

#[derive(Default)]
struct Runs<'a> {
    id: Vec<Text<'a>>,
    state: Vec<i16>,
    started_at: Vec<Option<i64>>,
    finished_at: Vec<Option<i64>>,
    partial: Vec<Option<bool>>,
    error: Vec<Option<Text<'a>>>,
    cancel_requested_at: Vec<Option<i64>>,
    paused_at: Vec<Option<i64>>,
    admitted_at: Vec<Option<i64>>,
    owner: Vec<Uuid>,
    epoch: Vec<i64>,
}

impl<'a> Runs<'a> {
    fn of(tables: &'a Tables, ids: impl Iterator<Item = &'a downbeat_core::ids::RunId>) -> Self {
        let mut columns = Self::default();
        for id in ids {
            let live = &tables.runs[id];
            columns.id.push(text(id.as_str()));
            columns.state.push(live.state.code());
            columns.started_at.push(micros(live.started_at));
            columns.finished_at.push(micros(live.finished_at));
            columns.partial.push(live.end.as_ref().map(|end| end.partial));
            columns.error.push(live.end.as_ref().and_then(|end| end.error.as_deref()).map(text));
            columns.cancel_requested_at.push(micros(live.cancel_requested_at));
            columns.paused_at.push(micros(live.paused_at));
            columns.admitted_at.push(micros(live.admitted_at));
            columns.owner.push(live.owner.0);
            columns.epoch.push(int(live.epoch));
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.id,
            &self.state,
            &self.started_at,
            &self.finished_at,
            &self.partial,
            &self.error,
            &self.cancel_requested_at,
            &self.paused_at,
            &self.admitted_at,
            &self.owner,
            &self.epoch,
        ]
    }
}

struct Created<'a> {
    runs: Runs<'a>,
    cluster: Vec<Uuid>,
    job: Vec<Option<Text<'a>>>,
    by: Vec<Text<'a>>,
    key: Vec<Option<Text<'a>>>,
    created_at: Vec<i64>,
    retry_of: Vec<Option<Text<'a>>>,
    no_cache: Vec<bool>,
    definition: Vec<String>,
    resolved: Vec<String>,
    params: Vec<Option<String>>,
}

impl<'a> Created<'a> {
    fn of(tables: &'a Tables, dirty: &Dirty<'a>) -> Result<Self, Failure> {
        let records = || dirty.runs_created.values();
        Ok(Self {
            runs: Runs::of(tables, dirty.runs_created.keys().copied()),
            cluster: records().map(|run| run.cluster.0).collect(),
            job: records().map(|run| run.job.as_deref().map(text)).collect(),
            by: records().map(|run| text(&run.by)).collect(),
            key: records().map(|run| run.idempotency_key.as_deref().map(text)).collect(),
            created_at: records().map(|run| run.created_at.as_microsecond()).collect(),
            retry_of: records().map(|run| run.retry_of.as_ref().map(|run| text(run.as_str()))).collect(),
            no_cache: records().map(|run| run.no_cache).collect(),
            definition: records().map(|run| json(&run.definition)).collect::<Result<_, _>>()?,
            resolved: records().map(|run| json(&run.resolved)).collect::<Result<_, _>>()?,
            params: records().map(|run| params_column(&run.params)).collect(),
        })
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 7] {
        [&self.cluster, &self.job, &self.by, &self.key, &self.created_at, &self.retry_of, &self.no_cache]
    }

    fn definitions(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.runs.id, &self.definition, &self.resolved, &self.params]
    }
}

#[derive(Default)]
struct Executions<'a> {
    id: Vec<Uuid>,
    status: Vec<i16>,
    not_before: Vec<Option<i64>>,
    token: Vec<Option<Uuid>>,
    lease_node: Vec<Option<Uuid>>,
    session: Vec<Option<Uuid>>,
    granted_at: Vec<Option<i64>>,
    stop: Vec<bool>,
    started_at: Vec<Option<i64>>,
    verdict: Vec<Option<i16>>,
    exit_code: Vec<Option<i32>>,
    error: Vec<Option<Text<'a>>>,
    finished_at: Vec<Option<i64>>,
    reason: Vec<Option<Text<'a>>>,
    ended_at: Vec<Option<i64>>,
    outputs: Vec<Option<String>>,
}

impl<'a> Executions<'a> {
    fn of<'b>(tables: &'a Tables, ids: impl Iterator<Item = &'b downbeat_core::ids::ExecutionId>) -> Self {
        let mut columns = Self::default();
        for id in ids {
            let state = StateColumns::of(&tables.executions[id].state);
            columns.id.push(id.0);
            columns.status.push(state.status);
            columns.not_before.push(state.not_before);
            columns.token.push(state.token);
            columns.lease_node.push(state.lease_node);
            columns.session.push(state.session);
            columns.granted_at.push(state.granted_at);
            columns.stop.push(state.stop);
            columns.started_at.push(state.started_at);
            columns.verdict.push(state.verdict);
            columns.exit_code.push(state.exit_code);
            columns.error.push(state.error.map(text));
            columns.finished_at.push(state.finished_at);
            columns.reason.push(state.reason.map(text));
            columns.ended_at.push(state.ended_at);
            columns.outputs.push(state.outputs);
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.id,
            &self.status,
            &self.not_before,
            &self.token,
            &self.lease_node,
            &self.session,
            &self.granted_at,
            &self.stop,
            &self.started_at,
            &self.verdict,
            &self.exit_code,
            &self.error,
            &self.finished_at,
            &self.reason,
            &self.ended_at,
            &self.outputs,
        ]
    }
}

struct Added<'a> {
    executions: Executions<'a>,
    run: Vec<Text<'a>>,
    step: Vec<i32>,
    pinned: Vec<Option<Uuid>>,
    attempt: Vec<i32>,
    created_at: Vec<i64>,
    params: Vec<Option<String>>,
    reused: Vec<Option<Uuid>>,
    item: Vec<Option<i32>>,
    limits: Vec<Option<String>>,
    cache_key: Vec<Option<Text<'a>>>,
}

impl<'a> Added<'a> {
    fn of(tables: &'a Tables, dirty: &Dirty<'_>) -> Result<Self, Failure> {
        let records = || dirty.executions_added.iter().map(|id| &tables.executions[id]);
        Ok(Self {
            executions: Executions::of(tables, dirty.executions_added.iter()),
            run: records().map(|execution| text(execution.run().as_str())).collect(),
            step: records().map(|execution| small(execution.step())).collect(),
            pinned: records().map(|execution| execution.pinned.map(|node| node.0)).collect(),
            attempt: records().map(|execution| small(execution.attempt)).collect(),
            created_at: records().map(|execution| execution.created_at.as_microsecond()).collect(),
            params: records()
                .map(|execution| execution.params.as_deref().map(json).transpose())
                .collect::<Result<_, _>>()?,
            reused: records().map(|execution| execution.reused.map(|reused| reused.0)).collect(),
            item: records().map(|execution| execution.item().map(small)).collect(),
            limits: records()
                .map(|execution| execution.limits.as_deref().map(json).transpose())
                .collect::<Result<_, _>>()?,
            cache_key: records().map(|execution| execution.cache_key.as_deref().map(text)).collect(),
        })
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.run,
            &self.step,
            &self.pinned,
            &self.attempt,
            &self.created_at,
            &self.params,
            &self.reused,
            &self.item,
            &self.limits,
            &self.cache_key,
        ]
    }
}

/// Results that may be used again.
#[derive(Default)]
struct Cached<'a> {
    execution: Vec<Uuid>,
    run: Vec<Text<'a>>,
    key: Vec<Text<'a>>,
    finished_at: Vec<i64>,
}

impl<'a> Cached<'a> {
    fn of(tables: &'a Tables, dirty: &Dirty<'_>) -> Self {
        let mut columns = Self::default();
        for (execution, key, finished_at) in dirty.cached(tables) {
            columns.execution.push(execution.id.0);
            columns.run.push(text(execution.run().as_str()));
            columns.key.push(text(key));
            columns.finished_at.push(finished_at.as_microsecond());
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.execution, &self.run, &self.key, &self.finished_at]
    }
}

/// Places of limits.
#[derive(Default)]
struct Taken<'a> {
    execution: Vec<Uuid>,
    key: Vec<Text<'a>>,
    cluster: Vec<Uuid>,
    granted_at: Vec<i64>,
    until: Vec<Option<i64>>,
}

impl<'a> Taken<'a> {
    fn of(places: &'a Places) -> Self {
        let mut columns = Self::default();
        for taken in &places.taken {
            columns.execution.push(taken.execution.0);
            columns.key.push(text(&taken.key));
            columns.cluster.push(taken.cluster.0);
            columns.granted_at.push(taken.granted_at.as_microsecond());
            columns.until.push(micros(taken.until));
        }
        columns
    }

    fn args(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.execution, &self.key, &self.cluster, &self.granted_at, &self.until]
    }
}

struct Events<'a> {
    at: Vec<i64>,
    kind: Vec<&'a str>,
    run: Vec<Option<Text<'a>>>,
    data: Vec<String>,
}

impl<'a> Events<'a> {
    fn of(changes: &'a [Change], verdicts: &Verdicts) -> Result<Self, Failure> {
        let applied = || verdicts.applied.iter().map(|&place| &changes[place]);
        Ok(Self {
            at: applied().map(|change| change.at().as_microsecond()).collect(),
            kind: applied().map(Change::kind).collect(),
            run: applied().map(|change| change.run().map(|run| text(run.as_str()))).collect(),
            data: applied().map(json).collect::<Result<_, _>>()?,
        })
    }
}
