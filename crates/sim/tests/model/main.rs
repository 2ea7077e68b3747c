//! Checks the protocol of leases and owners exhaustively, for small numbers.
//!
//! The decisions are real: the engine and the state machines of `core`, and the guards of its state. The environment is
//! modelled: two servers that may crash, be wrong about each other and lose the responses to their commits; two agents
//! that may crash; leases that may end at any time, as clock drift could cause; reports that arrive late, twice, out of
//! order or never. The checker tries every order.

#![expect(clippy::print_stdout, reason = "statistics, and the path to a broken rule")]

mod actions;
mod commit;
mod fingerprint;
mod owner;
mod rules;
mod setup;
mod sound;
mod world;

use stateright::{Checker, HasDiscoveries, Model};

use rules::{
    BARRIER, COMPLETED, ENDED, ENDS, FEED, NOTHING_LEFT, OLD_OWNER, ONE_ATTEMPT, ONE_LEASE, ONE_RESULT,
    OUTBOX, RECEIPT,
};
use setup::{Broken, Detail, Protocol, Sighting, fleet, graph, list, placed};

/// Checks all reachable worlds.
fn check(name: &str, protocol: Protocol, sightings: &[Sighting]) {
    let protocol = protocol.and_more();
    let seen = protocol.seen.clone();
    let begun = std::time::Instant::now();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} worlds, {} steps, longest path {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed()
    );
    checker.assert_properties();
    for sighting in sightings {
        assert!(seen.has(*sighting), "{sighting:?} never happened");
    }
}

/// Searches until a rule is broken, and prints the path.
fn catches(broken: Broken, protocol: Protocol, rules: &[&'static str]) {
    let wanted = HasDiscoveries::AllOf(rules.iter().copied().collect());
    let checker = protocol.broken(broken).checker().threads(2).finish_when(wanted).spawn_bfs().join();
    for rule in rules {
        println!("{broken:?}, within {} worlds, not {rule:?}:", checker.unique_state_count());
        for action in checker.assert_any_discovery(rule).into_actions() {
            println!("  {action:?}");
        }
    }
}

#[test]
fn a_list_keeps_all_rules() {
    let sightings =
        [Sighting::LateReportRefused, Sighting::RepeatedReportAbsorbed, Sighting::OldOwnerRefused];
    check("list", Protocol::new(list(), Detail::default(), 2), &sightings);
}

#[test]
fn a_graph_keeps_all_rules() {
    let sightings =
        [Sighting::LateReportRefused, Sighting::RepeatedReportAbsorbed, Sighting::OldOwnerRefused];
    check("graph", Protocol::new(graph(), Detail::default(), 2), &sightings);
}

#[test]
fn a_fleet_keeps_all_rules_when_nodes_are_silent() {
    let silence = Detail { silence: true, ..Detail::default() };
    check("fleet, silent nodes", Protocol::new(fleet(), silence, 2), &[]);
}

#[test]
fn a_placed_task_keeps_all_rules() {
    check("placed", Protocol::new(placed(), Detail::default(), 3), &[Sighting::CommitTriedAgain]);
}

#[test]
fn a_placed_task_keeps_all_rules_in_every_detail() {
    let sightings = [
        Sighting::LateReportRefused,
        Sighting::RepeatedReportAbsorbed,
        Sighting::OldOwnerRefused,
        Sighting::SecondClaimRefused,
        Sighting::CommitTriedAgain,
    ];
    check("placed, in detail", Protocol::new(placed(), Detail::fine(), 2), &sightings);
}

#[test]
fn a_graph_keeps_all_rules_in_every_detail() {
    check("graph, in detail", Protocol::new(graph(), Detail::fine(), 1), &[Sighting::CommitTriedAgain]);
}

#[test]
fn without_fencing_a_result_counts_twice() {
    catches(Broken::NoFencing, Protocol::new(placed(), Detail::default(), 1), &[ONE_RESULT, ENDED]);
}

#[test]
fn without_the_epoch_an_old_owner_changes_the_run() {
    let rules = [OLD_OWNER, ONE_ATTEMPT, ONE_LEASE];
    catches(Broken::NoEpochGuard, Protocol::new(placed(), Detail::default(), 2), &rules);
}

#[test]
fn without_the_pending_guard_two_nodes_have_a_lease() {
    catches(Broken::NoPendingGuard, Protocol::new(placed(), Detail::default(), 1), &[ONE_LEASE]);
}

#[test]
fn without_an_outbox_a_result_is_lost_with_its_agent() {
    catches(Broken::NoOutbox, Protocol::new(placed(), Detail::default(), 1), &[OUTBOX]);
}

#[test]
fn with_early_receipts_an_acknowledged_result_is_nowhere() {
    catches(Broken::EarlyReceipt, Protocol::new(placed(), Detail::fine(), 1), &[RECEIPT]);
}

#[test]
fn an_owner_that_starts_over_has_two_attempts_open_at_once() {
    let rules = [ONE_ATTEMPT, ONE_LEASE];
    catches(Broken::FromTheStart, Protocol::new(list(), Detail::default(), 1), &rules);
}

#[test]
fn an_owner_that_starts_over_completes_a_run_twice() {
    catches(Broken::FromTheStart, Protocol::new(placed(), Detail::default(), 1), &[COMPLETED]);
}

#[test]
fn an_owner_that_acts_on_rumours_breaks_the_barrier() {
    catches(Broken::ActsOnRumours, Protocol::new(list(), Detail::default(), 1), &[BARRIER]);
}

#[test]
fn an_owner_that_acts_on_rumours_leaves_something_open() {
    catches(Broken::ActsOnRumours, Protocol::new(placed(), Detail::default(), 1), &[NOTHING_LEFT]);
}

#[test]
fn without_take_over_a_run_does_not_end() {
    catches(Broken::NoTakeOver, Protocol::new(placed(), Detail::default(), 1), &[ENDS]);
}

#[test]
fn a_feed_that_leaves_something_out_does_not_explain_the_tables() {
    catches(Broken::ForgetfulFeed, Protocol::new(placed(), Detail::default(), 1), &[FEED, ENDS]);
}
