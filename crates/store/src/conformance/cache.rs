//! Cases about results that may be reused.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Outcome, State, Verdict};
use downbeat_core::ids::ClusterId;
use downbeat_core::run::{RunMade, RunState};

use super::copies::copy;
use super::executions::states;
use super::make::*;
use crate::port::Store;

fn key(text: &str) -> Option<Arc<str>> {
    Some(Arc::from(text))
}

fn keyed(number: u32, of: u32, text: &str, state: State) -> Execution {
    Execution { cache_key: key(text), ..execution(number, of, state) }
}

fn succeeded(second: i64) -> State {
    let outcome = Outcome { received_at: Some(at(second)), ..outcome(Verdict::Succeeded) };
    State::Succeeded { lease: Some(lease(1, 1)), outcome }
}

/// Returns the number of the execution that is found for each key.
async fn found(store: &Arc<dyn Store>, keys: &[&str]) -> Vec<(String, u32)> {
    let keys: Vec<Arc<str>> = keys.iter().map(|key| Arc::from(*key)).collect();
    let found = store.cached(ClusterId::DEFAULT, &keys).await.unwrap();
    let number = |execution: &Execution| (0..1_000).find(|&number| execution_id(number) == execution.id);
    found.iter().map(|(key, each)| (key.to_string(), number(each).expect("the test created it"))).collect()
}

fn all(pairs: &[(&str, u32)]) -> Vec<(String, u32)> {
    pairs.iter().map(|&(key, number)| (key.to_owned(), number)).collect()
}

pub async fn the_newest_result_of_each_key_is_found(store: Arc<dyn Store>) {
    assert_eq!(found(&store, &["a"]).await, []);
    apply(&store, &[created(1), created(2)]).await;
    let leases =
        (1..=5).map(|number| keyed(number, 1, if number < 4 { "a" } else { "b" }, leased(number, 1)));
    apply(&store, &[added(1, leases.collect())]).await;
    assert_eq!(found(&store, &["a", "b"]).await, []);
    let finish = |number: u32, second: i64| {
        // The agents' clocks have the opposite order.
        let (finished_at, received_at) = (at(1_000 - second), Some(at(second)));
        finished_with(1, number, number, Outcome { finished_at, received_at, ..outcome(Verdict::Succeeded) })
    };
    apply(&store, &[finish(2, 40)]).await;
    assert_eq!(found(&store, &["a", "b", "c"]).await, all(&[("a", 2)]));
    // The result that a server received last counts; the order of creation and the agents' times do not.
    apply(&store, &[finish(1, 50), finish(4, 60)]).await;
    apply(&store, &[finish(3, 45), finish(5, 60)]).await;
    assert_eq!(found(&store, &["b", "a", "a", "c"]).await, all(&[("a", 1), ("b", 5)]));
    assert_eq!(found(&store, &["b"]).await, all(&[("b", 5)]));
    assert_eq!(found(&store, &[]).await, []);
    let whole = store.cached(ClusterId::DEFAULT, &[Arc::from("a")]).await.unwrap();
    assert_eq!(whole["a"], store.execution(execution_id(1)).await.unwrap().unwrap());
    // The run does not matter, even if it is the new execution's own.
    apply(&store, &[created(3), added(3, vec![keyed(9, 3, "a", succeeded(70))])]).await;
    assert_eq!(found(&store, &["a"]).await, all(&[("a", 9)]));
}

pub async fn only_what_succeeded_and_was_carried_out_is_found(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    let others = states().into_iter().filter(|state| !matches!(state, State::Succeeded { .. }));
    let executions = (1..).zip(others).map(|(number, state)| keyed(number, 1, "a", state)).collect();
    apply(&store, &[added(1, executions)]).await;
    assert_eq!(found(&store, &["a"]).await, []);
    let leases = (101..=103).map(|number| keyed(number, 1, "a", leased(number, 1))).collect();
    apply(&store, &[added(1, leases)]).await;
    apply(&store, &[finished(1, 101, 101, Verdict::Failed), finished(1, 102, 102, Verdict::Cancelled)]).await;
    assert_eq!(found(&store, &["a"]).await, []);
    apply(&store, &[finished(1, 103, 103, Verdict::Succeeded)]).await;
    // A reused result does not count, even if it is newer, nor does an execution without a key.
    let taken = Execution { reused: Some(execution_id(103)), ..keyed(104, 1, "a", succeeded(90)) };
    let carried = Execution { reused: Some(execution_id(103)), ..execution(105, 1, succeeded(91)) };
    apply(&store, &[added(1, vec![taken, carried, execution(106, 1, succeeded(92))])]).await;
    assert_eq!(found(&store, &["a"]).await, all(&[("a", 103)]));
}

pub async fn a_result_goes_with_its_run(store: Arc<dyn Store>) {
    for number in 1..=3_u32 {
        let execution = keyed(number, number, "a", succeeded(50 - i64::from(number)));
        apply(&store, &[created(number), added(number, vec![execution])]).await;
        apply(&store, &[moved(number, &[RunState::Cancelled], 100 + i64::from(number))]).await;
    }
    for (before, left) in [(101, 1), (102, 2), (103, 3)] {
        store.prune(at(before), 10).await.unwrap();
        assert_eq!(found(&store, &["a"]).await, all(&[("a", left)]));
    }
    store.prune(at(200), 10).await.unwrap();
    assert_eq!(found(&store, &["a"]).await, []);
}

pub async fn results_are_part_of_a_copy(store: Arc<dyn Store>) {
    apply(&store, &[created(1), added(1, vec![keyed(1, 1, "a", succeeded(50))])]).await;
    assert_eq!(found(&copy(&store).await, &["a"]).await, all(&[("a", 1)]));
}

pub async fn another_cluster_has_none_of_it(store: Arc<dyn Store>) {
    apply(&store, &[created(1), added(1, vec![keyed(1, 1, "a", succeeded(50))])]).await;
    assert!(store.cached(UNKNOWN_CLUSTER, &[Arc::from("a")]).await.unwrap().is_empty());
}

/// For stores that can create a second cluster. Not a case of the suite, because the port cannot.
pub async fn clusters_have_their_own(store: Arc<dyn Store>, other: ClusterId) {
    let elsewhere = made_as(RunMade { cluster: other, ..made(12) });
    apply(&store, &[created(11), created_as(elsewhere)]).await;
    apply(&store, &[added(11, vec![keyed(11, 11, "a", succeeded(50))])]).await;
    apply(&store, &[added(12, vec![keyed(12, 12, "a", succeeded(60))])]).await;
    assert_eq!(found(&store, &["a"]).await, all(&[("a", 11)]));
    let there = store.cached(other, &[Arc::from("a")]).await.unwrap();
    assert_eq!(there["a"].id, execution_id(12));
}
