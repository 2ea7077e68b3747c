//! Decides what a node does next with the standing tasks of its cluster: a function of the list, of the node, and of its
//! last attempt at each task.

use jiff::Timestamp;

use super::list::{RerunScope, StandingList, StandingTask};
use crate::execution::Status;
use crate::ids::ExecutionId;
use crate::node::{NodeRecord, NodeStatus};
use crate::words::words;

/// How often a task whose action is idempotent is sent again after its lease was lost.
pub(super) const SENDS: u32 = 3;

/// The last attempt at a task on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAttempt {
    pub execution: ExecutionId,
    /// From 1, over all sessions of the node.
    pub attempt: u32,
    pub status: Status,
    pub created_at: Timestamp,
    /// How many attempts in a row were lost just before it; one less than the most sends stands for more, too.
    pub lost_before: u32,
}

words! {
    /// A task on a node.
    pub enum Cell {
        /// Nothing is known of it yet: the node has not come to it.
        Pending = "pending",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        /// Its lease ended without a report, and it is not sent again.
        Lost = "lost",
        /// A blocking task before it failed.
        Skipped = "skipped",
        /// The selector of the task does not match the node.
        NotSelected = "not_selected",
    }
}

impl Cell {
    fn is_failure(self) -> bool {
        matches!(self, Cell::Failed | Cell::Lost)
    }
}

/// The next step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Everything is done, or a blocking task failed.
    Nothing,
    /// An execution of the node has not ended.
    Wait,
    /// The task at this position of the list, with its first or a further attempt.
    Start { position: usize },
}

/// A pending execution that is not the next step any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    pub execution: ExecutionId,
    pub reason: &'static str,
}

/// The walk of one node through the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// One for each task, in the order of the list.
    pub cells: Vec<Cell>,
    pub next: Next,
    pub withdrawals: Vec<Withdrawal>,
}

impl Walked {
    /// Walks through the list. `attempts` are the node's last attempts, by the number of the task; deleted tasks may be
    /// among them.
    pub fn new<'a>(
        list: &StandingList,
        node: &NodeRecord,
        attempts: impl Fn(u32) -> Option<&'a LastAttempt>,
        open: &[(u32, LastAttempt)],
    ) -> Self {
        let mut cells = Vec::with_capacity(list.tasks.len());
        let (mut blocked, mut wanted) = (false, None);
        for (position, task) in list.tasks.iter().enumerate() {
            let cell = if task.selector.as_ref().is_some_and(|selector| !selector.matches(node)) {
                Cell::NotSelected
            } else {
                match attempts(task.number).map(|attempt| judge(list, task, node, attempt)) {
                    Some(Judged::Running) => Cell::Running,
                    Some(Judged::Ended(cell)) => cell,
                    None | Some(Judged::Nothing) if blocked => Cell::Skipped,
                    None | Some(Judged::Nothing) => {
                        wanted = wanted.or(Some(position));
                        Cell::Pending
                    }
                }
            };
            blocked |= task.blocking && cell.is_failure();
            cells.push(cell);
        }
        let number = |position: usize| list.tasks.get(position).map(|task| task.number);
        let is_next = |of: u32, attempt: &LastAttempt| {
            wanted.and_then(number) == Some(of)
                && list.by_number(of).is_some_and(|task| counts(list, task, node, attempt))
        };
        let pending = open.iter().filter(|(_, attempt)| attempt.status == Status::Pending);
        let (next_pending, others): (Vec<_>, Vec<_>) =
            pending.partition(|(of, attempt)| is_next(*of, attempt));
        let withdrawals = others.iter().map(|(of, attempt)| Withdrawal {
            execution: attempt.execution,
            reason: why_withdrawn(list, *of, node, attempt),
        });
        let is_busy = open.iter().any(|(_, attempt)| attempt.status != Status::Pending);
        let next = match wanted {
            _ if is_busy || !next_pending.is_empty() => Next::Wait,
            None => Next::Nothing,
            Some(position) => Next::Start { position },
        };
        Self { cells, next, withdrawals: withdrawals.collect() }
    }

    /// Returns the position of the blocking task whose failure keeps the node from the rest.
    pub fn blocker(&self, list: &StandingList) -> Option<usize> {
        let is_blocker = |(cell, task): (&Cell, &StandingTask)| task.blocking && cell.is_failure();
        let found = self.cells.iter().zip(&list.tasks).position(is_blocker)?;
        self.cells[found..].contains(&Cell::Skipped).then_some(found)
    }
}

/// Returns whether a node may start a further task now.
pub fn takes_work(node: &NodeRecord) -> bool {
    node.status == NodeStatus::Online && !node.draining
}

enum Judged {
    /// There is no result that counts.
    Nothing,
    Running,
    Ended(Cell),
}

fn judge(list: &StandingList, task: &StandingTask, node: &NodeRecord, attempt: &LastAttempt) -> Judged {
    match attempt.status {
        Status::Leased | Status::Running => return Judged::Running,
        // A skipped execution was withdrawn.
        Status::Pending | Status::Skipped => return Judged::Nothing,
        Status::Succeeded | Status::Failed | Status::Cancelled | Status::Lost => {}
    }
    if !counts(list, task, node, attempt) {
        return Judged::Nothing;
    }
    match attempt.status {
        Status::Succeeded => Judged::Ended(Cell::Succeeded),
        Status::Lost if is_idempotent(node, task) && attempt.lost_before + 1 < SENDS => Judged::Nothing,
        Status::Lost => Judged::Ended(Cell::Lost),
        _ => Judged::Ended(Cell::Failed),
    }
}

/// Returns whether an attempt belongs to what the node does now: its session, or a success that it keeps, and nobody asked
/// to do it again since.
fn counts(list: &StandingList, task: &StandingTask, node: &NodeRecord, attempt: &LastAttempt) -> bool {
    let is_success = attempt.status == Status::Succeeded;
    let since = node.kept_since.filter(|_| is_success).unwrap_or(node.registered_at);
    let is_void = task.reruns.iter().any(|rerun| {
        let concerns = match rerun.scope {
            RerunScope::All => true,
            RerunScope::Failed => !is_success,
            RerunScope::Node { node: of } => of == node.id,
        };
        concerns && attempt.created_at < rerun.at
    });
    let is_reset = list.resets.get(&node.id).is_some_and(|at| attempt.created_at < *at);
    attempt.created_at >= since && !is_void && !is_reset
}

fn is_idempotent(node: &NodeRecord, task: &StandingTask) -> bool {
    node.description.action(&task.backend, &task.action).is_some_and(|action| action.idempotent)
}

fn why_withdrawn(list: &StandingList, of: u32, node: &NodeRecord, attempt: &LastAttempt) -> &'static str {
    match list.tasks.iter().find(|task| task.number == of) {
        None => "the standing task was deleted",
        Some(task) if !counts(list, task, node, attempt) => "the node starts its standing tasks over",
        Some(_) => "the list of standing tasks was changed",
    }
}

/// Returns when a new attempt was created: never before the moment from which results of the node count.
pub fn created_at(now: Timestamp, list: &StandingList, task: &StandingTask, node: &NodeRecord) -> Timestamp {
    let reruns = task.reruns.iter().map(|rerun| rerun.at);
    let reset = list.resets.get(&node.id).copied();
    reruns.chain(reset).chain([node.registered_at]).fold(now, Timestamp::max)
}
