//! Each deliberate defect is found by its checker.

use downbeat_sim::{Broken, Checker, Setup, run};

/// The maximum number of seeds: CI would not find it later either.
const SEEDS: u64 = 200;

/// Returns the first seed that finds it.
fn found_by(broken: Broken, checker: Checker) {
    let finds = |seed: &u64| {
        let outcome = run(Setup { broken: Some(broken), ..Setup::new(*seed) });
        outcome.violations.iter().any(|violation| violation.checker == checker)
    };
    let found = (0..SEEDS).find(finds);
    println!("{broken:?} is found by {checker:?} with seed {found:?}");
    assert!(found.is_some(), "{broken:?} is not found by {checker:?}");
}

#[test]
fn results_without_fencing_are_found() {
    found_by(Broken::NoFencing, Checker::Results);
}

#[test]
fn owners_without_epochs_are_found() {
    found_by(Broken::NoEpochGuard, Checker::Attempts);
}

#[test]
fn commits_that_are_acknowledged_and_lost_are_found() {
    found_by(Broken::LostCommit, Checker::Results);
}

#[test]
fn a_feed_with_gaps_is_found() {
    found_by(Broken::FeedGap, Checker::Feed);
}

#[test]
fn nodes_that_never_go_offline_are_found() {
    found_by(Broken::LastingHeartbeats, Checker::Detection);
}

#[test]
fn an_outbox_that_does_not_survive_is_found() {
    found_by(Broken::LostOutbox, Checker::Results);
}
