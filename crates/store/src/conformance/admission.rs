//! Cases about waiting runs and about nodes that a run holds.

use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::run::{RunLive, RunMade, RunStage, RunState};

use super::Snapshot;
use super::copies::copy;
use super::make::*;
use crate::port::Store;

const START: [RunState; 2] = [RunState::Starting, RunState::Running];

fn held(holds: &[(u32, u32)]) -> Vec<(NodeId, RunId)> {
    holds.iter().map(|&(on, by)| (node(on), run_id(by))).collect()
}

fn queued(number: u32, max_pending: u32) -> Change {
    Change::RunCreated { run: run(number), max_pending: Some(max_pending), max_open: None, firing: None }
}

fn given(run: u32, execution: u32, on: u32) -> Change {
    granted(run, execution, lease(1, on))
}

pub async fn a_run_is_paused_and_resumed_until_it_ends(store: Arc<dyn Store>) {
    let set = |number, paused, second| Change::RunPauseSet {
        run: run_id(number),
        paused,
        by: "ada".to_owned(),
        at: at(second),
    };
    refuse(&store, set(1, true, 9), Refusal::NotFound).await;
    apply(&store, &[created(1)]).await;
    refuse(&store, set(1, false, 9), Refusal::WrongState).await;
    apply(&store, &[set(1, true, 9)]).await;
    assert_eq!(
        read_run(&store, 1).await,
        living(1, RunLive { paused_at: Some(at(9)), ..RunLive::new(SERVER) })
    );
    refuse(&store, set(1, true, 10), Refusal::WrongState).await;
    // A paused run still moves, because its running work ends.
    apply(&store, &[moved(1, &START, 11)]).await;
    assert_eq!(read_run(&store, 1).await.live.paused_at, Some(at(9)));
    let outcomes = commit(&store, &[set(1, false, 12), set(1, false, 13)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::WrongState)]);
    assert_eq!(read_run(&store, 1).await.live.paused_at, None);
    apply(&store, &[moved(1, &[RunState::Terminating, RunState::Cancelled], 14)]).await;
    refuse(&store, set(1, true, 15), Refusal::WrongState).await;
}

pub async fn a_full_queue_takes_no_more(store: Arc<dyn Store>) {
    // Runs that were created without a bound wait as well; active and ended runs do not.
    apply(&store, &[created(1), created(2), moved(2, &START, 3), created(3)]).await;
    apply(&store, &[moved(3, &[RunState::Cancelled], 4)]).await;
    refuse(&store, queued(4, 1), Refusal::QueueFull { pending: 1 }).await;
    let outcomes = commit(&store, &[queued(4, 3), queued(5, 3), queued(6, 3)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::QueueFull { pending: 3 })]);
    refuse(&store, queued(6, 3), Refusal::QueueFull { pending: 3 }).await;
    // A duplicate is refused as a duplicate, not because of the bound.
    refuse(&store, queued(4, 3), Refusal::RunExists(run_id(4))).await;
    // An admitted run makes room.
    apply(&store, &[admitted(4, None, &[])]).await;
    apply(&store, &[queued(6, 3)]).await;
    refuse(&store, queued(7, 3), Refusal::QueueFull { pending: 3 }).await;
    apply(&store, &[moved(5, &[RunState::Cancelled], 9)]).await;
    apply(&store, &[queued(7, 3)]).await;
}

pub async fn a_cluster_takes_no_more_open_runs_than_it_may(store: Arc<dyn Store>) {
    let bounded =
        |number| Change::RunCreated { run: run(number), max_pending: None, max_open: Some(2), firing: None };
    // Waiting and active runs are open; ended runs are not.
    apply(&store, &[created(1), moved(1, &START, 3), created(3), moved(3, &[RunState::Cancelled], 4)]).await;
    let outcomes = commit(&store, &[bounded(4), bounded(5)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::TooManyOpen { open: 2 })]);
    refuse(&store, bounded(5), Refusal::TooManyOpen { open: 2 }).await;
    // A duplicate is refused as a duplicate, not because of the bound.
    refuse(&store, bounded(4), Refusal::RunExists(run_id(4))).await;
    apply(&store, &[moved(1, &[RunState::Terminating, RunState::Completed], 5)]).await;
    apply(&store, &[bounded(5)]).await;
}

/// For stores that can create a second cluster. Not a case of the suite, because the port cannot.
pub async fn clusters_have_their_own_room(store: Arc<dyn Store>, other: ClusterId) {
    let there = |number| made_as(RunMade { cluster: other, ..made(number) });
    apply(&store, &[created(21), created(22), created_as(there(23)), created_as(there(24))]).await;
    // In one batch, then in several.
    let enters = |number| admitted(number, Some(1), &[]);
    let full = || Err(Refusal::NoRoom { running: 1 });
    let outcomes = commit(&store, &[enters(21), enters(22), enters(23), enters(24)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), full(), Ok(()), full()]);
    apply(&store, &[moved(21, &[RunState::Cancelled], 9)]).await;
    refuse(&store, enters(24), Refusal::NoRoom { running: 1 }).await;
    apply(&store, &[enters(22)]).await;
    // One run waits in the other cluster, none in this one.
    let queued_there =
        |max_pending, max_open| Change::RunCreated { run: there(25), max_pending, max_open, firing: None };
    refuse(&store, queued_there(Some(1), None), Refusal::QueueFull { pending: 1 }).await;
    refuse(&store, queued_there(None, Some(2)), Refusal::TooManyOpen { open: 2 }).await;
    apply(&store, &[queued(25, 1)]).await;
    refuse(&store, queued(26, 1), Refusal::QueueFull { pending: 1 }).await;
}

pub async fn a_run_is_let_in_once_by_its_owner_while_it_waits(store: Arc<dyn Store>) {
    refuse(&store, admitted(1, None, &[]), Refusal::NotFound).await;
    apply(&store, &[created(1), created(2), moved(2, &START, 3)]).await;
    let taken = Change::RunTaken { run: run_id(1), owner: server(2), epoch: 2, at: at(4) };
    apply(&store, &[taken]).await;
    refuse(&store, admitted(1, None, &[1]), Refusal::StaleEpoch).await;
    refuse(&store, admitted(2, None, &[1]), Refusal::WrongState).await;
    let by_owner =
        || Change::RunAdmitted { run: run_id(1), epoch: 2, limit: None, nodes: vec![], at: at(15) };
    assert_eq!(commit(&store, &[by_owner(), by_owner()]).await.outcomes, [Ok(()), Err(Refusal::WrongState)]);
    let expected =
        RunLive { stage: RunStage::Admitted, admitted_at: Some(at(15)), epoch: 2, ..RunLive::new(server(2)) };
    assert_eq!(read_run(&store, 1).await, living(1, expected));
    assert_eq!(store.holds().await.unwrap(), []);
}

pub async fn no_more_runs_are_admitted_than_may_be_active(store: Arc<dyn Store>) {
    apply(&store, &(1..=6).map(created).collect::<Vec<_>>()).await;
    let limited = |number| admitted(number, Some(2), &[]);
    refuse(&store, admitted(1, Some(0), &[]), Refusal::NoRoom { running: 0 }).await;
    let outcomes = commit(&store, &[limited(1), limited(2), limited(3)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::NoRoom { running: 2 })]);
    // A run that has started is not counted twice.
    apply(&store, &[moved(1, &START, 9)]).await;
    refuse(&store, limited(3), Refusal::NoRoom { running: 2 }).await;
    apply(&store, &[moved(1, &[RunState::Terminating], 9)]).await;
    refuse(&store, limited(3), Refusal::NoRoom { running: 2 }).await;
    apply(&store, &[moved(1, &[RunState::Cancelled], 9)]).await;
    apply(&store, &[limited(3)]).await;
    // A run that started without waiting counts too.
    apply(&store, &[moved(2, &[RunState::Cancelled], 9), moved(4, &START, 9)]).await;
    refuse(&store, limited(5), Refusal::NoRoom { running: 2 }).await;
    apply(&store, &[admitted(5, None, &[])]).await;
    refuse(&store, admitted(6, Some(3), &[]), Refusal::NoRoom { running: 3 }).await;
}

/// The user who paused or cancelled it got a response before the run could hold anything.
pub async fn a_run_that_is_paused_or_to_be_cancelled_is_not_let_in(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2)]).await;
    let by = || "ada".to_owned();
    let pause = |paused| Change::RunPauseSet { run: run_id(1), paused, by: by(), at: at(5) };
    apply(&store, &[pause(true), Change::RunCancelRequested { run: run_id(2), by: by(), at: at(5) }]).await;
    for number in [1, 2] {
        refuse(&store, admitted(number, None, &[number]), Refusal::WrongState).await;
    }
    assert_eq!(store.holds().await.unwrap(), held(&[]));
    apply(&store, &[pause(false), admitted(1, None, &[1])]).await;
}

pub async fn a_run_takes_all_its_nodes_or_none(store: Arc<dyn Store>) {
    apply(&store, &(1..=4).map(created).collect::<Vec<_>>()).await;
    apply(&store, &[admitted(1, None, &[2, 1])]).await;
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 1), (2, 1)]));
    refuse(&store, admitted(2, None, &[3, 2]), Refusal::NodeHeld(run_id(1))).await;
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 1), (2, 1)]));
    assert_eq!(read_run(&store, 2).await, run(2));
    // Two in one batch: the first gets the nodes.
    let outcomes = commit(&store, &[admitted(3, None, &[3, 4]), admitted(4, None, &[4])]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::NodeHeld(run_id(3)))]);
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 1), (2, 1), (3, 3), (4, 3)]));
}

pub async fn a_run_does_not_take_a_node_that_another_uses(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2)]).await;
    let executions =
        vec![execution(1, 1, leased(1, 1)), execution(2, 1, pending()), execution(3, 1, leased(3, 1))];
    apply(&store, &[added(1, executions)]).await;
    refuse(&store, admitted(2, None, &[2, 1]), Refusal::NodeHeld(run_id(1))).await;
    apply(&store, &[started(1, 1, 1, 21), finished(1, 3, 3, Verdict::Succeeded)]).await;
    refuse(&store, admitted(2, None, &[2, 1]), Refusal::NodeHeld(run_id(1))).await;
    assert_eq!(store.holds().await.unwrap(), []);
    // Ended executions, pending ones and the run's own do not prevent it.
    let own = vec![execution(9, 2, leased(9, 1))];
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded), added(2, own)]).await;
    apply(&store, &[admitted(2, None, &[2, 1])]).await;
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 2), (2, 2)]));
}

pub async fn a_held_node_is_given_nothing_of_another_run(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), admitted(1, None, &[1])]).await;
    let waiting = |number, run| added(run, vec![execution(number, run, pending())]);
    apply(&store, &[waiting(1, 1), waiting(2, 2), waiting(3, 2)]).await;
    refuse(&store, given(2, 2, 1), Refusal::NodeHeld(run_id(1))).await;
    assert_eq!(store.execution(execution_id(2)).await.unwrap().unwrap().state, pending());
    apply(&store, &[given(1, 1, 1), given(2, 3, 2)]).await;
    // Added with a lease there: the whole change is refused.
    let new_leased = |of| added(of, vec![execution(10, of, leased(10, 2)), execution(11, of, leased(11, 1))]);
    refuse(&store, new_leased(2), Refusal::NodeHeld(run_id(1))).await;
    assert_eq!(store.execution(execution_id(10)).await.unwrap(), None);
    apply(&store, &[new_leased(1)]).await;
}

pub async fn a_run_that_ends_or_is_pending_again_gives_its_nodes_back(store: Arc<dyn Store>) {
    let ends = [
        vec![RunState::Cancelled],
        vec![RunState::Starting, RunState::Running, RunState::Terminating, RunState::Completed],
        vec![RunState::Starting, RunState::Running, RunState::Terminating, RunState::Failed],
        vec![RunState::Starting, RunState::Terminating, RunState::Retrying, RunState::Pending],
    ];
    for (number, path) in (1..).zip(ends) {
        apply(&store, &[created(number), admitted(number, None, &[1, 2])]).await;
        assert_eq!(store.holds().await.unwrap(), held(&[(1, number), (2, number)]));
        let (last, first) = path.split_last().expect("a path has an end");
        apply(&store, &[moved(number, first, 9)]).await;
        assert_eq!(store.holds().await.unwrap().len(), 2, "{path:?}");
        apply(&store, &[moved(number, &[*last], 9)]).await;
        assert_eq!(store.holds().await.unwrap(), [], "{path:?}");
    }
}

pub async fn what_happens_in_one_batch_counts(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), created(3), added(3, vec![execution(1, 3, pending())])]).await;
    // Within a batch, admissions come before leases, and ends of runs after them.
    let batch = [
        moved(1, &[RunState::Cancelled], 9),
        given(3, 1, 1),
        admitted(2, None, &[1]),
        admitted(1, None, &[2]),
    ];
    let outcomes = commit(&store, &batch).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::NodeHeld(run_id(2))), Ok(()), Ok(())]);
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 2)]));
    // An end in the same batch comes too late for a run that needs the nodes.
    let batch = [moved(2, &[RunState::Cancelled], 9), admitted(3, None, &[1])];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), Err(Refusal::NodeHeld(run_id(2)))]);
    apply(&store, &[admitted(3, None, &[1])]).await;
    assert_eq!(store.holds().await.unwrap(), held(&[(1, 3)]));
}

pub async fn holds_are_part_of_a_copy(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), admitted(1, None, &[1, 2])]).await;
    let copied = copy(&store).await;
    assert_eq!(copied.holds().await.unwrap(), held(&[(1, 1), (2, 1)]));
    refuse(&copied, admitted(2, None, &[2]), Refusal::NodeHeld(run_id(1))).await;
    apply(&copied, &[moved(1, &[RunState::Cancelled], 9)]).await;
    assert_eq!(Snapshot::of(&copied).await.holds, []);
}
