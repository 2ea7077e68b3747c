//! Cases about debug commands: runs that lists, admission and retention treat apart.

use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::execution::Execution;
use downbeat_core::ids::RunId;
use downbeat_core::retention::Excess;
use downbeat_core::run::{RunMade, RunRecord, RunState};
use downbeat_core::work::{Origin, Parent};

use super::make::*;
use crate::port::{Page, RunFilter, RunKind, Store};

const END: [RunState; 2] = [RunState::Terminating, RunState::Completed];

/// Returns a pending execution of a debug command, pinned to a node.
fn command(number: u32, debug: u32, on: u32) -> Execution {
    let of = Origin::Step { run: debug_id(debug), step: 0, item: None };
    Execution { of, pinned: Some(node(on)), ..execution(number, 1, pending()) }
}

fn given(debug: u32, execution: u32, on: u32) -> Change {
    let of = Parent::Run(debug_id(debug));
    Change::ExecutionLeased { of, execution: execution_id(execution), lease: lease(1, on) }
}

async fn start(store: &Arc<dyn Store>, number: u32, executions: Vec<Execution>) {
    apply(store, &debug_created(number)).await;
    let (run, at) = (debug_id(number), at(i64::from(number)));
    apply(
        store,
        &[Change::ExecutionsAdded {
            run,
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at,
        }],
    )
    .await;
}

async fn listed(store: &Arc<dyn Store>, filter: RunFilter) -> Vec<RunId> {
    let page = store.runs(&filter, &Page::first(10)).await.unwrap();
    assert_eq!(page.total, Some(page.rows.len() as u64));
    page.rows.into_iter().map(|run| run.id).collect()
}

pub async fn debug_commands_have_a_list_of_their_own(store: Arc<dyn Store>) {
    let debug = || RunFilter { kind: RunKind::Debug, ..RunFilter::default() };
    start(&store, 2, vec![command(2, 2, 1)]).await;
    start(&store, 4, vec![command(4, 4, 2), command(5, 4, 1)]).await;
    // A job of a user may have the same name.
    let named = RunMade { job: Some("debug".to_owned()), ..made(3) };
    apply(&store, &[created(1), created_as(RunRecord::new(named, SERVER))]).await;
    assert_eq!(listed(&store, RunFilter::default()).await, [run_id(3), run_id(1)]);
    let of_job = RunFilter { job: Some("debug".to_owned()), ..RunFilter::default() };
    assert_eq!(listed(&store, of_job).await, [run_id(3)]);
    assert_eq!(listed(&store, debug()).await, [debug_id(4), debug_id(2)]);
    assert_eq!(listed(&store, RunFilter { node: Some(node(2)), ..debug() }).await, [debug_id(4)]);
    assert_eq!(
        listed(&store, RunFilter { node: Some(node(1)), ..debug() }).await,
        [debug_id(4), debug_id(2)]
    );
    assert_eq!(listed(&store, RunFilter { states: vec![RunState::Failed], ..debug() }).await, []);
}

pub async fn debug_commands_use_no_room_and_no_turn(store: Arc<dyn Store>) {
    start(&store, 7, vec![command(1, 7, 1)]).await;
    apply(&store, &[created(1), created(2)]).await;
    apply(&store, &[admitted(1, Some(1), &[])]).await;
    refuse(&store, admitted(2, Some(1), &[]), Refusal::NoRoom { running: 1 }).await;
    let bounded =
        |number| Change::RunCreated { run: run(number), max_pending: None, max_open: Some(3), firing: None };
    apply(&store, &[bounded(3)]).await;
    refuse(&store, bounded(4), Refusal::TooManyOpen { open: 3 }).await;
}

pub async fn debug_commands_are_not_counted_as_runs(store: Arc<dyn Store>) {
    apply(&store, &debug_created(1)).await;
    apply(&store, &debug_created(2)).await;
    assert_eq!(store.tally().await.unwrap().runs, []);
    apply(&store, &[debug_moved(1, &END, 20), created(3)]).await;
    assert_eq!(store.tally().await.unwrap().runs, [(RunState::Pending, 1)]);
    apply(&store, &[moved(3, &[RunState::Starting, RunState::Running], 21)]).await;
    apply(&store, &[moved(3, &END, 22)]).await;
    assert_eq!(store.tally().await.unwrap().runs, [(RunState::Completed, 1)]);
}

pub async fn a_debug_command_reaches_a_held_node_and_keeps_nobody_from_it(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 1)]).await;
    start(&store, 7, vec![command(1, 7, 1)]).await;
    apply(&store, &[given(7, 1, 1)]).await;
    // The node is busy only with a debug command.
    apply(&store, &[created(1)]).await;
    apply(&store, &[admitted(1, None, &[1])]).await;
    start(&store, 8, vec![command(2, 8, 1)]).await;
    apply(&store, &[given(8, 2, 1)]).await;
    // Work of another run is refused.
    apply(&store, &[created(2), added(2, vec![execution(3, 2, pending())])]).await;
    refuse(&store, granted(2, 3, lease(1, 1)), Refusal::NodeHeld(run_id(1))).await;
}

pub async fn ended_debug_commands_are_removed_before_other_runs(store: Arc<dyn Store>) {
    for number in [1, 2, 3] {
        start(&store, number, vec![command(number, number, 1)]).await;
        store.append_output(&[chunk(number, 0, "text")], 100).await.unwrap();
    }
    apply(&store, &[created(1), moved(1, &[RunState::Cancelled], 50)]).await;
    apply(&store, &[debug_moved(1, &END, 101), debug_moved(2, &END, 102)]).await;
    let kept = store.kept().await.unwrap();
    assert_eq!(
        (kept.first_ended, kept.first_debug),
        (Some((at(50), run_id(1))), Some((at(101), debug_id(1))))
    );
    assert_eq!(store.prune_debug(at(101), 10).await.unwrap(), 0);
    assert_eq!(store.prune_debug(at(200), 1).await.unwrap(), 1);
    assert_eq!(store.kept().await.unwrap().first_debug, Some((at(102), debug_id(2))));
    assert_eq!(store.prune_debug(at(200), 10).await.unwrap(), 1);
    assert_eq!(store.prune_debug(at(200), 10).await.unwrap(), 0);
    for (number, is_left) in [(1, false), (2, false), (3, true)] {
        assert_eq!(store.run(&debug_id(number)).await.unwrap().is_some(), is_left);
        assert_eq!(store.execution(execution_id(number)).await.unwrap().is_some(), is_left);
        assert_eq!(!store.output(execution_id(number), 0, 1).await.unwrap().is_empty(), is_left);
    }
    let kept = store.kept().await.unwrap();
    assert_eq!((kept.first_ended, kept.first_debug), (Some((at(50), run_id(1))), None));
    assert!(store.run(&run_id(1)).await.unwrap().is_some(), "runs of jobs have their own retention");
}

pub async fn debug_commands_are_not_among_the_runs_beyond_a_number(store: Arc<dyn Store>) {
    start(&store, 1, vec![command(1, 1, 1)]).await;
    apply(&store, &[debug_moved(1, &END, 101)]).await;
    for number in [2, 3] {
        apply(&store, &[created(number), moved(number, &[RunState::Cancelled], 110 + i64::from(number))])
            .await;
    }
    let excess = Excess { before: at(1_000), runs: 1, events_upto: 0, output_bytes: 0 };
    assert_eq!(store.prune_excess(&excess, 100).await.unwrap().runs, 1);
    assert!(store.run(&debug_id(1)).await.unwrap().is_some(), "only its age counts");
    assert_eq!(store.run(&run_id(2)).await.unwrap(), None);
    // A copy learns it: the debug command is older than the first run that is left.
    let kept = store.kept().await.unwrap();
    assert_eq!(
        (kept.first_ended, kept.first_debug),
        (Some((at(113), run_id(3))), Some((at(101), debug_id(1))))
    );
    assert_eq!(store.prune_excess(&excess, 100).await.unwrap().runs, 1);
    assert_eq!(store.prune_excess(&excess, 100).await.unwrap().runs, 0);
    assert_eq!(store.kept().await.unwrap().first_ended, None);
}
