//! Runs with many bytes and rows: what is in memory at once.

use std::cell::Cell;

use downbeat_core::execution::{State, Status, Verdict};
use downbeat_core::node::Reach;
use downbeat_core::run::engine::{COMMIT, Turn};
use downbeat_core::run::{RunState, engine::Progress};
use downbeat_core::{Change, Portion, level, limits};
use serde_json::{Value, json};

use crate::world::World;

fn echo(message: &str) -> Value {
    json!({"backend": "test", "action": "echo", "params": {"message": message}})
}

#[test]
fn params_are_evaluated_for_one_submission_at_a_time() {
    const NODES: usize = 200;
    let big = "x".repeat(60 * 1024);
    let mut world = World::new(
        json!({"target": "all", "tasks": [echo(&format!("{{{{ node.hostname }}}}{big}"))]}),
        NODES,
        1,
    );
    let evaluated = Cell::new(0);
    let facts = |_| {
        evaluated.set(evaluated.get() + 1);
        Some(json!({"hostname": "n"}))
    };
    let mut turn = Turn {
        now: world.now,
        dice: &mut world.dice,
        reach: &|_| Reach::Here,
        facts: &facts,
        fits: &|_| Ok(()),
        level: level::LEVEL,
        serving_since: world.serving_since,
    };
    world.progress.begin(&mut turn);
    let mut committed = 0;
    loop {
        let at_once = COMMIT.bytes / big.len() + 2;
        assert!(evaluated.get() <= committed + at_once, "{} of {committed}", evaluated.get());
        for change in world.progress.take_changes(turn.now) {
            if let Change::ExecutionsAdded { executions, .. } = change {
                committed += executions.len();
            }
        }
        if !world.progress.has_more() {
            break;
        }
        world.progress.finish_turn(&mut turn);
    }
    assert_eq!((committed, evaluated.get()), (NODES, NODES));
}

#[test]
fn a_run_with_bounds_skips_nodes_in_portions() {
    let tasks = json!([echo("a"), {"tasks": [echo("b"), echo("c")]}]);
    let definition = json!({
        "target": "all", "strategy": "continue", "max_parallel": 2, "tasks": tasks
    });
    for dies_after in 0..8 {
        let mut world = World::new(definition.clone(), 10, 1);
        world.set_portion(Portion::of_rows(2));
        world.begin();
        world.dies_after = Some(dies_after);
        world.play_on(|step, node, _| {
            if step == 0 && node != "n8" && node != "n9" { Verdict::Failed } else { Verdict::Succeeded }
        });
        assert_eq!(world.largest_addition, 2, "{dies_after}");
    }
}

#[test]
fn outputs_beyond_the_bound_fail_what_refers_to_them() {
    let output = "x".repeat(limits::VALUES_BYTES - 16);
    let nodes = limits::OUTPUTS_OF_RUN_BYTES / output.len() + 1;
    let task = |name: &str, message: &str| {
        let mut task = echo(message);
        task["name"] = json!(name);
        task["outputs"] = json!(["value"]);
        task
    };
    let tasks = [task("read", "r"), task("reads", "{{ steps.read.outputs.value }}"), task("last", "l")];
    for dies_after in [None, Some(1)] {
        let mut world =
            World::new(json!({"target": "all", "strategy": "continue", "tasks": tasks}), nodes, 1);
        world.begin();
        let pending = world.open(Status::Pending);
        for (number, execution) in pending.iter().enumerate() {
            world.lease(execution);
            let outputs = json!({"value": output}).as_object().unwrap().clone();
            let outputs = outputs.into_iter().collect();
            let finished = world.finished_with(execution.id, Verdict::Succeeded, outputs);
            if number + 1 == nodes {
                world.dies_after = dies_after;
            }
            world.happens(&finished);
        }
        let errors = world.executions.values().filter_map(|each| match &each.state {
            State::Failed { error: Some(error), .. } => Some(error.as_str()),
            _ => None,
        });
        let errors: Vec<&str> = errors.collect();
        assert_eq!(errors.len(), nodes);
        assert_eq!(errors[0], "the outputs that expressions of the run refer to exceed 64 MiB");
        assert_eq!(world.record.state(), RunState::Failed);
    }
}

#[test]
fn a_waiting_change_keeps_no_params() {
    let mut world = World::new(json!({"target": "all", "tasks": [echo("{{ run.id }}")]}), 2, 1);
    world.begin();
    let mut executions: Vec<_> = world.executions.values().cloned().collect();
    let leased = world.leased(&executions[0]);
    world.apply(&leased);
    executions[0] = world.executions[&executions[0].id].clone();
    assert!(executions[0].params.is_some());
    let added = Change::ExecutionsAdded {
        run: world.record.id.clone(),
        epoch: 1,
        executions,
        rollout: None,
        at: world.now,
    };
    let Some(Change::ExecutionsAdded { executions, .. }) = Progress::observable(&added) else {
        panic!("a lease is observed")
    };
    assert_eq!(executions.len(), 1);
    assert!(executions[0].params.is_none());
}
