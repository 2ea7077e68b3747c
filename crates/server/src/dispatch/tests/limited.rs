//! Limits on the board: what it counts, which work it lets through, and that it avoids claims that the
//! store would refuse.

use downbeat_core::state::LimitUse;

use super::*;
use downbeat_core::work::Parent;

fn named(world: &mut World, name: &str) -> RunId {
    world.run(name, noops(1, &json!({"name": name})))
}

#[test]
fn no_more_are_given_out_than_a_limit_allows_and_an_end_makes_room() {
    let mut world = World::new(2);
    let run = named(&mut world, "r");
    world.wait(&run, 10, Some(json!({"db": 3})));
    let _polls = [world.park(0, 1, WIDE), world.park(1, 1, WIDE)];
    let claims = world.claim();
    assert_eq!(claims.len(), 3);
    assert!(world.claim().is_empty(), "they count while they are being committed");
    world.commit(claims.clone());
    assert!(world.claim().is_empty());
    world.end(&claims[..2]);
    let _again = [world.park(0, 2, WIDE), world.park(1, 2, WIDE)];
    assert_eq!(world.claim().len(), 2);
}

#[test]
fn a_key_is_shared_by_all_runs_and_each_is_held_to_its_own_number() {
    let mut world = World::new(1);
    let (narrow, wide) = (named(&mut world, "narrow"), named(&mut world, "wide"));
    world.wait(&narrow, 5, Some(json!({"db": 1})));
    world.wait(&wide, 5, Some(json!({"db": 3})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 20, debug: None });
    let claims = world.claim();
    let mut runs: Vec<String> = claimed_by_run(&claims).into_iter().map(|(run, _)| run).collect();
    runs.sort();
    assert_eq!(runs, ["narrow", "wide", "wide"]);
    // Two are in use, which is the maximum for one of them but not for the other.
    let ended: Vec<Change> = claims
        .iter()
        .filter(
            |claim| matches!(claim, Change::ExecutionLeased { of: Parent::Run(run), .. } if *run == narrow),
        )
        .cloned()
        .collect();
    world.commit(claims);
    world.end(&ended);
    let _poll = world.park(0, 2, Free { fleet: 0, placed: 20, debug: None });
    assert_eq!(claimed_by_run(&world.claim()), [("wide".to_owned(), node_id(0))]);
}

#[test]
fn what_a_limit_holds_back_does_not_hold_back_others() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    world.wait(&run, 1_000, Some(json!({"db": 1})));
    let free = world.wait(&run, 3, None);
    let other = world.wait(&run, 3, Some(json!({"disk": 2})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 20, debug: None });
    let claimed = claimed(&world.claim());
    assert_eq!(claimed.len(), 1 + 3 + 2);
    assert!(free.iter().all(|execution| claimed.contains(execution)));
    assert!(claimed.contains(&other[0]) && claimed.contains(&other[1]));
}

#[test]
fn keys_of_items_have_a_count_each_and_share_another() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    for item in 0..30 {
        world.wait(&run, 1, Some(json!({format!("tenant-{}", item % 3): 2, "db": 5})));
    }
    let mut held: Vec<Change> = Vec::new();
    let mut ended = 0;
    for poll in 1..100 {
        let _poll = world.park(0, poll, Free { fleet: 0, placed: 20, debug: None });
        let claims = world.claim();
        world.commit(claims.clone());
        held.extend(claims);
        assert!(held.len() <= 5, "{}", held.len());
        if poll == 1 {
            assert_eq!(held.len(), 5);
        }
        let first: Vec<Change> = held.drain(..1.min(held.len())).collect();
        ended += first.len();
        world.end(&first);
    }
    assert_eq!((ended, world.board.waiting(), world.board.uses.keys()), (30, 0, 0), "nothing is left behind");
}

#[test]
fn a_rate_lets_by_so_many_within_its_time() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    world.wait(&run, 10, Some(json!({"api": "3/1m"})));
    let second = SignedDuration::from_secs(1);
    let start = world.now;
    let mut given = Vec::new();
    for poll in 1..20 {
        let _poll = world.park(0, poll, Free { fleet: 0, placed: 1, debug: None });
        let claims = world.claim();
        given.extend(claims.iter().map(|_| world.now.duration_since(start).as_secs()));
        world.commit(claims.clone());
        world.end(&claims);
        world.now += second * 10;
    }
    // Their end makes no room: a rate counts starts.
    assert_eq!(given, [0, 10, 20, 60, 70, 80, 120, 130, 140, 180]);
}

#[test]
fn the_board_is_looked_at_again_when_a_window_frees_a_place_and_not_before() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    world.wait(&run, 5, Some(json!({"api": "2/1m"})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 8, debug: None });
    assert_eq!(world.claim().len(), 2);
    let due = world.now + SignedDuration::from_secs(60);
    assert_eq!(world.board.next_due(), Some(due));
    world.now = due - SignedDuration::from_millis(1);
    assert!(world.claim().is_empty());
    world.now = due;
    assert_eq!(world.claim().len(), 2);
}

#[test]
fn a_claim_that_the_store_refused_for_a_limit_is_not_asked_for_again_at_once() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    let ids = world.wait(&run, 3, Some(json!({"db": 1})));
    let other = named(&mut world, "other");
    world.wait(&other, 1, None);
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 1, debug: None });
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[..1]);
    world.board.unclaim(&claims[0]);
    world.board.rest(&claims[0], "db", world.now);
    // Others use its slot, and it is tried again later.
    let others = world.claim();
    assert_eq!(claimed_by_run(&others)[0].0, "other");
    world.commit(others);
    let _poll = world.park(0, 2, Free { fleet: 0, placed: 1, debug: None });
    assert!(world.claim().is_empty());
    let due = world.board.next_due().expect("it is looked at again");
    assert!(due > world.now);
    let first_rest = due.duration_since(world.now);
    world.now = due;
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[..1]);
    assert_eq!(world.board.next_due(), None);
    // Refused again without a change of the limit: it rests longer.
    world.board.unclaim(&claims[0]);
    world.board.rest(&claims[0], "db", world.now);
    assert!(world.claim().is_empty());
    assert!(world.board.next_due().unwrap().duration_since(world.now) > first_rest);
}

#[test]
fn what_another_server_gave_out_counts() {
    let mut world = World::new(2);
    let run = named(&mut world, "r");
    let ids = world.wait(&run, 4, Some(json!({"db": 2, "api": "3/1h"})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 8, debug: None });
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[..2]);
    // The other server leased the first one before, and a third one that this server did not know.
    let at = world.now + SignedDuration::from_millis(1);
    let lease = |token| Lease {
        token: LeaseToken(Uuid::from_u128(token)),
        node: node_id(1),
        session: SESSION,
        granted_at: at,
    };
    let theirs: Vec<Change> = [(ids[0], 1), (ids[2], 2)]
        .map(|(execution, token)| Change::ExecutionLeased {
            of: Parent::Run(run.clone()),
            execution,
            lease: lease(token),
        })
        .into();
    world.commit(theirs.clone());
    for claim in &claims {
        world.board.unclaim(claim);
    }
    assert!(world.claim().is_empty(), "both slots are in use");
    world.end(&theirs);
    let _poll = world.park(0, 2, Free { fleet: 0, placed: 8, debug: None });
    // Both ended, but only one more may start within the hour.
    assert_eq!(world.claim().len(), 1);
}

#[test]
fn a_place_is_free_again_whatever_ends_its_execution() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    let cancel = |world: &mut World, execution| {
        let (run, at) = (RunId::from("r"), world.now);
        world.commit(vec![Change::ExecutionCancelRequested {
            run,
            execution,
            epoch: 1,
            reason: String::new(),
            at,
        }]);
    };
    let ids = world.wait(&run, 4, Some(json!({"db": 1})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 8, debug: None });
    // Cancelled while it was claimed.
    let claims = world.claim();
    cancel(&mut world, ids[0]);
    world.board.unclaim(&claims[0]);
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[1..2]);
    // The commit failed.
    world.board.claims_failed(claims);
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[1..2]);
    // The run is paused while it was claimed, and continues.
    let paused = |paused, at| Change::RunPauseSet { run: RunId::from("r"), paused, by: String::new(), at };
    world.commit(vec![paused(true, world.now)]);
    world.board.unclaim(&claims[0]);
    assert!(world.claim().is_empty());
    world.commit(vec![paused(false, world.now)]);
    let claims = world.claim();
    assert_eq!(claimed(&claims), ids[1..2]);
    // Lost.
    world.commit(claims.clone());
    world.end(&claims);
    let _poll = world.park(0, 2, Free { fleet: 0, placed: 8, debug: None });
    assert_eq!(claimed(&world.claim()), ids[2..3]);
}

#[test]
fn executions_with_limits_are_never_born_leased() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    let _poll = world.park(0, 1, WIDE);
    let mut executions = world.executions(&run, 1, None);
    executions[0].limits = Some(Arc::new(serde_json::from_value(json!({"db": 4})).unwrap()));
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 0);
}

#[test]
fn fleet_work_is_held_to_limits_and_takes_turns_with_placed_work() {
    let mut world = World::new(6);
    let fleet = world.run("fleet", json!({"name": "f", "target": "all", "tasks": [task()]}));
    let placed = named(&mut world, "placed");
    let limits = json!({"db": 1});
    for node in 0..6 {
        let mut executions = world.executions(&fleet, 1, Some(node_id(node)));
        executions[0].limits = Some(Arc::new(serde_json::from_value(limits.clone()).unwrap()));
        world.add(&fleet, executions);
    }
    world.wait(&placed, 6, Some(limits));
    let mut served = Vec::new();
    for poll in 1..13 {
        let _polls: Vec<_> =
            (0..6).map(|node| world.park(node, poll, Free { fleet: 1, placed: 1, debug: None })).collect();
        let claims = world.claim();
        assert_eq!(claims.len(), 1, "one at once");
        served.extend(claimed_by_run(&claims).into_iter().map(|(run, _)| run));
        world.commit(claims.clone());
        world.end(&claims);
    }
    assert_eq!(served, ["fleet", "placed"].repeat(6));
}

#[test]
fn what_the_store_remembers_counts_when_a_server_starts() {
    let mut world = World::new(1);
    let run = named(&mut world, "r");
    let at = world.now;
    let mut held = world.executions(&run, 1, None).remove(0);
    held.limits = Some(Arc::new(serde_json::from_value(json!({"db": 2})).unwrap()));
    let lease =
        Lease { token: LeaseToken(Uuid::from_u128(9)), node: node_id(0), session: SESSION, granted_at: at };
    held.state = State::Running { lease, started_at: at, stop: false };
    let work = world.work(&run);
    world.board.add_execution(&held, work, &mut Vec::new());
    let ended = ExecutionId(Uuid::from_u128(5));
    let cluster = ClusterId::DEFAULT;
    let of = |key: &str, execution, until| LimitUse {
        cluster,
        key: key.to_owned(),
        execution,
        granted_at: at,
        until,
    };
    let minute = at + SignedDuration::from_secs(60);
    world.board.load_uses([of("db", held.id, None), of("api", ended, Some(minute))]);
    world.wait(&run, 5, Some(json!({"db": 2})));
    world.wait(&run, 5, Some(json!({"api": "3/1m"})));
    let _poll = world.park(0, 1, Free { fleet: 0, placed: 20, debug: None });
    assert_eq!(world.claim().len(), 1 + 2);
    // The window of a loaded use ends like any other.
    world.now += SignedDuration::from_secs(60);
    let _poll = world.park(0, 2, Free { fleet: 0, placed: 20, debug: None });
    assert_eq!(world.claim().len(), 3, "what is left of those with a rate");
}

#[test]
fn reasons_say_what_an_execution_waits_for() {
    let mut world = World::new(2);
    world.board.add_node(NodeRecord { draining: true, ..record(2, SESSION) });
    let run = named(&mut world, "r");
    let work = world.work(&run);
    let mut execution = world.executions(&run, 1, None).remove(0);
    let reasons = |world: &mut World, execution: &Execution, seconds: i64| {
        let now = world.now + SignedDuration::from_secs(seconds);
        let obstacles = world.board.obstacles(&work, execution, now);
        obstacles.into_iter().map(|found| format!("{}: {}", found.node, found.reason)).collect::<Vec<_>>()
    };
    let drained = "n2: is draining and takes no new work";
    let turn = "other jobs come first";
    assert_eq!(
        reasons(&mut world, &execution, 0),
        [format!("n0: {turn}"), format!("n1: {turn}"), drained.to_owned()]
    );
    // One node is full.
    world.wait(&run, 8, None);
    let _poll = world.park(0, 1, WIDE);
    let claims = world.claim();
    world.commit(claims);
    let taken = "n0: all slots are in use".to_owned();
    assert_eq!(reasons(&mut world, &execution, 0), [taken, format!("n1: {turn}"), drained.to_owned()]);
    // Two limits are full: then nodes that fit give no reason.
    world.wait(&run, 4, Some(json!({"db": 2, "api": "2/1m"})));
    let _poll = world.park(1, 1, WIDE);
    let claims = world.claim();
    world.commit(claims);
    execution.limits =
        Some(Arc::new(serde_json::from_value(json!({"db": 2, "api": "2/1m", "cpu": 1})).unwrap()));
    assert_eq!(
        reasons(&mut world, &execution, 30),
        [
            "-: limit api: 2 started within 1m; next at 1970-01-01T00:17:40Z",
            "-: limit db: 2 of 2 in use",
            drained,
        ]
    );
    assert_eq!(reasons(&mut world, &execution, 60)[0], "-: limit db: 2 of 2 in use");
}
