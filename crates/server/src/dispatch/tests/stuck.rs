//! Work that no node can take: it is checked again only when something has changed that may let it fit.

use super::*;

const NODES: u32 = 30;
const CLASSES: u32 = 20;

/// Creates idle nodes, and runs that each have a class of their own with this placement. Nothing of them can start.
fn stuck(placement: impl Fn(u32) -> Value) -> (World, Vec<oneshot::Receiver<PollAnswer>>) {
    let mut world = World::new(NODES);
    let polls = (0..NODES).map(|node| world.park(node, 1, WIDE)).collect();
    for class in 0..CLASSES {
        let run = world.run(&format!("stuck-{class}"), noops(1, &json!({"placement": placement(class)})));
        world.wait(&run, 1, None);
    }
    (world, polls)
}

fn label(class: u32) -> Value {
    json!({"labels": [format!("rack={class}")]})
}

/// Returns how often nodes were checked for classes.
fn checks(world: &mut World, act: impl FnOnce(&mut World)) -> usize {
    world.board.checks.set(0);
    act(world);
    world.board.checks.get()
}

#[test]
fn work_that_no_node_suits_is_checked_once_and_then_only_against_new_registrations() {
    let (mut world, _polls) = stuck(label);
    let first = checks(&mut world, |world| assert!(world.claim().is_empty()));
    assert!(first >= (NODES * CLASSES) as usize, "{first}");
    let again = checks(&mut world, |world| assert!(world.claim().is_empty()));
    assert_eq!(again, 0, "nothing has changed");
    // A slot that becomes free on a node that is not suitable changes nothing.
    let freed = checks(&mut world, |world| {
        world.board.refresh(node_id(3), SESSION, 1, Free { fleet: 1, placed: 9, debug: None });
        assert!(world.claim().is_empty());
    });
    assert_eq!(freed, 0);
    // Other work goes on at its usual cost: one class, each node.
    let other = world.run("other", noops(1, &json!({})));
    let usual = checks(&mut world, |world| {
        world.wait(&other, 1, None);
        let claims = world.claim();
        assert_eq!(claims.len(), 1);
        world.commit(claims.clone());
        world.end(&claims);
    });
    assert!(usual <= NODES as usize + 1, "{usual}");
    // A node that registers is checked once for each class.
    let mut suitable = record(7, SESSION);
    suitable.description.labels.insert("rack".to_owned(), "5".to_owned());
    let registered = checks(&mut world, |world| {
        world.board.add_node(suitable);
        assert_eq!(claimed_by_run(&world.claim()), [("stuck-5".to_owned(), node_id(7))]);
    });
    assert!(registered <= (CLASSES + NODES) as usize + 2, "{registered}");
}

#[test]
fn work_whose_nodes_are_busy_starts_when_one_of_them_is_not() {
    type Event = fn(&mut World);
    let polled: Event = |world| {
        let answer = world.park(2, 2, Free { fleet: 0, placed: 1, debug: None });
        std::mem::forget(answer);
    };
    let refreshed: Event = |world| {
        world.board.refresh(node_id(2), SESSION, 1, Free { fleet: 0, placed: 1, debug: None });
    };
    let freed: Event = |world| {
        world.board.refresh(node_id(2), SESSION, 1, Free { fleet: 0, placed: 1, debug: None });
        world.board.keep_free(downbeat_core::collections::HashMap::default());
    };
    for (name, event) in [("polled", polled), ("refreshed", refreshed), ("freed", freed)] {
        let mut world = World::new(3);
        let _poll = world.park(2, 1, Free { fleet: 1, placed: 0, debug: None });
        let _other = world.park(0, 1, WIDE);
        let run = world.run("r", noops(1, &json!({"placement": {"allow": ["n2"]}})));
        world.board.keep_free([(node_id(2), RunId::from("x"))].into_iter().collect());
        if name != "freed" {
            world.board.keep_free(downbeat_core::collections::HashMap::default());
        }
        world.wait(&run, 1, None);
        assert!(world.claim().is_empty(), "{name}");
        assert_eq!(checks(&mut world, |world| assert!(world.claim().is_empty())), 0, "{name}");
        event(&mut world);
        assert_eq!(claimed_by_run(&world.claim()), [("r".to_owned(), node_id(2))], "{name}");
    }
}

#[test]
fn work_waits_for_a_node_that_is_drained_or_silent_and_for_a_hold() {
    let moved = |from, to| Change::NodeMoved {
        node: node_id(0),
        session: SESSION,
        from,
        to,
        silent_since: None,
        at: Timestamp::UNIX_EPOCH,
    };
    let drained = |draining| Change::NodeDrainSet {
        node: node_id(0),
        draining,
        by: "ada".to_owned(),
        at: Timestamp::UNIX_EPOCH,
    };
    for (before, after) in [
        (drained(true), drained(false)),
        (moved(NodeStatus::Online, NodeStatus::Stale), moved(NodeStatus::Stale, NodeStatus::Online)),
    ] {
        let mut world = World::new(1);
        let run = world.run("r", noops(1, &json!({})));
        let _poll = world.park(0, 1, WIDE);
        world.commit(vec![before]);
        world.wait(&run, 1, None);
        assert!(world.claim().is_empty());
        world.commit(vec![after]);
        assert_eq!(world.claim().len(), 1);
    }
    let mut world = World::new(1);
    let (run, holder) = (world.run("r", noops(1, &json!({}))), RunId::from("holder"));
    let _poll = world.park(0, 1, WIDE);
    world.board.hold_node(node_id(0), holder.clone());
    world.wait(&run, 1, None);
    assert!(world.claim().is_empty());
    world.board.give_back(&holder);
    assert_eq!(world.claim().len(), 1);
}

#[test]
fn a_run_with_enough_on_each_node_is_not_checked_until_one_of_its_executions_ends() {
    let (mut world, _polls) = stuck(|_| json!({"max_per_node": 1, "allow": ["n4"]}));
    let claims = world.claim();
    // The node has eight slots: the other runs wait for a slot there.
    assert_eq!(claims.len(), 8);
    world.commit(claims.clone());
    let _again = world.park(4, 2, Free { fleet: 1, placed: 0, debug: None });
    world.claim();
    assert_eq!(checks(&mut world, |world| assert!(world.claim().is_empty())), 0);
    // One more of a run that holds the node already: a free slot does not help, the end of the first does.
    let Change::ExecutionLeased { of: Parent::Run(run), .. } = &claims[0] else { panic!("no claim") };
    let cancelled: Vec<ExecutionId> = world
        .board
        .open
        .iter()
        .filter(|(_, open)| open.parent != Parent::Run(run.clone()))
        .map(|(id, _)| *id)
        .collect();
    let run = run.clone();
    world.wait(&run, 1, None);
    for execution in cancelled {
        let reason = "test".to_owned();
        let at = world.now;
        world.commit(vec![Change::ExecutionSkipped { run: run.clone(), execution, epoch: 1, reason, at }]);
    }
    world.board.refresh(node_id(4), SESSION, 2, Free { fleet: 1, placed: 3, debug: None });
    assert!(world.claim().is_empty());
    world.end(&claims[..1]);
    assert_eq!(claimed_by_run(&world.claim()), [(run.to_string(), node_id(4))]);
}

#[test]
fn a_claim_that_failed_lets_others_try() {
    let mut world = World::new(1);
    let (first, second) =
        (world.run("a", noops(1, &json!({}))), world.run("b", noops(1, &json!({"name": "b"}))));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 1, debug: None });
    world.wait(&first, 1, None);
    world.wait(&second, 1, None);
    let claims = world.claim();
    assert_eq!(claims.len(), 1);
    assert!(world.claim().is_empty());
    world.board.claims_failed(claims);
    assert_eq!(world.claim().len(), 1);
}

#[test]
fn slots_of_claims_that_are_on_their_way_are_not_given_twice() {
    for placed in [true, false] {
        let mut world = World::new(1);
        let target = if placed { json!({}) } else { json!({"target": "all"}) };
        let run = world.run("r", noops(2, &target));
        let free = Free { fleet: 1, placed: 1, debug: None };
        let poll = world.park(0, 1, free);
        let executions = world.executions(&run, 2, (!placed).then(|| node_id(0)));
        world.add(&run, executions);
        let claims = world.claim();
        assert_eq!(claims.len(), 1);
        // The agent sent this before the claim, and then asked again: it does not know of the claim either time.
        assert!(world.board.refresh(node_id(0), SESSION, 1, free));
        assert!(world.claim().is_empty(), "the slot is claimed");
        drop(poll);
        let mut next = world.park(0, 2, free);
        assert!(world.claim().is_empty(), "the slot is claimed");
        world.commit(claims.clone());
        assert_eq!(next.try_recv().unwrap().assignments.len(), 1);
        world.end(&claims);
        let _later = world.park(0, 3, free);
        assert_eq!(world.claim().len(), 1, "the slot is free again");
    }
}
