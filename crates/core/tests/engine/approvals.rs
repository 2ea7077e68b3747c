//! Steps that a person approves: no node gets them.

use downbeat_core::Change;
use downbeat_core::execution::{Decision, Execution, Status, Verdict};
use downbeat_core::run::RunState;
use downbeat_core::run::engine::Progress;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::scenarios::{fleet, task, with};
use crate::world::World;

fn approval(name: &str) -> Value {
    json!({"name": name, "approve": {"message": "go on?", "timeout": "1h"}})
}

fn decided(world: &World, execution: &Execution, approved: bool) -> Change {
    let decision = Decision { approved, reason: Some("because".to_owned()), by: "ada".to_owned() };
    Change::ApprovalDecided { run: world.record.id.clone(), execution: execution.id, decision, at: world.now }
}

/// Runs everything before the approval, and returns the approval.
fn until_approval(world: &mut World) -> Execution {
    world.begin();
    for execution in world.open(Status::Pending) {
        assert!(execution.pinned.is_some(), "no node gets an approval");
        world.lease(&execution);
        world.end(&execution, Verdict::Succeeded);
    }
    let waiting = world.open(Status::Pending);
    let [approval] = waiting.as_slice() else { panic!("one step waits: {waiting:?}") };
    assert_eq!((approval.pinned, approval.step()), (None, 1));
    approval.clone()
}

/// How a wait for an approval ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Approved,
    Rejected,
    TooLate,
    Cancelled,
    RunTimedOut,
}

#[test]
fn an_approval_ends_as_the_table_says_in_lists_and_graphs_also_after_a_restart() {
    let list = fleet("fail-fast", &[task("a"), approval("ok"), task("b")]);
    let after = |task: Value, before: &str| with(task, "depends_on", json!([before]));
    let graph = fleet("fail-fast", &[task("a"), after(approval("ok"), "a"), after(task("b"), "ok")]);
    let cases = [
        (How::Approved, RunState::Completed, "succeeded", "succeeded", None),
        (How::Rejected, RunState::Failed, "failed", "skipped", Some("rejected by ada: because")),
        (How::TooLate, RunState::Failed, "failed", "skipped", Some("nobody approved it within 1h")),
        (How::Cancelled, RunState::Cancelled, "cancelled", "skipped", None),
        (How::RunTimedOut, RunState::Failed, "cancelled", "skipped", None),
    ];
    for (shape, definition) in [("list", &list), ("graph", &graph)] {
        for (how, state, approval, later, error) in cases {
            for restarts in [false, true] {
                let mut definition = definition.clone();
                definition["timeout"] = json!("2h");
                let mut world = World::new(definition, 2, 1);
                let waiting = until_approval(&mut world);
                let since = world.now;
                if restarts {
                    world.now += SignedDuration::from_mins(30);
                    world.restart();
                }
                assert_eq!(world.progress.next_tick(), Some(since + SignedDuration::from_hours(1)));
                let at = world.now;
                match how {
                    How::Approved => assert!(world.happens(&decided(&world, &waiting, true))),
                    How::Rejected => assert!(world.happens(&decided(&world, &waiting, false))),
                    How::TooLate => {
                        world.now = since + SignedDuration::from_hours(1);
                        world.turn(Progress::tick);
                    }
                    How::Cancelled => {
                        let run = world.record.id.clone();
                        world.happens(&Change::RunCancelRequested { run, by: "ada".to_owned(), at });
                    }
                    How::RunTimedOut => world.time_out(),
                }
                let case = format!("{shape}, {how:?}, restarts: {restarts}");
                let again = decided(&world, &waiting, true);
                assert!(!world.happens(&again), "{case}: it was decided");
                if restarts && !world.record.state().is_terminal() {
                    world.restart();
                }
                let (ended, _) = world.play_on(|_, _, _| Verdict::Succeeded);
                assert_eq!(ended, state, "{case}");
                let results = world.results();
                assert_eq!(results[2], format!("1@- {approval}"), "{case}");
                assert_eq!(results[3..], [format!("2@n0 {later}"), format!("2@n1 {later}")], "{case}");
                let shown = serde_json::to_value(&world.executions[&waiting.id].state).unwrap();
                if let Some(error) = error {
                    assert_eq!(shown["error"], error, "{case}");
                }
                if matches!(how, How::Approved) {
                    let outputs = &shown["outcome"]["outputs"];
                    assert_eq!(
                        (&outputs["approved_by"], &outputs["reason"]),
                        (&json!("ada"), &json!("because"))
                    );
                }
            }
        }
    }
}

#[test]
fn other_branches_of_a_graph_go_on_while_a_step_waits_for_its_approval() {
    let tasks = [
        with(approval("ok"), "depends_on", json!([])),
        task("a"),
        with(task("b"), "depends_on", json!(["a"])),
    ];
    let mut world = World::new(fleet("continue", &tasks), 1, 1);
    world.begin();
    for _ in 0..2 {
        let next = world.open(Status::Pending).into_iter().find(|execution| execution.pinned.is_some());
        let next = next.expect("a step has its node");
        world.lease(&next);
        world.end(&next, Verdict::Succeeded);
    }
    assert_eq!(world.results(), ["0@- pending", "1@n0 succeeded", "2@n0 succeeded"]);
    let waiting = world.open(Status::Pending).remove(0);
    let rejected = decided(&world, &waiting, false);
    world.happens(&rejected);
    assert_eq!(world.record.state(), RunState::Failed);
    assert_eq!(world.failed_for_good.len(), 1);
}
