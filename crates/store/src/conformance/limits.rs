//! Cases about limits: a lease uses a slot of each limit, and the end of the lease frees it.

use std::sync::Arc;

use downbeat_core::change::{Applied, Change, Refusal};
use downbeat_core::execution::{Execution, Lease, State, Verdict};
use downbeat_core::ids::ClusterId;
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::spec::Limits;
use downbeat_core::state::LimitUse;

use super::make::*;
use crate::port::Store;

fn limits(limits: &[(&str, &str)]) -> Option<Arc<Limits>> {
    let read = |&(key, limit): &(&str, &str)| (key.to_owned(), limit.parse().expect("the limit is valid"));
    Some(Arc::new(limits.iter().map(read).collect()))
}

fn limited(number: u32, of: u32, state: State, keys: &[(&str, &str)]) -> Execution {
    Execution { limits: limits(keys), ..execution(number, of, state) }
}

/// Returns a lease granted at `second`, with the token of its number.
fn since(number: u32, second: i64) -> Lease {
    Lease { token: token(number), node: node(1), session: session(1), granted_at: at(second) }
}

fn new_leased(number: u32, second: i64) -> State {
    State::Leased { lease: since(number, second), stop: false }
}

fn give(run: u32, number: u32, second: i64) -> Change {
    granted(run, number, since(number, second))
}

fn full(key: &str) -> Refusal {
    Refusal::LimitReached(key.to_owned())
}

/// Adds pending executions of run 1 with these numbers and limits.
async fn wait(store: &Arc<dyn Store>, numbers: std::ops::RangeInclusive<u32>, keys: &[(&str, &str)]) {
    let executions = numbers.map(|number| limited(number, 1, pending(), keys)).collect();
    apply(store, &[added(1, executions)]).await;
}

/// Returns the used keys, each with its execution.
async fn used(store: &Arc<dyn Store>) -> Vec<(String, u32)> {
    let number = |used: &LimitUse| (0..10_000).find(|&number| execution_id(number) == used.execution);
    let uses = store.uses().await.unwrap();
    uses.iter().map(|used| (used.key.clone(), number(used).expect("the test created it"))).collect()
}

fn uses(uses: &[(&str, u32)]) -> Vec<(String, u32)> {
    uses.iter().map(|&(key, number)| (key.to_owned(), number)).collect()
}

pub async fn a_limit_is_full_when_so_many_have_a_place(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2)]).await;
    wait(&store, 1..=3, &[("db", "2")]).await;
    apply(&store, &[give(1, 1, 20)]).await;
    apply(&store, &[give(1, 2, 21)]).await;
    let before = store.last_seq().await.unwrap();
    refuse(&store, give(1, 3, 22), full("db")).await;
    assert_eq!(store.execution(execution_id(3)).await.unwrap().unwrap().state, pending());
    assert_eq!(store.last_seq().await.unwrap(), before);
    let used = |number: u32, second: i64| LimitUse {
        cluster: ClusterId::DEFAULT,
        key: "db".to_owned(),
        execution: execution_id(number),
        granted_at: at(second),
        until: None,
    };
    assert_eq!(store.uses().await.unwrap(), [used(1, 20), used(2, 21)]);
    // Limits apply across runs; executions without a limit or with another one have room.
    let others = vec![
        limited(4, 2, pending(), &[("db", "2")]),
        limited(5, 2, pending(), &[("db2", "1")]),
        execution(6, 2, pending()),
    ];
    apply(&store, &[added(2, others)]).await;
    refuse(&store, give(2, 4, 23), full("db")).await;
    apply(&store, &[give(2, 5, 23), give(2, 6, 23)]).await;
    // Another reason for a refusal has priority.
    refuse(&store, give(1, 1, 24), Refusal::WrongState).await;
    refuse(&store, give(2, 3, 24), Refusal::NotFound).await;
}

pub async fn every_end_of_a_lease_gives_its_place_back(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    let keys = [("db", "1"), ("api", "1000/1h")];
    let started = |number| started(1, number, number, 25);
    let stopped = |number| stop_requested(1, number, 1, 26);
    let lost = |number| lost(1, number, number, None, 27);
    let stories: [Vec<Change>; 8] = [
        vec![finished(1, 1, 1, Verdict::Succeeded)],
        vec![started(2), finished(1, 2, 2, Verdict::Failed)],
        vec![finished(1, 3, 3, Verdict::Cancelled)],
        vec![lost(4)],
        vec![started(5), lost(5)],
        vec![stopped(6), finished(1, 6, 6, Verdict::Cancelled)],
        vec![started(7), stopped(7), finished(1, 7, 7, Verdict::Succeeded)],
        vec![stopped(8), lost(8)],
    ];
    wait(&store, 1..=9, &keys).await;
    for (number, path) in (1..).zip(stories) {
        apply(&store, &[give(1, number, 20)]).await;
        refuse(&store, give(1, 9, 20), full("db")).await;
        let (end, before) = path.split_last().expect("a path has an end");
        for change in before {
            apply(&store, std::slice::from_ref(change)).await;
            refuse(&store, give(1, 9, 20), full("db")).await;
        }
        apply(&store, std::slice::from_ref(end)).await;
        let held: Vec<_> = used(&store).await.into_iter().filter(|(key, _)| key == "db").collect();
        assert_eq!(held, [], "{end:?}");
    }
    // In a rate each use counts until its period is over.
    assert_eq!(used(&store).await.len(), 8);
    apply(&store, &[give(1, 9, 20)]).await;
}

pub async fn what_never_had_a_lease_takes_no_place(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=3, &[("db", "1"), ("api", "1/1h")]).await;
    apply(&store, &[stop_requested(1, 1, 1, 30), given_up(1, 2, 1, 30), skipped(1, 3, 1, 30)]).await;
    // Nor do reused results.
    let outcome = super::make::outcome(Verdict::Succeeded);
    let reused = Execution {
        reused: Some(execution_id(99)),
        ..limited(
            4,
            1,
            State::Succeeded { lease: Some(lease(9, 1)), outcome },
            &[("db", "1"), ("api", "1/1h")],
        )
    };
    apply(&store, &[added(1, vec![reused])]).await;
    assert_eq!(used(&store).await, []);
}

pub async fn a_rate_counts_what_was_given_out_within_its_time(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=6, &[("api", "2/1m")]).await;
    apply(&store, &[give(1, 1, 20), give(1, 2, 50)]).await;
    // Its end changes nothing.
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded)]).await;
    refuse(&store, give(1, 3, 50), full("api")).await;
    refuse(&store, give(1, 3, 79), full("api")).await;
    // The first use is a minute old.
    apply(&store, &[give(1, 3, 80)]).await;
    assert_eq!(used(&store).await, uses(&[("api", 2), ("api", 3)]));
    refuse(&store, give(1, 4, 109), full("api")).await;
    apply(&store, &[give(1, 4, 110)]).await;
    assert_eq!(used(&store).await, uses(&[("api", 3), ("api", 4)]));
    let until: Vec<_> = store.uses().await.unwrap().into_iter().map(|used| used.until).collect();
    assert_eq!(until, [Some(at(140)), Some(at(170))]);
    apply(&store, &[give(1, 5, 1_000), give(1, 6, 1_000)]).await;
    assert_eq!(used(&store).await, uses(&[("api", 5), ("api", 6)]), "expired uses are removed");
}

pub async fn one_full_limit_of_several_refuses_and_takes_nothing(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=1, &[("b", "1")]).await;
    wait(&store, 2..=2, &[("a", "1"), ("b", "1"), ("c", "1/1h")]).await;
    wait(&store, 3..=3, &[("a", "1"), ("c", "1/1h")]).await;
    apply(&store, &[give(1, 1, 20)]).await;
    refuse(&store, give(1, 2, 21), full("b")).await;
    assert_eq!(used(&store).await, uses(&[("b", 1)]));
    apply(&store, &[give(1, 3, 21)]).await;
    assert_eq!(used(&store).await, uses(&[("a", 3), ("b", 1), ("c", 3)]));
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded), finished(1, 3, 3, Verdict::Succeeded)]).await;
    refuse(&store, give(1, 2, 22), full("c")).await;
    assert_eq!(used(&store).await, uses(&[("c", 3)]));
}

pub async fn each_is_held_to_its_own_number(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=3, &[("db", "3")]).await;
    wait(&store, 4..=5, &[("db", "1")]).await;
    apply(&store, &[give(1, 1, 20)]).await;
    refuse(&store, give(1, 4, 20), full("db")).await;
    apply(&store, &[give(1, 2, 20)]).await;
    apply(&store, &[finished(1, 1, 1, Verdict::Failed), finished(1, 2, 2, Verdict::Failed)]).await;
    apply(&store, &[give(1, 4, 21)]).await;
    // An execution whose limit is three still gets a slot after one whose limit is one.
    apply(&store, &[give(1, 3, 22)]).await;
    refuse(&store, give(1, 5, 23), full("db")).await;
    // Rates of different lengths.
    wait(&store, 11..=13, &[("api", "2/1m")]).await;
    wait(&store, 14..=16, &[("api", "2/10m")]).await;
    apply(&store, &[give(1, 11, 100), give(1, 14, 101)]).await;
    refuse(&store, give(1, 12, 102), full("api")).await;
    refuse(&store, give(1, 15, 102), full("api")).await;
    apply(&store, &[give(1, 12, 161)]).await;
    refuse(&store, give(1, 15, 162), full("api")).await;
    apply(&store, &[give(1, 13, 400)]).await;
    refuse(&store, give(1, 15, 401), full("api")).await;
    // A use of a one-minute rate never counts for longer than that.
    apply(&store, &[give(1, 15, 460)]).await;
    refuse(&store, give(1, 16, 460), full("api")).await;
    // A use of a ten-minute rate counts against a one-minute rate for a minute.
    wait(&store, 17..=17, &[("edge", "1/10m")]).await;
    wait(&store, 18..=18, &[("edge", "1/1m")]).await;
    apply(&store, &[give(1, 17, 1_000)]).await;
    refuse(&store, give(1, 18, 1_059), full("edge")).await;
    apply(&store, &[give(1, 18, 1_060)]).await;
}

pub async fn a_number_at_once_and_a_rate_of_one_key_count_apart(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=2, &[("x", "1")]).await;
    wait(&store, 3..=4, &[("x", "1/1h")]).await;
    apply(&store, &[give(1, 1, 20), give(1, 3, 20)]).await;
    refuse(&store, give(1, 2, 21), full("x")).await;
    refuse(&store, give(1, 4, 21), full("x")).await;
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded), finished(1, 3, 3, Verdict::Succeeded)]).await;
    apply(&store, &[give(1, 2, 22)]).await;
    refuse(&store, give(1, 4, 22), full("x")).await;
}

pub async fn earlier_leases_of_a_batch_count_and_its_ends_do_not_yet(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=6, &[("db", "2")]).await;
    let outcomes = commit(&store, &[give(1, 1, 20), give(1, 2, 20), give(1, 3, 20)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(full("db"))]);
    // Within a batch, leases come before ends, in any given order.
    let batch = [finished(1, 1, 1, Verdict::Succeeded), give(1, 3, 21)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), Err(full("db"))]);
    // Leased and ended in one batch: the slot is free afterwards, but was used within the batch.
    let batch = [give(1, 3, 22), give(1, 4, 22), finished(1, 3, 3, Verdict::Succeeded)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), Err(full("db")), Ok(())]);
    assert_eq!(used(&store).await, uses(&[("db", 2)]));
    // Added, leased and ended in one batch, in a run that the batch creates.
    let batch = [
        created(2),
        added(2, vec![limited(11, 2, pending(), &[("db", "2")]), limited(12, 2, pending(), &[("db", "2")])]),
        give(2, 11, 23),
        give(2, 12, 23),
        finished(2, 11, 11, Verdict::Failed),
    ];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), Ok(()), Ok(()), Err(full("db")), Ok(())]);
    assert_eq!(used(&store).await, uses(&[("db", 2)]));
    // A rate also counts an execution that was leased and ended in one batch.
    wait(&store, 21..=23, &[("api", "2/1h")]).await;
    let batch = [give(1, 21, 30), give(1, 22, 30), give(1, 23, 30), finished(1, 21, 21, Verdict::Failed)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), Ok(()), Err(full("api")), Ok(())]);
    assert_eq!(used(&store).await, uses(&[("api", 21), ("api", 22), ("db", 2)]));
}

pub async fn what_is_born_leased_takes_its_place_or_is_not_born(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    let db = [("db", "2")];
    let running = State::Running { lease: since(2, 20), started_at: at(21), stop: false };
    apply(&store, &[added(1, vec![limited(1, 1, new_leased(1, 20), &db), limited(2, 1, running, &db)])])
        .await;
    assert_eq!(used(&store).await, uses(&[("db", 1), ("db", 2)]));
    refuse(&store, added(1, vec![limited(3, 1, new_leased(3, 22), &db)]), full("db")).await;
    assert_eq!(store.execution(execution_id(3)).await.unwrap(), None);
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded), finished(1, 2, 2, Verdict::Succeeded)]).await;
    // All or nothing: executions before the one without room use no slot.
    let three = |keys: &[(&str, &str)]| {
        added(1, (4..=6).map(|number| limited(number, 1, new_leased(number, 30), keys)).collect())
    };
    refuse(&store, three(&[("api", "9/1h"), ("db", "2")]), full("db")).await;
    assert_eq!(used(&store).await, []);
    apply(&store, &[three(&[("api", "9/1h"), ("db", "3")])]).await;
    assert_eq!(used(&store).await.len(), 6);
    // In the batch that creates the run, with an id that is in use and one that is not.
    let clash = added(
        7,
        vec![
            limited(7, 7, new_leased(7, 40), &[("z", "1")]),
            limited(4, 7, new_leased(4, 40), &[("z", "2")]),
        ],
    );
    let fine = added(7, vec![limited(8, 7, new_leased(8, 40), &[("z", "1")])]);
    assert_eq!(
        commit(&store, &[created(7), clash, fine]).await.outcomes,
        [Ok(()), Err(Refusal::WrongState), Ok(())]
    );
    assert_eq!(used(&store).await.last(), Some(&("z".to_owned(), 8)));
}

pub async fn a_run_that_goes_takes_its_places_with_it(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2)]).await;
    apply(&store, &[added(1, vec![limited(1, 1, new_leased(1, 20), &[("api", "1/1h"), ("db", "1")])])]).await;
    apply(&store, &[added(2, vec![limited(2, 2, pending(), &[("db", "1")])])]).await;
    apply(&store, &[moved(1, &[RunState::Cancelled], 30)]).await;
    // The end of the run does not end a lease.
    refuse(&store, give(2, 2, 40), full("db")).await;
    assert_eq!(store.prune(at(31), 10).await.unwrap(), 1);
    assert_eq!(used(&store).await, uses(&[("api", 1)]), "the hour has not passed");
    apply(&store, &[give(2, 2, 40)]).await;
    store.prune(at(20 + 3_599), 10).await.unwrap();
    assert_eq!(used(&store).await, uses(&[("api", 1), ("db", 2)]));
    store.prune(at(20 + 3_600), 10).await.unwrap();
    assert_eq!(used(&store).await, uses(&[("db", 2)]));
}

pub async fn a_key_may_be_any_text(store: Arc<dyn Store>) {
    apply(&store, &[created(1)]).await;
    let keys = ["", "tenant-'ü' \"x\" \\", "n\0ul", "DB", "db"];
    for (number, key) in (1..).zip(keys) {
        apply(&store, &[added(1, vec![limited(2 * number, 1, pending(), &[(key, "1")])])]).await;
        apply(&store, &[added(1, vec![limited(2 * number + 1, 1, pending(), &[(key, "1")])])]).await;
        apply(&store, &[give(1, 2 * number, 20)]).await;
        refuse(&store, give(1, 2 * number + 1, 20), full(key)).await;
    }
    assert_eq!(used(&store).await.len(), keys.len());
}

pub async fn a_large_number_is_counted(store: Arc<dyn Store>) {
    const MANY: u32 = 1_500;
    apply(&store, &[created(1)]).await;
    wait(&store, 1..=MANY + 1, &[("all", "1500"), ("rate", "1500/1d")]).await;
    let all: Vec<Change> = (1..=MANY + 1).map(|number| give(1, number, 20)).collect();
    let outcomes = commit(&store, &all[..1_000]).await.outcomes;
    assert!(outcomes.iter().all(Applied::is_ok));
    let outcomes = commit(&store, &all[1_000..]).await.outcomes;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 500);
    assert_eq!(outcomes.last(), Some(&Err(full("all"))));
    apply(&store, &[finished(1, 1, 1, Verdict::Succeeded)]).await;
    assert_eq!(try_one(&store, give(1, MANY + 1, 21)).await, Err(full("rate")));
    // A day later all uses are removed, at once or in parts.
    let day = 86_400 + 20;
    apply(&store, &[give(1, MANY + 1, day)]).await;
    store.prune(at(day), 10).await.unwrap();
    let rates = used(&store).await.into_iter().filter(|(key, _)| key == "rate");
    assert_eq!(rates.collect::<Vec<_>>(), uses(&[("rate", MANY + 1)]));
}

/// For stores that can create a second cluster. Not a case of the suite, because the port cannot.
pub async fn clusters_count_apart(store: Arc<dyn Store>, other: ClusterId) {
    let elsewhere = made_as(RunMade { cluster: other, ..made(2) });
    apply(&store, &[created(1), created_as(elsewhere)]).await;
    let keys = [("db", "1"), ("api", "1/1h")];
    wait(&store, 1..=2, &keys).await;
    apply(&store, &[added(2, vec![limited(3, 2, pending(), &keys), limited(4, 2, pending(), &keys)])]).await;
    // In one batch, then in several.
    let outcomes = commit(&store, &[give(1, 1, 20), give(2, 3, 20), give(2, 4, 20)]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(full("api"))]);
    apply(&store, &[finished(2, 3, 3, Verdict::Succeeded)]).await;
    refuse(&store, give(1, 2, 21), full("api")).await;
    apply(&store, &[give(2, 4, 4_000)]).await;
    refuse(&store, give(1, 2, 4_000), full("db")).await;
    let uses = store.uses().await.unwrap();
    assert_eq!(uses.iter().filter(|used| used.cluster == other).count(), 2);
}

/// Returns limits for random tests.
pub fn some_limits() -> Vec<Option<Arc<Limits>>> {
    let all: [&[(&str, &str)]; 6] = [
        &[("a", "1")],
        &[("a", "2"), ("b", "1")],
        &[("a", "1/5m")],
        &[("b", "2/2m"), ("c", "1")],
        &[("b", "1/100s")],
        &[("c", "3/10m"), ("a", "2")],
    ];
    all.iter().map(|keys| limits(keys)).chain([None, None]).collect()
}
