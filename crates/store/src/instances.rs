//! Owns which attempts are the results of a run's instances: in SQL for both dialects, and in memory.
//!
//! The result of an instance is its last attempt that was not withdrawn, in the last round of its run. Few instances have
//! several attempts, so an index of only the further attempts tells which of the earlier ones are not results. Few runs have
//! several rounds.

use std::collections::{BTreeMap, HashMap};

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};

use crate::filter::lazy;
use crate::port::{InstanceCount, InstanceFacts, Result};
use crate::rows::{Attempt, Cells, Code, Record, Text, condition, count, small_count};

/// Selects the later attempts of the same instance.
macro_rules! later {
    ($same:literal) => {
        concat!(
            "SELECT 1 FROM executions l WHERE l.run = executions.run AND l.step = executions.step AND ",
            $same,
            " AND l.round = executions.round AND l.attempt > 1 AND l.attempt > executions.attempt AND NOT (",
            condition!(later one is unsent),
            ")"
        )
    };
}

/// The last round of the run `$1`.
const LAST_ROUND: &str = "(SELECT r.round FROM runs r WHERE r.id = $1)";

/// An attempt of the last round of the run `$1`.
pub(crate) const OF_LAST_ROUND: &str = "executions.round = (SELECT r.round FROM runs r WHERE r.id = $1)";

/// An attempt that ended unsuccessfully, and after which another one came that was not withdrawn.
const IS_REPLACED: &str = concat!(
    condition!(ended executions),
    " AND executions.status ",
    condition!(replaceable executions),
    " AND CASE WHEN executions.pinned IS NOT NULL THEN EXISTS (",
    later!("l.pinned = executions.pinned"),
    ") WHEN executions.item IS NOT NULL THEN EXISTS (",
    later!("l.pinned IS NULL AND l.item = executions.item"),
    ") ELSE EXISTS (",
    later!("l.pinned IS NULL AND l.item IS NULL"),
    ") END"
);

lazy! {
    /// Selects ids. Arguments: run, wanted statuses as bits, step and execution after which to start, last step, item,
    /// rows, bytes. The indexes have the status or the lease before the step, so each status is read by itself. It is one
    /// statement, because an instance that moves on between two reads could be missed by both.
    pub(crate) OF_RUN: String = fitting(&Status::ALL.map(of_status).join(" UNION ALL "));
    /// Arguments: as above, then the node. Reads only those executions of the node that were created while the run's were:
    /// the ids are in the order of creation. A node has fewer executions than a large run: the comparison of runs is
    /// written so that no index by run is used.
    pub(crate) OF_NODE: String = fitting(&format!(
        "{SIZES} WHERE coalesce(pinned, lease_node) = $9 AND id BETWEEN {} AND {} AND run || '' = $1 \
         AND ((CAST($2 AS integer) >> status) & 1) = 1 AND {WITHIN} {}",
        end_of_run(""),
        end_of_run(" DESC"),
        *IS_RESULT
    ));
    /// Selects the nodes that have or had results of the run `$1` which are not pinned.
    pub(crate) PLACED_NODES: String = format!(
        "SELECT DISTINCT lease_node FROM executions WHERE run = $1 AND pinned IS NULL AND lease_node IS NOT NULL {} \
         ORDER BY lease_node",
        *IS_RESULT
    );
    /// Selects the nodes of the results of the run `$1` that failed, were lost or were cancelled, each with these statuses.
    pub(crate) UNSUCCESSFUL_NODES: String = format!(
        "SELECT DISTINCT coalesce(pinned, lease_node), status FROM executions WHERE run = $1 AND {} AND status {} \
         AND coalesce(pinned, lease_node) IS NOT NULL {} ORDER BY 1, 2",
        condition!(unsuccessful executions),
        condition!(replaceable executions),
        *IS_RESULT
    );
    /// Counts the instances of the run `$1`.
    pub(crate) COUNTS: String = {
        // Most runs have no further attempts. Then the attempts of a large run are read only once.
        let again = "AND EXISTS (SELECT 1 FROM executions a WHERE a.run = $1 AND a.attempt > 1)";
        // The open attempts are few, and have their own index. SQLite would read all attempts, in the order of a group by run.
        // They belong to the last round. The rounds of ended attempts are read only if there are several: the index lacks them.
        let ended = condition!(ended executions);
        let open = condition!(open executions);
        let select = "SELECT 0, run, step, status, count(*), 0 FROM executions WHERE run = $1 AND";
        let all = format!(
            "{select} {ended} AND {LAST_ROUND} = 1 GROUP BY run, status, step \
             UNION ALL {select} {ended} AND {LAST_ROUND} > 1 AND {OF_LAST_ROUND} GROUP BY run, status, step \
             UNION ALL SELECT 0, CAST($1 AS text), step, status, count(*), 0 FROM executions \
             WHERE run || '' = $1 AND {open} GROUP BY status, step"
        );
        let which = format!("run = $1 AND {OF_LAST_ROUND}");
        counts_of(&all, &which, &format!("{IS_WITHDRAWN} {again}"), again)
    };
}

/// Returns the end of a SELECT of the results of the run `$1` that a node has or had: those of each node by execution. Like
/// [`OF_NODE`], it uses the index by node. `is_node` compares the node with those that are wanted.
pub(crate) fn results_on(is_node: &str) -> String {
    format!(
        " WHERE coalesce(pinned, lease_node) {is_node} AND id BETWEEN {} AND {} AND run || '' = $1 {} ORDER BY id",
        end_of_run(""),
        end_of_run(" DESC"),
        *IS_RESULT
    )
}

/// Returns the SELECT that counts the instances of a few small runs; `listed` selects their ids.
pub(crate) fn counts_of_runs(listed: &str) -> String {
    // SQLite would read the whole index of further attempts: the sum is not in it.
    let withdrawn = IS_WITHDRAWN.replace("attempt > 1", "attempt + 0 > 1");
    let which = format!(
        "run IN ({listed}) AND executions.round = (SELECT r.round FROM runs r WHERE r.id = executions.run)"
    );
    let all = format!(
        "SELECT 0, run, step, status, count(*), 0 FROM executions WHERE {which} GROUP BY run, status, step"
    );
    counts_of(&all, &which, &withdrawn, "")
}

/// Returns the SELECT that counts attempts by step and status; then those that are not results, to be subtracted; then
/// the reused results. `all` selects the first part, and `which` the runs; `again` is a further condition of replaced
/// attempts.
fn counts_of(all: &str, which: &str, withdrawn: &str, again: &str) -> String {
    let count = "count(*), 0 FROM executions WHERE";
    format!(
        "{all} \
         UNION ALL SELECT 1, run, step, status, {count} {which} AND {IS_REPLACED} \
         {again} GROUP BY run, status, step \
         UNION ALL SELECT 1, run, step, status, {count} {which} AND {withdrawn} \
         GROUP BY run, status, step \
         UNION ALL SELECT 2, run, step, status, count(*), count(cache_key) FROM executions \
         WHERE {which} AND reused IS NOT NULL GROUP BY run, status, step"
    )
}

const IS_WITHDRAWN: &str = concat!("executions.attempt > 1 AND (", condition!(unsent executions), ")");

/// Returns the SELECT of the first id of the run `$1` in this order.
fn end_of_run(order: &str) -> String {
    format!("(SELECT e.id FROM executions e WHERE e.run = $1 ORDER BY e.id{order} LIMIT 1)")
}

/// The size is that of the outputs: all else that is read is small. Neither database reads the data for it.
const SIZES: &str = "SELECT id, step, coalesce(octet_length(outputs), 0) AS own FROM executions";

/// The conditions of a page. Without an item PostgreSQL drops the last one: it would expect few rows, and sort them all.
const WITHIN: &str = "(step, id) > ($3, $4) AND step <= $5 AND (item = $6 OR $6 IS NULL)";

lazy! {
    IS_RESULT: String = format!("AND {OF_LAST_ROUND} AND NOT ({IS_WITHDRAWN}) AND NOT ({IS_REPLACED})");
}

/// Selects the instances with this status, if it is wanted.
fn of_status(status: Status) -> String {
    let code = status.code();
    // An open attempt, or one that succeeded, is never withdrawn or replaced, and an open one belongs to the last round.
    let is_result = match status {
        Status::Pending | Status::Leased | Status::Running => "",
        Status::Succeeded => "AND executions.round = (SELECT r.round FROM runs r WHERE r.id = $1)",
        Status::Failed | Status::Skipped | Status::Cancelled | Status::Lost => IS_RESULT.as_str(),
    };
    let indexed = match status {
        Status::Pending => concat!("lease_node IS NULL AND run = $1 AND ", condition!(open executions)),
        // Those of all runs are read: they are as few as the nodes have slots. No index by run is used.
        Status::Leased | Status::Running => {
            concat!("lease_node IS NOT NULL AND run || '' = $1 AND ", condition!(open executions))
        }
        _ => concat!("run = $1 AND ", condition!(ended executions)),
    };
    format!(
        "SELECT * FROM ({SIZES} WHERE {indexed} AND status = {code} AND ((CAST($2 AS integer) >> {code}) & 1) = 1 \
         AND {WITHIN} {is_result} ORDER BY step, id LIMIT $7) of_{status}"
    )
}

/// Selects the ids of the first instances: those that fit, and the one that exceeds the bytes.
fn fitting(sizes: &str) -> String {
    format!(
        "SELECT id FROM (SELECT id, own, sum(own) OVER (ORDER BY step, id) AS upto FROM ({sizes}) found \
         ORDER BY step, id LIMIT $7) first WHERE upto - own <= $8"
    )
}

/// A row of [`counts_of`].
#[derive(Debug)]
pub(crate) struct CountedRow {
    part: i32,
    run: RunId,
    step: u32,
    status: Status,
    total: u64,
    cached: u64,
}

impl Record for CountedRow {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(1)?;
        Ok(Self {
            part: row.cell(0)?,
            run: String::from(run).into(),
            step: small_count(row.cell(2)?)?,
            status: Status::decode(row.cell(3)?)?,
            total: count(row.cell(4)?)?,
            cached: count(row.cell(5)?)?,
        })
    }
}

/// Adds up the rows of [`counts_of`] for each run.
pub(crate) fn counts_by_run(rows: Vec<CountedRow>) -> BTreeMap<RunId, Vec<InstanceCount>> {
    let mut of_runs: BTreeMap<RunId, Vec<CountedRow>> = BTreeMap::new();
    for row in rows {
        of_runs.entry(row.run.clone()).or_default().push(row);
    }
    of_runs.into_iter().map(|(run, rows)| (run, counts(rows))).collect()
}

/// Adds up the rows of [`counts_of`] for one run.
pub(crate) fn counts(rows: Vec<CountedRow>) -> Vec<InstanceCount> {
    let mut counts: BTreeMap<(u32, Status), InstanceCount> = BTreeMap::new();
    for CountedRow { part, step, status, total, cached, .. } in rows {
        let none = InstanceCount { step, status, total: 0, carried: 0, cached: 0 };
        let count = counts.entry((step, status)).or_insert(none);
        match part {
            0 => count.total += total,
            1 => count.total = count.total.saturating_sub(total),
            _ => (count.carried, count.cached) = (total - cached.min(total), cached),
        }
    }
    counts.into_values().filter(|count| count.total > 0).collect()
}

/// Keeps the attempts that are results, in the given order.
pub(crate) fn results(attempts: Vec<Attempt>) -> Vec<InstanceFacts> {
    type Instance = (u32, Option<NodeId>, Option<u32>);
    let instance =
        |attempt: &Attempt| -> Instance { (attempt.facts.step, attempt.pinned, attempt.facts.item) };
    let mut last: HashMap<Instance, u32> = HashMap::new();
    for attempt in attempts.iter().filter(|attempt| attempt.facts.attempt > 1 && !attempt.is_withdrawn) {
        let newest = last.entry(instance(attempt)).or_default();
        *newest = attempt.facts.attempt.max(*newest);
    }
    let is_result = |attempt: &Attempt| {
        !attempt.is_withdrawn
            && (last.is_empty()
                || last.get(&instance(attempt)).is_none_or(|last| attempt.facts.attempt == *last))
    };
    attempts.into_iter().filter(is_result).map(|attempt| attempt.facts).collect()
}

/// Returns the attempts that are results, by step and execution. `executions` are those of one run.
pub(crate) fn results_of<'a>(executions: impl Iterator<Item = &'a Execution>) -> Vec<&'a Execution> {
    let mut last: HashMap<_, &Execution> = HashMap::new();
    for execution in executions.filter(|execution| !execution.is_withdrawn()) {
        let newest = last.entry(execution.instance()).or_insert(execution);
        if execution.attempt > newest.attempt {
            *newest = execution;
        }
    }
    let mut results: Vec<&Execution> = last.into_values().collect();
    results.sort_unstable_by_key(|execution| position(execution));
    results
}

/// Returns where an instance stands in a list.
pub(crate) fn position(execution: &Execution) -> (u32, ExecutionId) {
    (execution.step(), execution.id)
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Null;
    use rusqlite::{Connection, params_from_iter};

    use super::*;
    use crate::migrate::SQLITE;

    #[test]
    fn instances_of_a_node_are_searched_among_those_as_old_as_the_run() {
        let connection = Connection::open_in_memory().unwrap();
        for migration in SQLITE {
            connection.execute_batch(migration.sql).unwrap();
        }
        let sql = format!("EXPLAIN QUERY PLAN {}", OF_NODE.replace('$', "?"));
        let mut query = connection.prepare(&sql).unwrap();
        let nulls = vec![Null; query.parameter_count()];
        let plan = query.query_map(params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<String> = plan.map(Result::unwrap).collect();
        let by_node =
            "SEARCH executions USING INDEX executions_of_node (<expr>=? AND id>? AND id<?)".to_owned();
        assert!(plan.contains(&by_node), "{plan:#?}");
        // Only what these searches have found is read from one end to the other.
        let scans = plan.iter().filter_map(|step| step.strip_prefix("SCAN "));
        assert!(scans.into_iter().all(|of| of == "first" || of.starts_with("(subquery")), "{plan:#?}");
    }
}
