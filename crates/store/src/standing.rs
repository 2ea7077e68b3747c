//! Owns what is removed of standing tasks: which of their executions are old, in portions, by an index.

use std::sync::{Mutex, PoisonError};

use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::retention::StandingKept;

use crate::filter::{arg, text};
use crate::port::{Result, StandingKey};
use crate::read::{Database, standing_range, standing_runs};
use crate::rows::{Cells, Record, condition, small, small_count};

/// How many tasks on nodes are looked at in one statement.
const GROUPS: usize = 5_000;

/// Selects the tasks of the run `$1` on nodes after the step `$2` and node `$3`, at most `$4`, each with its last attempt,
/// and whether the node exists or was deleted at `$5` or later. Of the executions only an index is read.
const TASKS_ON_NODES: &str = concat!(
    "SELECT step, pinned, first, last, \
     EXISTS (SELECT 1 FROM nodes WHERE id = pinned) \
     OR EXISTS (SELECT 1 FROM tombstones WHERE node = pinned AND at >= $5) \
     FROM (SELECT step, pinned, min(attempt) AS first, max(attempt) AS last FROM executions WHERE ",
    condition!(standing runs),
    " AND run = $1 AND (step, pinned) > ($2, $3) GROUP BY step, pinned ORDER BY step, pinned LIMIT $4) AS tasks \
     ORDER BY step, pinned"
);
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
/// A standing task on a node, with its first and last attempt.
#[derive(Debug)]
struct TaskOnNode {
    step: u32,
    node: NodeId,
    first: u32,
    last: u32,
    has_node: bool,
}

impl Record for TaskOnNode {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(Self {
            step: small_count(row.cell(0)?)?,
            node: NodeId(row.cell(1)?),
            first: small_count(row.cell(2)?)?,
            last: small_count(row.cell(3)?)?,
            has_node: row.cell(4)?,
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

/// Removes ended executions of standing tasks. See [`DirectWrites`](crate::DirectWrites).
pub(crate) async fn prune(
    database: &impl Database,
    pruned: &Pruned,
    kept: &StandingKept,
    most: u32,
) -> Result<u64> {
    let most = most as usize;
    let mut gone: Vec<ExecutionId> = Vec::new();
    let room = |gone: &[ExecutionId]| i64::try_from(most.saturating_sub(gone.len())).unwrap_or(i64::MAX);
    let mut after = pruned.get();
    for run in standing_runs(database, None, after.as_ref()).await? {
        loop {
            let mut args = standing_range(&run, after.as_ref(), GROUPS);
            args.push(arg(kept.nodes_since.as_microsecond()));
            let found: Vec<TaskOnNode> = database.fetch(TASKS_ON_NODES, args).await?;
            let is_last = found.len() < GROUPS;
            for TaskOnNode { step, node, first, last, has_node } in found {
                let upto = kept.gone_upto(&run, step, has_node, last);
                if let Some(upto) = upto.filter(|upto| *upto >= first) {
                    if gone.len() >= most {
                        // This one is looked at by the next call.
                        pruned.set(after);
                        return remove(database, gone).await;
                    }
                    let (of, task, on) = (text(run.as_str()), arg(small(step)), arg(node.0));
                    let args = vec![of, task, on, arg(small(upto)), arg(room(&gone))];
                    gone.extend(database.fetch::<ExecutionId>(OLD_ATTEMPTS, args).await?);
                    if gone.len() >= most {
                        // There may be more of this one.
                        pruned.set(after);
                        return remove(database, gone).await;
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
    remove(database, gone).await
}

async fn remove(database: &impl Database, gone: Vec<ExecutionId>) -> Result<u64> {
    database.remove_executions(&gone).await
}
