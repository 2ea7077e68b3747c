//! Cases about runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::ids::RunId;
use downbeat_core::plan::Resolved;
use downbeat_core::run::{
    Ended, RolloutProgress, RolloutSize, RunEnd, RunLive, RunMade, RunRecord, RunStage, RunState, RunVerdict,
    StopCause, Stopped, check_path,
};
use serde_json::json;

use super::make::*;
use crate::port::{Page, Position, RunFilter, Store};

pub async fn a_created_run_is_read_back_whole(store: Arc<dyn Store>) {
    assert_eq!(store.run(&run_id(1)).await.unwrap(), None);
    let end = RunEnd { partial: true, error: Some("no".to_owned()) };
    let live = RunLive {
        stage: RunStage::Ended(Ended { verdict: RunVerdict::Failed, at: at(4), end }),
        started_at: Some(at(3)),
        cancel_requested_at: Some(at(2)),
        paused_at: Some(at(5)),
        admitted_at: Some(at(6)),
        stopped: Some(Stopped { cause: StopCause::CleaningUp, at: at(8) }),
        rollout: Some(RolloutProgress { wave: 2, failed: 7 }),
        round: 3,
        states: serde_json::from_value(json!([["starting", 2, 1, 7, 9], ["failed", 1, 8, 8, 0]])).unwrap(),
        life: serde_json::from_value(json!({
            "checked": 3, "violated": 2, "executed": 2, "failed": 1, "rounds": 2, "done": 1,
            "violation": {"of": ["max_concurrent_runs"], "message": "one is active"},
            "queued": {"until": at(9)}, "end": {"skipped": true, "reason": "skipped: one is active"},
        }))
        .unwrap(),
        owner: server(7),
        epoch: 12,
    };
    let full = RunMade {
        job: Some("deploy-web".to_owned()),
        idempotency_key: Some("key".to_owned()),
        request_hash: Some("5eb63bbbe01eeed0".to_owned()),
        params: BTreeMap::from([("version".to_owned(), json!("1.2 \0 'ü'")), ("count".to_owned(), json!(3))]),
        retry_of: Some(run_id(1)),
        no_cache: true,
        ..made(2)
    };
    let full = RunRecord { made: Arc::new(full), live };
    apply(&store, &[created(1), created_as(full.clone())]).await;
    assert_eq!(read_run(&store, 1).await, run(1));
    assert_eq!(read_run(&store, 2).await, full);
    let definitions = store.definitions(&[run_id(2), run_id(9), run_id(2)]).await.unwrap();
    assert_eq!(definitions, BTreeMap::from([(run_id(2), full.definition.clone())]));
    assert_eq!(store.run(&RunId::from("no\0where")).await.unwrap(), None);
    let elsewhere = made_as(RunMade { cluster: UNKNOWN_CLUSTER, ..made(3) });
    refuse(&store, created_as(elsewhere), Refusal::NotFound).await;
}

pub async fn runs_are_read_by_their_ids(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), created(3)]).await;
    let found = store.runs_by_id(&[run_id(3), run_id(9), run_id(1), run_id(3)]).await.unwrap();
    assert_eq!(found, [run(1), run(3)]);
    assert_eq!(store.runs_by_id(&[]).await.unwrap(), []);
}

pub async fn a_run_id_is_used_once(store: Arc<dyn Store>) {
    let other = created_as(made_as(RunMade { by: "eve".to_owned(), ..made(1) }));
    let outcomes = commit(&store, &[created(1), other.clone()]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::RunExists(run_id(1)))]);
    refuse(&store, other, Refusal::RunExists(run_id(1))).await;
    assert_eq!(read_run(&store, 1).await, run(1));
}

pub async fn an_idempotency_key_names_its_first_run(store: Arc<dyn Store>) {
    let outcomes =
        commit(&store, &[created_with_key(1, "k"), created_with_key(2, "k"), created_with_key(3, "other")])
            .await
            .outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::KeyInUse(run_id(1))), Ok(())]);
    refuse(&store, created_with_key(4, "k"), Refusal::KeyInUse(run_id(1))).await;
    assert_eq!(store.runs_of_key("k").await.unwrap(), [read_run(&store, 1).await]);
    assert_eq!(store.runs_of_key("K").await.unwrap(), []);
    // The id is checked first, because it is more specific.
    refuse(&store, created_with_key(3, "k"), Refusal::RunExists(run_id(3))).await;
    assert_eq!(store.run(&run_id(2)).await.unwrap(), None);
    apply(&store, &[created(5), created(6)]).await;
}

pub async fn taking_a_run_raises_its_epoch_by_one(store: Arc<dyn Store>) {
    let taken = |epoch| Change::RunTaken { run: run_id(1), owner: server(9), epoch, at: at(9) };
    refuse(&store, taken(2), Refusal::NotFound).await;
    apply(&store, &[created(1)]).await;
    for epoch in [0, 1, 3, 100] {
        refuse(&store, taken(epoch), Refusal::StaleEpoch).await;
    }
    apply(&store, &[taken(2)]).await;
    assert_eq!(read_run(&store, 1).await, living(1, RunLive { epoch: 2, ..RunLive::new(server(9)) }));
    refuse(&store, taken(2), Refusal::StaleEpoch).await;
    // In one batch the first of two gets it.
    assert_eq!(commit(&store, &[taken(3), taken(3)]).await.outcomes, [Ok(()), Err(Refusal::StaleEpoch)]);
    let ended = Change::RunMoved {
        room: None,
        run: run_id(1),
        epoch: 3,
        path: vec![RunState::Cancelled],
        stop: None,
        end: None,
        at: at(9),
    };
    apply(&store, &[ended]).await;
    refuse(&store, taken(4), Refusal::WrongState).await;
}

pub async fn the_progress_of_a_roll_out_is_kept_with_its_run(store: Arc<dyn Store>) {
    let in_waves = |number| {
        let mut definition = (*made(number).definition).clone();
        definition.rollout =
            Some(serde_json::from_value(json!({"batch": 1, "max_failures": 2})).expect("it is valid"));
        let resolved = Resolved { waves: vec![1], ..(*made(number).resolved).clone() };
        RunMade { definition: Arc::new(definition), resolved: Arc::new(resolved), ..made(number) }
    };
    let brief = async |number: u32| {
        let page = Page { limit: 10, start: Position { after: None, skip: 0 } };
        let listed = store.runs(&RunFilter::default(), &page).await.unwrap().rows;
        listed.into_iter().find(|run| run.id == run_id(number)).unwrap()
    };
    let added = |number: u32, progress| Change::ExecutionsAdded {
        run: run_id(1),
        epoch: 1,
        executions: vec![execution(number, 1, pending())],
        rollout: progress,
        version: None,
        sessions: Vec::new(),
        after: None,
        at: at(10),
    };
    let begun = RolloutProgress { wave: 1, failed: 0 };
    // In the commit that creates the run, and in a later one.
    apply(&store, &[created_as(made_as(in_waves(1))), added(1, Some(begun)), created(2)]).await;
    assert_eq!(read_run(&store, 1).await.live.rollout, Some(begun));
    let run = brief(1).await;
    assert_eq!((run.rollout, run.live.rollout), (Some(RolloutSize { waves: 1, budget: 2 }), Some(begun)));
    assert_eq!((brief(2).await.rollout, brief(2).await.live.rollout), (None, None));
    apply(&store, &[added(2, None), given_up(1, 1, 1, 11)]).await;
    assert_eq!(brief(1).await.live.rollout, Some(begun));
    let mut failed = failed_for_good(1, 1, 1);
    let further = RolloutProgress { wave: 1, failed: 1 };
    if let Change::InstanceFailed { rollout, .. } = &mut failed {
        *rollout = Some(further);
    }
    // A refused change records nothing.
    let stale = Change::ExecutionsAdded {
        run: run_id(1),
        epoch: 7,
        executions: vec![execution(3, 1, pending())],
        rollout: Some(RolloutProgress { wave: 9, failed: 9 }),
        version: None,
        sessions: Vec::new(),
        after: None,
        at: at(12),
    };
    refuse(&store, stale, Refusal::StaleEpoch).await;
    assert_eq!(brief(1).await.live.rollout, Some(begun));
    apply(&store, &[failed]).await;
    assert_eq!(read_run(&store, 1).await.live.rollout, Some(further));
    assert_eq!(brief(1).await.live.rollout, Some(further));
}

pub async fn a_cancel_is_asked_for_once_and_not_after_the_end(store: Arc<dyn Store>) {
    let cancelled =
        |number| Change::RunCancelRequested { run: run_id(number), by: "ada".to_owned(), at: at(9) };
    refuse(&store, cancelled(1), Refusal::NotFound).await;
    apply(&store, &[created(1), created(2), moved(2, &[RunState::Failed], 8)]).await;
    let outcomes = commit(&store, &[cancelled(1), cancelled(1)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::WrongState)]);
    assert_eq!(
        read_run(&store, 1).await,
        living(1, RunLive { cancel_requested_at: Some(at(9)), ..RunLive::new(SERVER) })
    );
    refuse(&store, cancelled(1), Refusal::WrongState).await;
    refuse(&store, cancelled(2), Refusal::WrongState).await;
}

pub async fn a_run_moves_exactly_as_the_table_says(store: Arc<dyn Store>) {
    let mut number = 0;
    for from in RunState::ALL {
        for to in RunState::ALL {
            number += 1;
            apply(&store, &[created_as(run_in(number, from))]).await;
            let outcome = try_one(&store, moved(number, &[to], 9)).await;
            let expected = check_path(from, &[to]);
            assert_eq!(
                outcome,
                expected.map(|_| ()).map_err(|_| Refusal::NoSuchMove { from, to }),
                "{from} → {to}"
            );
            assert_eq!(read_run(&store, number).await.state(), expected.unwrap_or(from), "{from} → {to}");
        }
    }
}

pub async fn moving_needs_the_epoch_and_records_start_and_end(store: Arc<dyn Store>) {
    use RunState::{Completed, Pending, Retrying, Running, Starting, Terminating};
    let end = RunEnd { partial: true, error: Some("some failed".to_owned()) };
    refuse(&store, moved(1, &[Starting], 9), Refusal::NotFound).await;
    apply(&store, &[created(1)]).await;
    for epoch in [0, 2] {
        let stale = Change::RunMoved {
            room: None,
            run: run_id(1),
            epoch,
            path: vec![Starting],
            stop: None,
            end: None,
            at: at(9),
        };
        refuse(&store, stale, Refusal::StaleEpoch).await;
    }
    apply(&store, &[moved(1, &[Starting], 10)]).await;
    assert_eq!(read_run(&store, 1).await.live.started_at, None);
    apply(&store, &[moved(1, &[Running], 11)]).await;
    assert_eq!(read_run(&store, 1).await.live.started_at, Some(at(11)));
    let states = |stays: &[(&str, u32, i64, i64, i64)]| {
        let micros = |second| at(second).as_microsecond() - at(0).as_microsecond();
        let start = at(0).as_microsecond();
        let stays = stays.iter().map(|(state, times, first, last, spent)| {
            json!([state, times, start + micros(*first), start + micros(*last), micros(*spent)])
        });
        serde_json::from_value(stays.collect()).unwrap()
    };
    let running = RunLive { stage: RunStage::Running, started_at: Some(at(11)), ..RunLive::new(SERVER) };
    let stop = Some(Stopped { cause: StopCause::Rejected, at: at(10) });
    let stopped = Change::RunMoved {
        room: None,
        run: run_id(1),
        epoch: 1,
        path: vec![Terminating],
        stop,
        end: None,
        at: at(12),
    };
    apply(&store, &[stopped]).await;
    let stays = [("starting", 1, 10, 10, 1), ("running", 1, 11, 11, 1), ("terminating", 1, 12, 12, 0)];
    let terminating =
        RunLive { stage: RunStage::Terminating, stopped: stop, states: states(&stays), ..running.clone() };
    assert_eq!(read_run(&store, 1).await, living(1, terminating.clone()));
    // The reason may change while the run is terminating.
    let stop = Some(Stopped { cause: StopCause::TimedOut, at: at(11) });
    let stopped = Change::RunMoved {
        room: None,
        run: run_id(1),
        epoch: 1,
        path: Vec::new(),
        stop,
        end: None,
        at: at(12),
    };
    apply(&store, std::slice::from_ref(&stopped)).await;
    assert_eq!(read_run(&store, 1).await, living(1, RunLive { stopped: stop, ..terminating }));
    // A retry of the whole run keeps its first start time.
    apply(&store, &[moved(1, &[Retrying, Pending, Starting, Running], 12)]).await;
    let mut stays = vec![
        ("starting", 2, 10, 12, 1),
        ("running", 2, 11, 12, 1),
        ("terminating", 1, 12, 12, 0),
        ("retrying", 1, 12, 12, 0),
        ("pending", 1, 12, 12, 0),
    ];
    let again = RunLive { round: 2, states: states(&stays), ..running.clone() };
    assert_eq!(read_run(&store, 1).await, living(1, again));
    let ended = Change::RunMoved {
        room: None,
        run: run_id(1),
        epoch: 1,
        path: vec![Terminating, Completed],
        stop: None,
        end: Some(end.clone()),
        at: at(13),
    };
    apply(&store, &[ended]).await;
    let stage = RunStage::Ended(Ended { verdict: RunVerdict::Completed, at: at(13), end });
    (stays[1], stays[2]) = (("running", 2, 11, 12, 2), ("terminating", 2, 12, 13, 0));
    stays.push(("completed", 1, 13, 13, 0));
    let running = RunLive { round: 2, states: states(&stays), ..running };
    assert_eq!(read_run(&store, 1).await, living(1, RunLive { stage: stage.clone(), ..running.clone() }));
    refuse(&store, stopped, Refusal::WrongState).await;
    assert_eq!(read_run(&store, 1).await, living(1, RunLive { stage, ..running }));
}

pub async fn a_path_is_walked_whole_or_not_at_all(store: Arc<dyn Store>) {
    use RunState::{Completed, Running, Starting, Terminating};
    apply(&store, &[created(1)]).await;
    let refusal = Refusal::NoSuchMove { from: Running, to: Completed };
    refuse(&store, moved(1, &[Starting, Running, Completed], 9), refusal).await;
    assert_eq!(read_run(&store, 1).await, run(1));
    apply(&store, &[moved(1, &[Starting, Running, Terminating, Completed], 9)]).await;
    let found = read_run(&store, 1).await;
    assert_eq!(
        (found.state(), found.live.started_at, found.live.finished_at()),
        (Completed, Some(at(9)), Some(at(9)))
    );
}
