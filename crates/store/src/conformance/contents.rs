//! Cases about contents that many rows have in common.

use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::change::Change;
use downbeat_core::limits::SHARED_CONTENT_BYTES;
use downbeat_core::node::Registration;
use downbeat_core::plan::{NodeRef, Resolved};
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::spec::Definition;
use serde_json::json;
use tokio::sync::mpsc;

use super::copies::{copy, dump};
use super::make::*;
use crate::copy::Part;
use crate::port::Store;

/// A definition with this many bytes and a few more.
pub fn large_definition(bytes: usize) -> Definition {
    let params = json!({"text": "x".repeat(bytes)});
    serde_json::from_value(json!({"tasks": [{"backend": "test", "action": "echo", "params": params}]}))
        .expect("the definition is valid")
}

/// The part of a run on this many nodes that never changes.
pub fn large_made(number: u32, nodes: u32) -> RunMade {
    let made = made(number);
    let named = |number| NodeRef { id: node(number), hostname: format!("web-{number:04}") };
    let resolved = Resolved { nodes: (1..=nodes).map(named).collect(), ..(*made.resolved).clone() };
    RunMade {
        definition: Arc::new(large_definition(SHARED_CONTENT_BYTES)),
        resolved: Arc::new(resolved),
        ..made
    }
}

/// A run with a large definition and large targets, both equal for all numbers.
pub fn large(number: u32) -> Change {
    created_as(made_as(large_made(number, 50)))
}

/// A registration of a node with as many of the built-in backends.
pub fn equipped(number: u32, second: i64, backends: usize) -> Registration {
    let mut registration = registration(number, session(number), second);
    registration.description.backends = Catalogue::builtin().backends()[..backends].to_vec();
    registration
}

fn registered_with(number: u32, second: i64, backends: usize) -> Change {
    Change::NodeRegistered { registration: equipped(number, second, backends) }
}

fn ended(number: u32) -> Change {
    moved(number, &[RunState::Cancelled], 100)
}

pub async fn large_contents_are_read_back_whole(store: Arc<dyn Store>) {
    // Some rows are from before contents were shared.
    apply(&store, &[large(1), registered_with(1, 1, 7)]).await;
    store.share_contents().await.unwrap();
    store.share_contents().await.unwrap();
    apply(&store, &[large(2), large(3), created(4)]).await;
    apply(&store, &[registered_with(2, 2, 7), registered_with(3, 3, 7), registered(4, session(4), 4)]).await;
    let ids: Vec<_> = (1..=4).map(run_id).collect();
    let runs = store.runs_by_id(&ids).await.unwrap();
    assert_eq!(runs, store.open_runs().await.unwrap());
    let definitions = store.definitions(&ids).await.unwrap();
    for (number, run) in (1..=4).zip(&runs) {
        let made = if number == 4 { made(number) } else { large_made(number, 50) };
        assert_eq!(*run.made, made);
        assert_eq!(definitions[&run.id], run.definition);
        assert_eq!(store.run(&run.id).await.unwrap().as_ref(), Some(run));
    }
    let nodes = store.nodes(None).await.unwrap();
    for (number, found) in (1..=4).zip(&nodes) {
        let wanted = if number == 4 { registration(4, session(4), 4) } else { equipped(number, 0, 7) };
        assert_eq!(found.description, wanted.description);
        assert_eq!(store.node(found.id).await.unwrap().as_ref(), Some(found));
    }
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
}

pub async fn contents_remain_while_something_refers_to_them(store: Arc<dyn Store>) {
    store.share_contents().await.unwrap();
    apply(&store, &[large(1), large(2), registered_with(1, 1, 7), registered_with(2, 2, 7)]).await;
    apply(&store, &[ended(1)]).await;
    apply(&store, &[deleted(1, session(1), 5)]).await;
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 1);
    let run = store.run(&run_id(2)).await.unwrap().unwrap();
    assert_eq!(*run.made, large_made(2, 50));
    let found = store.node(node(2)).await.unwrap().unwrap();
    assert_eq!(found.description, equipped(2, 2, 7).description);
    // Removed with the last reference, and added again.
    apply(&store, &[ended(2)]).await;
    apply(&store, &[registered_with(2, 6, 6)]).await;
    assert_eq!(store.prune(at(200), 10).await.unwrap(), 1);
    apply(&store, &[large(3), registered_with(3, 7, 7)]).await;
    let run = store.run(&run_id(3)).await.unwrap().unwrap();
    assert_eq!(*run.made, large_made(3, 50));
    for (number, backends) in [(3, 7), (2, 6)] {
        let found = store.node(node(number)).await.unwrap().unwrap();
        assert_eq!(found.description, equipped(number, 0, backends).description);
    }
}

pub async fn parts_of_a_snapshot_are_small_though_contents_are_large(store: Arc<dyn Store>) {
    store.share_contents().await.unwrap();
    let definition = Arc::new(large_definition(1_000_000));
    let run = |number| created_as(made_as(RunMade { definition: Arc::clone(&definition), ..made(number) }));
    for number in 1..=10 {
        apply(&store, &[run(number)]).await;
    }
    let (sender, mut parts) = mpsc::channel(1);
    let count = async {
        let mut counts = Vec::new();
        while let Some(part) = parts.recv().await {
            if let Part::Runs(runs) = part {
                counts.push(runs.len());
            }
        }
        counts
    };
    let (sent, counts) = tokio::join!(store.snapshot(sender), count);
    sent.unwrap();
    assert!(counts.iter().all(|count| *count <= 4), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 10);
}

/// A case for stores with a table of contents; `contents` counts its rows.
pub async fn each_content_is_stored_once(store: Arc<dyn Store>, contents: impl AsyncFn() -> i64) {
    store.share_contents().await.unwrap();
    apply(&store, &[created(10), registered(10, session(10), 1)]).await;
    assert_eq!(contents().await, 0, "small texts stay in their rows");
    for number in 1..=3 {
        apply(&store, &[large(number), registered_with(number, 1, 7)]).await;
    }
    apply(&store, &[registered_with(1, 2, 7)]).await;
    // The definition, the targets and the common part of the descriptions.
    assert_eq!(contents().await, 3);
    apply(&store, &[registered_with(1, 3, 6)]).await;
    assert_eq!(contents().await, 4);
    apply(&store, &[registered_with(1, 4, 7)]).await;
    let prune = async || assert!(store.prune(at(200), 10).await.is_ok());
    prune().await;
    assert_eq!(contents().await, 3);
    apply(&store, &[ended(1), ended(2), deleted(1, session(1), 5)]).await;
    prune().await;
    assert_eq!(contents().await, 3, "run 3 and two nodes refer to them");
    apply(&store, &[ended(3), registered(2, session(2), 6)]).await;
    prune().await;
    assert_eq!(contents().await, 1, "node 3 refers to it");
    apply(&store, &[deleted(3, session(3), 7)]).await;
    prune().await;
    assert_eq!(contents().await, 0);
}
