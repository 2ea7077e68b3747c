//! Placement: preferences, spreading, and whether any node fits at all.

use super::*;

/// Creates nodes `n0`, `n1`, … with these labels.
fn labelled(labels: &[Value]) -> World {
    let mut world = World::new(0);
    for (index, labels) in labels.iter().enumerate() {
        let mut record = record(u32::try_from(index).unwrap(), SESSION);
        record.description.labels = serde_json::from_value(labels.clone()).unwrap();
        world.board.add_node(record);
    }
    world
}

/// Returns how many executions each node gets of a run with this placement.
fn given(world: &mut World, placement: &Value, count: usize, free: &[u32]) -> Vec<usize> {
    let name = format!("r{}", world.polls);
    let run = world.run(&name, noops(1, &json!({"placement": placement})));
    world.polls += 1;
    let polls = world.polls;
    let park = |(node, free): (usize, &u32)| {
        world.park(u32::try_from(node).unwrap(), polls, Free { fleet: 1, placed: *free, debug: None })
    };
    let _polls: Vec<_> = free.iter().enumerate().map(park).collect();
    world.wait(&run, count, None);
    let claims = world.claim();
    let nodes: Vec<NodeId> = claimed_by_run(&claims).into_iter().map(|(_, node)| node).collect();
    world.commit(claims.clone());
    world.end(&claims);
    let at = |node: usize| nodes.iter().filter(|id| **id == node_id(u32::try_from(node).unwrap())).count();
    (0..free.len()).map(at).collect()
}

#[test]
fn preferred_nodes_come_first_and_others_when_they_are_full() {
    let mut world = labelled(&[
        json!({"disk": "ssd"}),
        json!({"disk": "ssd", "zone": "eu"}),
        json!({"zone": "eu"}),
        json!({}),
    ]);
    let prefer = json!({"prefer": [{"labels": ["disk=ssd"], "weight": 2}, {"labels": ["zone=eu"]}]});
    for (count, wanted) in [(1, [0, 1, 0, 0]), (3, [1, 2, 0, 0]), (5, [2, 2, 1, 0]), (9, [2, 2, 2, 2])] {
        assert_eq!(given(&mut world, &prefer, count, &[2, 2, 2, 2]), wanted, "{count}");
    }
    // No node has the preferred label.
    assert_eq!(given(&mut world, &json!({"prefer": [{"nodes": ["n9"]}]}), 4, &[1, 1, 1, 1]), [1, 1, 1, 1]);
}

#[test]
fn spreading_over_nodes_comes_before_free_slots() {
    let mut world = World::new(3);
    assert_eq!(given(&mut world, &json!({}), 3, &[8, 2, 1]), [3, 0, 0]);
    assert_eq!(given(&mut world, &json!({"spread": "node"}), 3, &[8, 2, 1]), [1, 1, 1]);
    assert_eq!(given(&mut world, &json!({"spread": "node"}), 8, &[8, 2, 1]), [5, 2, 1]);
}

#[test]
fn spreading_over_a_label_counts_all_nodes_with_its_value() {
    let (eu, us) = (json!({"zone": "eu"}), json!({"zone": "us"}));
    let mut world = labelled(&[eu.clone(), eu.clone(), eu, us, json!({})]);
    let spread = json!({"spread": {"label": "zone"}});
    let given = given(&mut world, &spread, 9, &[8, 8, 8, 8, 8]);
    assert_eq!([given[..3].iter().sum::<usize>(), given[3], given[4]], [3, 3, 3], "{given:?}");
    assert_eq!(given[..3], [1, 1, 1], "within a zone by free slots");
}

#[test]
fn spreading_counts_what_the_run_holds_already_and_of_no_other_run() {
    let (eu, us) = (json!({"zone": "eu"}), json!({"zone": "us"}));
    let mut world = labelled(&[eu, us]);
    let rule = json!({"placement": {"spread": {"label": "zone"}}});
    let (run, other) = (world.run("r", noops(1, &rule)), world.run("other", noops(1, &rule)));
    world.wait(&run, 3, None);
    let poll = world.park(0, 1, Free { fleet: 0, placed: 3, debug: None });
    let claims = world.claim();
    assert_eq!(claims.len(), 3);
    world.commit(claims);
    drop(poll);
    world.wait(&run, 3, None);
    world.wait(&other, 2, None);
    let _polls = [world.park(0, 2, WIDE), world.park(1, 2, WIDE)];
    let mut claims = claimed_by_run(&world.claim());
    claims.sort();
    let count =
        |run: &str, node| claims.iter().filter(|claim| **claim == (run.to_owned(), node_id(node))).count();
    assert_eq!([count("r", 0), count("r", 1)], [0, 3], "one zone had three already");
    assert_eq!([count("other", 0), count("other", 1)], [1, 1]);
}

#[test]
fn max_per_node_holds_beside_spreading_and_preferences() {
    let mut world = World::new(3);
    let rule = json!({"max_per_node": 2, "spread": "node", "prefer": [{"nodes": ["n1"], "weight": 9}]});
    assert_eq!(given(&mut world, &rule, 9, &[8, 8, 8]), [2, 2, 2]);
    assert_eq!(given(&mut World::new(3), &rule, 3, &[8, 8, 0]), [1, 2, 0]);
}

#[test]
fn required_backends_are_looked_for_beside_the_tasks_own() {
    let mut world = World::new(2);
    let mut lacking = record(0, SESSION);
    lacking.description.backends.retain(|backend| backend.name != "exec");
    world.board.add_node(lacking);
    assert_eq!(given(&mut world, &json!({"backends": ["exec"]}), 4, &[8, 8]), [0, 4]);
}

#[test]
fn whether_any_node_fits_by_what_lasts_is_said_in_one_line() {
    let mut world = World::new(3);
    let full = world.run("full", noops(1, &json!({"placement": {"max_per_node": 1}})));
    let gpu = world.run("gpu", noops(1, &json!({"placement": {"labels": ["gpu"]}})));
    let fits = |world: &World, run: &RunId| world.board.fits_any(&world.work(run));
    world.board.add_node(NodeRecord { status: NodeStatus::Offline, ..record(1, SESSION) });
    world.board.add_node(NodeRecord { draining: true, ..record(2, SESSION) });
    world.wait(&full, 2, None);
    let _poll = world.park(0, 1, WIDE);
    let claims = world.claim();
    world.commit(claims);
    assert_eq!(fits(&world, &full), Ok(()), "that it holds one now does not last");
    assert_eq!(fits(&world, &gpu), Err("no node fits: 3 lack label gpu".to_owned()));
    world.board.add_node(NodeRecord { status: NodeStatus::Stale, ..record(0, SESSION) });
    let reasons = "no node fits: 1 is draining; 1 is offline; 1 is stale";
    assert_eq!(fits(&world, &full), Err(reasons.to_owned()));
    let elsewhere = Work { cluster: ClusterId(Uuid::from_u128(77)), ..(*world.work(&gpu)).clone() };
    assert_eq!(world.board.fits_any(&elsewhere), Err("no node fits: the cluster has none".to_owned()));
}
