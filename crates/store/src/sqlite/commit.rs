//! Owns a commit on SQLite: loads the rows that the batch looks at, lets `tables` decide, and writes each altered row
//! once, with the events, in one transaction.

use downbeat_core::change::Change;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::state::{Counted, LimitUse, Tables, Verdicts};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::failure::Failure;
use crate::batch::{Asked, Deleted, Dirty, Ended, Holds, Needs, NewIds, Places};
use crate::filter::{COUNT_AT_ONCE, HOLDS};
use crate::port::{Committed, Error};
use crate::rows::{
    Code, EXECUTION_COLUMNS, NODE_LIVE_COLUMNS, RUN_LIVE_COLUMNS, StateColumns, count, execution_row, int,
    json, micros, node_live_row, params_column, problems_column, registration_column, run_live_row, small,
    time, time_opt,
};

pub(crate) fn commit(
    connection: &mut Connection,
    server: ServerId,
    changes: &[Change],
) -> Result<Committed, Failure> {
    match attempt(connection, server, changes, NewIds::Trusted) {
        // An execution that exists already: look before the next leap.
        Err(failure) if failure.is_violated_key() => attempt(connection, server, changes, NewIds::Checked),
        result => result,
    }
}

fn attempt(
    connection: &mut Connection,
    server: ServerId,
    changes: &[Change],
    new_ids: NewIds,
) -> Result<Committed, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut tables = load(&transaction, &Needs::of(changes, new_ids))?;
    count_uses(&transaction, changes, &mut tables)?;
    let held = tables.holds.clone();
    let verdicts = tables.apply_all(changes);
    if verdicts.applied.is_empty() {
        return Ok(Committed { seqs: verdicts.seqs(0), outcomes: verdicts.outcomes });
    }
    let dirty = Dirty::of(changes, &verdicts.applied);
    save_nodes(&transaction, &tables, &dirty)?;
    save_runs(&transaction, &tables, &dirty)?;
    save_executions(&transaction, &tables, &dirty)?;
    save_holds(&transaction, &Holds::of(&held, &tables.holds))?;
    save_places(&transaction, &Places::of(&tables, &dirty, &verdicts))?;
    count_ended(&transaction, &dirty.ended(&tables))?;
    let last_seq = save_events(&transaction, server, changes, &verdicts)?;
    transaction.commit()?;
    Ok(Committed { seqs: verdicts.seqs(last_seq), outcomes: verdicts.outcomes })
}

pub(super) fn hold(row: &rusqlite::Row<'_>) -> rusqlite::Result<(NodeId, RunId)> {
    Ok((NodeId(row.get(0)?), row.get::<_, String>(1)?.into()))
}

pub(super) fn load(transaction: &Transaction<'_>, needs: &Needs<'_>) -> Result<Tables, Failure> {
    let mut tables = Tables::default();
    if needs.clusters {
        let mut query = transaction.prepare_cached("SELECT id FROM clusters")?;
        for id in query.query_map([], |row| row.get(0))? {
            tables.clusters.insert(ClusterId(id?));
        }
    }
    if !needs.nodes.is_empty() {
        let mut query = transaction
            .prepare_cached(&format!("SELECT {NODE_LIVE_COLUMNS} FROM presence WHERE node = ?1"))?;
        for node in &needs.nodes {
            if let Some(row) = query.query_row([node.0], |row| Ok(node_live_row!(row, get))).optional()? {
                tables.nodes.extend([row.record()?]);
            }
        }
    }
    if !needs.deleted.is_empty() {
        let sql = "SELECT EXISTS (SELECT 1 FROM tombstones WHERE node = ?1 AND session = ?2)";
        let mut query = transaction.prepare_cached(sql)?;
        for (node, session) in &needs.deleted {
            if query.query_row([node.0, session.0], |row| row.get(0))? {
                tables.deleted.insert((*node, *session));
            }
        }
    }
    if !needs.runs.is_empty() {
        let mut query =
            transaction.prepare_cached(&format!("SELECT {RUN_LIVE_COLUMNS} FROM runs WHERE id = ?1"))?;
        for run in &needs.runs {
            if let Some(row) =
                query.query_row([run.as_str()], |row| Ok(run_live_row!(row, get))).optional()?
            {
                tables.runs.extend([row.record()?]);
            }
        }
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
    if !needs.executions.is_empty() {
        let mut query = transaction
            .prepare_cached(&format!("SELECT {EXECUTION_COLUMNS} FROM executions WHERE id = ?1"))?;
        for id in &needs.executions {
            if let Some(row) = query.query_row([id.0], |row| Ok(execution_row!(row, get))).optional()? {
                tables.executions.insert(*id, row.record()?);
            }
        }
    }
    if !needs.taken.is_empty() {
        let mut query = transaction.prepare_cached(&format!(
            "SELECT {EXECUTION_COLUMNS} FROM executions WHERE lease_node = ?1 AND status <= 2 AND status >= 1"
        ))?;
        for node in &needs.taken {
            for row in query.query_map([node.0], |row| Ok(execution_row!(row, get)))? {
                let execution = row?.record()?;
                tables.executions.insert(execution.id, execution);
            }
        }
    }
    if needs.holds() && any_holds(transaction)? {
        load_holds(transaction, needs, &mut tables)?;
    }
    if needs.counts {
        count_runs(transaction, &mut tables)?;
    }
    Ok(tables)
}

/// Mostly there are none: then nothing is looked up for each node.
fn any_holds(transaction: &Transaction<'_>) -> Result<bool, Failure> {
    let sql = "SELECT EXISTS (SELECT 1 FROM holds)";
    Ok(transaction.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

fn load_holds(transaction: &Transaction<'_>, needs: &Needs<'_>, tables: &mut Tables) -> Result<(), Failure> {
    let mut by_node = transaction.prepare_cached(&format!("{HOLDS} AND h.node = ?1"))?;
    for node in &needs.held {
        tables.holds.extend(by_node.query_row([node.0], hold).optional()?);
    }
    let mut by_run = transaction.prepare_cached(&format!("{HOLDS} AND h.run = ?1"))?;
    for run in &needs.holders {
        for row in by_run.query_map([run.as_str()], hold)? {
            tables.holds.extend([row?]);
        }
    }
    Ok(())
}

/// Counts the runs that are not among those that were loaded.
fn count_runs(transaction: &Transaction<'_>, tables: &mut Tables) -> Result<(), Failure> {
    let sql = "SELECT id, state = 1 AND admitted_at IS NULL FROM runs WHERE state NOT IN (10, 11, 12) AND state > 0";
    let mut query = transaction.prepare_cached(sql)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (id, waits): (String, bool) = (row.get(0)?, row.get(1)?);
        if !tables.runs.contains_key(&RunId::from(id)) {
            let count = if waits { &mut tables.elsewhere.waiting } else { &mut tables.elsewhere.under_way };
            *count += 1;
        }
    }
    Ok(())
}

/// Counts the uses of limits in which the batch needs room.
fn count_uses(transaction: &Transaction<'_>, changes: &[Change], tables: &mut Tables) -> Result<(), Failure> {
    for asked in Asked::of(changes, tables) {
        let home: Option<_> = transaction
            .prepare_cached("SELECT cluster FROM runs WHERE id = ?1")?
            .query_row([asked.run.as_str()], |row| row.get(0))
            .optional()?;
        // A run that is neither there nor created has nothing that could be leased.
        let Some(cluster) = home.map(ClusterId).or(asked.created_in) else { continue };
        let count: i64 = match asked.counted {
            Counted::AtOnce => transaction
                .prepare_cached(&format!("{COUNT_AT_ONCE} AND l.cluster = ?1 AND l.key = ?2"))?
                .query_row(params![cluster.0, asked.key], |row| row.get(0))?,
            Counted::Within { since, at } => {
                let (since, at) = (since.as_microsecond(), at.as_microsecond());
                transaction
                    .prepare_cached(
                        "SELECT count(*) FROM limit_uses WHERE cluster = ?1 AND key = ?2 AND granted_at > ?3 \
                         AND until > ?4",
                    )?
                    .query_row(params![cluster.0, asked.key, since, at], |row| row.get(0))?
            }
        };
        asked.answer(cluster, u32::try_from(count).unwrap_or(u32::MAX), tables);
    }
    Ok(())
}

pub(super) fn limit_use(row: &rusqlite::Row<'_>) -> Result<LimitUse, Failure> {
    Ok(LimitUse {
        cluster: ClusterId(row.get(0)?),
        key: row.get(1)?,
        execution: ExecutionId(row.get(2)?),
        granted_at: time(row.get(3)?)?,
        until: time_opt(row.get(4)?)?,
    })
}

fn save_places(transaction: &Transaction<'_>, places: &Places) -> Result<(), Failure> {
    for execution in &places.given_back {
        transaction
            .prepare_cached("DELETE FROM limit_uses WHERE execution = ?1 AND until IS NULL")?
            .execute([execution.0])?;
    }
    for LimitUse { cluster, key, execution, granted_at, until } in &places.taken {
        let (granted_at, until) = (granted_at.as_microsecond(), micros(*until));
        transaction
            .prepare_cached(
                "INSERT INTO limit_uses (execution, key, cluster, granted_at, until) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![execution.0, key, cluster.0, granted_at, until])?;
    }
    if let Some(at) = places.over_at {
        forget_uses(transaction, at, places.most_over())?;
    }
    Ok(())
}

/// Removes uses of rates that are over, at most so many. Answers how many went.
pub(super) fn forget_uses(connection: &Connection, at: Timestamp, most: i64) -> Result<usize, Failure> {
    let mut remove = connection.prepare_cached(
        "DELETE FROM limit_uses WHERE (execution, key) IN \
         (SELECT execution, key FROM limit_uses WHERE until <= ?1 ORDER BY until LIMIT ?2)",
    )?;
    Ok(remove.execute(params![at.as_microsecond(), most])?)
}

pub(super) fn save_holds(transaction: &Transaction<'_>, holds: &Holds<'_>) -> Result<(), Failure> {
    for node in &holds.given_back {
        transaction.prepare_cached("DELETE FROM holds WHERE node = ?1")?.execute([node.0])?;
    }
    for (node, run) in &holds.taken {
        transaction
            .prepare_cached(
                "INSERT INTO holds (node, run) VALUES (?1, ?2) ON CONFLICT (node) DO UPDATE SET run = excluded.run",
            )?
            .execute(params![node.0, run.as_str()])?;
    }
    Ok(())
}

pub(super) fn save_nodes(
    transaction: &Transaction<'_>,
    tables: &Tables,
    dirty: &Dirty<'_>,
) -> Result<(), Failure> {
    for deleted in &dirty.nodes_deleted {
        bury(transaction, deleted)?;
    }
    for (id, registration) in &dirty.nodes_registered {
        let live = &tables.nodes[id];
        transaction
            .prepare_cached(
                "INSERT INTO nodes (id, cluster, hostname, description, registration, problems) \
                 VALUES (?1, ?2, ?3, ?4, ?5, NULL) \
                 ON CONFLICT (id) DO UPDATE SET cluster = excluded.cluster, hostname = excluded.hostname, \
                 description = excluded.description, registration = excluded.registration, \
                 problems = excluded.problems",
            )?
            .execute(params![
                id.0,
                registration.cluster.0,
                registration.description.hostname,
                json(&registration.description)?,
                registration_column(registration)?
            ])?;
        transaction
            .prepare_cached(
                "INSERT INTO presence (node, session, status, draining, registered_at, seen_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                 ON CONFLICT (node) DO UPDATE SET session = excluded.session, status = excluded.status, \
                 draining = excluded.draining, registered_at = excluded.registered_at, seen_at = excluded.seen_at",
            )?
            .execute(params![
                id.0,
                live.session.0,
                live.status.code(),
                live.draining,
                live.registered_at.as_microsecond(),
                live.seen_at.as_microsecond()
            ])?;
    }
    for id in &dirty.nodes_altered {
        let live = &tables.nodes[id];
        transaction
            .prepare_cached("UPDATE presence SET status = ?2, draining = ?3 WHERE node = ?1")?
            .execute(params![id.0, live.status.code(), live.draining])?;
    }
    for (id, problems) in &dirty.node_problems {
        transaction
            .prepare_cached("UPDATE nodes SET problems = ?2 WHERE id = ?1")?
            .execute(params![id.0, problems_column(problems)])?;
    }
    Ok(())
}

/// Removes a node, and remembers that it was there. A program from before, which knows no tombstones, may have let a
/// session in again.
fn bury(transaction: &Transaction<'_>, deleted: &Deleted<'_>) -> Result<(), Failure> {
    let (node, session, at) = (deleted.node.0, deleted.session.0, deleted.at.as_microsecond());
    match deleted.registration {
        Some(registration) => transaction
            .prepare_cached(
                "INSERT INTO tombstones (node, session, cluster, hostname, at) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (node, session) DO UPDATE SET at = excluded.at",
            )?
            .execute(params![node, session, registration.cluster.0, registration.description.hostname, at])?,
        None => transaction
            .prepare_cached(
                "INSERT INTO tombstones (node, session, cluster, hostname, at) \
                 SELECT id, ?2, cluster, hostname, ?3 FROM nodes WHERE id = ?1 \
                 ON CONFLICT (node, session) DO UPDATE SET at = excluded.at",
            )?
            .execute(params![node, session, at])?,
    };
    // Its presence goes with it.
    transaction.prepare_cached("DELETE FROM nodes WHERE id = ?1")?.execute([node])?;
    Ok(())
}

pub(super) fn save_runs(
    transaction: &Transaction<'_>,
    tables: &Tables,
    dirty: &Dirty<'_>,
) -> Result<(), Failure> {
    for (id, run) in &dirty.runs_created {
        let live = &tables.runs[*id];
        transaction
            .prepare_cached(
                "INSERT INTO runs (id, cluster, job, submitted_by, idempotency_key, created_at, state, started_at, \
                 finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch, retry_of, \
                 no_cache) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
            )?
            .execute(params![
                id.as_str(),
                run.cluster.0,
                run.job,
                run.by,
                run.idempotency_key,
                run.created_at.as_microsecond(),
                live.state.code(),
                micros(live.started_at),
                micros(live.finished_at),
                live.end.as_ref().map(|end| end.partial),
                live.end.as_ref().and_then(|end| end.error.as_deref()),
                micros(live.cancel_requested_at),
                micros(live.paused_at),
                micros(live.admitted_at),
                live.owner.0,
                int(live.epoch),
                run.retry_of.as_ref().map(|run| run.as_str()),
                run.no_cache
            ])?;
        transaction
            .prepare_cached(
                "INSERT INTO definitions (run, definition, resolved, params) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![
                id.as_str(),
                json(&run.definition)?,
                json(&run.resolved)?,
                params_column(&run.params)
            ])?;
    }
    for id in &dirty.runs_altered {
        let live = &tables.runs[*id];
        transaction
            .prepare_cached(
                "UPDATE runs SET state = ?2, started_at = ?3, finished_at = ?4, partial = ?5, error = ?6, \
                 cancel_requested_at = ?7, paused_at = ?8, admitted_at = ?9, owner = ?10, epoch = ?11 WHERE id = ?1",
            )?
            .execute(params![
                id.as_str(),
                live.state.code(),
                micros(live.started_at),
                micros(live.finished_at),
                live.end.as_ref().map(|end| end.partial),
                live.end.as_ref().and_then(|end| end.error.as_deref()),
                micros(live.cancel_requested_at),
                micros(live.paused_at),
                micros(live.admitted_at),
                live.owner.0,
                int(live.epoch)
            ])?;
    }
    Ok(())
}

pub(super) fn save_executions(
    transaction: &Transaction<'_>,
    tables: &Tables,
    dirty: &Dirty<'_>,
) -> Result<(), Failure> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO executions (id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, \
         session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, \
         outputs, params, reused, item, limits, cache_key) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
         ?22, ?23, ?24, ?25, ?26)",
    )?;
    for id in &dirty.executions_added {
        let execution = &tables.executions[id];
        let state = StateColumns::of(&execution.state);
        insert.execute(params![
            id.0,
            execution.run().as_str(),
            small(execution.step()),
            execution.pinned.map(|node| node.0),
            small(execution.attempt),
            execution.created_at.as_microsecond(),
            state.status,
            state.not_before,
            state.token,
            state.lease_node,
            state.session,
            state.granted_at,
            state.stop,
            state.started_at,
            state.verdict,
            state.exit_code,
            state.error,
            state.finished_at,
            state.reason,
            state.ended_at,
            state.outputs,
            execution.params.as_deref().map(json).transpose()?,
            execution.reused.map(|reused| reused.0),
            execution.item().map(small),
            execution.limits.as_deref().map(json).transpose()?,
            execution.cache_key.as_deref()
        ])?;
    }
    let mut lease = transaction.prepare_cached(
        "UPDATE executions SET status = ?2, not_before = ?3, token = ?4, lease_node = ?5, session = ?6, \
         granted_at = ?7, stop = ?8, started_at = ?9, verdict = ?10, exit_code = ?11, error = ?12, \
         finished_at = ?13, reason = ?14, ended_at = ?15, outputs = ?16 WHERE id = ?1",
    )?;
    for id in &dirty.executions_leased {
        let state = StateColumns::of(&tables.executions[id].state);
        lease.execute(params![
            id.0,
            state.status,
            state.not_before,
            state.token,
            state.lease_node,
            state.session,
            state.granted_at,
            state.stop,
            state.started_at,
            state.verdict,
            state.exit_code,
            state.error,
            state.finished_at,
            state.reason,
            state.ended_at,
            state.outputs
        ])?;
    }
    // Without the lease's columns: an index that holds a node is written again whenever one of them is named.
    let mut update = transaction.prepare_cached(
        "UPDATE executions SET status = ?2, not_before = ?3, stop = ?4, started_at = ?5, verdict = ?6, \
         exit_code = ?7, error = ?8, finished_at = ?9, reason = ?10, ended_at = ?11, outputs = ?12 WHERE id = ?1",
    )?;
    for id in dirty.executions_altered.difference(&dirty.executions_leased) {
        let state = StateColumns::of(&tables.executions[id].state);
        update.execute(params![
            id.0,
            state.status,
            state.not_before,
            state.stop,
            state.started_at,
            state.verdict,
            state.exit_code,
            state.error,
            state.finished_at,
            state.reason,
            state.ended_at,
            state.outputs
        ])?;
    }
    save_cached(transaction, tables, dirty)
}

fn save_cached(transaction: &Transaction<'_>, tables: &Tables, dirty: &Dirty<'_>) -> Result<(), Failure> {
    for (execution, key, finished_at) in dirty.cached(tables) {
        let (run, finished_at) = (execution.run().as_str(), finished_at.as_microsecond());
        transaction
            .prepare_cached(
                "INSERT INTO cached (execution, cluster, cache_key, finished_at) \
                 SELECT ?1, cluster, ?2, ?3 FROM runs WHERE id = ?4",
            )?
            .execute(params![execution.id.0, key, finished_at, run])?;
    }
    Ok(())
}

/// Adds to the counts of what has ended, or takes from them.
pub(super) fn count_ended(transaction: &Transaction<'_>, ended: &[Ended]) -> Result<(), Failure> {
    for Ended { kind, code, total } in ended {
        transaction
            .prepare_cached(
                "INSERT INTO ended (kind, code, total) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (kind, code) DO UPDATE SET total = total + excluded.total",
            )?
            .execute(params![kind, code, total])?;
    }
    Ok(())
}

/// Numbers and writes the events; answers the number before the first.
fn save_events(
    transaction: &Transaction<'_>,
    server: ServerId,
    changes: &[Change],
    verdicts: &Verdicts,
) -> Result<u64, Failure> {
    let added = int(verdicts.applied.len() as u64);
    let last: i64 = transaction
        .prepare_cached("UPDATE feed SET last_seq = last_seq + ?1 RETURNING last_seq")?
        .query_row([added], |row| row.get(0))?;
    let before = last - added;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO events (seq, at, server, kind, run, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    let mut data = Vec::with_capacity(1024);
    for (seq, &place) in (before + 1..).zip(&verdicts.applied) {
        let change = &changes[place];
        data.clear();
        serde_json::to_writer(&mut data, change)
            .map_err(|error| Error::Corrupt(format!("cannot write a change as JSON: {error}")))?;
        let text = std::str::from_utf8(&data).expect("serde_json writes UTF-8");
        let run = change.run().map(|run| run.as_str());
        insert.execute(params![seq, change.at().as_microsecond(), server.0, change.kind(), run, text])?;
    }
    Ok(count(before)?)
}
