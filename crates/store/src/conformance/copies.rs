//! Cases about the snapshot that a store sends to its replicas.

use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::execution::Execution;
use downbeat_core::portion::json_bytes;
use downbeat_core::run::{RunMade, RunState};
use serde_json::json;
use tokio::sync::mpsc;

use super::make::*;
use super::{Snapshot, fill, fill_beside};
use crate::copy::{Kept, PART, Part, Replica};
use crate::memory::MemoryStore;
use crate::port::{Error, OutputChunk, Store};

/// Reads everything except servers and limit uses, which are not in a snapshot.
pub(super) async fn dump(store: &Arc<dyn Store>) -> Snapshot {
    Snapshot { servers: Vec::new(), uses: Vec::new(), ..Snapshot::of(store).await }
}

/// Copies a store into memory.
pub(super) async fn copy(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    let memory = Arc::new(MemoryStore::new());
    let (sender, parts) = mpsc::channel(1);
    let (sent, replaced) = tokio::join!(store.snapshot(sender), memory.replace(parts));
    sent.expect("a snapshot is sent");
    assert_eq!(
        replaced.expect("a snapshot is written"),
        store.last_seq().await.expect("the last number is read")
    );
    memory
}

pub async fn a_snapshot_is_all_there_is(store: Arc<dyn Store>) {
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
    fill(&store).await;
    fill_beside(&store).await;
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
}

pub async fn a_large_snapshot_comes_in_parts(store: Arc<dyn Store>) {
    const LARGE: usize = 1_000_000;
    let large = || Params::from_iter([("big".to_owned(), json!("x".repeat(LARGE)))]);
    let runs = (1..=10).map(|number| created_as(made_as(RunMade { params: large(), ..made(number) })));
    apply(&store, &runs.collect::<Vec<_>>()).await;
    let mut executions: Vec<Execution> =
        (1..=2_500).map(|number| execution(number, 1, leased(number, 1))).collect();
    for execution in executions.iter_mut().step_by(250) {
        execution.params = Some(Arc::new(large()));
    }
    for portion in executions.chunks(250) {
        apply(&store, &[added(1, portion.to_vec())]).await;
    }
    let chunks: Vec<OutputChunk> = (1..=400).map(|number| chunk(number, 7, &"y".repeat(16_000))).collect();
    store.append_output(&chunks, 20_000).await.unwrap();
    let (sender, mut parts) = mpsc::channel(1);
    let count = async {
        let mut counts = [0; 4];
        while let Some(part) = parts.recv().await {
            let (kind, rows) = match &part {
                Part::Clusters(_) | Part::RemovedClusters(_) => continue,
                Part::Jobs(_) | Part::JobVersions(_) | Part::Backfills(_) | Part::Deliveries(_) => continue,
                Part::Nodes(_) | Part::Tombstones(_) | Part::Holds(_) | Part::End { .. } => continue,
                Part::Runs(rows) => (0, rows.len()),
                Part::Executions(rows) => (1, rows.len()),
                Part::Output(rows) => (2, rows.len()),
                Part::Events(rows) => (3, rows.len()),
            };
            counts[kind] += 1;
            // The small columns of a row do not count.
            let bytes = json_bytes(&part).saturating_sub(1_000 * rows);
            assert!(PART.holds(rows, bytes), "a part of {rows} rows and {bytes} bytes");
        }
        counts
    };
    let (sent, counts) = tokio::join!(store.snapshot(sender), count);
    sent.unwrap();
    // At most four large rows in one part.
    let [runs, executions, output, events] = counts;
    assert!(runs >= 3 && executions >= 3 && output >= 2 && events >= 5, "{counts:?}");
    assert!(runs <= 10 && executions <= 12 && output <= 4 && events <= 20, "{counts:?}");
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
}

pub async fn a_snapshot_is_consistent(store: Arc<dyn Store>) {
    fill(&store).await;
    fill_beside(&store).await;
    let before = dump(&store).await;
    let (sender, mut sent) = mpsc::channel(1);
    let (forward, parts) = mpsc::channel(1);
    let disturb = async {
        // The snapshot is fixed here, before anything changes; the remaining parts are read afterwards.
        let first = sent.recv().await.expect("there is a first part");
        forward.send(first).await.expect("the part is received");
        apply(&store, &[created(40), added(40, vec![execution(400, 40, leased(400, 1))])]).await;
        apply(&store, &[moved(40, &[RunState::Cancelled], 50), registered(2, session(9), 60)]).await;
        store.append_output(&[chunk(400, 0, "late")], 100).await.expect("output is written");
        while let Some(part) = sent.recv().await {
            forward.send(part).await.expect("the part is received");
        }
        drop(forward);
    };
    let memory = Arc::new(MemoryStore::new());
    let (sent, replaced, ()) = tokio::join!(store.snapshot(sender), memory.replace(parts), disturb);
    sent.unwrap();
    assert_eq!(replaced.unwrap(), before.last_seq);
    let memory: Arc<dyn Store> = memory;
    assert_eq!(dump(&memory).await, before);
    assert_ne!(dump(&store).await, before);
}

pub async fn a_snapshot_that_nobody_takes_is_broken_off(store: Arc<dyn Store>) {
    fill(&store).await;
    let (sender, parts) = mpsc::channel(1);
    drop(parts);
    let error = store.snapshot(sender).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
}

pub async fn what_is_kept_begins_where_pruning_ended(store: Arc<dyn Store>) {
    assert_eq!(store.kept().await.unwrap(), Kept::default());
    apply(&store, &[created(1), created(2), created(3)]).await;
    for number in 1..=3 {
        apply(&store, &[moved(number, &[RunState::Cancelled], 100 + i64::from(number))]).await;
    }
    let ended = |number: u32| Some((at(100 + i64::from(number)), run_id(number)));
    assert_eq!(
        store.kept().await.unwrap(),
        Kept { first_seq: Some(1), first_ended: ended(1), ..Kept::default() }
    );
    store.prune(at(102), 100).await.unwrap();
    assert_eq!(
        store.kept().await.unwrap(),
        Kept { first_seq: Some(5), first_ended: ended(2), ..Kept::default() }
    );
    store.prune(at(1_000), 100).await.unwrap();
    assert_eq!(store.kept().await.unwrap(), Kept::default());
}

pub async fn presence_says_when_each_session_was_seen(store: Arc<dyn Store>) {
    apply(&store, &[registered(2, session(2), 2), registered(1, session(1), 1)]).await;
    store.touch_nodes(&[(node(1), session(1))], at(9)).await.unwrap();
    let seen = store.presence().await.unwrap();
    assert_eq!(seen, [(node(1), session(1), at(9)), (node(2), session(2), at(2))]);
    assert_eq!(store.seen(&[node(3), node(2), node(1), node(2)]).await.unwrap(), seen);
    assert_eq!(store.seen(&[node(2)]).await.unwrap(), seen[1..]);
}

pub async fn output_of_several_executions_is_read_at_once(store: Arc<dyn Store>) {
    let executions = (1..=3).map(|number| execution(number, 1, leased(number, 1))).collect();
    apply(&store, &[created(1), added(1, executions)]).await;
    let all = [
        chunk(1, 0, "one"),
        chunk(1, 3, "two"),
        chunk(2, 0, "three"),
        chunk(3, 10, "four"),
        chunk(3, 14, "five"),
        chunk(3, 18, "six"),
    ];
    store.append_output(&all, 1_000).await.unwrap();
    let id = execution_id;
    let read = store.output_of(&[(id(3), 12), (id(1), 3), (id(2), 5), (id(9), 0)], 100).await.unwrap();
    assert_eq!(read, [&all[1..2], &all[3..]].concat());
    assert_eq!(
        store.output_of(&[(id(1), 0), (id(3), 0)], 3).await.unwrap(),
        [&all[..2], &all[3..4]].concat()
    );
    assert_eq!(store.output_of(&[], 3).await.unwrap(), []);
}
