//! The tables of the model, one scenario each.

use std::sync::Arc;

use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::run::engine;
use downbeat_core::run::{RunStage, RunState};
use downbeat_core::{Portion, level, limits};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::world::World;

pub(crate) fn task(name: &str) -> Value {
    json!({"name": name, "backend": "test", "action": "noop"})
}

pub(crate) fn with(mut value: Value, key: &str, to: Value) -> Value {
    value[key] = to;
    value
}

pub(crate) fn fleet(strategy: &str, tasks: &[Value]) -> Value {
    json!({"target": "all", "strategy": strategy, "tasks": tasks})
}

/// Always fails step `step` on node `node`.
fn fail_at(step: u32, node: &'static str) -> impl Fn(u32, &str, u32) -> Verdict {
    move |s, n, _| if s == step && n == node { Verdict::Failed } else { Verdict::Succeeded }
}

fn all_well(_: u32, _: &str, _: u32) -> Verdict {
    Verdict::Succeeded
}

#[test]
fn a_list_is_a_barrier_at_every_entry() {
    let mut world = World::new(fleet("fail-fast", &[task("a"), task("b")]), 3, 1);
    let (state, end) = world.play(all_well);
    assert_eq!((state, end.partial), (RunState::Completed, false));
    assert_eq!(world.sent, ["0@n0", "0@n1", "0@n2", "1@n0", "1@n1", "1@n2"]);
    world.check();
}

#[test]
fn a_branch_is_walked_by_each_node_at_its_own_pace() {
    let branch = json!({"tasks": [task("a"), task("b")]});
    let mut world = World::new(fleet("fail-fast", &[branch, task("c")]), 2, 1);
    world.begin();
    let first = world.open(Status::Pending);
    world.lease(&first[0]);
    world.end(&first[0], Verdict::Succeeded);
    assert_eq!(world.sent, ["0@n0", "0@n1", "1@n0"], "n0 runs ahead while n1 has not begun");
    let second: Vec<_> = world.open(Status::Pending).into_iter().filter(|e| e.step() == 1).collect();
    world.lease(&second[0]);
    world.end(&second[0], Verdict::Succeeded);
    assert_eq!(world.sent.len(), 3, "the entry after a branch waits for every node");
}

#[test]
fn fail_fast_on_a_list_ends_what_runs_and_skips_the_rest_but_on_failure() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let good = with(task("good"), "condition", json!("on_success"));
    let mut world = World::new(fleet("fail-fast", &[task("a"), task("b"), good, cleanup]), 2, 1);
    let (state, end) = world.play(fail_at(0, "n0"));
    assert_eq!((state, end.partial), (RunState::Failed, false));
    assert_eq!(end.error.as_deref(), Some("step 0 (a) failed on n0"));
    assert_eq!(
        world.results(),
        [
            "0@n0 failed",
            "0@n1 succeeded",
            "1@n0 skipped",
            "1@n1 skipped",
            "2@n0 skipped",
            "2@n1 skipped",
            "3@n0 succeeded",
            "3@n1 succeeded"
        ]
    );
}

#[test]
fn continue_on_a_list_lets_the_failed_node_leave() {
    let always = with(task("always"), "condition", json!("always"));
    let good = with(task("good"), "condition", json!("on_success"));
    let bad = with(task("bad"), "condition", json!("on_failure"));
    let mut world = World::new(fleet("continue", &[task("a"), always, good, bad]), 2, 1);
    let (state, end) = world.play(fail_at(0, "n0"));
    assert_eq!((state, end.partial), (RunState::Failed, true));
    assert_eq!(
        world.results(),
        [
            "0@n0 failed",
            "0@n1 succeeded",
            "1@n0 skipped",
            "1@n1 succeeded",
            "2@n0 skipped",
            "2@n1 skipped",
            "3@n0 succeeded",
            "3@n1 succeeded"
        ]
    );
}

#[test]
fn on_failure_runs_on_failed_nodes_that_can_be_reached() {
    let bad = with(task("bad"), "condition", json!("on_failure"));
    let mut world = World::new(fleet("continue", &[task("a"), bad]), 2, 1);
    world.begin();
    for execution in world.open(Status::Pending) {
        world.lease(&execution);
    }
    let leased = world.open(Status::Leased);
    world.end(&leased[1], Verdict::Succeeded);
    world.offline.insert(leased[0].pinned.unwrap());
    world.end(&leased[0], Verdict::Failed);
    assert!(world.results().contains(&"1@n0 skipped".to_owned()));
    assert!(world.sent.contains(&"1@n1".to_owned()));
}

#[test]
fn fail_fast_in_a_pipeline_stops_other_nodes_after_their_current_leaf() {
    let branch = json!({"tasks": [task("a"), task("b")]});
    let mut world = World::new(fleet("fail-fast", &[branch]), 2, 1);
    let (state, _) = world.play(fail_at(0, "n0"));
    assert_eq!(state, RunState::Failed);
    assert_eq!(world.results(), ["0@n0 failed", "0@n1 succeeded", "1@n0 skipped", "1@n1 skipped"]);
}

#[test]
fn continue_in_a_pipeline_stops_only_the_failed_node() {
    let undo = with(task("undo"), "condition", json!("on_failure"));
    let branch = json!({"tasks": [task("a"), task("b"), undo]});
    let mut world = World::new(fleet("continue", &[branch]), 2, 1);
    let (state, end) = world.play(fail_at(0, "n0"));
    assert_eq!((state, end.partial), (RunState::Failed, true));
    assert_eq!(
        world.results(),
        ["0@n0 failed", "0@n1 succeeded", "1@n0 skipped", "1@n1 succeeded", "2@n0 succeeded", "2@n1 skipped"]
    );
}

#[test]
fn a_branch_that_answers_failures_runs_after_fail_fast_struck() {
    let cleanup = json!({"condition": "on_failure", "tasks": [task("x"), task("y")]});
    let mut world = World::new(fleet("fail-fast", &[task("a"), cleanup]), 2, 1);
    world.play(fail_at(0, "n1"));
    let results = world.results();
    assert!(
        ["1@n0", "1@n1", "2@n0", "2@n1"].iter().all(|i| results.contains(&format!("{i} succeeded"))),
        "{results:?}"
    );
}

fn graph(strategy: &str, tasks: &[(&str, &[&str], Option<&str>)]) -> Value {
    let tasks: Vec<Value> = tasks
        .iter()
        .map(|(name, after, condition)| {
            let mut task = with(task(name), "depends_on", json!(after));
            if let Some(condition) = condition {
                task["condition"] = json!(condition);
            }
            task
        })
        .collect();
    json!({"strategy": strategy, "tasks": tasks})
}

#[test]
fn continue_in_a_graph_skips_dependents_transitively() {
    let definition = graph(
        "continue",
        &[
            ("a", &[], None),
            ("b", &["a"], None),
            ("c", &["b"], None),
            ("d", &[], None),
            ("e", &["d", "c"], Some("always")),
            ("f", &["a"], Some("on_failure")),
            ("g", &["b"], Some("on_failure")),
        ],
    );
    let mut world = World::new(definition, 0, 1);
    let (state, end) = world.play(fail_at(0, "-"));
    assert_eq!((state, end.partial), (RunState::Failed, true));
    assert_eq!(
        world.results(),
        [
            "0@- failed",
            "1@- skipped",
            "2@- skipped",
            "3@- succeeded",
            "4@- succeeded",
            "5@- succeeded",
            "6@- succeeded"
        ]
    );
}

#[test]
fn fail_fast_in_a_graph_withdraws_what_was_not_sent() {
    let definition = graph("fail-fast", &[("a", &[], None), ("b", &[], None), ("c", &["b"], None)]);
    let mut world = World::new(definition, 0, 1);
    world.begin();
    let first = world.open(Status::Pending).into_iter().find(|e| e.step() == 0).unwrap();
    world.lease(&first);
    world.end(&first, Verdict::Failed);
    assert_eq!(world.results(), ["0@- failed", "1@- skipped", "2@- skipped"]);
    assert_eq!(world.record.state(), RunState::Failed);
}

#[test]
fn only_failed_instances_are_retried() {
    let flaky = with(task("flaky"), "retry", json!({"max": 2}));
    let mut world = World::new(fleet("fail-fast", &[flaky]), 3, 1);
    let (state, _) =
        world.play(
            |_, node, attempt| {
                if node == "n1" && attempt < 3 { Verdict::Failed } else { Verdict::Succeeded }
            },
        );
    assert_eq!(state, RunState::Completed);
    assert_eq!(world.sent, ["0@n0", "0@n1", "0@n2", "0@n1", "0@n1"]);
}

#[test]
fn retries_end_with_their_number() {
    let flaky = with(task("flaky"), "retry", json!({"max": 2}));
    let mut world = World::new(fleet("fail-fast", &[flaky]), 1, 1);
    let (state, _) = world.play(|_, _, _| Verdict::Failed);
    assert_eq!((state, world.sent.len()), (RunState::Failed, 3));
}

fn lose_all(definition: Value, nodes: usize) -> World {
    let mut world = World::new(definition, nodes, 1);
    world.begin();
    for _ in 0..20 {
        for execution in world.open(Status::Pending) {
            world.lease(&execution);
            world.lose(&execution);
        }
    }
    world
}

#[test]
fn a_placed_step_is_sent_again_after_a_loss_up_to_three_times() {
    let world = lose_all(json!({"tasks": [{"backend": "exec", "action": "run"}]}), 0);
    assert_eq!((world.record.state(), world.sent.len()), (RunState::Failed, 4));
}

#[test]
fn a_lost_pinned_step_is_sent_again_only_if_idempotent() {
    let run = json!({"backend": "exec", "action": "run", "params": {"command": ["true"]}});
    assert_eq!(lose_all(fleet("fail-fast", std::slice::from_ref(&run)), 1).sent.len(), 1);
    assert_eq!(lose_all(fleet("fail-fast", &[task("a")]), 1).sent.len(), 4);
    let forced = with(run, "delivery", json!("at_least_once"));
    assert_eq!(lose_all(fleet("fail-fast", &[forced]), 1).sent.len(), 4);
    let once = with(task("a"), "delivery", json!("at_most_once"));
    assert_eq!(lose_all(fleet("fail-fast", &[once]), 1).sent.len(), 1);
}

#[test]
fn losses_do_not_count_against_retries() {
    let task = with(task("a"), "retry", json!({"max": 1}));
    let mut world = World::new(fleet("fail-fast", &[task]), 1, 1);
    world.begin();
    for end in ["lose", "fail", "lose", "succeed"] {
        let execution = world.open(Status::Pending).remove(0);
        world.lease(&execution);
        match end {
            "lose" => world.lose(&execution),
            "fail" => world.end(&execution, Verdict::Failed),
            _ => world.end(&execution, Verdict::Succeeded),
        };
    }
    assert_eq!(world.record.state(), RunState::Completed);
}

#[test]
fn a_step_on_an_offline_node_fails_without_being_sent() {
    let mut world = World::new(fleet("continue", &[task("a")]), 2, 1);
    world.offline.insert(world.plan.resolved.nodes[0].id);
    let (state, _) = world.play(all_well);
    assert_eq!(state, RunState::Failed);
    assert_eq!(world.results(), ["0@n0 failed", "0@n1 succeeded"]);
}

#[test]
fn work_that_waits_for_a_node_fails_when_the_node_goes_offline() {
    let mut world = World::new(fleet("continue", &[task("a")]), 1, 1);
    world.begin();
    let node = world.plan.resolved.nodes[0].id;
    world.turn(|progress, turn| progress.nodes_gone(&[node], turn));
    assert_eq!(world.record.state(), RunState::Failed);
}

#[test]
fn a_resent_step_waits_for_its_offline_node_as_long_as_its_timeout() {
    let mut world = World::new(fleet("continue", &[with(task("a"), "timeout", json!("5m"))]), 1, 1);
    world.begin();
    let execution = world.open(Status::Pending).remove(0);
    world.lease(&execution);
    let node = world.plan.resolved.nodes[0].id;
    world.offline.insert(node);
    world.lose(&execution);
    world.turn(|progress, turn| progress.nodes_gone(&[node], turn));
    assert_eq!(world.open(Status::Pending).len(), 1, "it waits");
    world.now = world.progress.next_tick().expect("its patience ends some time");
    world.turn(|progress, turn| progress.tick(turn));
    assert_eq!(world.record.state(), RunState::Failed);
}

/// Returns a run whose only step is lost with its node, which is offline.
fn lost_with_its_node() -> World {
    let mut world = World::new(fleet("continue", &[with(task("a"), "timeout", json!("5m"))]), 1, 1);
    world.begin();
    let execution = world.open(Status::Pending).remove(0);
    world.lease(&execution);
    let node = world.plan.resolved.nodes[0].id;
    world.offline.insert(node);
    world.lose(&execution);
    world.turn(|progress, turn| progress.nodes_gone(&[node], turn));
    assert_eq!(world.open(Status::Pending).len(), 1, "it waits");
    world
}

fn last_error(world: &World) -> Option<String> {
    let last = world.executions.values().max_by_key(|execution| execution.attempt)?;
    let State::Failed { error, .. } = &last.state else { return None };
    error.clone()
}

#[test]
fn a_resent_step_fails_when_its_node_is_deleted() {
    let mut world = lost_with_its_node();
    let node = world.plan.resolved.nodes[0].id;
    world.deleted.insert(node);
    world.turn(|progress, turn| progress.nodes_gone(&[node], turn));
    assert_eq!(world.record.state(), RunState::Failed);
    assert_eq!(last_error(&world).as_deref(), Some("node n0 was deleted"));
}

#[test]
fn a_restart_gives_up_what_was_sent_again_to_a_node_that_was_deleted_meanwhile() {
    let mut world = lost_with_its_node();
    world.deleted.insert(world.plan.resolved.nodes[0].id);
    world.restart();
    assert_eq!(world.record.state(), RunState::Failed);
    assert_eq!(last_error(&world).as_deref(), Some("node n0 was deleted"));
}

#[test]
fn a_step_that_is_lost_with_its_deleted_node_is_not_sent_again() {
    let mut world = World::new(fleet("continue", &[task("a")]), 1, 1);
    world.begin();
    let execution = world.open(Status::Pending).remove(0);
    world.lease(&execution);
    let node = world.plan.resolved.nodes[0].id;
    // The engine first learns that the node is deleted, and then that its leases are lost.
    world.deleted.insert(node);
    world.turn(|progress, turn| progress.nodes_gone(&[node], turn));
    world.lose(&execution);
    assert_eq!(world.record.state(), RunState::Failed);
    assert_eq!(last_error(&world).as_deref(), Some("node n0 was deleted"));
}

#[test]
fn a_restart_gives_up_what_waits_for_a_node_that_went_offline_meanwhile() {
    let mut world = World::new(fleet("continue", &[task("a")]), 1, 1);
    world.begin();
    world.offline.insert(world.plan.resolved.nodes[0].id);
    world.restart();
    assert_eq!(world.record.state(), RunState::Failed);
}

#[test]
fn an_offline_node_does_not_take_the_first_attempt_of_the_others() {
    for offline in 0..3 {
        let mut world = World::new(fleet("fail-fast", &[task("a"), task("b")]), 3, 1);
        world.offline.insert(world.plan.resolved.nodes[offline].id);
        world.play(all_well);
        let ran = world
            .results()
            .iter()
            .filter(|result| result.starts_with("0@") && result.ends_with("succeeded"))
            .count();
        assert_eq!(ran, 2, "whatever its name: {:?}", world.results());
        assert!(!world.sent.iter().any(|sent| sent.starts_with("1@")), "fail-fast struck");
    }
}

#[test]
fn a_restart_withdraws_what_waits_after_a_step_could_not_be_sent() {
    let pinned = |name: &str, node: &str| {
        let task = with(task(name), "target", json!(format!("node:{node}")));
        with(task, "depends_on", json!([]))
    };
    let tasks = [pinned("waits", "n1"), pinned("unsent", "n0")];
    let mut world = World::new(json!({"strategy": "fail-fast", "tasks": tasks}), 2, 1);
    let [n0, n1] = ["n0", "n1"].map(|hostname| NodeId::derive(ClusterId::DEFAULT, hostname));
    world.offline.insert(n0);
    world.begin();
    assert_eq!(world.results(), ["0@n1 skipped", "1@n0 failed"]);
    // The former owner died before it withdrew the attempt, and then the other node went offline, too.
    let waiting = world.executions.values_mut().find(|execution| execution.step() == 0).unwrap();
    waiting.state = State::Pending { not_before: None };
    world.record.live.stage = RunStage::Running;
    world.offline.insert(n1);
    world.now += SignedDuration::from_secs(1);
    world.restart();
    assert_eq!(world.results(), ["0@n1 skipped", "1@n0 failed"]);
}

#[test]
fn many_new_executions_are_several_submissions() {
    let tasks: Vec<Value> = (0..10_000).map(|i| task(&format!("t{i}"))).collect();
    let mut world = World::new(json!({"tasks": tasks}), 0, 1);
    world.begin();
    let first = world.open(Status::Pending).remove(0);
    world.lease(&first);
    assert!(world.end(&first, Verdict::Failed));
    assert_eq!(world.largest_addition, limits::EXECUTIONS_PER_COMMIT);
    assert_eq!(world.executions.len(), 10_000);
}

#[test]
fn a_run_of_ten_thousand_steps_in_a_chain_is_skipped_without_recursion() {
    let tasks: Vec<Value> = (0..10_000).map(|i| task(&format!("t{i}"))).collect();
    let mut world = World::new(json!({"tasks": tasks}), 0, 1);
    let (state, _) = world.play(fail_at(0, "-"));
    assert_eq!(state, RunState::Failed);
    assert_eq!(world.executions.len(), 10_000);
}

fn rollout(nodes: usize, rollout: Value, tasks: &[Value]) -> World {
    let mut definition = fleet("fail-fast", tasks);
    definition["rollout"] = rollout;
    World::new(definition, nodes, 1)
}

#[test]
fn the_pause_between_waves_follows_a_wave_that_was_offline() {
    let mut world = rollout(2, json!({"batch": 1, "pause": "30s", "max_failures": 1}), &[task("a")]);
    world.offline.insert(world.plan.resolved.nodes[0].id);
    world.begin();
    assert!(world.sent.is_empty(), "the second wave waits: {:?}", world.sent);
    world.now = world.progress.next_tick().expect("the pause ends some time");
    world.turn(|progress, turn| progress.tick(turn));
    assert_eq!(world.sent, ["0@n1"]);
}

#[test]
fn a_fast_clock_of_an_agent_does_not_hold_up_the_next_wave_after_a_take_over() {
    let mut world = rollout(2, json!({"batch": 1, "pause": "30s"}), &[task("a")]);
    world.begin();
    let first = world.open(Status::Pending).remove(0);
    world.lease(&first);
    let (now, pause) = (world.now, SignedDuration::from_secs(30));
    world.now += SignedDuration::from_hours(10_000);
    let finished = world.finished(first.id, Verdict::Succeeded);
    world.now = now;
    world.happens(&finished);
    world.restart();
    assert_eq!(world.progress.next_tick(), Some(now + pause));
}

#[test]
fn an_entry_begins_on_every_node_whichever_leaf_is_the_first_to_run() {
    let undo = with(task("undo"), "condition", json!("on_failure"));
    for offline in 0..2 {
        let branch = json!({"tasks": [undo, task("a")]});
        let mut world = World::new(fleet("fail-fast", &[branch]), 2, 1);
        world.offline.insert(world.plan.resolved.nodes[offline].id);
        world.begin();
        assert_eq!(world.sent, [format!("1@n{}", 1 - offline)], "n{offline} is offline");
    }
}

/// Returns a run that retries `first`.
fn again(first: &World) -> World {
    let record = &first.record;
    let mut second = World::of(Arc::clone(&record.definition), Arc::clone(&record.resolved), 2);
    let succeeded = first.executions.values().filter(|e| e.state.status() == Status::Succeeded);
    let carried = succeeded.map(|former| Execution { reused: Some(former.id), ..former.clone() }).collect();
    second.carry_over(carried);
    second.restart();
    second
}

#[test]
fn what_follows_an_entry_that_was_carried_over_whole_is_not_done_twice_after_a_restart() {
    let mut first = World::new(fleet("fail-fast", &[task("a"), task("b"), task("c")]), 1, 1);
    first.play(fail_at(1, "n0"));
    let mut second = again(&first);
    for _ in 0..2 {
        let execution = second.open(Status::Pending).remove(0);
        second.lease(&execution);
        second.end(&execution, Verdict::Succeeded);
        second.restart();
    }
    assert_eq!(second.sent, ["1@n0", "2@n0"]);
    assert_eq!(second.record.state(), RunState::Completed);
}

#[test]
fn nothing_is_tried_again_after_a_restart_when_a_final_loss_had_struck() {
    let once = with(task("a"), "delivery", json!("at_most_once"));
    let mut world = World::new(fleet("fail-fast", &[with(once, "retry", json!({"max": 1}))]), 3, 1);
    world.begin();
    let all = world.open(Status::Pending);
    for execution in &all {
        world.lease(execution);
    }
    world.lose(&all[1]);
    world.end(&all[0], Verdict::Failed);
    world.restart();
    assert_eq!(world.sent, ["0@n0", "0@n1", "0@n2"]);
}

#[test]
fn a_final_failure_is_recorded_once_also_after_a_restart() {
    let flaky = with(task("flaky"), "retry", json!({"max": 1}));
    let definition = || fleet("continue", &[flaky.clone(), task("next")]);
    let fails = |_, node: &str, _| if node == "n0" { Verdict::Failed } else { Verdict::Succeeded };
    let recorded = ["0@n0: no retries are left"];
    for dies_after in (0..8).map(Some).chain([None]) {
        let mut world = World::new(definition(), 2, 1);
        world.dies_after = dies_after;
        world.play(fails);
        world.restart();
        assert_eq!(world.failed_for_good, recorded, "{dies_after:?}");
    }
    let mut world = World::new(definition(), 2, 1);
    world.level = level::FINAL - 1;
    world.play(fails);
    assert!(world.failed_for_good.is_empty(), "an older server cannot read the record");
}

#[test]
fn an_instance_stays_failed_when_its_retry_is_withdrawn() {
    let flaky = with(task("flaky"), "retry", json!({"max": 1}));
    for dies_after in (0..6).map(Some).chain([None]) {
        let mut world = World::new(fleet("fail-fast", std::slice::from_ref(&flaky)), 3, 1);
        world.begin();
        let all = world.open(Status::Pending);
        for execution in &all {
            world.lease(execution);
        }
        world.end(&all[0], Verdict::Failed);
        world.end(&all[1], Verdict::Failed);
        world.dies_after = dies_after;
        let retry = world.open(Status::Pending).into_iter().find(|retry| retry.pinned == all[1].pinned);
        let retry = retry.expect("n1 is tried again");
        world.lease(&retry);
        // The second failure is final, and the retry on n0 is withdrawn.
        world.end(&retry, Verdict::Failed);
        world.end(&all[2], Verdict::Failed);
        world.restart();
        assert_eq!(world.results(), ["0@n0 failed", "0@n1 failed", "0@n2 failed"], "{dies_after:?}");
        let marked = |id| world.executions[&id].failed_for_good.is_some();
        assert!(marked(all[0].id) && marked(retry.id) && marked(all[2].id), "{dies_after:?}");
        let withdrawn = world.executions.values().filter(|execution| execution.is_withdrawn());
        assert!(withdrawn.clone().count() == 1 && withdrawn.clone().all(|retry| !marked(retry.id)));
    }
}

#[test]
fn a_final_failure_is_recorded_before_its_consequences() {
    let flaky = with(task("flaky"), "retry", json!({"max": 1}));
    let small = Portion::new(1, limits::PARAMS_PER_COMMIT_BYTES);
    for portion in [engine::COMMIT, small] {
        let tasks = [flaky.clone(), task("next")];
        let mut world = rollout(2, json!({"batch": 1, "max_failures": 1}), &tasks);
        world.set_portion(portion);
        world.play(fail_at(0, "n0"));
        assert_eq!(
            world.feed,
            ["added 0@n0", "added 0@n0", "failed 0@n0", "added 1@n0", "added 0@n1", "added 1@n1"],
            "{portion:?}"
        );
    }
}

#[test]
fn a_roll_out_records_each_wave_and_each_failure_that_counts() {
    let undo = with(task("undo"), "condition", json!("on_failure"));
    let tasks = [task("a"), task("b"), undo];
    let mut world = rollout(4, json!({"batch": [1, 1, 2], "max_failures": 1}), &tasks);
    world.play(fail_at(1, "n1"));
    // The failure and the next wave are one commit.
    assert_eq!(world.rollouts, [(1, 0), (2, 0), (3, 1)]);
    // The budget is exceeded: no further wave begins.
    let mut world = rollout(4, json!({"batch": 1}), &tasks);
    world.play(fail_at(0, "n1"));
    assert_eq!(world.rollouts, [(1, 0), (2, 0), (2, 1)]);
    let mut world = World::new(fleet("continue", &[task("a")]), 2, 1);
    world.play(fail_at(0, "n1"));
    assert_eq!(world.rollouts, []);
}

#[test]
fn a_roll_out_that_was_taken_over_continues_its_record() {
    let mut world = rollout(2, json!({"batch": 1, "max_failures": 1}), &[task("a")]);
    world.begin();
    let first = world.open(Status::Pending).remove(0);
    world.lease(&first);
    let failed = world.finished(first.id, Verdict::Failed);
    world.apply(&failed);
    world.restart();
    assert_eq!(world.rollouts.last(), Some(&(2, 1)));
}

#[test]
fn the_failure_of_an_execution_that_cannot_be_sent_is_recorded_after_it() {
    let mut world = World::new(fleet("continue", &[task("a"), task("b")]), 2, 1);
    world.offline.insert(world.plan.resolved.nodes[0].id);
    world.play(all_well);
    let first = world.feed.iter().position(|line| line == "added 0@n0");
    assert!(first < world.feed.iter().position(|line| line == "failed 0@n0"), "{:?}", world.feed);
}

#[test]
fn a_restart_records_final_failures_of_an_older_release() {
    let mut world = World::new(fleet("continue", &[task("a"), task("b")]), 2, 1);
    world.level = level::FINAL - 1;
    world.begin();
    let all = world.open(Status::Pending);
    for execution in &all {
        world.lease(execution);
    }
    world.end(&all[0], Verdict::Failed);
    world.level = level::FINAL;
    world.restart();
    world.restart();
    assert_eq!(world.failed_for_good, ["0@n0: the task has no retries"]);
}
