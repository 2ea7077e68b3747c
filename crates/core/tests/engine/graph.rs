//! Tests graph jobs: fan-out, bounds on parallel work, steps that no node fits, reused results, retried runs.

use std::sync::Arc;

use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::plan::{EntryIx, RetryScope};
use downbeat_core::run::RunState;
use downbeat_core::run::again::{CannotRetry, retry_of};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::world::World;

fn task(name: &str) -> Value {
    json!({"name": name, "backend": "test", "action": "noop"})
}

fn echo(name: &str, message: &str) -> Value {
    json!({"name": name, "backend": "test", "action": "echo", "params": {"message": message}})
}

#[expect(clippy::needless_pass_by_value, reason = "it is written where it is used")]
fn with(mut value: Value, more: Value) -> Value {
    for (key, to) in more.as_object().unwrap() {
        value[key] = to.clone();
    }
    value
}

fn job(more: Value, tasks: &[Value]) -> Value {
    with(json!({"tasks": tasks}), more)
}

fn well(_: u32, _: &str, _: u32) -> Verdict {
    Verdict::Succeeded
}

fn fail_at(step: u32, place: &'static str) -> impl Fn(u32, &str, u32) -> Verdict {
    move |s, p, _| if s == step && p == place { Verdict::Failed } else { Verdict::Succeeded }
}

fn message(execution: &Execution) -> String {
    execution.params.as_ref().expect("it has expressions")["message"].as_str().unwrap().to_owned()
}

fn at(world: &World, place: &str) -> Execution {
    let mut open =
        world.executions.values().filter(|e| e.state.status().is_open() && world.place(e) == place);
    open.next().unwrap_or_else(|| panic!("{place} is not open")).clone()
}

fn done(world: &mut World, place: &str, verdict: Verdict) {
    let execution = at(world, place);
    world.lease(&execution);
    world.end(&execution, verdict);
}

/// Ends the only open execution with these outputs.
fn succeed_with(world: &mut World, outputs: Value) {
    let execution = world.open(Status::Pending).remove(0);
    world.lease(&execution);
    let finished =
        world.finished_with(execution.id, Verdict::Succeeded, serde_json::from_value(outputs).unwrap());
    world.happens(&finished);
}

#[test]
fn a_task_runs_for_each_item_and_what_depends_on_it_waits_for_all() {
    let each =
        with(echo("each", "{{ item }}/{{ index }}"), json!({"for_each": {"items": ["a", "b", {"c": 1}]}}));
    let join = with(task("join"), json!({"depends_on": ["each"]}));
    let mut world = World::new(job(json!({}), &[with(each, json!({"depends_on": []})), join]), 0, 1);
    world.begin();
    assert_eq!(world.sent, ["0@[0]", "0@[1]", "0@[2]"]);
    let messages: Vec<String> = world.open(Status::Pending).iter().map(message).collect();
    assert_eq!(messages, ["a/0", "b/1", "{\"c\":1}/2"]);
    done(&mut world, "[1]", Verdict::Succeeded);
    done(&mut world, "[2]", Verdict::Succeeded);
    assert_eq!(world.sent.len(), 3, "the join waits for the last item");
    done(&mut world, "[0]", Verdict::Succeeded);
    assert_eq!(world.sent[3], "1@-");
    world.check();
}

fn listed() -> Vec<Value> {
    vec![
        with(task("list"), json!({"outputs": ["shards"]})),
        with(
            echo("shard", "{{ item.path }}"),
            json!({"depends_on": ["list"], "for_each": {"items": "{{ steps.list.outputs.shards }}"}, "outputs": ["rows"]}),
        ),
        with(echo("sum", "{{ steps.shard.outputs.rows | tojson }}"), json!({"depends_on": ["shard"]})),
    ]
}

#[test]
fn items_come_from_an_output_and_outputs_of_items_are_a_list() {
    let mut world = World::new(job(json!({}), &listed()), 0, 1);
    world.begin();
    succeed_with(&mut world, json!({"shards": [{"path": "x"}, {"path": "y"}, {"path": "z"}]}));
    for (place, rows) in [("[2]", json!(30)), ("[0]", json!(10)), ("[1]", Value::Null)] {
        let execution = at(&world, place);
        world.restart();
        world.lease(&execution);
        let outputs = if rows.is_null() { json!({}) } else { json!({"rows": rows}) };
        let finished =
            world.finished_with(execution.id, Verdict::Succeeded, serde_json::from_value(outputs).unwrap());
        world.happens(&finished);
    }
    world.restart();
    assert_eq!(message(&world.open(Status::Pending)[0]), "[10,null,30]");
    assert_eq!(world.sent, ["0@-", "1@[0]", "1@[1]", "1@[2]", "2@-"]);
}

#[test]
fn a_value_that_is_not_a_list_fails_the_task_and_is_named() {
    for (output, error) in [
        (json!("x"), "for_each: expected a list, got a string"),
        (json!({"a": 1}), "for_each: expected a list, got a map"),
        (json!(7), "for_each: expected a list, got `7`"),
    ] {
        let mut world = World::new(job(json!({"strategy": "continue"}), &listed()), 0, 1);
        world.begin();
        succeed_with(&mut world, json!({"shards": output}));
        assert_eq!(world.record.state(), RunState::Failed);
        assert_eq!(world.results(), ["0@- succeeded", "1@- failed", "2@- skipped"]);
        let failed = world.open(Status::Failed).remove(0);
        let found = serde_json::to_value(&failed).unwrap();
        assert_eq!(found["error"], error);
        world.restart();
        assert_eq!(world.executions.len(), 3, "a restart adds nothing");
    }
}

#[test]
fn a_text_that_is_a_list_is_one_and_an_empty_list_is_done_at_once() {
    let mut world = World::new(job(json!({}), &listed()), 0, 1);
    world.begin();
    succeed_with(&mut world, json!({"shards": "[{\"path\": 1}]"}));
    assert_eq!(world.sent, ["0@-", "1@[0]"]);

    let mut world = World::new(job(json!({}), &listed()), 0, 1);
    world.begin();
    succeed_with(&mut world, json!({"shards": []}));
    assert_eq!(world.sent, ["0@-", "2@-"], "what depends on it goes on");
    world.restart();
    assert_eq!(message(&world.open(Status::Pending)[0]), "[]");
    assert_eq!(world.sent, ["0@-", "2@-"]);
}

#[test]
fn items_walk_a_branch_at_their_own_pace_and_see_their_own_outputs() {
    let branch = json!({"name": "each", "for_each": {"items": [1, 2]}, "tasks": [
        with(task("make"), json!({"outputs": ["id"]})),
        echo("use", "{{ steps.make.outputs.id }} of {{ item }}"),
    ]});
    let mut world = World::new(job(json!({}), &[branch]), 0, 1);
    world.begin();
    let execution = at(&world, "[1]");
    world.lease(&execution);
    let finished =
        world.finished_with(execution.id, Verdict::Succeeded, [("id".to_owned(), json!("two"))].into());
    world.happens(&finished);
    assert_eq!(world.sent, ["0@[0]", "0@[1]", "1@[1]"]);
    assert_eq!(message(&at(&world, "[1]")), "two of 2");
    world.restart();
    assert_eq!(world.sent.len(), 3);
}

#[test]
fn at_most_max_parallel_items_run_and_the_rest_begin_in_their_order() {
    let each = with(task("each"), json!({"for_each": {"items": [0, 1, 2, 3, 4], "max_parallel": 2}}));
    let mut world = World::new(job(json!({}), &[each]), 0, 1);
    world.begin();
    assert_eq!(world.sent, ["0@[0]", "0@[1]"]);
    done(&mut world, "[1]", Verdict::Succeeded);
    assert_eq!(world.sent, ["0@[0]", "0@[1]", "0@[2]"]);
    world.restart();
    assert_eq!(world.sent.len(), 3, "a restart begins no more than there is room for");
    done(&mut world, "[0]", Verdict::Succeeded);
    done(&mut world, "[2]", Verdict::Succeeded);
    done(&mut world, "[3]", Verdict::Succeeded);
    done(&mut world, "[4]", Verdict::Succeeded);
    assert_eq!(world.record.state(), RunState::Completed);
    world.check();
}

#[test]
fn an_item_keeps_its_place_between_the_leaves_of_a_branch() {
    let branch = json!({"for_each": {"items": [0, 1], "max_parallel": 1}, "tasks": [task("a"), task("b")]});
    let mut world = World::new(job(json!({}), &[branch]), 0, 1);
    world.play(well);
    assert_eq!(world.sent, ["0@[0]", "1@[0]", "0@[1]", "1@[1]"]);
}

#[test]
fn when_fail_fast_strikes_items_that_have_not_begun_are_skipped() {
    let each = with(task("each"), json!({"for_each": {"items": [0, 1, 2, 3], "max_parallel": 2}}));
    for restarts in [false, true] {
        let mut world = World::new(job(json!({}), std::slice::from_ref(&each)), 0, 1);
        world.begin();
        done(&mut world, "[0]", Verdict::Failed);
        if restarts {
            world.restart();
        }
        done(&mut world, "[1]", Verdict::Succeeded);
        assert_eq!(world.results(), ["0@[0] failed", "0@[1] succeeded", "0@[2] skipped", "0@[3] skipped"]);
        assert_eq!(world.record.state(), RunState::Failed);
    }
}

#[test]
fn with_continue_all_items_are_tried_and_what_depends_on_them_is_skipped() {
    let each = with(task("each"), json!({"for_each": {"items": [0, 1, 2], "max_parallel": 1}}));
    let after = with(task("after"), json!({"depends_on": ["each"]}));
    let last = with(task("last"), json!({"depends_on": ["after"]}));
    let other = with(task("other"), json!({"depends_on": []}));
    let mut world = World::new(job(json!({"strategy": "continue"}), &[each, after, last, other]), 0, 1);
    let (state, end) = world.play(fail_at(0, "[1]"));
    assert_eq!((state, end.partial), (RunState::Failed, true));
    assert_eq!(
        world.results(),
        ["0@[0] succeeded", "0@[1] failed", "0@[2] succeeded", "1@- skipped", "2@- skipped", "3@- succeeded"]
    );
    let why = |step: u32| {
        let skipped = world.executions.values().find(|e| e.step() == step).unwrap();
        serde_json::to_value(skipped).unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!((why(1).as_str(), why(2).as_str()), ("`each` failed", "`after` was skipped"));
}

#[test]
fn a_run_has_no_more_open_than_its_job_says() {
    for count in [1, 2, 3] {
        let tasks: Vec<Value> =
            (0..6).map(|n| with(task(&format!("t{n}")), json!({"depends_on": []}))).collect();
        let last = with(task("last"), json!({"depends_on": ["t0", "t5"], "retry": {"max": 1}}));
        let tasks = [tasks, vec![last]].concat();
        let mut world = World::new(job(json!({"max_parallel": count}), &tasks), 0, 1);
        world.begin();
        let mut most = 0;
        while !world.record.state().is_terminal() {
            let open: Vec<_> =
                world.executions.values().filter(|e| e.state.status().is_open()).cloned().collect();
            most = most.max(open.len());
            world.restart();
            let execution = &open[open.len() - 1];
            let verdict = if execution.step() == 6 && execution.attempt == 1 {
                Verdict::Failed
            } else {
                Verdict::Succeeded
            };
            world.lease(execution);
            world.end(execution, verdict);
        }
        assert_eq!(most, count);
        assert_eq!(world.record.state(), RunState::Completed);
        world.check();
    }
}

#[test]
fn a_fleet_with_max_parallel_goes_node_by_node_and_cancel_ends_all() {
    let fleet = job(json!({"target": "all", "max_parallel": 2}), &[task("a"), task("b")]);
    let mut world = World::new(fleet.clone(), 5, 1);
    world.begin();
    assert_eq!(world.sent, ["0@n0", "0@n1"]);
    let (state, _) = world.play_on(well);
    assert_eq!((state, world.sent.len()), (RunState::Completed, 10));

    let mut world = World::new(fleet, 5, 1);
    world.begin();
    let at = world.now;
    world.happens(&downbeat_core::Change::RunCancelRequested {
        run: world.record.id.clone(),
        by: "x".to_owned(),
        at,
    });
    assert_eq!(world.record.state(), RunState::Cancelled);
    world.check();
}

#[test]
fn what_no_node_fits_fails_after_its_time_and_what_waits_for_a_slot_does_not() {
    let a = with(task("a"), json!({"placement_timeout": "8s"}));
    let b = with(task("b"), json!({"depends_on": []}));
    let mut world =
        World::new(job(json!({"strategy": "continue", "placement_timeout": "1h"}), &[a, b]), 0, 1);
    world.unfit.insert(0);
    world.begin();
    let start = world.now;
    let mut looks = 0;
    while world.open(Status::Failed).is_empty() {
        world.now = world.progress.next_tick().expect("it looks again");
        world.turn(|progress, turn| progress.tick(turn));
        looks += 1;
        assert!(looks < 100);
    }
    assert_eq!(world.now.duration_since(start), SignedDuration::from_secs(8));
    let failed = world.open(Status::Failed).remove(0);
    assert_eq!(serde_json::to_value(&failed).unwrap()["error"], "no node fitted it for 8s: no node fits");
    assert_eq!(world.results(), ["0@- failed", "1@- pending"]);
}

#[test]
fn a_node_that_fits_for_a_while_restarts_the_time() {
    let mut world = World::new(job(json!({"placement_timeout": "8s"}), &[task("a")]), 0, 1);
    world.unfit.insert(0);
    world.begin();
    let start = world.now;
    for look in 0..40 {
        world.now = world.progress.next_tick().expect("it looks again");
        if look == 5 {
            world.unfit.clear();
        } else {
            world.unfit.insert(0);
        }
        world.turn(|progress, turn| progress.tick(turn));
        if world.record.state().is_terminal() {
            break;
        }
    }
    // The engine checks every second: a node fitted after six seconds, and none fitted from the seventh on.
    assert_eq!(world.now.duration_since(start), SignedDuration::from_secs(15));
    assert_eq!(world.record.state(), RunState::Failed);
}

#[test]
fn a_result_with_equal_inputs_is_used_and_its_outputs_are_there() {
    let make = |text: &str| {
        let build = with(echo("build", text), json!({"cache": {}, "outputs": ["id"]}));
        let use_it = with(echo("use", "{{ steps.build.outputs.id }}"), json!({"depends_on": ["build"]}));
        World::new(job(json!({}), &[build, use_it]), 0, 1)
    };
    let mut first = make("x");
    first.begin();
    succeed_with(&mut first, json!({"id": "made"}));
    let built = first.open(Status::Succeeded).remove(0);
    let key = built.cache_key.clone().unwrap().to_string();

    for (text, hit) in [("x", true), ("y", false)] {
        let mut second = make(text);
        second.cache.insert(key.clone(), built.clone());
        second.begin();
        assert_eq!(second.sent, if hit { ["1@-"] } else { ["0@-"] });
        if hit {
            assert_eq!(message(&second.open(Status::Pending)[0]), "made");
            let cached = second.open(Status::Succeeded).remove(0);
            assert!(cached.is_cached() && !cached.is_carried());
            second.restart();
            second.play_on(well);
            assert_eq!(second.results(), ["0@- succeeded", "1@- succeeded"]);
            assert_eq!(second.sent, ["1@-"]);
        }
    }
}

#[test]
fn keys_of_limits_come_out_for_each_item() {
    let each = with(
        task("each"),
        json!({"for_each": {"items": ["a", "b"]}, "limits": {"db-{{ item }}": 1, "all": "10/1m"}}),
    );
    let mut world = World::new(job(json!({"limits": {"job": 3, "all": 1}}), &[each]), 0, 1);
    world.begin();
    let limits: Vec<Value> =
        world.open(Status::Pending).iter().map(|e| serde_json::to_value(&e.limits).unwrap()).collect();
    assert_eq!(
        limits,
        [json!({"all": "10/1m", "db-a": 1, "job": 3}), json!({"all": "10/1m", "db-b": 1, "job": 3})]
    );
}

/// Returns the run that retries `first`.
fn again(first: &World, again: RetryScope) -> Result<World, CannotRetry> {
    let executions: Vec<Execution> = first.executions.values().cloned().collect();
    let second = retry_of(&first.record, &first.plan, &executions, again)?;
    let resolved = Arc::new(second.resolved.clone());
    let mut world = World::of(Arc::clone(&first.record.definition), resolved, 2);
    let carried = second.executions(&world.record.id, world.now, &mut world.dice);
    world.carry_over(carried);
    world.begin();
    Ok(world)
}

#[test]
fn only_items_that_failed_are_done_again() {
    let mut first = World::new(job(json!({"strategy": "continue"}), &listed()), 0, 1);
    first.begin();
    succeed_with(&mut first, json!({"shards": [{"path": "x"}, {"path": "y"}]}));
    done(&mut first, "[0]", Verdict::Succeeded);
    done(&mut first, "[1]", Verdict::Failed);
    assert_eq!(first.record.state(), RunState::Failed);
    let mut second = again(&first, RetryScope::AllNodes).unwrap();
    assert_eq!(second.sent, ["1@[1]"]);
    second.restart();
    let (state, _) = second.play_on(well);
    assert_eq!(
        (state, second.sent.as_slice()),
        (RunState::Completed, &["1@[1]".to_owned(), "2@-".to_owned()][..])
    );
}

#[test]
fn a_run_is_done_again_from_a_task_on() {
    let tasks = [
        with(task("a"), json!({"depends_on": []})),
        with(task("b"), json!({"depends_on": ["a"]})),
        with(task("c"), json!({"depends_on": ["a"]})),
        with(task("d"), json!({"depends_on": ["b"]})),
    ];
    let mut first = World::new(job(json!({}), &tasks), 0, 1);
    first.play(well);
    assert!(again(&first, RetryScope::AllNodes).is_err(), "nothing failed");
    let mut second = again(&first, RetryScope::From(EntryIx(1))).unwrap();
    second.play_on(well);
    assert_eq!(second.sent, ["1@-", "3@-"]);

    let list: Vec<Value> = ["a", "b", "c"].map(task).to_vec();
    let mut first = World::new(job(json!({"target": "all"}), &list), 1, 1);
    first.play(well);
    let mut second = again(&first, RetryScope::From(EntryIx(1))).unwrap();
    second.play_on(well);
    assert_eq!(second.sent, ["1@n0", "2@n0"]);
}

#[test]
fn items_are_not_carried_over_when_their_list_is_computed_again() {
    let mut first = World::new(job(json!({"strategy": "continue"}), &listed()), 0, 1);
    first.begin();
    succeed_with(&mut first, json!({"shards": [{"path": "x"}, {"path": "y"}]}));
    done(&mut first, "[0]", Verdict::Succeeded);
    done(&mut first, "[1]", Verdict::Failed);
    let second = again(&first, RetryScope::From(EntryIx(0))).unwrap();
    assert_eq!(second.sent, ["0@-"]);
    assert_eq!(second.executions.len(), 1, "nothing was carried over");
}

#[test]
fn those_that_wait_for_room_begin_in_the_order_of_the_job_file() {
    let tasks = [
        with(task("first"), json!({"depends_on": []})),
        with(task("late"), json!({"depends_on": ["first"]})),
        with(task("wide"), json!({"depends_on": [], "for_each": {"items": [0, 1]}})),
    ];
    for restarts in [false, true] {
        let mut world = World::new(job(json!({"max_parallel": 1}), &tasks), 0, 1);
        world.begin();
        if restarts {
            world.restart();
        }
        world.play_on(well);
        assert_eq!(world.sent, ["0@-", "1@-", "2@[0]", "2@[1]"]);
    }
}

#[test]
fn of_simultaneous_failures_the_first_steps_triggers_fail_fast_on_every_server() {
    let tasks = [
        json!({"name": "walk", "depends_on": [], "tasks": [task("a"), task("b")]}),
        with(task("other"), json!({"depends_on": []})),
    ];
    for dies in [None, Some(0), Some(1), Some(2)] {
        let mut world = World::new(job(json!({"target": "all"}), &tasks), 2, 1);
        world.begin();
        let first = world.open(Status::Pending).remove(0);
        world.now += SignedDuration::from_secs(1);
        world.lease(&first);
        world.end(&first, Verdict::Succeeded);
        // `b` now waits for n0, and `other` has waited for it longer.
        let gone = first.pinned.unwrap();
        world.offline.insert(gone);
        world.dies_after = dies;
        world.turn(|progress, turn| progress.nodes_gone(&[gone], turn));
        assert_eq!(
            world.results(),
            ["0@n0 succeeded", "0@n1 pending", "1@n0 failed", "2@n0 failed", "2@n1 skipped"],
            "{dies:?}"
        );
    }
}

#[test]
fn a_retry_that_is_held_back_does_not_wait_for_a_node_yet() {
    let retry = json!({"max": 1, "delay": "30s", "max_delay": "30s"});
    let a = with(task("a"), json!({"retry": retry, "placement_timeout": "2s"}));
    let mut world = World::new(job(json!({}), &[a]), 0, 7);
    world.begin();
    done(&mut world, "-", Verdict::Failed);
    let State::Pending { not_before: Some(until) } = world.open(Status::Pending)[0].state else { panic!() };
    assert!(
        until.duration_since(world.now) > SignedDuration::from_secs(4),
        "the seed holds it back long enough"
    );
    // At the first check a node fits, and none fits from then on.
    let mut fits = true;
    while world.record.state() != RunState::Failed {
        world.now = world.progress.next_tick().expect("it looks again");
        if !fits {
            world.unfit.insert(0);
        }
        fits = false;
        world.turn(|progress, turn| progress.tick(turn));
    }
    let waited = world.now.duration_since(until);
    assert!(waited >= SignedDuration::from_secs(2) && waited < SignedDuration::from_secs(3), "{waited}");
}

#[test]
fn a_task_that_was_skipped_has_said_no_list() {
    let mut tasks = listed();
    tasks[2]["condition"] = json!("always");
    let mut world = World::new(job(json!({"strategy": "continue"}), &tasks), 0, 1);
    world.begin();
    done(&mut world, "-", Verdict::Failed);
    assert_eq!(world.results(), ["0@- failed", "1@- skipped", "2@- failed"]);
}

#[test]
fn an_item_whose_on_failure_step_ran_begins_again() {
    let undo = with(task("undo"), json!({"condition": "on_failure"}));
    let branch =
        json!({"name": "each", "for_each": {"items": [0, 1]}, "tasks": [task("do"), task("check"), undo]});
    let mut first = World::new(job(json!({"strategy": "continue"}), &[branch]), 0, 1);
    first.play(fail_at(1, "[0]"));
    let second = again(&first, RetryScope::AllNodes).unwrap();
    assert_eq!(second.sent, ["0@[0]"]);
}

#[test]
fn on_failure_runs_below_a_task_that_was_skipped_because_of_a_failure() {
    let tasks = [
        task("a"),
        with(task("b"), json!({"depends_on": ["a"]})),
        with(task("alarm"), json!({"depends_on": ["b"], "condition": "on_failure"})),
        with(task("unneeded"), json!({"depends_on": ["a"], "condition": "on_failure"})),
        with(task("behind"), json!({"depends_on": ["unneeded"]})),
        with(task("quiet"), json!({"depends_on": ["behind"], "condition": "on_failure"})),
    ];
    for strategy in ["fail-fast", "continue"] {
        for dies_after in (0..5).map(Some).chain([None]) {
            let mut world = World::new(job(json!({"strategy": strategy}), &tasks), 1, 1);
            world.dies_after = dies_after;
            world.play(fail_at(0, "-"));
            world.restart();
            let results = ["0@- failed", "1@- skipped", "2@- succeeded", "3@- succeeded"];
            assert_eq!(world.results()[..4], results, "{strategy} {dies_after:?}");
        }
        // Nothing failed: whatever is skipped was not needed.
        let mut world = World::new(job(json!({"strategy": strategy}), &tasks), 1, 1);
        world.play(well);
        let skipped = ["2@- skipped", "3@- skipped", "4@- skipped", "5@- skipped"];
        assert_eq!(world.results()[2..], skipped, "{strategy}");
        // Another task failed: what depends on a task that was not needed was not needed either.
        let mut world = World::new(job(json!({"strategy": strategy}), &tasks), 1, 1);
        world.play(fail_at(1, "-"));
        let rest = ["2@- succeeded", "3@- skipped", "4@- skipped", "5@- skipped"];
        assert_eq!(world.results()[2..], rest, "{strategy}");
    }
}
