//! Owns what is removed of standing tasks: which of their executions are old, in portions, by an index.

use std::sync::{Mutex, PoisonError};

use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use uuid::Uuid;

use crate::filter::{arg, text};
use crate::port::{Result, StandingKey};
use crate::read::{Database, standing_range};
use crate::rows::{Cells, Record, Text, condition, small, small_count};

/// How many tasks on nodes are looked at in one statement.
const GROUPS: u32 = 5_000;

/// Selects the tasks on nodes after the run `$1`, step `$2` and node `$3`, up to the run `$4`, at most `$5`, each with its
/// first and last attempt. Reads only an index.
const TASKS_ON_NODES: &str = concat!(
    "SELECT run, step, pinned, min(attempt), max(attempt) FROM executions WHERE ",
    condition!(standing runs),
    " AND (run, step, pinned) > ($1, $2, $3) AND run <= $4 GROUP BY run, step, pinned \
     ORDER BY run, step, pinned LIMIT $5"
);
/// Selects ended attempts of the task `$2` on the node `$3` up to `$4`, at most `$5`.
const OLD_ATTEMPTS: &str = concat!(
    "SELECT id FROM executions WHERE ",
    condition!(standing runs),
    " AND run = $1 AND step = $2 AND pinned = $3 AND attempt <= $4 AND ",
    condition!(ended executions),
    " ORDER BY attempt LIMIT $5"
);
/// Selects ended attempts of the task `$2` on all nodes, at most `$3`.
const ENDED_ATTEMPTS: &str = concat!(
    "SELECT id FROM executions WHERE ",
    condition!(standing runs),
    " AND run = $1 AND step = $2 AND ",
    condition!(ended executions),
    " ORDER BY id LIMIT $3"
);

/// A standing task on a node, with its first and last attempt.
#[derive(Debug)]
struct TaskOnNode {
    key: StandingKey,
    first: u32,
    last: u32,
}

impl Record for TaskOnNode {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(0)?;
        let (step, node): (i32, Uuid) = (row.cell(1)?, row.cell(2)?);
        let key = StandingKey { run: String::from(run).into(), step: small_count(step)?, node: NodeId(node) };
        Ok(Self { key, first: small_count(row.cell(3)?)?, last: small_count(row.cell(4)?)? })
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
    deleted: &[(RunId, Vec<u32>)],
    keep: u32,
    most: u32,
) -> Result<u64> {
    let most = most as usize;
    let mut gone: Vec<ExecutionId> = Vec::new();
    let room = |gone: &[ExecutionId]| i64::try_from(most.saturating_sub(gone.len())).unwrap_or(i64::MAX);
    for (run, steps) in deleted.iter().filter(|(run, _)| run.is_standing()) {
        for step in steps {
            if gone.len() < most {
                let args = vec![text(run.as_str()), arg(small(*step)), arg(room(&gone))];
                gone.extend(database.fetch::<ExecutionId>(ENDED_ATTEMPTS, args).await?);
            }
        }
    }
    // The last attempt of a task that is not deleted always stays.
    let keep = keep.max(1);
    let mut after = pruned.get();
    while gone.len() < most {
        let mut args = standing_range(None, after.as_ref());
        args.push(arg(i64::from(GROUPS)));
        let found: Vec<TaskOnNode> = database.fetch(TASKS_ON_NODES, args).await?;
        let is_last = found.len() < GROUPS as usize;
        after = found.last().map(|found| found.key.clone()).filter(|_| !is_last);
        for TaskOnNode { key, first, last } in found {
            // Those of deleted tasks were selected above.
            if last - first < keep || is_deleted(deleted, &key) {
                continue;
            }
            if gone.len() >= most {
                // This one is looked at again.
                after = Some(before(key));
                break;
            }
            let (run, step, node) = (text(key.run.as_str()), arg(small(key.step)), arg(key.node.0));
            let args = vec![run, step, node, arg(small(last - keep)), arg(room(&gone))];
            gone.extend(database.fetch::<ExecutionId>(OLD_ATTEMPTS, args).await?);
        }
        pruned.set(after.clone());
        if after.is_none() {
            break;
        }
    }
    database.remove_executions(&gone).await?;
    Ok(gone.len() as u64)
}

fn is_deleted(deleted: &[(RunId, Vec<u32>)], key: &StandingKey) -> bool {
    deleted.iter().any(|(run, steps)| *run == key.run && steps.contains(&key.step))
}

/// Returns a key right before this one.
fn before(key: StandingKey) -> StandingKey {
    let node = key.node.0.as_u128();
    match (node.checked_sub(1), key.step.checked_sub(1)) {
        (Some(node), _) => StandingKey { node: NodeId(Uuid::from_u128(node)), ..key },
        (None, Some(step)) => StandingKey { node: NodeId(Uuid::max()), step, ..key },
        (None, None) => key,
    }
}
