//! The order of turns: priorities, jobs that take turns, ages.

use super::*;

fn job(name: &str, more: &Value) -> Value {
    let mut definition = noops(1, more);
    definition["name"] = json!(name);
    definition
}

/// Asserts that at every point each of these has had its share, within `bound`.
fn assert_fair(served: &[String], of: &[&str], bound: f64) {
    for length in 0..=served.len() {
        let share = length as f64 / of.len() as f64;
        for name in of {
            let had = served[..length].iter().filter(|run| run == name).count() as f64;
            assert!((had - share).abs() <= bound, "{name} had {had} of {length}: {served:?}");
        }
    }
}

#[test]
fn two_jobs_take_turns_however_much_each_has_waiting() {
    let mut world = World::new(1);
    let (many, few) = (world.run("many", job("m", &json!({}))), world.run("few", job("f", &json!({}))));
    world.wait(&many, 1_000, None);
    world.wait(&few, 20, None);
    assert_fair(&world.one_by_one(40), &["many", "few"], 1.0);
    assert_eq!(world.one_by_one(5), ["many"; 5], "the other one has nothing left");
}

#[test]
fn jobs_take_turns_also_when_many_slots_are_given_out_at_once() {
    let mut world = World::new(3);
    let runs = ["a", "b", "c"].map(|name| world.run(name, job(name, &json!({}))));
    for (index, run) in runs.iter().enumerate() {
        world.wait(run, 100 * (index + 1), None);
    }
    let _polls = [world.park(0, 1, WIDE), world.park(1, 1, WIDE), world.park(2, 1, WIDE)];
    let served: Vec<String> = claimed_by_run(&world.claim()).into_iter().map(|(run, _)| run).collect();
    assert_eq!(served.len(), 24);
    assert_fair(&served, &["a", "b", "c"], 1.0);
}

#[test]
fn runs_of_one_job_are_one_lane_and_runs_without_a_name_one_each() {
    let mut world = World::new(1);
    let first = world.run("j1", job("j", &json!({})));
    let second = world.run("j2", job("j", &json!({})));
    let nameless = [world.run("x", noops(1, &json!({}))), world.run("y", noops(1, &json!({})))];
    for run in [&first, &second, &nameless[0], &nameless[1]] {
        world.wait(run, 10, None);
    }
    let served: Vec<String> = world
        .one_by_one(30)
        .into_iter()
        .map(|run| if run.starts_with('j') { "j".to_owned() } else { run })
        .collect();
    assert_fair(&served, &["j", "x", "y"], 1.0);
    // Within the job, the oldest first.
    assert_eq!(world.one_by_one(3), ["j2"; 3]);
}

#[test]
fn a_newcomer_neither_waits_for_a_backlog_nor_gets_one() {
    let mut world = World::new(1);
    let (old, new) = (world.run("old", job("old", &json!({}))), world.run("new", job("new", &json!({}))));
    let third = world.run("third", job("third", &json!({})));
    world.wait(&old, 500, None);
    world.wait(&third, 500, None);
    world.one_by_one(100);
    world.wait(&new, 40, None);
    let served = world.one_by_one(60);
    assert_fair(&served, &["old", "third", "new"], 2.0);
    // It has nothing pending for a while and then again: no turns were saved up.
    world.one_by_one(120);
    let before = world.one_by_one(50);
    assert_fair(&before[before.len() - 30..], &["old", "third"], 2.0);
    world.wait(&new, 100, None);
    assert_fair(&world.one_by_one(60), &["old", "third", "new"], 2.0);
}

#[test]
fn one_that_always_has_just_one_waiting_gets_no_more_than_its_turns() {
    let mut world = World::new(1);
    let (bulk, chain) = (world.run("bulk", job("b", &json!({}))), world.run("chain", job("c", &json!({}))));
    world.wait(&bulk, 100, None);
    let mut served = Vec::new();
    for _ in 0..40 {
        if served.last().is_none_or(|run| run == "chain") {
            world.wait(&chain, 1, None);
        }
        served.extend(world.one_by_one(1));
    }
    assert_fair(&served, &["bulk", "chain"], 2.0);
}

#[test]
fn higher_priorities_come_first() {
    let mut world = World::new(1);
    let low = world.run("low", job("l", &json!({"priority": -1})));
    let plain = world.run("plain", job("p", &json!({})));
    let high = world.run("high", job("h", &json!({"priority": 5})));
    let higher = world.run("high2", job("h2", &json!({"priority": 5})));
    for run in [&low, &plain, &high, &higher] {
        world.wait(run, 2, None);
    }
    let served = world.one_by_one(8);
    assert_eq!(served, ["high", "high2", "high", "high2", "plain", "plain", "low", "low"]);
}

#[test]
fn many_old_ones_of_one_class_do_not_starve_another_class() {
    let mut world = World::new(1);
    let many = world.run("many", job("m", &json!({})));
    world.wait(&many, 10_000, None);
    world.now += SignedDuration::from_secs(60);
    // Other nodes fit these, too: another class.
    let other = world.run("other", job("o", &json!({"placement": {"forbid": ["elsewhere"]}})));
    world.wait(&other, 50, None);
    assert_fair(&world.one_by_one(60), &["many", "other"], 1.0);
    // Within one job and its classes, the oldest first.
    let mixed = world.run("mixed", job("m", &json!({"placement": {"forbid": ["elsewhere"]}})));
    world.wait(&mixed, 50, None);
    assert!(!world.one_by_one(40).contains(&"mixed".to_owned()));
}

#[test]
fn what_cannot_go_does_not_stand_in_the_way() {
    let mut world = World::new(1);
    let nowhere = world.run("nowhere", job("n", &json!({"priority": 9, "placement": {"labels": ["gpu"]}})));
    let run = world.run("r", job("r", &json!({})));
    world.wait(&nowhere, 100, None);
    world.wait(&run, 3, None);
    assert_eq!(world.one_by_one(4), ["r"; 3]);
}

#[test]
fn nothing_is_born_leased_that_would_overtake() {
    let mut world = World::new(1);
    let first = world.run("first", job("f", &json!({"placement": {"forbid": ["elsewhere"]}})));
    let plain = world.run("plain", job("p", &json!({})));
    let urgent = world.run("urgent", job("u", &json!({"priority": 1})));
    world.wait(&first, 2, None);
    let _poll = world.park(0, 1, WIDE);
    let mut born = world.executions(&plain, 1, None);
    world.reserve(&mut born);
    assert_eq!(leased(&born), 0, "another class waits for the same slots");
    let mut born = world.executions(&urgent, 1, None);
    world.reserve(&mut born);
    assert_eq!(leased(&born), 1, "what waits is of less priority");
    assert_eq!(world.claim().len(), 2);
    let mut born = world.executions(&plain, 1, None);
    world.reserve(&mut born);
    assert_eq!(leased(&born), 1, "nothing waits any more");
    // Something waits, but not for this node.
    let nowhere = world.run("nowhere", job("n", &json!({"placement": {"labels": ["gpu"]}})));
    world.wait(&nowhere, 1, None);
    let mut born = world.executions(&plain, 1, None);
    world.reserve(&mut born);
    assert_eq!(leased(&born), 1);
}

#[test]
fn fleet_work_of_a_node_goes_by_priority_then_by_age() {
    let mut world = World::new(1);
    let fleet = |priority: i32| json!({"target": "all", "priority": priority, "tasks": [task()]});
    let runs =
        [("old", 0), ("new", 0), ("urgent", 7)].map(|(name, priority)| world.run(name, fleet(priority)));
    for run in &runs {
        let executions = world.executions(run, 1, Some(node_id(0)));
        world.add(run, executions);
    }
    // New work of a lower priority is not leased before them.
    let (poll, late) = (world.park(0, 1, WIDE), world.run("late", fleet(6)));
    let mut born = world.executions(&late, 1, Some(node_id(0)));
    world.reserve(&mut born);
    assert_eq!(leased(&born), 0);
    drop(poll);
    let mut order = Vec::new();
    for poll in 2..5 {
        let _poll = world.park(0, poll, WIDE);
        let claims = world.claim();
        order.extend(claimed_by_run(&claims).into_iter().map(|(run, _)| run));
        world.commit(claims.clone());
        world.end(&claims);
    }
    assert_eq!(order, ["urgent", "old", "new"]);
}
