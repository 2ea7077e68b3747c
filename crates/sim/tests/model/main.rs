//! The protocol of leases and owners, checked exhaustively for small numbers.
//!
//! Real are the decisions: the engine and the machines of `core`, and the guards of the store's tables. Modelled are
//! the surroundings: two servers that may die, be wrong about each other and lose the answers to their commits; two
//! agents that may die; leases that may end at any moment, which is what any drift of clocks could do; reports that
//! arrive late, twice, out of order or never. The checker tries every order of all of it.

mod actions;
mod commit;
mod fingerprint;
mod owner;
mod rules;
mod setup;
mod world;

use stateright::{Checker, HasDiscoveries, Model};

use rules::{BARRIER, ONE_LEASE, ONE_RESULT, OLD_OWNER, OUTBOX, RECEIPT};
use setup::{Broken, Detail, Protocol, Sighting, graph, list, placed};

fn fine() -> Detail {
    Detail { starts: true, receipts: true, born_leased: true, late_work: true, cancel: true }
}

fn faults(usual: u8) -> u8 { std::env::var("DOWNBEAT_TEST_FAULTS").map_or(usual, |text| text.parse().unwrap()) }
/// Tries everything.
fn check(name: &str, protocol: Protocol, sightings: &[Sighting]) {
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

/// Tries everything until the rule is seen to be broken, and tells how.
fn catches(protocol: Protocol, rule: &'static str) {
    let broken = protocol.broken;
    let checker =
        protocol.checker().threads(2).finish_when(HasDiscoveries::AnyOf([rule].into())).spawn_bfs().join();
    println!("{broken:?}, after {} worlds: not {rule:?}", checker.unique_state_count());
    for action in checker.assert_any_discovery(rule).into_actions() {
        println!("  {action:?}");
    }
}

#[test]
fn a_list_keeps_all_rules() {
    check("list", Protocol::new(list(), Detail::default(), faults(1)), &[]);
}

#[test]
fn a_graph_keeps_all_rules() {
    check("graph", Protocol::new(graph(), Detail::default(), faults(1)), &[]);
}

#[test]
fn a_placed_task_keeps_all_rules_in_every_detail() {
    check("placed", Protocol::new(placed(), fine(), faults(2)), &[]);
}

#[test]
fn without_fencing_a_result_counts_twice() {
    catches(Protocol::new(placed(), Detail::default(), 2).broken(Broken::NoFencing), ONE_RESULT);
}

#[test]
fn without_the_epoch_an_old_owner_changes_the_run() {
    catches(Protocol::new(list(), Detail::default(), 2).broken(Broken::NoEpochGuard), OLD_OWNER);
}

#[test]
fn without_the_epoch_two_attempts_are_leased_at_once() {
    catches(Protocol::new(placed(), Detail::default(), 2).broken(Broken::NoEpochGuard), ONE_LEASE);
}

#[test]
fn without_the_pending_guard_two_nodes_have_a_lease() {
    catches(Protocol::new(placed(), Detail::default(), 2).broken(Broken::NoPendingGuard), ONE_LEASE);
}

#[test]
fn without_an_outbox_a_result_is_lost_with_its_agent() {
    catches(Protocol::new(placed(), Detail::default(), 2).broken(Broken::NoOutbox), OUTBOX);
}

#[test]
fn with_early_receipts_an_acknowledged_result_is_nowhere() {
    catches(Protocol::new(placed(), fine(), 2).broken(Broken::EarlyReceipt), RECEIPT);
}

#[test]
fn an_owner_that_starts_over_has_two_attempts_leased_at_once() {
    catches(Protocol::new(list(), Detail::default(), 2).broken(Broken::FromTheStart), ONE_LEASE);
}

#[test]
fn an_owner_that_acts_on_rumours_breaks_the_barrier() {
    catches(Protocol::new(list(), Detail::default(), 2).broken(Broken::ActsOnRumours), BARRIER);
}
