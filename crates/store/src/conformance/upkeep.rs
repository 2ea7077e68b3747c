//! Cases about servers, pruning and closing.

use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::execution::{Outcome, State, Status, Verdict};
use downbeat_core::limits;
use downbeat_core::retention::{BATCH, Excess};
use downbeat_core::run::{RunMade, RunRecord, RunState};
use jiff::Timestamp;

use super::make::*;
use crate::port::{Error, EventFilter, ServerRecord, Store, Tally};

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
            _ => State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome(Verdict::Succeeded) },
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

/// Returns how many events and bytes of output there are.
async fn volume(store: &Arc<dyn Store>) -> (u64, u64) {
    let volume = store.volume().await.unwrap();
    assert_eq!(volume.disk_bytes.is_some(), store.name() != "memory");
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let first = events.first().map_or(store.last_seq().await.unwrap() + 1, |event| event.seq);
    assert_eq!((volume.events, volume.first_seq), (events.len() as u64, first));
    (volume.events, volume.output_bytes)
}

pub async fn the_volume_follows_every_write(store: Arc<dyn Store>) {
    assert_eq!(volume(&store).await, (0, 0));
    prepare(&store).await;
    assert_eq!(volume(&store).await, (11, 16));
    // Counted are the bytes that are stored: not those sent twice, of unknown executions, or dropped.
    let chunks = [chunk(1, 0, "text"), chunk(1, 4, "é\0"), chunk(99, 0, "text")];
    store.append_output(&chunks, 100).await.unwrap();
    assert_eq!(volume(&store).await, (11, 19));
    store.append_output(&[chunk(1, 7, "1234567890")], 12).await.unwrap();
    assert_eq!(volume(&store).await, (11, 22));
    store.prune(at(103), 100).await.unwrap();
    assert_eq!(volume(&store).await, (1, 8));
    store.prune(at(1_000), 100).await.unwrap();
    assert_eq!(volume(&store).await, (0, 4));
    store.keep_counts(at(0), 10).await.unwrap();
    assert_eq!(volume(&store).await, (0, 4));
}

const NOTHING: Excess = Excess { before: Timestamp::MAX, runs: 0, events_upto: 0, output_bytes: 0 };

pub async fn the_oldest_runs_beyond_a_number_are_removed(store: Arc<dyn Store>) {
    prepare(&store).await;
    let remove = async |before, runs, most| {
        let excess = Excess { before: at(before), runs, ..NOTHING };
        let removed = store.prune_excess(&excess, most).await.unwrap();
        assert_eq!((removed.events, removed.output_bytes), (0, 0));
        (removed.runs, left(&store).await)
    };
    assert_eq!(remove(1_000, 0, 100).await, (0, vec![1, 2, 3, 4]));
    // Those that are too young stay, however many there are.
    assert_eq!(remove(101, 3, 100).await, (0, vec![1, 2, 3, 4]));
    assert_eq!(remove(102, 3, 100).await, (1, vec![2, 3, 4]));
    assert_eq!(remove(1_000, 2, 1).await, (1, vec![3, 4]));
    // An open run stays.
    assert_eq!(remove(1_000, 9, 100).await, (1, vec![4]));
    assert_eq!(remove(1_000, 9, 100).await, (0, vec![4]));
    assert_eq!(volume(&store).await, (11, 4), "events stay");
}

pub async fn events_up_to_a_number_are_removed_unless_they_are_young(store: Arc<dyn Store>) {
    for (number, time) in (1..=12).zip(1..) {
        let made = RunMade { created_at: at(time), ..made(number) };
        apply(&store, &[created_as(RunRecord { made: Arc::new(made), live: run(number).live.clone() })])
            .await;
    }
    let remove = async |before, events_upto| {
        let excess = Excess { before: at(before), events_upto, ..NOTHING };
        let removed = store.prune_excess(&excess, 100).await.unwrap();
        assert_eq!((removed.runs, removed.output_bytes), (0, 0));
        let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
        (removed.events, events.first().map(|event| event.seq))
    };
    assert_eq!(remove(1_000, 0).await, (0, Some(1)));
    assert_eq!(remove(1, 7).await, (0, Some(1)));
    assert_eq!(remove(1_000, 3).await, (3, Some(4)));
    assert_eq!(remove(1_000, 3).await, (0, Some(4)));
    // The eighth is from that time.
    assert_eq!(remove(8, 11).await, (4, Some(8)));
    assert_eq!(remove(1_000, 99).await, (5, None));
    let last = store.last_seq().await.unwrap();
    apply(&store, &[created(20)]).await;
    assert_eq!(store.last_seq().await.unwrap(), last + 1);
}

pub async fn output_of_the_oldest_runs_is_removed_and_the_runs_stay(store: Arc<dyn Store>) {
    prepare(&store).await;
    let remove = async |before, output_bytes| {
        let excess = Excess { before: at(before), output_bytes, ..NOTHING };
        let removed = store.prune_excess(&excess, 100).await.unwrap();
        assert_eq!((removed.runs, removed.events), (0, 0));
        let mut left = Vec::new();
        for number in 1..=4 {
            assert!(store.run(&run_id(number)).await.unwrap().is_some());
            assert!(store.execution(execution_id(number)).await.unwrap().is_some());
            if !store.output(execution_id(number), 0, 1).await.unwrap().is_empty() {
                left.push(number);
            }
        }
        (removed.output_bytes, left)
    };
    assert_eq!(remove(1_000, 0).await, (0, vec![1, 2, 3, 4]));
    assert_eq!(remove(101, 16).await, (0, vec![1, 2, 3, 4]));
    // Whole runs at a time.
    assert_eq!(remove(1_000, 1).await, (4, vec![2, 3, 4]));
    assert_eq!(remove(1_000, 5).await, (8, vec![4]));
    // The output of an open run stays.
    assert_eq!(remove(1_000, 5).await, (0, vec![4]));
    assert_eq!(volume(&store).await, (11, 4));
    apply(&store, &[moved(4, &[RunState::Cancelled], 104)]).await;
    assert_eq!(remove(1_000, 1).await, (4, vec![]));
    assert_eq!(store.prune(at(1_000), 100).await.unwrap(), 4);
}

/// The executions, their outputs and their output are more than one transaction removes.
pub async fn what_is_larger_than_a_batch_is_removed_whole(store: Arc<dyn Store>) {
    let many = u32::try_from(2 * BATCH.rows + 500).unwrap();
    let skipped = || State::Skipped { reason: "no".to_owned(), at: at(20) };
    for first in (1..=many).step_by(500) {
        let executions = (first..first + 500).map(|number| execution(number, 1, skipped())).collect();
        let creation = (first == 1).then(|| created(1));
        apply(&store, &creation.into_iter().chain([added(1, executions)]).collect::<Vec<_>>()).await;
    }
    let large = "x".repeat(limits::VALUES_BYTES);
    let outputs = Params::from([("large".to_owned(), large.into())]);
    let outcome = Outcome { outputs, ..outcome(Verdict::Succeeded) };
    let few = u32::try_from(BATCH.bytes / limits::VALUES_BYTES + 10).unwrap();
    let executions = (many + 1..=many + few).map(|number| {
        execution(number, 2, State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome.clone() })
    });
    apply(&store, &[created(2), added(2, executions.collect())]).await;
    let most = u64::from(limits::OUTPUT_PRUNED_CHUNKS);
    for execution in [1, many, many + few] {
        let chunks: Vec<_> = (0..=most).map(|start| chunk(execution, start, "x")).collect();
        store.append_output(&chunks, 1_000_000).await.unwrap();
    }
    let ends = [1, 2].map(|run| moved(run, &[RunState::Cancelled], 100 + i64::from(run)));
    apply(&store, &ends).await;
    assert_eq!(store.volume().await.unwrap().output_bytes, 3 * (most + 1));
    let excess = Excess { output_bytes: 1, ..NOTHING };
    assert_eq!(store.prune_excess(&excess, 10).await.unwrap().output_bytes, 2 * (most + 1));
    assert_eq!(store.executions_of(&run_id(1)).await.unwrap().len(), many as usize);
    assert_eq!(store.prune(at(1_000), 10).await.unwrap(), 2);
    assert_eq!(store.tally().await.unwrap(), Tally::default());
    assert_eq!(volume(&store).await, (0, 0));
    for run in [1, 2] {
        assert_eq!(store.executions_of(&run_id(run)).await.unwrap(), []);
    }
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
