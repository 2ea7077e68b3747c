//! Owns what is removed of standing tasks: which of their executions are old, in portions, by an index.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::retention::{KeptList, StandingKept};

use crate::filter::{arg, text};
use crate::pace::Pace;
use crate::port::{Result, StandingKey};
use crate::read::{Database, standing_range, standing_runs};
use crate::rows::{Cells, Record, condition, small, small_count};

/// Whether a node exists, or was deleted at `$5` or later.
macro_rules! has_node {
    () => {
        "EXISTS (SELECT 1 FROM nodes WHERE id = pinned) \
         OR EXISTS (SELECT 1 FROM tombstones WHERE node = pinned AND at >= $5)"
    };
}

/// Selects the tasks of the run `$1` on nodes after the step `$2` and node `$3` of which something may go, at most `$4`, each
/// with its first and last attempt, and whether the node exists or was deleted at `$5` or later. Of these, up to `$6` attempts
/// stay, unless the task is deleted: it is one before `$7` and none of those in the list. Of the executions only an index is
/// read.
const TASKS_ON_NODES: [&str; 2] = [
    concat!(
        "SELECT step, pinned, last, ",
        has_node!(),
        " FROM (SELECT step, pinned, max(attempt) AS last FROM executions WHERE ",
        condition!(standing runs),
        " AND run = $1 AND (step, pinned) > ($2, $3) GROUP BY step, pinned \
         HAVING max(attempt) - min(attempt) >= $6 OR (step < $7 AND step NOT IN (-1"
    ),
    // Between them is the list.
    concat!(")) OR NOT (", has_node!(), ") ORDER BY step, pinned LIMIT $4) AS tasks ORDER BY step, pinned"),
];
/// The status is written so that no index of ended executions is used: those begin with it.
///
/// Selects ended attempts of the task `$2` on the node `$3` up to `$4`, at most `$5`.
const OLD_ATTEMPTS: &str = concat!(
    "SELECT id FROM executions WHERE ",
    condition!(standing runs),
    " AND run = $1 AND step = $2 AND pinned = $3 AND attempt <= $4 AND +",
    condition!(ended executions),
    " ORDER BY attempt LIMIT $5"
);
/// A standing task on a node, with its last attempt.
#[derive(Debug)]
struct TaskOnNode {
    step: u32,
    node: NodeId,
    last: u32,
    has_node: bool,
}

impl Record for TaskOnNode {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(Self {
            step: small_count(row.cell(0)?)?,
            node: NodeId(row.cell(1)?),
            last: small_count(row.cell(2)?)?,
            has_node: row.cell(3)?,
        })
    }
}

/// Where the next call goes on; none means from the start.
#[derive(Debug, Default)]
pub(crate) struct Pruned(Mutex<Option<StandingKey>>);

impl Pruned {
    fn get(&self) -> Option<StandingKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, key: Option<StandingKey>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }
}

/// Returns ended executions of standing tasks that are not kept, at most `most`; fewer if there are no others. The next call
/// goes on after them. See [`DirectWrites`](crate::DirectWrites).
pub(crate) async fn find(
    database: &impl Database,
    pruned: &Pruned,
    pace: Pace,
    kept: &StandingKept,
    most: u32,
) -> Result<Vec<ExecutionId>> {
    let most = most as usize;
    let mut gone: Vec<ExecutionId> = Vec::new();
    let mut after = pruned.get();
    for run in standing_runs(database, None, after.as_ref()).await? {
        let Some(list) = kept.lists.iter().find(|list| list.run == run) else { continue };
        loop {
            let found = some_tasks(database, pace, kept, list, after.as_ref(), most).await?;
            let is_last = found.len() < most;
            for TaskOnNode { step, node, last, has_node } in found {
                if let Some(upto) = kept.gone_upto(&run, step, has_node, last) {
                    let room = i64::try_from(most - gone.len()).unwrap_or(i64::MAX);
                    let (of, task, on) = (text(run.as_str()), arg(small(step)), arg(node.0));
                    let args = vec![of, task, on, arg(small(upto)), arg(room)];
                    gone.extend(database.fetch::<ExecutionId>(OLD_ATTEMPTS, args).await?);
                    if gone.len() >= most {
                        // There may be more of this one.
                        pruned.set(after);
                        return Ok(gone);
                    }
                }
                after = Some(StandingKey { run: run.clone(), step, node });
            }
            if is_last {
                break;
            }
        }
    }
    pruned.set(None);
    Ok(gone)
}

/// Returns the next tasks of a list on nodes of which something may go. It may read the whole index, so it is paced.
async fn some_tasks(
    database: &impl Database,
    pace: Pace,
    kept: &StandingKept,
    list: &KeptList,
    after: Option<&StandingKey>,
    most: usize,
) -> Result<Vec<TaskOnNode>> {
    let numbers: String = list.numbers.iter().map(|number| format!(", {number}")).collect();
    let [start, end] = TASKS_ON_NODES;
    let mut args = standing_range(&list.run, after, most);
    args.push(arg(kept.nodes_since.as_microsecond()));
    args.extend([kept.attempts.max(1), list.newer].map(|number| arg(small(number))));
    let begun = Instant::now();
    let found = database.fetch(&[start, &numbers, end].concat(), args).await?;
    pace.pause(begun.elapsed()).await;
    Ok(found)
}
