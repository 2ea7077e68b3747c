//! Debug commands: besides all other work, on nodes of this release and of older ones.

use downbeat_core::debug::{self, DebugCommand};
use downbeat_core::select::Selector;

use super::*;

impl World {
    /// Adds a debug command on one node.
    fn command(&mut self, number: u128) -> RunId {
        let run = RunId::debug(Uuid::from_u128(number));
        let nodes: Vec<Arc<NodeRecord>> = self.board.nodes().cloned().collect();
        let definition = DebugCommand::new("uptime", None).unwrap().definition(Selector::all());
        let resolved = debug::resolve(&nodes).unwrap();
        let plan = Plan::compile(Arc::new(definition), Arc::new(resolved)).unwrap();
        self.works.insert(Arc::new(RunWork::new(run.clone(), ClusterId::DEFAULT, Arc::new(plan))));
        run
    }

    /// Adds pending debug commands for the first node.
    fn commands(&mut self, count: u128) -> Vec<ExecutionId> {
        let mut ids = Vec::new();
        for number in 0..count {
            let run = self.command(number);
            let executions = self.executions(&run, 1, Some(node_id(0)));
            ids.push(executions[0].id);
            self.add(&run, executions);
        }
        ids
    }
}

fn claimed(claims: &[Change]) -> Vec<ExecutionId> {
    let id = |claim: &Change| match claim {
        Change::ExecutionLeased { execution, .. } => *execution,
        other => panic!("not a claim: {other:?}"),
    };
    claims.iter().map(id).collect()
}

const BUSY: Free = Free { fleet: 0, placed: 0, debug: Some(2) };

#[test]
fn a_busy_node_gets_as_many_debug_commands_as_it_offers() {
    let mut world = World::new(1);
    let mut poll = world.park(0, 1, BUSY);
    let commands = world.commands(3);
    let claims = world.claim();
    assert_eq!(claimed(&claims), commands[..2]);
    assert!(world.claim().is_empty(), "its slots are taken before the commit");
    world.commit(claims.clone());
    let answer = poll.try_recv().unwrap();
    assert!(answer.assignments.iter().all(|work| work.kind == WorkKind::Debug));
    assert_eq!(answer.assignments.len(), 2);
    let _poll = world.park(0, 2, Free { debug: Some(1), ..BUSY });
    assert_eq!(claimed(&world.claim()), commands[2..]);
}

#[test]
fn a_debug_command_is_reserved_when_it_is_created() {
    let mut world = World::new(1);
    let _poll = world.park(0, 1, BUSY);
    let (first, second) = (world.command(1), world.command(2));
    let mut executions = world.executions(&first, 1, Some(node_id(0)));
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 1);
    world.board.release(&mut executions);
    // An older one comes first.
    world.add(&first, executions);
    let mut executions = world.executions(&second, 1, Some(node_id(0)));
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 0);
}

#[test]
fn drains_and_exclusive_runs_do_not_keep_debug_commands_from_a_node() {
    let mut world = World::new(1);
    world.commit(vec![Change::NodeDrainSet {
        node: node_id(0),
        draining: true,
        by: "ada".to_owned(),
        at: world.now,
    }]);
    world.board.hold_node(node_id(0), RunId::from("exclusive"));
    let run = world.run("job", noops(1, &json!({"placement": {}})));
    let commands = world.commands(1);
    world.wait(&run, 1, None);
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 8, debug: Some(4) });
    let claims = world.claim();
    assert_eq!(claimed(&claims), commands);
    world.commit(claims);
    assert_eq!(world.board.other_run_on(node_id(0), &RunId::from("next")), None, "it keeps nobody away");
}

#[test]
fn fleet_work_and_placed_work_start_beside_a_debug_command() {
    let mut world = World::new(1);
    let run = world.run("fleet", noops(1, &json!({"target": "all"})));
    let pinned = world.executions(&run, 1, Some(node_id(0)));
    world.add(&run, pinned);
    let placed = world.run("placed", noops(1, &json!({})));
    world.wait(&placed, 1, None);
    world.commands(1);
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 1, debug: Some(1) });
    assert_eq!(world.claim().len(), 3);
    assert_eq!(world.board.slots_in_use(node_id(0)), 1);
}

#[test]
fn an_agent_of_an_older_release_runs_a_debug_command_as_fleet_work() {
    let mut world = World::new(1);
    let commands = world.commands(2);
    let _busy = world.park(0, 1, Free { fleet: 0, placed: 8, debug: None });
    assert!(world.claim().is_empty());
    let mut poll = world.park(0, 2, Free { fleet: 1, placed: 8, debug: None });
    let claims = world.claim();
    assert_eq!(claimed(&claims), commands[..1], "one at a time");
    world.board.claims_failed(claims);
    let claims = world.claim();
    assert_eq!(claimed(&claims), commands[..1], "its slot is free again");
    world.commit(claims);
    assert_eq!(poll.try_recv().unwrap().assignments.len(), 1);
}

#[test]
fn a_debug_command_that_is_cancelled_while_it_waits_is_never_sent() {
    let mut world = World::new(1);
    let commands = world.commands(1);
    let run = RunId::debug(Uuid::from_u128(0));
    let (execution, reason, at) = (commands[0], "test".into(), world.now);
    world.commit(vec![Change::ExecutionCancelRequested { run, execution, epoch: 1, reason, at }]);
    let _poll = world.park(0, 1, BUSY);
    assert!(world.claim().is_empty());
    assert_eq!(world.board.waiting(), 0);
}
