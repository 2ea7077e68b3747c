//! Cases about constraints and actions of runs: what is recorded, and how many runs of a job may be active.

use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::run::RunState::*;
use downbeat_core::run::{
    Checked, ConstraintKind, Ending, Found, Life, Queued, RunMade, RunState, Violation,
};
use downbeat_core::spec::ActionKind;

use super::make::*;
use crate::port::Store;

fn of_job(number: u32, job: &str) -> Change {
    created_as(made_as(RunMade { job: Some(job.to_owned()), ..made(number) }))
}

/// Starts a run if fewer than `most` others of its job are active.
fn starts(number: u32, most: u32) -> Change {
    let mut change = moved(number, &[Starting], 15);
    if let Change::RunMoved { room, .. } = &mut change {
        *room = Some(most);
    }
    change
}

fn checked(number: u32, epoch: u64, found: Found) -> Change {
    let results = vec![
        Checked { constraint: ConstraintKind::MaxConcurrentRuns, found },
        Checked { constraint: ConstraintKind::PreRunHook, found: Found::Passed },
    ];
    Change::RunChecked { run: run_id(number), epoch, results, at: at(14) }
}

fn acted(number: u32, error: Option<&str>, queued: Option<Queued>, end: Option<Ending>) -> Change {
    Change::RunActed {
        run: run_id(number),
        epoch: 1,
        action: ActionKind::Wait,
        target: Some("grüße".to_owned()),
        error: error.map(str::to_owned),
        queued,
        end,
        at: at(15),
    }
}

fn woken(number: u32, epoch: u64) -> Change {
    Change::RunWoken { run: run_id(number), epoch, at: at(16) }
}

async fn life(store: &Arc<dyn Store>) -> Life {
    read_run(store, 1).await.live.life
}

pub async fn no_more_runs_of_a_job_start_than_may_be_active(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(2)]).await;
    let elsewhere = RunMade { job: Some("nightly".to_owned()), cluster: cluster(2).id, ..made(9) };
    let runs: Vec<Change> = (1..=5).map(|number| of_job(number, "nightly")).collect();
    apply(&store, &runs).await;
    apply(&store, &[of_job(6, "other"), created_as(made_as(elsewhere)), created(8)]).await;
    // Neither another job, nor another cluster, nor a run without a name counts.
    for number in [6, 8, 9] {
        apply(&store, &[moved(number, &[Starting, Running], 14)]).await;
    }
    apply(&store, &[starts(1, 1)]).await;
    refuse(&store, starts(2, 1), Refusal::JobBusy { active: 1 }).await;
    apply(&store, &[moved(1, &[Running], 16)]).await;
    refuse(&store, starts(2, 1), Refusal::JobBusy { active: 1 }).await;
    apply(&store, &[starts(2, 2)]).await;
    refuse(&store, starts(3, 2), Refusal::JobBusy { active: 2 }).await;
    apply(&store, &[moved(1, &[Terminating], 17)]).await;
    refuse(&store, starts(3, 2), Refusal::JobBusy { active: 2 }).await;
    apply(&store, &[moved(1, &[Completed], 18)]).await;
    // Of several in one batch, as many start as there is room for.
    let outcomes = commit(&store, &[starts(3, 3), starts(4, 3), starts(5, 3)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::JobBusy { active: 3 })]);
    // A run whose name is not known has no others.
    apply(&store, &[created(10), starts(10, 1)]).await;
    refuse(&store, starts(99, 1), Refusal::NotFound).await;
}

pub async fn two_servers_do_not_start_two_runs_of_a_job_at_once(store: Arc<dyn Store>) {
    let count = 8;
    let runs: Vec<Change> = (1..=count).map(|number| of_job(number, "nightly")).collect();
    apply(&store, &runs).await;
    let starting = (1..=count).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.commit(server(number), &[starts(number, 1)]).await })
    });
    let mut started = 0;
    for start in starting.collect::<Vec<_>>() {
        started += usize::from(start.await.unwrap().unwrap().outcomes == [Ok(())]);
    }
    assert_eq!(started, 1);
}

pub async fn constraints_and_actions_are_recorded_with_the_run(store: Arc<dyn Store>) {
    let path: &[RunState] = &[ConditionPending, ConditionRunning];
    apply(&store, &[of_job(1, "nightly"), moved(1, path, 12)]).await;
    let message = "one is active".to_owned();
    apply(&store, &[checked(1, 1, Found::Violated { message: message.clone() })]).await;
    let violation =
        Violation { of: vec![ConstraintKind::MaxConcurrentRuns], message: message.clone(), skips: false };
    let found = Life { checked: 2, violated: 1, rounds: 1, violation: Some(violation), ..Life::default() };
    assert_eq!(life(&store).await, found);
    apply(&store, &[moved(1, &[ActionPending, ActionRunning], 15), acted(1, Some("no"), None, None)]).await;
    let waits = Queued { until: Some(at(30)) };
    apply(&store, &[acted(1, None, Some(waits), None), moved(1, &[Pending], 15)]).await;
    let waiting = Life { executed: 2, failed: 1, done: 2, queued: Some(waits), ..found };
    assert_eq!(life(&store).await, waiting);
    assert!(read_run(&store, 1).await.live.is_queued());
    // A run that waits because of its constraints is not admitted.
    refuse(&store, admitted(1, None, &[]), Refusal::WrongState).await;
    refuse(&store, woken(1, 2), Refusal::StaleEpoch).await;
    apply(&store, &[woken(1, 1)]).await;
    refuse(&store, woken(1, 1), Refusal::WrongState).await;
    apply(&store, &[admitted(1, None, &[]), moved(1, path, 16)]).await;
    let unknown = Found::Unknown { reason: "silent".to_owned(), skips: true };
    apply(&store, &[checked(1, 1, unknown)]).await;
    let violation =
        Violation { of: vec![ConstraintKind::MaxConcurrentRuns], message: "silent".to_owned(), skips: true };
    let again = Life { checked: 4, rounds: 2, done: 0, violation: Some(violation), queued: None, ..waiting };
    assert_eq!(life(&store).await, again);
    let end = Ending { skipped: true, reason: "skipped: silent".to_owned() };
    apply(&store, &[moved(1, &[ActionPending, ActionRunning], 17), acted(1, None, None, Some(end.clone()))])
        .await;
    assert_eq!(life(&store).await.end, Some(end));
    refuse(&store, checked(1, 2, Found::Passed), Refusal::StaleEpoch).await;
    apply(&store, &[moved(1, &[Completed], 18)]).await;
    for change in [checked(1, 1, Found::Passed), acted(1, None, None, None), woken(1, 1)] {
        refuse(&store, change, Refusal::WrongState).await;
    }
    refuse(&store, woken(9, 1), Refusal::NotFound).await;
}

pub async fn a_run_that_starts_forgets_where_it_was_among_its_actions(store: Arc<dyn Store>) {
    let path: &[RunState] = &[ConditionPending, ConditionRunning];
    let violated = checked(1, 1, Found::Violated { message: "one is active".to_owned() });
    apply(&store, &[of_job(1, "nightly"), moved(1, path, 12)]).await;
    apply(&store, &[violated, moved(1, &[ActionPending, ActionRunning], 15)]).await;
    apply(&store, &[acted(1, None, None, None), moved(1, &[Starting, Running], 15)]).await;
    let counted = Life { checked: 2, violated: 1, executed: 1, rounds: 1, ..Life::default() };
    assert_eq!(life(&store).await, counted);
    // What follows the plan is counted from there, also in the commit in which the plan ends.
    let found = |constraint| Checked { constraint, found: Found::Passed };
    let results = [ConstraintKind::MaxExpected, ConstraintKind::MaxAllowed].map(found).to_vec();
    let after = Change::RunChecked { run: run_id(1), epoch: 1, results, at: at(16) };
    apply(&store, &[after, moved(1, &[Terminating], 16)]).await;
    apply(&store, &[acted(1, None, None, None)]).await;
    assert_eq!(life(&store).await, Life { checked: 4, executed: 2, done: 2, ..counted });
}
