//! Owns the kept counts of instances: how a batch changes them, and their SQL in both dialects.
//!
//! Counting a million instances takes a fifth of a second, so the counts of larger runs are kept (`runs.keeps`). A commit
//! adds up the differences that it makes by run, step and status, and writes those: a handful of rows, however many
//! executions it has. Each execution tells its difference by itself: a further attempt has the status of the attempt that
//! it replaces, and the engine adds it only after that one has ended. So a commit reads nothing more than it does anyway.
//!
//! - On PostgreSQL the differences are appended to `instance_counts_lately`, and `keep_counts` adds them up: a row that
//!   each commit rewrites would leave a dead version each time. SQLite adds them up at once.
//! - Older programs do not keep counts. On PostgreSQL a trigger notes with [`MISSED`] which runs they change. A SQLite file
//!   has one program at a time: when it is opened, `feed.counted_seq` shows whether the last one kept counts.
//! - A run whose counts lack a change, or that an older program created, is counted when somebody looks at it.
//!   `keep_counts` counts it once more after its end, and then its counts are kept, too. It also completes the rows of such
//!   runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Once;

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::Keeps;
use downbeat_core::state::Tables;

use crate::batch::Changed;
use crate::port::{InstanceCount, Result};
use crate::rows::{Cells, Code, Columns, Extent, Record, Text, columns, count, int, small, small_count};

/// The step of the counts of a whole run.
const WHOLE_RUN: i32 = -1;
/// The status of a row that says that the counts of its run lack a change.
const MISSED: i16 = -1;

columns! {
    /// A number of instances, or a difference of it.
    struct CountRow<'a> {
        run: Text<'a>,
        step: i32,
        status: i16,
        total: i64,
        carried: i64,
        cached: i64,
    }
}

impl CountRow<'_> {
    /// Returns true if the counts of the run lack a change.
    pub(crate) fn is_missed(&self) -> bool {
        self.status == MISSED
    }
}

impl Record for CountRow<'static> {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Self::read(row, 0)
    }
}

/// How the executions that a batch may change counted before it: by status, or not at all. Also the rounds of the runs.
#[derive(Debug)]
pub(crate) struct Standing {
    executions: HashMap<ExecutionId, Option<Status>>,
    rounds: HashMap<RunId, u32>,
}

/// Returns the status by which an execution counts, unless a later attempt replaces it.
fn standing(execution: &Execution) -> Option<Status> {
    (!execution.is_withdrawn()).then(|| execution.state.status())
}

fn keeps(tables: &Tables, run: &RunId) -> Keeps {
    tables.homes.get(run).map_or(Keeps::Nothing, |home| home.keeps)
}

impl Standing {
    /// `tables` are those that a batch has loaded.
    pub(crate) fn of(tables: &Tables) -> Self {
        let counted = |execution: &&Execution| keeps(tables, execution.run()) != Keeps::Nothing;
        let all = tables.executions.values().filter(counted);
        let rounds = tables.runs.iter().filter(|(run, _)| keeps(tables, run) != Keeps::Nothing);
        Self {
            executions: all.map(|execution| (execution.id, standing(execution))).collect(),
            rounds: rounds.map(|(run, live)| (run.clone(), live.round)).collect(),
        }
    }
}

/// Adds up differences.
#[derive(Debug, Default)]
struct Differences<'a>(HashMap<(&'a RunId, i32, i16), [i64; 3]>);

impl<'a> Differences<'a> {
    fn add(&mut self, run: &'a RunId, keeps: Keeps, step: u32, status: Status, counts: [i64; 3]) {
        let steps = [(keeps == Keeps::Steps).then_some(small(step)), Some(WHOLE_RUN)];
        for step in steps.into_iter().flatten() {
            let sums = self.0.entry((run, step, status.code())).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    fn add_miss(&mut self, run: &'a RunId) {
        self.0.insert((run, WHOLE_RUN, MISSED), [1, 0, 0]);
    }

    fn rows(self) -> Vec<CountRow<'a>> {
        let mut changed: Vec<_> = self.0.into_iter().filter(|(_, sums)| *sums != [0; 3]).collect();
        // All servers write them in the same order.
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed
            .into_iter()
            .map(|((run, step, status), [total, carried, cached])| {
                let run = run.as_str().into();
                CountRow { run, step, status, total, carried, cached }
            })
            .collect()
    }
}

/// Returns the differences that a batch makes.
pub(crate) fn differences<'a>(
    before: &Standing,
    tables: &'a Tables,
    changed: &Changed<'a>,
) -> Vec<CountRow<'a>> {
    let mut differences = Differences::default();
    let added = changed.added.iter().map(|execution| (*execution, None));
    let was = |execution: &Execution| before.executions.get(&execution.id).copied().flatten();
    let altered = changed.altered.iter().map(|execution| (*execution, was(execution)));
    for (execution, was) in added.chain(altered) {
        let (run, step, is) = (execution.run(), execution.step(), standing(execution));
        let keeps = keeps(tables, run);
        if keeps == Keeps::Nothing || was == is {
            continue;
        }
        if let Some(status) = was {
            differences.add(run, keeps, step, status, [-1, 0, 0]);
        }
        if let Some(status) = is {
            let of_kind = |is: bool| i64::from(is);
            let reused = [of_kind(execution.is_carried()), of_kind(execution.is_cached())];
            differences.add(run, keeps, step, status, [1, reused[0], reused[1]]);
        }
        if execution.attempt > 1 && was.is_some() != is.is_some() {
            let sign = if is.is_some() { -1 } else { 1 };
            match execution.former {
                Some(former) => differences.add(run, keeps, step, former, [sign, 0, 0]),
                None => differences.add_miss(run),
            }
        }
    }
    // The results of a new round replace all others. Such runs are few: they are counted when somebody looks at them.
    for (run, live) in &tables.runs {
        if before.rounds.get(run).is_some_and(|round| *round != live.round) {
            differences.add_miss(run);
        }
    }
    differences.rows()
}

/// Returns the extents of runs that could be read. Others are left out; the first one is logged, once.
pub(crate) fn readable(extents: Vec<(RunId, Result<Extent>)>) -> impl Iterator<Item = Extent> {
    static LOGGED: Once = Once::new();
    extents.into_iter().filter_map(|(run, extent)| match extent {
        Ok(extent) => Some(extent),
        Err(error) => {
            LOGGED.call_once(|| tracing::warn!(%run, %error, "the row of a run cannot be completed"));
            None
        }
    })
}

/// Returns what to keep for a run that has ended with these counts.
pub(crate) fn for_ended(counts: &[InstanceCount]) -> Keeps {
    Keeps::for_size(counts.iter().map(|count| count.total).sum())
}

/// Returns the rows of a run that was counted.
pub(crate) fn rows_of<'a>(run: &'a RunId, keeps: Keeps, counts: &[InstanceCount]) -> Vec<CountRow<'a>> {
    let mut differences = Differences::default();
    let kept = if keeps == Keeps::Nothing { &[] } else { counts };
    for InstanceCount { step, status, total, carried, cached } in kept {
        differences.add(run, keeps, *step, *status, [*total, *carried, *cached].map(int));
    }
    differences.rows()
}

/// Returns the SELECT of kept counts, not added up, from the dialect's tables.
fn select(tables: &[&str], which: &str) -> String {
    let parts = tables.iter().map(|table| format!("SELECT {} FROM {table} WHERE {which}", CountRow::names()));
    parts.collect::<Vec<_>>().join(" UNION ALL ")
}

/// Returns the SELECT of the kept counts of the run `$1`.
pub(crate) fn of_run(tables: &[&str]) -> String {
    format!(
        "SELECT run, step, status, CAST(sum(total) AS bigint), CAST(sum(carried) AS bigint), \
         CAST(sum(cached) AS bigint) FROM ({}) kept GROUP BY run, step, status HAVING sum(total) <> 0",
        select(tables, "run = $1 AND EXISTS (SELECT 1 FROM runs r WHERE r.id = $1 AND r.keeps > 0)")
    )
}

/// Returns the SELECT of those of the listed runs whose counts may be shown, with the kept counts of the whole runs. It is
/// one statement: between two, the note that a change is missing could become a run that keeps no counts. Without the inner
/// list, PostgreSQL would read all counts.
pub(crate) fn of_runs(tables: &[&str], listed: &str) -> String {
    format!(
        "SELECT r.id, r.keeps, kept.status, CAST(sum(kept.total) AS bigint) \
         FROM runs r LEFT JOIN ({}) kept ON kept.run = r.id \
         WHERE r.id IN ({listed}) AND r.keeps IS NOT NULL GROUP BY r.id, r.keeps, kept.status",
        select(tables, &format!("run IN ({listed}) AND step = {WHOLE_RUN}"))
    )
}

/// Returns the counts by step; none if they are not kept.
pub(crate) fn by_step(rows: &[CountRow<'_>]) -> Result<Option<Vec<InstanceCount>>> {
    if rows.iter().any(CountRow::is_missed) {
        return Ok(None);
    }
    let count = |row: &CountRow<'_>| {
        Ok(InstanceCount {
            step: small_count(row.step)?,
            status: Status::decode(row.status)?,
            total: count(row.total)?,
            carried: count(row.carried)?,
            cached: count(row.cached)?,
        })
    };
    let steps = rows.iter().filter(|row| row.step != WHOLE_RUN);
    let mut counts = steps.map(count).collect::<Result<Vec<_>>>()?;
    counts.sort_unstable_by_key(|count| (count.step, count.status));
    Ok(Some(counts).filter(|counts| !counts.is_empty()))
}

/// Returns what is kept for a run, according to its row. Nothing is, where an older program wrote the row.
pub(crate) fn stored_keeps(keeps: Option<i16>) -> Keeps {
    keeps.and_then(Keeps::find).unwrap_or(Keeps::Nothing)
}

/// A run that keeps counts, or whose counts may be shown.
#[derive(Debug)]
pub(crate) struct ListedRun {
    pub(crate) run: RunId,
    pub(crate) keeps: Keeps,
}

impl ListedRun {
    /// Selects the runs that keep counts.
    pub(crate) const KEPT: &str = "SELECT id, keeps FROM runs WHERE keeps > 0";
}

impl Record for ListedRun {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(0)?;
        Ok(Self { run: String::from(run).into(), keeps: Keeps::decode(row.cell(1)?)? })
    }
}

/// A row of [`of_runs`].
#[derive(Debug)]
pub(crate) struct ListedCount {
    listed: ListedRun,
    /// None if no counts are kept for the run.
    status: Option<i16>,
    total: Option<i64>,
}

impl Record for ListedCount {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(Self { listed: ListedRun::from_row(row)?, status: row.cell(2)?, total: row.cell(3)? })
    }
}

/// The counts of whole runs, by status. Runs whose counts are not known are missing.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) of_runs: BTreeMap<RunId, BTreeMap<Status, u64>>,
    /// Runs for which nothing is kept: they are to be counted.
    pub(crate) uncounted: BTreeSet<RunId>,
}

impl Totals {
    pub(crate) fn of(rows: Vec<ListedCount>) -> Result<Self> {
        let (mut totals, mut missed) = (Self::default(), BTreeSet::new());
        for ListedCount { listed: ListedRun { run, keeps }, status, total } in rows {
            let counts = totals.of_runs.entry(run.clone()).or_default();
            match (keeps, status.zip(total)) {
                (Keeps::Nothing, _) => _ = totals.uncounted.insert(run),
                (_, None | Some((_, 0))) => {}
                (_, Some((MISSED, _))) => _ = missed.insert(run),
                (_, Some((status, total))) => _ = counts.insert(Status::decode(status)?, count(total)?),
            }
        }
        totals.of_runs.retain(|run, _| !missed.contains(run));
        Ok(totals)
    }

    pub(crate) fn add(&mut self, run: &RunId, counts: &[InstanceCount]) {
        let totals = self.of_runs.entry(run.clone()).or_default();
        for count in counts {
            *totals.entry(count.status).or_default() += count.total;
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::migrate::SQLITE;

    #[test]
    fn the_counts_of_listed_runs_are_looked_up() {
        let connection = Connection::open_in_memory().unwrap();
        for migration in SQLITE {
            connection.execute_batch(migration.sql).unwrap();
        }
        let sql = of_runs(&["instance_counts"], "SELECT value FROM json_each(?1)");
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan = query.query_map(["[]"], |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<String> = plan.map(Result::unwrap).collect();
        let is_whole = |step: &&String| step.starts_with("SCAN ") && !step.starts_with("SCAN json_each");
        assert_eq!(plan.iter().find(is_whole), None, "{plan:#?}");
    }
}
