//! Cases about executions: a store does the same as the state machine in `downbeat_core`.

use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::change::{Applied, Change, Refusal};
use downbeat_core::execution::{Event, Execution, Illegal, Outcome, State, Verdict, step};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::work::Parent;
use serde_json::json;

use super::make::*;
use crate::port::Store;

fn both() -> [(String, Limit); 2] {
    [("api-'ü'", "100/1h30m"), ("db", "4")]
        .map(|(key, limit)| (key.to_owned(), limit.parse().expect("a limit")))
}

async fn read(store: &Arc<dyn Store>, number: u32) -> Execution {
    store.execution(execution_id(number)).await.unwrap().expect("the execution exists")
}

/// Returns every state, with every combination of optional fields. The lease's token is 1.
pub fn states() -> Vec<State> {
    let lease = lease(1, 1);
    let text = || "why".to_owned();
    let received = |verdict| Outcome { received_at: Some(at(50)), ..outcome(verdict) };
    let mut states = vec![
        pending(),
        State::Pending { not_before: Some(at(99)) },
        State::Skipped { reason: text(), at: at(50) },
        State::Succeeded { lease: Some(lease), outcome: outcome(Verdict::Succeeded) },
        State::Succeeded { lease: Some(lease), outcome: outcome_with_outputs() },
        // A person approved it.
        State::Succeeded { lease: None, outcome: outcome_with_outputs() },
        // Written by a release without receipts.
        State::Succeeded {
            lease: Some(lease),
            outcome: Outcome { received_at: None, ..outcome(Verdict::Succeeded) },
        },
    ];
    for stop in [false, true] {
        states.push(State::Leased { lease, stop });
        states.push(State::Running { lease, started_at: at(25), stop });
    }
    for started_at in [None, Some(at(25))] {
        states.push(State::Lost { lease, started_at, reason: text(), at: at(50) });
    }
    for (held, verdict) in [(None, None), (Some(lease), None), (Some(lease), Some(()))] {
        for error in [None, Some(text())] {
            let outcome = verdict.map(|()| received(Verdict::Failed));
            states.push(State::Failed { lease: held, outcome, error, at: at(50) });
        }
        let outcome = verdict.map(|()| received(Verdict::Cancelled));
        states.push(State::Cancelled { lease: held, outcome, reason: text(), at: at(50) });
    }
    states
}

/// Returns every event with its change, for an execution of run 1.
fn events(number: u32) -> Vec<(Event, Change)> {
    let text = |text: &str| text.to_owned();
    let other = lease(2, 2);
    let mut events = vec![
        (Event::Leased { lease: other }, granted(1, number, other)),
        (Event::CancelRequested { reason: text("enough"), at: at(60) }, stop_requested(1, number, 1, 60)),
        (Event::GivenUp { error: text("no node fits"), at: at(60) }, given_up(1, number, 1, 60)),
        (Event::Skipped { reason: text("another failed"), at: at(60) }, skipped(1, number, 1, 60)),
        (Event::Decided { decision: decision(true), at: at(60) }, decided(1, number, true, 60)),
        (Event::Decided { decision: decision(false), at: at(60) }, decided(1, number, false, 60)),
    ];
    for by in [1, 2] {
        let token = token(by);
        let (of, execution, received_at) = (Parent::Run(run_id(1)), execution_id(number), Some(at(60)));
        events.push((
            Event::Started { token, at: at(1), received_at },
            Change::ExecutionStarted { of, execution, token, at: at(1), received_at },
        ));
        let ended = Event::LeaseEnded { token, reason: text("silence"), at: at(60) };
        events.push((ended, lost(1, number, by, None, 60)));
        let outcomes = [Verdict::Succeeded, Verdict::Failed, Verdict::Cancelled].map(outcome);
        for outcome in outcomes.into_iter().chain([outcome_with_outputs()]) {
            let change = finished_with(1, number, by, outcome.clone());
            events.push((Event::Finished { token, outcome }, change));
        }
    }
    events
}

fn expected(illegal: &Illegal) -> Refusal {
    match illegal {
        Illegal::StaleLease => Refusal::StaleLease,
        Illegal::WrongState { .. } => Refusal::WrongState,
    }
}

pub async fn adding_needs_the_run_and_its_epoch(store: Arc<dyn Store>) {
    refuse(&store, added(1, vec![execution(1, 1, pending())]), Refusal::NotFound).await;
    apply(&store, &[created(1)]).await;
    for epoch in [0, 2] {
        let executions = vec![execution(1, 1, pending())];
        let stale = Change::ExecutionsAdded {
            run: run_id(1),
            epoch,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at: at(1),
        };
        refuse(&store, stale, Refusal::StaleEpoch).await;
    }
    assert_eq!(store.execution(execution_id(1)).await.unwrap(), None);
    apply(&store, &[added(1, vec![execution(1, 1, pending())])]).await;
    assert_eq!(read(&store, 1).await, execution(1, 1, pending()));
}

pub async fn added_executions_are_read_back_whole(store: Arc<dyn Store>) {
    let executions: Vec<Execution> = (1..)
        .zip(states())
        .map(|(number, state)| Execution {
            of: origin(1, number * 3, (number % 5 == 0).then(|| number - 5)),
            attempt: number,
            pinned: (number % 2 == 0).then(|| node(1)),
            params: (number % 3 == 0)
                .then(|| Arc::new(Params::from([("n".to_owned(), json!([number, "ü"]))]))),
            reused: (number % 4 == 0).then(|| execution_id(900 + number)),
            limits: (number % 5 == 1).then(|| Arc::new(Limits::from(both()))),
            cache_key: (number % 3 == 1).then(|| Arc::from(format!("key 'ü' {number}"))),
            failed_for_good: (number % 3 == 2).then(|| "no retries are left".into()),
            ..execution(number, 1, state)
        })
        .collect();
    apply(&store, &[created(1), added(1, executions.clone())]).await;
    assert_eq!(store.executions_of(&run_id(1)).await.unwrap(), executions);
    assert_eq!(store.executions_of(&run_id(2)).await.unwrap(), []);
}

pub async fn executions_are_added_all_or_none(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), added(1, vec![execution(5, 1, leased(1, 1))])]).await;
    let list =
        |numbers: &[u32]| numbers.iter().map(|&number| execution(number, 1, pending())).collect::<Vec<_>>();
    // An id in use, an id twice in one change, an execution of another run.
    refuse(&store, added(1, list(&[4, 5, 6])), Refusal::WrongState).await;
    refuse(&store, added(1, list(&[7, 8, 7])), Refusal::WrongState).await;
    refuse(
        &store,
        added(1, vec![execution(9, 1, pending()), execution(10, 2, pending())]),
        Refusal::WrongState,
    )
    .await;
    // An id that another change of the batch uses.
    let outcomes =
        commit(&store, &[added(1, list(&[11])), added(1, list(&[12, 11])), added(1, list(&[12]))]).await;
    assert_eq!(outcomes.outcomes, [Ok(()), Err(Refusal::WrongState), Ok(())]);
    // An id in use does not affect the rest of the batch, and later changes see the original execution.
    let batch = [added(1, list(&[5])), added(1, list(&[13])), finished(1, 5, 1, Verdict::Failed)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Err(Refusal::WrongState), Ok(()), Ok(())]);
    let found = store.executions_of(&run_id(1)).await.unwrap();
    assert_eq!(found.iter().map(|each| each.id).collect::<Vec<_>>(), [5, 11, 12, 13].map(execution_id));
}

pub async fn every_state_answers_every_event_as_the_machine_says(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    let mut number = 0;
    for state in states() {
        for index in 0..events(0).len() {
            number += 1;
            apply(&store, &[added(1, vec![execution(number, 1, state.clone())])]).await;
            let (event, change) = events(number).swap_remove(index);
            let stepped = step(&state, &event);
            let outcome: Applied = try_one(&store, change).await;
            let what = format!("{state:?}\n{event:?}");
            assert_eq!(outcome, stepped.as_ref().map(|_| ()).map_err(expected), "{what}");
            assert_eq!(read(&store, number).await.state, stepped.unwrap_or(state.clone()), "{what}");
        }
    }
    for (_, change) in events(0) {
        refuse(&store, change, Refusal::NotFound).await;
    }
}

pub async fn a_change_that_names_another_run_is_refused(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), added(1, vec![execution(1, 1, leased(1, 1))])]).await;
    refuse(&store, finished(2, 1, 1, Verdict::Succeeded), Refusal::NotFound).await;
    refuse(&store, finished(3, 1, 1, Verdict::Succeeded), Refusal::NotFound).await;
    assert_eq!(read(&store, 1).await.state, leased(1, 1));
}

pub async fn deciding_for_a_run_needs_its_epoch(store: Arc<dyn Store>) {
    apply(&store, &[created(1), added(1, vec![execution(1, 1, pending())])]).await;
    for epoch in [0, 2] {
        for change in [stop_requested(1, 1, epoch, 9), given_up(1, 1, epoch, 9), skipped(1, 1, epoch, 9)] {
            refuse(&store, change, Refusal::StaleEpoch).await;
        }
    }
    assert_eq!(read(&store, 1).await.state, pending());
}

pub async fn a_final_failure_is_marked_once_on_an_execution_that_did_not_succeed(store: Arc<dyn Store>) {
    let lost = State::Lost { lease: lease(9, 1), started_at: None, reason: "silent".to_owned(), at: at(5) };
    let states = [leased(1, 1), leased(2, 1), pending(), lost];
    let executions = (1..).zip(states).map(|(number, state)| execution(number, 1, state)).collect();
    // The fourth is added and marked in one batch.
    apply(&store, &[created(1), created(2), added(1, executions), failed_for_good(1, 4, 1)]).await;
    apply(&store, &[finished(1, 1, 1, Verdict::Failed), finished(1, 2, 2, Verdict::Succeeded)]).await;
    let before = read(&store, 1).await;
    refuse(&store, failed_for_good(1, 1, 2), Refusal::StaleEpoch).await;
    refuse(&store, failed_for_good(2, 1, 1), Refusal::NotFound).await;
    refuse(&store, failed_for_good(1, 5, 1), Refusal::NotFound).await;
    refuse(&store, failed_for_good(1, 2, 1), Refusal::WrongState).await;
    refuse(&store, failed_for_good(1, 3, 1), Refusal::WrongState).await;
    let counted = store.tally().await.unwrap();
    apply(&store, &[failed_for_good(1, 1, 1)]).await;
    refuse(&store, failed_for_good(1, 1, 1), Refusal::WrongState).await;
    assert_eq!(store.tally().await.unwrap(), counted, "the execution ended before");
    let reason = Some("no retries are left".into());
    assert_eq!(read(&store, 1).await, Execution { failed_for_good: reason.clone(), ..before });
    assert_eq!(read(&store, 4).await.failed_for_good, reason);
    assert_eq!(read(&store, 2).await.failed_for_good, None);
}

pub async fn a_second_result_in_one_batch_is_refused(store: Arc<dyn Store>) {
    apply(&store, &[created(1), added(1, vec![execution(1, 1, leased(1, 1)), execution(2, 1, pending())])])
        .await;
    let to = |number| granted(1, 2, lease(number, 1));
    let batch = [finished(1, 1, 1, Verdict::Failed), finished(1, 1, 1, Verdict::Succeeded), to(5), to(6)];
    let outcomes = commit(&store, &batch).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::StaleLease), Ok(()), Err(Refusal::WrongState)]);
    assert!(matches!(read(&store, 1).await.state, State::Failed { .. }));
    assert_eq!(read(&store, 2).await.state, leased(5, 1));
}

pub async fn a_result_is_applied_once_however_often_it_is_sent(store: Arc<dyn Store>) {
    apply(&store, &[created(1), added(1, vec![execution(1, 1, leased(1, 1))])]).await;
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded)]).await;
    let (before, seq) = (read(&store, 1).await, store.last_seq().await.unwrap());
    for verdict in [Verdict::Succeeded, Verdict::Failed] {
        refuse(&store, finished(1, 1, 1, verdict), Refusal::StaleLease).await;
    }
    assert_eq!((read(&store, 1).await, store.last_seq().await.unwrap()), (before, seq));
}

pub async fn executions_are_read_by_their_ids(store: Arc<dyn Store>) {
    let read_all = async |numbers: &[u32]| {
        let ids: Vec<_> = numbers.iter().map(|&number| execution_id(number)).collect();
        store.executions_by_id(&ids).await.unwrap()
    };
    assert_eq!(read_all(&[]).await, []);
    let executions: Vec<Execution> =
        (1..).zip(states()).map(|(number, state)| execution(number, 1, state)).collect();
    apply(&store, &[created(1), added(1, executions.clone())]).await;
    assert_eq!(read_all(&[999]).await, []);
    assert_eq!(read_all(&[3, 1, 999, 3]).await, [executions[0].clone(), executions[2].clone()]);
    let all: Vec<u32> = (1..=u32::try_from(executions.len()).unwrap()).rev().collect();
    assert_eq!(read_all(&all).await, executions);
}

pub async fn a_nul_in_an_error_harms_nothing(store: Arc<dyn Store>) {
    apply(
        &store,
        &[created(1), added(1, vec![execution(1, 1, leased(1, 1)), execution(2, 1, leased(2, 1))])],
    )
    .await;
    let mut outcome = outcome(Verdict::Failed);
    outcome.error = Some("no\0pe".to_owned());
    apply(&store, &[finished_with(1, 1, 1, outcome), finished(1, 2, 2, Verdict::Succeeded)]).await;
    let State::Failed { error: Some(error), .. } = read(&store, 1).await.state else { panic!("it failed") };
    assert!(error.starts_with("no") && error.ends_with("pe"), "{error:?}");
}
