//! Runs that are cancelled, time out or are rejected by the store.

use downbeat_core::Change;
use downbeat_core::execution::{Status, Verdict};
use downbeat_core::run::RunState;
use downbeat_core::run::engine::{Progress, Stop};
use jiff::SignedDuration;
use serde_json::json;

use crate::scenarios::{fleet, task, with};
use crate::world::World;

#[test]
fn cancel_ends_everything_and_skips_the_rest() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let mut world = World::new(fleet("fail-fast", &[task("a"), task("b"), cleanup]), 2, 1);
    world.begin();
    let first = world.open(Status::Pending).remove(0);
    world.lease(&first);
    let at = world.now;
    world.happens(&Change::RunCancelRequested { run: first.run().clone(), by: "me".to_owned(), at });
    assert_eq!(
        world.record.state(),
        RunState::Running,
        "running steps get a stop request and have not ended yet"
    );
    world.end(&first, Verdict::Cancelled);
    assert_eq!(world.record.state(), RunState::Cancelled);
    assert_eq!(
        world.results(),
        ["0@n0 cancelled", "0@n1 cancelled", "1@n0 skipped", "1@n1 skipped", "2@n0 skipped", "2@n1 skipped"]
    );
}

#[test]
fn the_runs_timeout_ends_everything_as_failed() {
    let mut definition = fleet("fail-fast", &[task("a"), task("b")]);
    definition["timeout"] = json!("1m");
    let mut world = World::new(definition, 1, 1);
    world.begin();
    world.time_out();
    assert_eq!(world.record.state(), RunState::Failed);
    assert_eq!(world.record.live.end().unwrap().error.as_deref(), Some("the run timed out after 1m"));
}

#[test]
fn a_run_that_times_out_runs_its_on_failure_steps_also_after_a_restart() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let mut definition = fleet("fail-fast", &[task("a"), task("b"), cleanup]);
    definition["timeout"] = json!("1m");
    for dies_after in (0..5).map(Some).chain([None]) {
        let mut world = World::new(definition.clone(), 2, 1);
        world.begin();
        let leased = world.open(Status::Pending).remove(0);
        world.lease(&leased);
        world.dies_after = dies_after;
        world.time_out();
        world.restart();
        assert_eq!(world.record.state(), RunState::Terminating);
        assert_eq!(world.sent, ["0@n0", "0@n1"], "what was cancelled was meant to be");
        world.end(&leased, Verdict::Cancelled);
        world.restart();
        let (state, end) = world.play_on(|_, _, _| Verdict::Succeeded);
        assert_eq!((state, end.partial), (RunState::Failed, false));
        assert_eq!(end.error.as_deref(), Some("the run timed out after 1m"));
        let results = ["0@n0 cancelled", "0@n1 cancelled", "1@n0 skipped", "1@n1 skipped"];
        assert_eq!(world.results()[..4], results, "{dies_after:?}");
        assert_eq!(world.results()[4..], ["2@n0 succeeded", "2@n1 succeeded"], "{dies_after:?}");
    }
}

#[test]
fn on_failure_steps_that_run_too_long_after_the_timeout_are_ended() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let mut definition = fleet("fail-fast", &[task("a"), cleanup.clone(), cleanup]);
    (definition["timeout"], definition["cleanup_timeout"]) = (json!("1m"), json!("30s"));
    let mut world = World::new(definition, 1, 1);
    world.begin();
    let step = world.open(Status::Pending).remove(0);
    world.lease(&step);
    world.time_out();
    world.end(&step, Verdict::Cancelled);
    let first = world.open(Status::Pending).remove(0);
    world.lease(&first);
    let ends = world.now + SignedDuration::from_secs(30);
    assert_eq!(world.progress.next_tick(), Some(ends));
    world.now = ends;
    world.turn(Progress::tick);
    assert_eq!(world.record.state(), RunState::Terminating, "the step has a stop request");
    world.end(&first, Verdict::Cancelled);
    let error = "the run timed out after 1m, and its on_failure steps did not end within 30s";
    assert_eq!(world.record.live.end().unwrap().error.as_deref(), Some(error));
    assert_eq!(world.results(), ["0@n0 cancelled", "1@n0 cancelled", "2@n0 skipped"]);
}

#[test]
fn a_paused_run_says_why_its_on_failure_steps_did_not_end() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let mut definition = fleet("fail-fast", &[task("a"), cleanup]);
    definition["timeout"] = json!("1m");
    let mut world = World::new(definition, 1, 1);
    world.begin();
    let (run, at) = (world.record.id.clone(), world.now);
    world.happens(&Change::RunPauseSet { run, paused: true, by: "ada".to_owned(), at });
    world.time_out();
    world.now += SignedDuration::from_mins(10);
    world.turn(Progress::tick);
    let error =
        "the run timed out after 1m, and its on_failure steps did not end within 10m: the run was paused";
    assert_eq!(world.record.live.end().unwrap().error.as_deref(), Some(error));
}

#[test]
fn a_rejected_run_fails_whichever_server_ends_it() {
    // Each node goes through the pipeline by itself. The store rejects the second leaf of one node.
    let pipeline = json!({"tasks": [task("first"), task("second")]});
    for restarts in [false, true] {
        let mut world = World::new(fleet("fail-fast", &[pipeline.clone(), task("last")]), 2, 1);
        world.begin();
        let leased = world.open(Status::Pending);
        leased.iter().for_each(|execution| assert!(world.lease(execution)));
        world.end(&leased[1], Verdict::Succeeded);
        world.turn(|progress, turn| progress.stop(Stop::Rejected, turn));
        if restarts {
            world.restart();
        }
        world.end(&leased[0], Verdict::Cancelled);
        let (state, end) = world.play_on(|_, _, _| Verdict::Succeeded);
        assert_eq!(state, RunState::Failed, "{restarts}");
        assert_eq!(end.error.as_deref(), Some("the store cannot hold the next step of the run"));
        assert_eq!(world.results()[2..], ["1@n0 skipped", "1@n1 cancelled", "2@n0 skipped", "2@n1 skipped"]);
    }
}

#[test]
fn on_failure_steps_that_already_run_when_the_run_times_out_go_on() {
    let cleanup = with(task("cleanup"), "condition", json!("on_failure"));
    let mut definition = fleet("fail-fast", &[task("a"), cleanup]);
    definition["timeout"] = json!("1m");
    let mut world = World::new(definition, 1, 1);
    world.begin();
    for verdict in [Verdict::Failed, Verdict::Succeeded] {
        let step = world.open(Status::Pending).remove(0);
        world.lease(&step);
        if verdict == Verdict::Succeeded {
            world.time_out();
        }
        world.end(&step, verdict);
    }
    assert_eq!(world.results(), ["0@n0 failed", "1@n0 succeeded"]);
    assert_eq!(world.record.live.end().unwrap().error.as_deref(), Some("the run timed out after 1m"));
}

#[test]
fn a_roll_out_that_times_out_is_undone_on_the_nodes_that_it_touched() {
    let undo = with(task("undo"), "condition", json!("on_failure"));
    let mut definition = fleet("fail-fast", &[task("a"), undo]);
    definition.as_object_mut().unwrap().remove("strategy");
    definition["rollout"] = json!({"batch": 1});
    definition["timeout"] = json!("1m");
    for restarts in [false, true] {
        let mut world = World::new(definition.clone(), 3, 1);
        world.begin();
        for verdict in [Verdict::Succeeded, Verdict::Cancelled] {
            let step = world.open(Status::Pending).remove(0);
            world.lease(&step);
            if verdict == Verdict::Cancelled {
                world.now += SignedDuration::from_secs(60);
                world.time_out();
            }
            if restarts {
                world.restart();
            }
            world.end(&step, verdict);
        }
        if restarts {
            world.restart();
        }
        world.play_on(|_, _, _| Verdict::Succeeded);
        assert_eq!(
            world.results(),
            [
                "0@n0 succeeded",
                "0@n1 cancelled",
                "0@n2 skipped",
                "1@n0 succeeded",
                "1@n1 succeeded",
                "1@n2 skipped"
            ]
        );
    }
}
