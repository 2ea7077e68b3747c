//! Proves that the checker is sound: checks the assumptions by which it skips worlds, by visiting all worlds without
//! skipping any because of them.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

use super::setup::{Detail, Protocol, graph, list, placed};
use super::world::{Attempt, Observed, Owner, Server, World};

/// Visits every world once, with its successors.
fn walk(protocol: &Protocol, mut visit: impl FnMut(&World, u64, &[u64])) {
    let mut known: HashMap<u64, ()> = HashMap::new();
    let mut waiting: VecDeque<World> = protocol.init_states().into();
    known.extend(waiting.iter().map(|world| (fingerprint(world), ())));
    while let Some(world) = waiting.pop_front() {
        let next = protocol.next_states(&world);
        let prints: Vec<u64> = next.iter().map(fingerprint).collect();
        visit(&world, fingerprint(&world), &prints);
        let new = next.into_iter().zip(prints).filter(|(_, print)| known.insert(*print, ()).is_none());
        waiting.extend(new.map(|(world, _)| world));
    }
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// `eventually` is only correct if every path ends.
fn no_path_is_a_cycle(protocol: &Protocol) {
    let mut edges: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut incoming: HashMap<u64, usize> = HashMap::new();
    walk(protocol, |_, print, next| {
        next.iter().for_each(|next| *incoming.entry(*next).or_default() += 1);
        edges.insert(print, next.to_vec());
    });
    let mut free: Vec<u64> = edges.keys().filter(|print| !incoming.contains_key(print)).copied().collect();
    let mut ordered = 0;
    while let Some(print) = free.pop() {
        ordered += 1;
        for next in &edges[&print] {
            let left = incoming.get_mut(next).expect("every edge was counted");
            *left -= 1;
            if *left == 0 {
                free.push(*next);
            }
        }
    }
    assert_eq!(ordered, edges.len(), "worlds in or behind a cycle");
}

/// Returns an owner's progress as text, with names instead of ids and without constant parts.
fn progress_text(world: &World, owner: &Owner) -> String {
    let text = format!("{:?}", owner.progress);
    let (_plan, moving) = text.split_once("run: run, epoch: ").expect("a progress begins with its plan");
    let mut text = moving.to_owned();
    for execution in world.tables.executions.values() {
        text = text.replace(&execution.id.to_string(), &format!("{:?}", Attempt::of(execution)));
    }
    let (before, rest) = text.split_once("active: {").expect("a progress has active attempts");
    let (active, after) = rest.split_once("}, is_patient:").expect("and whether any is patient");
    // The store refused the additions of a former owner, so they have no name in the tables.
    let named = |one: &str| match one.trim_end_matches('}').split_once(": Active") {
        Some((id, rest)) if !id.starts_with("step") => format!("refused: Active{rest}"),
        _ => one.trim_end_matches('}').to_owned(),
    };
    let mut active: Vec<String> = active.split("}, ").map(named).collect();
    active.sort_unstable();
    format!("{before}{active:?}{after}")
}

/// Checks that owners that observed the same would also decide the same.
fn equal_digests_mean_equal_progress(protocol: &Protocol) {
    let mut known: HashMap<(u64, u64, u64, bool), String> = HashMap::new();
    let mut compared = 0;
    walk(protocol, |world, _, _| {
        for server in &world.servers {
            let Server::Owner(owner) = server else { continue };
            let text = progress_text(world, owner);
            let Observed { ordered, unordered } = owner.observed;
            // A refusal is visible in the tables, which are compared as well.
            let refused = text.contains("refused: Active");
            let digest = (owner.progress.epoch(), ordered[0], unordered[0], refused);
            compared += 1;
            let first = known.entry(digest).or_insert_with(|| text.clone());
            assert_eq!(*first, text, "two owners with the same digest");
        }
    });
    println!("{compared} owners, {} different ones", known.len());
    assert!(known.len() < compared, "nothing was compared");
}

#[test]
fn no_path_of_a_list_is_a_cycle() {
    no_path_is_a_cycle(&Protocol::new(list(), Detail::default(), 1).and_more());
}

#[test]
fn no_path_of_a_placed_task_is_a_cycle_in_any_detail() {
    no_path_is_a_cycle(&Protocol::new(placed(), Detail::fine(), 2).and_more());
}

#[test]
fn owners_of_a_list_that_observed_the_same_are_the_same() {
    equal_digests_mean_equal_progress(&Protocol::new(list(), Detail::default(), 1).and_more());
}

#[test]
fn owners_of_a_graph_that_observed_the_same_are_the_same() {
    equal_digests_mean_equal_progress(&Protocol::new(graph(), Detail::default(), 1).and_more());
}

#[test]
fn owners_of_a_placed_task_that_observed_the_same_are_the_same() {
    equal_digests_mean_equal_progress(&Protocol::new(placed(), Detail::fine(), 1).and_more());
}
