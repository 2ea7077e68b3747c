//! Runs with many bytes and rows: what is in memory at once.

use std::cell::Cell;

use downbeat_core::execution::{Execution, State, Status, Verdict};
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
        let error = "the outputs of step 0 (read) are not kept: all outputs that expressions of the run refer to exceed 64 MiB";
        assert_eq!(errors[0], error);
        assert_eq!(world.record.state(), RunState::Failed);
    }
}

#[test]
fn large_outputs_of_one_step_do_not_take_the_items_of_another() {
    let output = "x".repeat(limits::VALUES_BYTES - 16);
    let count = limits::OUTPUTS_OF_RUN_BYTES / output.len() + 1;
    let task = |name: &str, message: &str, more: Value| {
        let mut task = echo(message);
        (task["name"], task["outputs"]) = (json!(name), json!(["value"]));
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let items: Vec<usize> = (0..count).collect();
    let tasks = [
        task("list", "l", json!({"depends_on": []})),
        task("large", "l", json!({"depends_on": [], "for_each": {"items": items}})),
        task(
            "each",
            "{{ item }}",
            json!({"depends_on": ["list"], "for_each": {"items": "{{ steps.list.outputs.value }}", "max_parallel": 1}}),
        ),
        task("reads", "{{ steps.large.outputs.value }}", json!({"depends_on": ["large"]})),
        task("after", "{{ steps.list.outputs.value }}", json!({"depends_on": ["each"]})),
    ];
    for restarts in [false, true] {
        let mut world = World::new(json!({"strategy": "continue", "tasks": tasks}), 0, 1);
        world.begin();
        let succeed = |world: &mut World, execution: &Execution, value: Value| {
            world.lease(execution);
            let outputs = [("value".to_owned(), value)].into_iter().collect();
            let finished = world.finished_with(execution.id, Verdict::Succeeded, outputs);
            world.happens(&finished);
        };
        let of = |world: &World, step: u32| -> Vec<Execution> {
            world.open(Status::Pending).into_iter().filter(|each| each.step() == step).collect()
        };
        let list = of(&world, 0).remove(0);
        succeed(&mut world, &list, json!(["a", "b", "c"]));
        for execution in of(&world, 1) {
            succeed(&mut world, &execution, json!(output));
        }
        if restarts {
            world.restart();
        }
        for item in 0..3 {
            let each = of(&world, 2).remove(0);
            assert_eq!(each.item(), Some(item), "{restarts}");
            succeed(&mut world, &each, json!(""));
        }
        // The outputs of the other step are still there.
        let after = of(&world, 4).remove(0);
        succeed(&mut world, &after, json!(""));
        let results = world.results();
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        let reads: Vec<&str> = results.iter().copied().filter(|result| result.starts_with("3@")).collect();
        assert_eq!((reads, world.record.state()), (vec!["3@- failed"], RunState::Failed), "{restarts}");
        assert!(results.contains(&"4@- succeeded"), "{restarts}");
    }
}

#[test]
fn failures_new_executions_and_changes_share_the_rows_of_a_submission() {
    let pipeline = json!({"name": "first", "depends_on": [], "tasks": [echo("a"), echo("b")]});
    let mut other = echo("c");
    (other["name"], other["depends_on"]) = (json!("other"), json!([]));
    let definition = json!({"target": "all", "tasks": [pipeline, other]});
    let mut world = World::new(definition, 6, 1);
    world.set_portion(Portion::of_rows(3));
    world.begin();
    let first: Vec<Execution> =
        world.open(Status::Pending).into_iter().filter(|each| each.step() == 0).take(3).collect();
    first.iter().for_each(|execution| assert!(world.lease(execution)));
    world.largest_submission = 0;
    let failed: Vec<Change> =
        first.iter().map(|execution| world.finished(execution.id, Verdict::Failed)).collect();
    failed.iter().for_each(|change| assert!(world.apply(change)));
    world.observe_all(&failed);
    // Three failures, three skipped steps, and six attempts that are withdrawn.
    assert_eq!((world.failed_for_good.len(), world.largest_submission), (3, 3));
    assert_eq!(world.open(Status::Skipped).len(), 9);
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
        version: None,
        sessions: Vec::new(),
        after: None,
        at: world.now,
    };
    let Some(Change::ExecutionsAdded { executions, .. }) = Progress::observable(&added) else {
        panic!("a lease is observed")
    };
    assert_eq!(executions.len(), 1);
    assert!(executions[0].params.is_none());
    assert_eq!(Progress::observable(&world.started(executions[0].id)), None);
}
