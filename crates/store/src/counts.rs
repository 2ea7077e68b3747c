//! Owns the kept counts of instances: how a batch changes them, and their SQL in both dialects.
//!
//! Counting a million instances takes a fifth of a second, so the counts of larger runs are kept (`runs.keeps`). A commit
//! adds up the differences that it makes by run, step and status, and writes those: a handful of rows, however many
//! executions it has. Each execution tells its difference by itself: a further attempt has the status of the attempt that
//! it replaces, and the engine adds it only after that one has ended. So a commit reads nothing more than it does anyway.
//!
//! - On PostgreSQL the differences are appended to `instance_counts_lately`, and `keep_counts` adds them up: a row that
//!   each commit rewrites would leave a dead version each time. SQLite adds them up at once.
//! - Older programs do not keep counts. On PostgreSQL a trigger notes each of their changes as [`MISSED`]. A SQLite file
//!   has one program at a time: when it is opened, `feed.counted_seq` shows whether the last one kept counts.
//! - A run whose counts lack a change, or that an older program created, is counted when somebody looks at it.
//!   `keep_counts` counts it once more after its end, and then its counts are kept, too.

use std::collections::{BTreeMap, HashMap};

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::Keeps;
use downbeat_core::state::Tables;

use crate::batch::Dirty;
use crate::port::{InstanceCount, Result};
use crate::rows::{Cells, Code, Columns, Record, Text, columns, count, int, small, small_count};

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

/// How the executions that a batch may change counted before it: by status, or not at all.
#[derive(Debug)]
pub(crate) struct Standing(HashMap<ExecutionId, Option<Status>>);

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
        Self(all.map(|execution| (execution.id, standing(execution))).collect())
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
pub(crate) fn differences<'a>(before: &Standing, tables: &'a Tables, dirty: &Dirty<'_>) -> Vec<CountRow<'a>> {
    let mut differences = Differences::default();
    let added = dirty.executions_added.iter().map(|id| (id, None));
    let altered = dirty.executions_altered.iter().map(|id| (id, before.0.get(id).copied().flatten()));
    for (id, was) in added.chain(altered) {
        let execution = &tables.executions[id];
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
    differences.rows()
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

/// Returns the SELECT of the kept counts of some runs, from the dialect's tables.
fn select(tables: &[&str], which: &str) -> String {
    let parts: Vec<String> = tables
        .iter()
        .map(|table| format!("SELECT {} FROM {table} WHERE {which}", CountRow::names()))
        .collect();
    format!(
        "SELECT run, step, status, CAST(sum(total) AS bigint), CAST(sum(carried) AS bigint), \
         CAST(sum(cached) AS bigint) FROM ({}) kept GROUP BY run, step, status HAVING sum(total) <> 0",
        parts.join(" UNION ALL ")
    )
}

/// Returns the SELECT of the kept counts of the run `$1`.
pub(crate) fn of_run(tables: &[&str]) -> String {
    select(tables, "run = $1 AND EXISTS (SELECT 1 FROM runs r WHERE r.id = $1 AND r.keeps > 0)")
}

/// Returns the SELECT of the kept counts of whole runs; `listed` selects their ids.
pub(crate) fn of_runs(tables: &[&str], listed: &str) -> String {
    select(tables, &format!("run IN ({listed}) AND step = {WHOLE_RUN}"))
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

/// A run of a list, with what is kept for it.
#[derive(Debug)]
pub(crate) struct ListedRun {
    pub(crate) run: RunId,
    pub(crate) keeps: Keeps,
}

impl ListedRun {
    /// Selects the runs that keep counts.
    pub(crate) const KEPT: &str = "SELECT id, keeps FROM runs WHERE keeps > 0";

    /// Selects those of the listed runs whose counts may be shown.
    pub(crate) fn select_of(listed: &str) -> String {
        format!("SELECT id, keeps FROM runs WHERE id IN ({listed}) AND keeps IS NOT NULL")
    }
}

impl Record for ListedRun {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(0)?;
        Ok(Self { run: String::from(run).into(), keeps: Keeps::decode(row.cell(1)?)? })
    }
}

/// The counts of whole runs, by status. Runs whose counts are not known are missing.
#[derive(Debug, Default)]
pub(crate) struct Totals(pub(crate) BTreeMap<RunId, BTreeMap<Status, u64>>);

impl Totals {
    pub(crate) fn of(listed: &[ListedRun], rows: Vec<CountRow<'_>>) -> Result<Self> {
        let mut totals: BTreeMap<RunId, BTreeMap<Status, u64>> =
            listed.iter().map(|listed| (listed.run.clone(), BTreeMap::new())).collect();
        for row in rows {
            let run = RunId::from(String::from(row.run));
            if row.status == MISSED {
                totals.remove(&run);
            } else if let Some(counts) = totals.get_mut(&run) {
                counts.insert(Status::decode(row.status)?, count(row.total)?);
            }
        }
        Ok(Self(totals))
    }

    pub(crate) fn add(&mut self, run: &RunId, counts: &[InstanceCount]) {
        let totals = self.0.entry(run.clone()).or_default();
        for count in counts {
            *totals.entry(count.status).or_default() += count.total;
        }
    }
}
