//! Cases about servers, pruning and closing.

use std::sync::Arc;

use downbeat_core::execution::{State, Status, Verdict};
use downbeat_core::run::{RunMade, RunRecord, RunState};

use super::make::*;
use crate::port::{Error, EventFilter, ServerRecord, Store};

fn record(number: u32, name: &str, seen: u32) -> ServerRecord {
    ServerRecord { level: seen, ..server_record(number, name, seen.into()) }
}

pub async fn a_server_takes_the_place_of_its_namesake(store: Arc<dyn Store>) {
    assert_eq!(store.servers().await.unwrap(), []);
    store.put_server(&record(1, "b", 2)).await.unwrap();
    store.put_server(&record(2, "a", 2)).await.unwrap();
    store.put_server(&record(1, "b", 3)).await.unwrap();
    assert_eq!(store.servers().await.unwrap(), [record(2, "a", 2), record(1, "b", 3)]);
    store.put_server(&record(3, "b", 4)).await.unwrap();
    assert_eq!(store.servers().await.unwrap(), [record(2, "a", 2), record(3, "b", 4)]);
    store.remove_server(server(2)).await.unwrap();
    store.remove_server(server(2)).await.unwrap();
    assert_eq!(store.servers().await.unwrap(), [record(3, "b", 4)]);
}

/// Runs 1 to 3 ended at 101 to 103 seconds, run 4 is open; each has an ended execution with its number and some output.
async fn prepare(store: &Arc<dyn Store>) {
    for number in 1..=4_u32 {
        let state = match number {
            1 | 4 => State::Skipped { reason: "no".to_owned(), at: at(20) },
            _ => State::Succeeded { lease: lease(1, 1), outcome: outcome(Verdict::Succeeded) },
        };
        let execution = execution(number, number, state);
        let run = created_with_key(number, &format!("key-{number}"));
        apply(store, &[run, added(number, vec![execution])]).await;
        store.append_output(&[chunk(number, 0, "text")], 100).await.unwrap();
    }
    for number in 1..=3_u32 {
        apply(store, &[moved(number, &[RunState::Cancelled], 100 + i64::from(number))]).await;
    }
}

async fn left(store: &Arc<dyn Store>) -> Vec<u32> {
    let mut left = Vec::new();
    for number in 1..=4 {
        let run = store.run(&run_id(number)).await.unwrap().is_some();
        let execution = store.execution(execution_id(number)).await.unwrap().is_some();
        let output = !store.output(execution_id(number), 0, 1).await.unwrap().is_empty();
        assert_eq!((execution, output), (run, run), "everything of run {number} is removed with it");
        if run {
            left.push(number);
        }
    }
    left
}

pub async fn pruning_removes_what_ended_before_and_nothing_else(store: Arc<dyn Store>) {
    prepare(&store).await;
    assert_eq!(store.prune(at(101), 100).await.unwrap(), 0);
    assert_eq!(left(&store).await, [1, 2, 3, 4]);
    assert_eq!(store.prune(at(103), 100).await.unwrap(), 2);
    assert_eq!(left(&store).await, [3, 4]);
    let tally = store.tally().await.unwrap();
    assert_eq!(tally.runs, [(RunState::Pending, 1), (RunState::Cancelled, 1)]);
    assert_eq!(tally.executions, [(Status::Succeeded, 1), (Status::Skipped, 1)]);
    // The creations and the first two ends are old; events from the first newer one on remain.
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [11]);
    // The key of a removed run is free again.
    apply(&store, &[created_with_key(1, "key-1")]).await;
}

pub async fn pruning_removes_so_many_runs_at_most(store: Arc<dyn Store>) {
    prepare(&store).await;
    assert_eq!(store.prune(at(1_000), 2).await.unwrap(), 2);
    assert_eq!(left(&store).await, [3, 4]);
    assert_eq!(store.prune(at(1_000), 2).await.unwrap(), 1);
    assert_eq!(store.prune(at(1_000), 2).await.unwrap(), 0);
    assert_eq!(left(&store).await, [4]);
}

pub async fn a_time_in_the_future_keeps_no_other_event(store: Arc<dyn Store>) {
    for (number, time) in [(1, 5), (2, 9_000), (3, 9_000), (4, 6), (5, 7), (6, 9_000), (7, 50), (8, 8)] {
        let made = RunMade { created_at: at(time), ..made(number) };
        apply(&store, &[created_as(RunRecord { made: Arc::new(made), live: run(number).live.clone() })])
            .await;
    }
    let left = async |before| {
        store.prune(at(before), 100).await.unwrap();
        let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
        events.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(left(5).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    // The last of them was recorded after all others.
    assert_eq!(left(7).await, [5, 6, 7, 8]);
    assert!(left(9).await.is_empty());
}

pub async fn numbers_go_on_after_pruning(store: Arc<dyn Store>) {
    prepare(&store).await;
    let last = store.last_seq().await.unwrap();
    store.prune(at(1_000), 100).await.unwrap();
    assert_eq!(store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap(), []);
    assert_eq!(store.last_seq().await.unwrap(), last);
    apply(&store, &[created(9)]).await;
    let events = store.events(&EventFilter { since: last, run: None }, ALL_EVENTS).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [last + 1]);
}

pub async fn a_closed_store_is_unavailable_or_unharmed(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    store.close().await;
    store.close().await;
    match store.commit(server(1), &[created(2)]).await {
        Ok(committed) => assert_eq!((store.name(), committed.outcomes), ("memory", vec![Ok(())])),
        Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error}"),
    }
    match store.run(&run_id(1)).await {
        Ok(run) => assert!(run.is_some()),
        Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error}"),
    }
}
