//! Attempts whose agent is alive and never reports their end.

use downbeat_core::execution::{State, Status, Verdict};
use downbeat_core::limits;
use downbeat_core::run::RunState;
use downbeat_core::run::engine::{Progress, Stop};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::world::World;

const TIMEOUT_S: i64 = 60;

fn grace() -> SignedDuration {
    SignedDuration::from_secs(limits::REPORT_GRACE_S.try_into().unwrap())
}

/// A run with one leased attempt.
fn leased(task: &Value) -> World {
    let mut world = World::new(json!({"target": "all", "tasks": [task]}), 1, 1);
    world.begin();
    let execution = world.open(Status::Pending).remove(0);
    world.lease(&execution);
    world
}

/// A run with one started attempt.
fn hung(task: &Value) -> World {
    let mut world = leased(task);
    let started = world.started(world.open(Status::Leased).remove(0).id);
    world.happens(&started);
    world
}

fn task(delivery: &str) -> Value {
    json!({"backend": "test", "action": "noop", "timeout": format!("{TIMEOUT_S}s"), "delivery": delivery})
}

fn reason(world: &World) -> Option<String> {
    world.executions.values().find_map(|each| match &each.state {
        State::Lost { reason, .. } => Some(reason.clone()),
        _ => None,
    })
}

#[test]
fn an_attempt_whose_end_is_not_reported_is_lost_after_timeout_and_grace() {
    // The same holds for an attempt whose start was not reported either.
    for (restarts, starts) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut world = if starts { hung } else { leased }(&task("at_most_once"));
        if restarts {
            world.restart();
        }
        let due = world.now + SignedDuration::from_secs(TIMEOUT_S) + grace();
        assert_eq!(world.progress.next_deadline(), Some(due));
        world.now = due - SignedDuration::from_micros(1);
        world.turn(Progress::tick);
        assert_eq!((world.record.state(), reason(&world)), (RunState::Running, None));
        world.now = due;
        world.turn(Progress::tick);
        assert_eq!(world.record.state(), RunState::Failed);
        let reason = reason(&world).unwrap();
        assert_eq!(reason, "its agent did not report the end within 34m8s after the timeout of 1m");
        world.check();
    }
}

#[test]
fn time_in_which_no_server_takes_a_report_does_not_count() {
    let hour = SignedDuration::from_hours(1);
    for restarts in [false, true] {
        let mut world = hung(&task("at_most_once"));
        let due = world.now + SignedDuration::from_secs(TIMEOUT_S) + grace();
        (world.now, world.serving_since) = (due + hour, due + hour);
        if restarts {
            world.restart();
        }
        world.turn(Progress::tick);
        assert_eq!((world.record.state(), reason(&world)), (RunState::Running, None), "{restarts}");
        assert_eq!(world.progress.next_deadline(), Some(due + hour + grace()), "{restarts}");
        world.now = due + hour + grace();
        world.turn(Progress::tick);
        assert_eq!(world.record.state(), RunState::Failed, "{restarts}");
    }
}

#[test]
fn a_lease_that_a_server_finds_and_then_observes_has_one_deadline() {
    let mut world = hung(&task("at_most_once"));
    let execution = world.open(Status::Running).remove(0);
    let due = world.now + SignedDuration::from_secs(TIMEOUT_S) + grace();
    world.now += SignedDuration::from_secs(9);
    world.restart();
    world.observe_all(&[world.started(execution.id)]);
    assert_eq!(world.progress.next_deadline(), Some(due));
    world.end(&execution, Verdict::Succeeded);
    assert_eq!(world.progress.next_deadline(), None);
}

#[test]
fn an_attempt_that_may_be_sent_again_is() {
    let mut world = hung(&task("at_least_once"));
    let late = world.open(Status::Running).remove(0);
    world.now += SignedDuration::from_secs(TIMEOUT_S) + grace();
    world.turn(Progress::tick);
    let again = world.open(Status::Pending).remove(0);
    assert_eq!((again.attempt, world.record.state()), (2, RunState::Running));
    assert!(!world.end(&late, Verdict::Succeeded), "the late result is refused");
    world.lease(&again);
    world.end(&again, Verdict::Succeeded);
    assert_eq!(world.record.state(), RunState::Completed);
}

#[test]
fn a_report_in_time_leaves_nothing_to_wait_for() {
    let mut world = hung(&task("at_most_once"));
    let execution = world.open(Status::Running).remove(0);
    world.end(&execution, Verdict::Succeeded);
    assert_eq!((world.record.state(), world.progress.next_deadline()), (RunState::Completed, None));
}

#[test]
fn a_cancelled_run_ends_even_if_its_agent_does_not_confirm() {
    let mut world = hung(&task("at_least_once"));
    world.turn(|progress, turn| progress.stop(Stop::Cancelled, turn));
    assert_eq!(world.record.state(), RunState::Running, "the agent was asked to stop");
    world.now += SignedDuration::from_secs(TIMEOUT_S) + grace();
    world.turn(Progress::tick);
    assert_eq!(world.record.state(), RunState::Cancelled);
}
