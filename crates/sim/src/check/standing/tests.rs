//! Checks the checker: a true history, forged in one place, is found.

use std::sync::Arc;

use downbeat_core::Span;
use downbeat_core::change::About;
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{RunId, TaskId};
use downbeat_core::work::{Origin, Parent};
use downbeat_store::conformance::make::{
    SERVER, at, execution, execution_id, lease, node, outcome, pending, registered, session,
};
use uuid::Uuid;

use super::*;

const CLUSTER: ClusterId = ClusterId::DEFAULT;

/// A task that is not idempotent.
fn task(number: u32, blocking: bool) -> StandingTask {
    StandingTask {
        id: TaskId(Uuid::from_u128(u128::from(number) + 1)),
        number,
        name: format!("task-{number}"),
        blocking,
        backend: "exec".to_owned(),
        action: "shell".to_owned(),
        params: Arc::default(),
        timeout: Span::from_secs(1_800),
        selector: None,
        created_at: at(0),
        updated_at: at(0),
        deleted_at: None,
        reruns: Vec::new(),
    }
}

fn version(version: u64, edit: ClusterEdit, tasks: Vec<StandingTask>) -> Change {
    let list = StandingList { tasks, next_number: 9, ..StandingList::default() };
    let cluster = ClusterRecord { version, list: Arc::new(list), ..ClusterRecord::default_cluster() };
    Change::ClusterChanged { cluster, edit, by: String::new(), at: at(50) }
}

/// Three tasks, of which the second blocks.
fn first_version() -> Change {
    version(2, ClusterEdit::TasksApplied, vec![task(0, false), task(1, true), task(2, false)])
}

fn added(number: u32, step: u32, attempt: u32, of: u64) -> Change {
    let run = RunId::standing(CLUSTER);
    let execution = Execution {
        of: Origin::Step { run: run.clone(), step, item: None },
        pinned: Some(node(1)),
        attempt,
        created_at: at(100 + i64::from(number)),
        ..execution(number, 1, pending())
    };
    let (executions, version) = (vec![execution], Some(of));
    Change::ExecutionsAdded {
        run,
        epoch: 1,
        executions,
        rollout: None,
        version,
        sessions: Vec::new(),
        after: None,
        at: at(100),
    }
}

fn of() -> Parent {
    Parent::Run(RunId::standing(CLUSTER))
}

fn leased(number: u32) -> Change {
    Change::ExecutionLeased { of: of(), execution: execution_id(number), lease: lease(number, 1) }
}

fn ended(number: u32, verdict: Verdict) -> Change {
    let token = lease(number, 1).token;
    Change::ExecutionFinished { of: of(), execution: execution_id(number), token, outcome: outcome(verdict) }
}

fn lost(number: u32) -> Change {
    let (token, reason) = (lease(number, 1).token, String::new());
    Change::ExecutionLost {
        of: of(),
        execution: execution_id(number),
        token,
        silence: None,
        reason,
        at: at(100),
    }
}

/// An attempt from its creation to its end.
fn whole(number: u32, step: u32, attempt: u32, verdict: Verdict) -> Vec<Change> {
    vec![added(number, step, attempt, 2), leased(number), ended(number, verdict)]
}

/// Returns what is found in a history, after a list and the registration of a node at second 60.
fn found(parts: &[Vec<Change>]) -> Vec<String> {
    let mut follower = Follower::default();
    let changes = [first_version(), registered(1, session(1), 60)];
    for (seq, change) in (1..).zip(changes.iter().chain(parts.iter().flatten())) {
        let (about, change) = (About::default(), change.clone());
        follower.follow(&Event { seq, server: SERVER, about, change });
    }
    let mut found = follower.unsettled();
    found.extend(follower.found);
    found
}

#[track_caller]
fn finds(what: &str, parts: &[Vec<Change>]) {
    let found = found(parts);
    assert!(found.iter().any(|each| each.contains(what)), "`{what}` is not among {found:#?}");
}

fn succeeded(steps: std::ops::Range<u32>) -> Vec<Change> {
    steps.flat_map(|step| whole(step + 1, step, 1, Verdict::Succeeded)).collect()
}

#[test]
fn a_true_history_is_found_to_be_true() {
    let none: Vec<String> = Vec::new();
    assert_eq!(found(&[succeeded(0..3)]), none);
    // A failure that does not block is passed over, and one that blocks ends the walk.
    let failed = [whole(1, 0, 1, Verdict::Failed), whole(2, 1, 1, Verdict::Failed)];
    assert_eq!(found(&failed), none);
    // A new session starts over.
    let again: Vec<Change> = (0..3).flat_map(|step| whole(10 + step, step, 2, Verdict::Succeeded)).collect();
    assert_eq!(found(&[succeeded(0..3), vec![registered(1, session(2), 105)], again]), none);
}

#[test]
fn a_task_that_starts_before_an_earlier_one_is_found() {
    finds("gets task-1 before task-0", &[whole(1, 1, 1, Verdict::Succeeded)]);
    finds("gets task-2 before task-1", &[succeeded(0..1), whole(2, 2, 1, Verdict::Succeeded)]);
}

#[test]
fn two_tasks_at_once_are_found() {
    finds("while", &[vec![added(1, 0, 1, 2), added(2, 1, 1, 2)]]);
}

#[test]
fn a_task_after_a_blocking_failure_is_found() {
    let parts = [succeeded(0..1), whole(2, 1, 1, Verdict::Failed), whole(3, 2, 1, Verdict::Succeeded)];
    finds("after task-1, which blocks, failed", &parts);
    let lost = vec![added(2, 1, 1, 2), leased(2), lost(2)];
    finds("which blocks, failed", &[succeeded(0..1), lost, whole(3, 2, 1, Verdict::Succeeded)]);
}

#[test]
fn a_task_that_is_done_again_without_a_reason_is_found() {
    finds("again without a reason", &[succeeded(0..3), whole(9, 0, 2, Verdict::Succeeded)]);
    finds("again without a reason", &[whole(1, 0, 1, Verdict::Failed), whole(9, 0, 2, Verdict::Failed)]);
    finds("attempt 2 of task 0", &[whole(1, 0, 2, Verdict::Succeeded)]);
}

#[test]
fn work_of_another_version_is_found() {
    finds("is added to version 2", &[vec![added(1, 0, 1, 1)]]);
    finds("not in the list", &[vec![added(1, 7, 1, 2)]]);
}

#[test]
fn a_rerun_that_nobody_asked_for_is_found() {
    let mut asked = task(0, false);
    asked.reruns = vec![Rerun { at: at(50), scope: RerunScope::All }];
    let tasks = vec![asked, task(1, true), task(2, false)];
    finds("asks for", &[vec![version(3, ClusterEdit::TasksReordered, tasks.clone())]]);
    let scope = RerunScope::All;
    let rerun = ClusterEdit::TaskRerun { task: task(0, false).id, scope };
    let found = found(&[vec![version(3, rerun, tasks)]]);
    assert!(!found.iter().any(|each| each.contains("asks for")), "{found:#?}");
}

#[test]
fn a_number_that_is_used_again_is_found() {
    let tasks = vec![task(0, false), task(5, false)];
    finds("uses number 5 again", &[vec![version(3, ClusterEdit::TasksApplied, tasks)]]);
}

#[test]
fn a_node_that_is_not_finished_is_found() {
    finds("has not done task-1", &[succeeded(0..1)]);
    finds("is leased", &[vec![added(1, 0, 1, 2), leased(1)]]);
}
