//! Every stage of a run as a table: what a server does that takes the run over, admits it, or cancels it.

use uuid::Uuid;

use super::*;
use crate::dice::Dice;
use crate::execution::{Lease, Outcome, State, Status, Verdict};
use crate::ids::{ClusterId, ExecutionId, LeaseToken, ServerId, SessionId};
use crate::level;
use crate::limits;
use crate::node::Reach;
use crate::plan::{NodeIx, SetIx};
use crate::plan::{NodeRef, Resolved};
use crate::run::constraints::{Facts, HookAnswer, Other};
use crate::run::{Ended, Hook, RunEnd, RunEvent, RunMade, RunVerdict, StopCause, Stopped, step};
use crate::work::Origin;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

/// Returns a run at this stage, with one step on two nodes.
fn run_at(stage: &RunStage, started: bool) -> RunRecord {
    run_of(&[serde_json::json!({"backend": "test", "action": "noop"})], stage, started)
}

fn run_of(tasks: &[serde_json::Value], stage: &RunStage, started: bool) -> RunRecord {
    run_on(2, serde_json::json!({"target": "all", "timeout": "1m", "tasks": tasks}), stage, started)
}

fn run_on(nodes: u32, definition: serde_json::Value, stage: &RunStage, started: bool) -> RunRecord {
    let tasks = definition["tasks"].as_array().unwrap().len();
    let resolved = Resolved {
        nodes: (1..=nodes).map(|n| NodeRef { id: node(n.into()), hostname: format!("web-{n:02}") }).collect(),
        sets: vec![NodeIx::first(nodes).collect()],
        entries: vec![Some(SetIx(0)); tasks],
        ..Resolved::default()
    };
    let made = RunMade {
        id: RunId::from("run"),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: Arc::new(serde_json::from_value(definition).unwrap()),
        resolved: Arc::new(resolved),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
        by: "test".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: NOW,
    };
    let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
    run.live.stage = stage.clone();
    run.live.started_at = started.then_some(NOW);
    run
}

fn plan_of(run: &RunRecord) -> Arc<Plan> {
    Arc::new(Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)).unwrap())
}

fn lease(number: u128) -> Lease {
    Lease {
        token: LeaseToken(Uuid::nil()),
        node: node(number),
        session: SessionId(Uuid::nil()),
        granted_at: NOW,
    }
}

/// The step on a node, as it succeeded.
fn succeeded(number: u128) -> Execution {
    let outcome = Outcome {
        verdict: Verdict::Succeeded,
        exit_code: None,
        error: None,
        started_at: NOW,
        finished_at: NOW,
        outputs: Default::default(),
        received_at: None,
    };
    Execution {
        id: ExecutionId(Uuid::from_u128(number)),
        of: Origin::Step { run: RunId::from("run"), step: 0, item: None },
        pinned: Some(node(number)),
        attempt: 1,
        params: None,
        reused: None,
        limits: None,
        cache_key: None,
        former: None,
        failed_for_good: None,
        round: 1,
        created_at: NOW,
        state: State::Succeeded { lease: Some(lease(number)), outcome },
    }
}

fn turn<T>(now: Timestamp, act: impl FnOnce(&mut Turn<'_>) -> T) -> T {
    act(&mut Turn {
        now,
        dice: &mut Dice::new(1),
        reach: &|_| Reach::Here,
        facts: &|_| None,
        fits: &|_| Ok(()),
        level: level::LEVEL,
        serving_since: Timestamp::UNIX_EPOCH,
    })
}

/// Returns the changes as text: `+` and the statuses of new executions, and the states of the run.
fn text(changes: &[Change]) -> String {
    let word = |change: &Change| match change {
        Change::ExecutionsAdded { executions, .. } => {
            executions.iter().map(|execution| format!("+{}", execution.state.status())).collect()
        }
        Change::RunMoved { path, .. } => path.iter().map(ToString::to_string).collect(),
        other => vec![other.kind().to_owned()],
    };
    let words: Vec<String> = changes.iter().flat_map(word).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(" ") }
}

/// Returns the error with which the run ends.
fn error_in(changes: &[Change]) -> Option<&str> {
    changes.iter().find_map(|change| match change {
        Change::RunMoved { end, .. } => end.as_ref()?.error.as_deref(),
        _ => None,
    })
}

/// Returns why the rest of the run is ended.
fn stop_in(changes: &[Change]) -> Option<Stopped> {
    changes.iter().find_map(|change| match change {
        Change::RunMoved { stop, .. } => *stop,
        _ => None,
    })
}

/// Commits all that the last turn decided, and returns it.
fn commit_all(course: &mut Course, now: Timestamp) -> Vec<Change> {
    let mut all = course.take_changes(now);
    while course.has_more() {
        turn(now, |turn| course.finish_turn(turn));
        all.extend(course.take_changes(now));
    }
    all
}

fn count(changes: &[Change], status: Status) -> usize {
    let added = changes.iter().filter_map(|change| match change {
        Change::ExecutionsAdded { executions, .. } => Some(executions),
        _ => None,
    });
    added.flatten().filter(|execution| execution.state.status() == status).count()
}

/// Commits what the course decides, and returns it.
fn commit(course: &mut Course) -> String {
    text(&course.take_changes(NOW))
}

fn restored(run: &RunRecord, executions: &[Execution], now: Timestamp) -> Course {
    turn(now, |turn| Course::restore(plan_of(run), run, 2, executions, turn))
}

fn admitted() -> Change {
    Change::RunAdmitted { run: RunId::from("run"), epoch: 2, limit: None, nodes: Vec::new(), at: NOW }
}

fn cancelled() -> Change {
    Change::RunCancelRequested { run: RunId::from("run"), by: "ada".to_owned(), at: NOW }
}

fn paused(paused: bool) -> Change {
    Change::RunPauseSet { run: RunId::from("run"), paused, by: "ada".to_owned(), at: NOW }
}

#[test]
fn only_a_run_whose_plan_is_next_starts_its_steps() {
    const SKIPPED: &str = "+skipped +skipped";
    const STARTED: &str = "+pending +pending";
    let ended = Ended { verdict: RunVerdict::Failed, at: NOW, end: RunEnd::default() };
    // The stage, what a take-over does, what an admission does after it, and which states a cancelled run goes through.
    let held = [
        (RunStage::Scheduled, "nothing", "cancelled"),
        (RunStage::Waiting, "+pending +pending starting running", "terminating cancelled"),
        (RunStage::Checking(Hook::Running), "nothing", "cancelled"),
    ];
    for (stage, admission, cancel) in held {
        let run = run_at(&stage, false);
        let mut course = restored(&run, &[], NOW);
        assert_eq!(course.is_waiting(), stage == RunStage::Waiting, "{stage:?}");
        for change in [paused(true), paused(false)] {
            turn(NOW, |turn| course.observe_all([&change], turn));
        }
        turn(NOW + SignedDuration::from_hours(1), |turn| course.time_passed(turn));
        assert_eq!((commit(&mut course).as_str(), course.next_tick()), ("nothing", None), "{stage:?}");
        let mut other = course.clone();
        turn(NOW, |turn| other.observe_all([&admitted()], turn));
        assert_eq!(commit(&mut other), admission, "{stage:?}");
        turn(NOW, |turn| course.observe_all([&cancelled()], turn));
        assert_eq!(commit(&mut course), format!("{SKIPPED} {cancel}"), "{stage:?}");
        assert!(course.is_ended(), "{stage:?}");
    }
    let runs = [
        (RunStage::Admitted, format!("{STARTED} starting running")),
        (RunStage::Starting, format!("{STARTED} running")),
        (RunStage::Running, STARTED.to_owned()),
        (RunStage::Ended(ended), "nothing".to_owned()),
    ];
    for (stage, expected) in runs {
        let run = run_at(&stage, true);
        assert_eq!(commit(&mut restored(&run, &[], NOW)), expected, "{stage:?}");
    }
}

/// Commits what a course decides until it decides nothing more, and returns the run after it. The machine of runs allows
/// every move.
fn settle(mut live: RunLive, course: &mut Course) -> RunLive {
    loop {
        let changes = course.take_changes(NOW);
        if changes.is_empty() {
            return live;
        }
        for (_, event) in changes.iter().filter_map(RunEvent::of) {
            live = step(&live, &event).unwrap();
        }
        turn(NOW, |turn| course.observe_all(&changes, turn));
    }
}

#[test]
fn cancel_ends_a_run_from_every_state_that_is_not_terminal() {
    for state in RunState::ALL.into_iter().filter(|state| !state.is_terminal()) {
        for is_admitted in [false, true] {
            let stage = RunStage::of(state, is_admitted, None).unwrap();
            let is_started = matches!(state, RunState::Running | RunState::Terminating | RunState::Retrying);
            // Its constraints and actions wait for something from outside.
            let mut run = run_with(&serde_json::json!({"overlap": "replace"}), &stage);
            run.live.started_at = is_started.then_some(NOW);
            let live = RunLive { epoch: 2, ..run.live.clone() };
            // The owner sees the request.
            let mut course = restored(&run, &[], NOW);
            let live = settle(live, &mut course);
            turn(NOW, |turn| course.observe_all([&cancelled()], turn));
            let ended = settle(live.clone(), &mut course);
            assert!(course.is_ended() && ended.state() == RunState::Cancelled, "{state}: {ended:?}");
            // The next owner finds the request.
            run.live.cancel_requested_at = Some(NOW);
            let mut course = restored(&run, &[], NOW);
            let ended = settle(RunLive { epoch: 2, ..run.live }, &mut course);
            assert!(course.is_ended() && ended.state() == RunState::Cancelled, "{state}: {ended:?}");
        }
    }
}

/// Returns a run of one step on one node that is retried up to twice.
fn run_with_rounds(timeout: &str) -> RunRecord {
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let retry = serde_json::json!({"max": 2, "delay": "10s", "max_delay": "1m"});
    let definition =
        serde_json::json!({"target": "all", "timeout": timeout, "retry": retry, "tasks": [task]});
    let mut run = run_on(1, definition, &RunStage::Waiting, false);
    let path = &[RunState::Starting, RunState::Running];
    let moved = RunEvent::Moved { epoch: 1, path, stop: None, end: None, at: NOW };
    run.live = RunLive { epoch: 2, ..step(&run.live, &moved).unwrap() };
    run
}

/// The only step, as it failed in a round.
fn failed(round: u32) -> Execution {
    let state = State::Failed { lease: Some(lease(1)), outcome: None, error: None, at: NOW };
    Execution { id: ExecutionId(Uuid::from_u128(u128::from(round))), round, state, ..succeeded(1) }
}

/// Commits what a course decides at this time, and applies it to the record.
fn commit_at(run: &mut RunRecord, course: &mut Course, now: Timestamp) -> Vec<Change> {
    let changes = commit_all(course, now);
    for (_, event) in changes.iter().filter_map(RunEvent::of) {
        run.live = step(&run.live, &event).unwrap();
    }
    changes
}

fn admit(run: &mut RunRecord, course: &mut Course, now: Timestamp) {
    run.live = step(&run.live, &RunEvent::Admitted { epoch: 2, at: now }).unwrap();
    turn(now, |turn| course.observe_all([&admitted()], turn));
}

#[test]
fn a_run_that_failed_waits_and_does_everything_again_also_after_a_take_over() {
    let mut run = run_with_rounds("1h");
    let mut executions = vec![failed(1)];
    let mut course = restored(&run, &executions, NOW);
    let ended = commit_at(&mut run, &mut course, NOW);
    assert_eq!(text(&ended), "instance_failed terminating retrying");
    let at = course.next_tick().unwrap();
    assert!(NOW <= at && at <= NOW + SignedDuration::from_secs(10), "{at}");
    let error = error_in(&ended).unwrap();
    assert!(error.starts_with("step 0 (test noop) failed on web-01; round 2 of 3 begins in "), "{error}");
    // Another server knows the same time, and begins the round then. Whether the run is paused makes no difference.
    assert_eq!(restored(&run, &executions, NOW).next_tick(), Some(at));
    turn(NOW, |turn| course.observe_all([&paused(true)], turn));
    turn(NOW, |turn| course.observe_all([&paused(false)], turn));
    turn(at - SignedDuration::from_micros(1), |turn| course.time_passed(turn));
    assert_eq!(text(&commit_at(&mut run, &mut course, NOW)), "nothing");
    for mut course in [course, restored(&run, &executions, NOW)] {
        let mut run = run.clone();
        turn(at, |turn| course.time_passed(turn));
        assert_eq!(text(&commit_at(&mut run, &mut course, at)), "pending");
        assert_eq!((course.is_waiting(), course.next_tick(), run.live.round), (true, None, 2));
        admit(&mut run, &mut course, at);
        let added = commit_at(&mut run, &mut course, at);
        assert_eq!(text(&added), "+pending starting running");
        let Change::ExecutionsAdded { executions, .. } = &added[0] else { panic!("{added:?}") };
        assert_eq!((executions[0].round, executions[0].attempt, executions[0].former), (2, 1, None));
    }
    // The last round fails: the run has failed.
    for round in 2..=3 {
        executions.push(failed(round));
        (run.live.round, run.live.stage) = (round, RunStage::Running);
        let mut course = restored(&run, &executions, NOW);
        let last = if round < 3 { "retrying" } else { "failed" };
        assert_eq!(text(&course.take_changes(NOW)), format!("instance_failed terminating {last}"));
        assert_eq!(course.is_ended(), round == 3);
    }
}

#[test]
fn the_timeout_of_a_run_counts_from_the_start_of_each_round_and_is_retried() {
    let mut run = run_with_rounds("1m");
    let mut course = restored(&run, &[leased(1)], NOW);
    assert_eq!(text(&commit_at(&mut run, &mut course, NOW)), "nothing");
    let late = NOW + SignedDuration::from_mins(1);
    turn(late, |turn| course.time_passed(turn));
    commit_at(&mut run, &mut course, late);
    let cancelled = cancelled_by_agent(late);
    let mut course = restored(&run, &[cancelled], late);
    assert_eq!(text(&commit_at(&mut run, &mut course, late)), "instance_failed retrying");
    let at = course.next_tick().unwrap();
    turn(at, |turn| course.time_passed(turn));
    commit_at(&mut run, &mut course, at);
    let waited = at + SignedDuration::from_hours(1);
    admit(&mut run, &mut course, waited);
    commit_at(&mut run, &mut course, waited);
    let ends = waited + SignedDuration::from_mins(1);
    assert_eq!(course.next_tick(), Some(ends));
    assert_eq!(restored(&run, &[], waited).next_tick(), Some(ends));
    assert_eq!(run.live.started_at, Some(NOW));
}

/// The only step, which runs.
fn leased(number: u128) -> Execution {
    Execution { state: State::Leased { lease: lease(number), stop: false }, ..succeeded(number) }
}

fn cancelled_by_agent(at: Timestamp) -> Execution {
    let state = State::Cancelled { lease: Some(lease(1)), outcome: None, reason: String::new(), at };
    Execution { state, ..succeeded(1) }
}

#[test]
fn a_run_that_waits_for_its_next_round_is_cancelled_at_once() {
    let mut run = run_with_rounds("1h");
    let mut course = restored(&run, &[failed(1)], NOW);
    // The request comes before the end of the round is committed, or after it.
    let mut early = course.clone();
    turn(NOW, |turn| early.observe_all([&cancelled()], turn));
    assert_eq!(text(&early.take_changes(NOW)), "instance_failed terminating cancelled");
    assert!(early.is_ended());
    commit_at(&mut run, &mut course, NOW);
    turn(NOW, |turn| course.observe_all([&cancelled()], turn));
    assert_eq!(commit(&mut course), "cancelled");
    assert!(course.is_ended());
    run.live.cancel_requested_at = Some(NOW);
    let mut course = restored(&run, &[failed(1)], NOW);
    assert_eq!((commit(&mut course).as_str(), course.next_tick()), ("cancelled", None));
}

#[test]
fn only_failures_of_runs_that_nobody_retried_are_retried() {
    let run = run_with_rounds("1h");
    let mut by_person = run.clone();
    let mut resolved = (*run.resolved).clone();
    resolved.retry = Some(crate::plan::RetryScope::AllNodes);
    Arc::make_mut(&mut by_person.made).resolved = Arc::new(resolved);
    assert_eq!(commit(&mut restored(&by_person, &[failed(1)], NOW)), "instance_failed terminating failed");
    let mut stopped = run.clone();
    stopped.live.cancel_requested_at = Some(NOW);
    let ended = commit(&mut restored(&stopped, &[failed(1)], NOW));
    assert!(ended.ends_with("terminating cancelled"), "{ended}");
    let mut course = turn(NOW, |turn| Course::reject(plan_of(&run), &run, 2, &[failed(1)], turn));
    assert!(text(&commit_all(&mut course, NOW)).ends_with("failed"));
    assert_eq!(commit(&mut restored(&run, &[succeeded(1)], NOW)), "terminating completed");
}

#[test]
fn the_cleanup_of_a_run_that_timed_out_counts_from_the_moment_when_a_server_noticed() {
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let undo = serde_json::json!({"backend": "test", "action": "noop", "condition": "on_failure"});
    let after = |minutes| NOW + SignedDuration::from_mins(minutes);
    let run = |stage| run_of(&[task.clone(), undo.clone()], &stage, true);
    let done = [succeeded(1), succeeded(2)];
    // No server ran when the timeout was over: the first one that runs again cleans up.
    let mut course = restored(&run(RunStage::Running), &done, after(60));
    assert_eq!(commit(&mut course), "+pending +pending terminating");
    assert_eq!(course.next_tick(), Some(after(70)));
    let terminating = |minutes| {
        let stopped = Stopped { cause: StopCause::CleaningUp, at: after(minutes) };
        let mut run = run(RunStage::Terminating);
        run.live.stopped = Some(stopped);
        run
    };
    // Another server noticed it after five minutes, and decided nothing more.
    let mut course = restored(&terminating(5), &done, after(8));
    assert_eq!((commit(&mut course).as_str(), course.next_tick()), ("+pending +pending", Some(after(15))));
    // It sent the first step of the cleanup.
    let mut sent = [succeeded(1), succeeded(2), succeeded(3)];
    sent[2].of = Origin::Step { run: RunId::from("run"), step: 1, item: None };
    (sent[2].pinned, sent[2].created_at) = (Some(node(1)), after(5));
    let mut course = restored(&terminating(5), &sent, after(8));
    assert_eq!((commit(&mut course).as_str(), course.next_tick()), ("+pending", Some(after(15))));
    turn(after(15), |turn| course.time_passed(turn));
    assert_eq!(commit(&mut course), "execution_cancel_requested");
    // The cleanup has taken too long when the next server takes over.
    let mut course = restored(&terminating(5), &sent, after(15));
    assert_eq!(commit(&mut course), "+skipped failed");
}

#[test]
fn a_rejection_during_the_cleanup_is_known_to_the_next_server() {
    let error = "the store cannot hold the next step of the run";
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let undo = serde_json::json!({"backend": "test", "action": "noop", "condition": "on_failure"});
    let late = NOW + SignedDuration::from_mins(2);
    let mut run = run_of(&[task, undo], &RunStage::Terminating, true);
    run.live.stopped = Some(Stopped { cause: StopCause::CleaningUp, at: late });
    run.live.epoch = 2;
    let cleanup = |number: u128, state| Execution {
        id: ExecutionId(Uuid::from_u128(number)),
        of: Origin::Step { run: RunId::from("run"), step: 1, item: None },
        state,
        ..succeeded(number - 2)
    };
    let leased = |number| cleanup(number, State::Leased { lease: lease(number - 2), stop: false });
    let executions = [succeeded(1), succeeded(2), leased(3), leased(4)];
    let mut course = turn(late, |turn| Course::reject(plan_of(&run), &run, 2, &executions, turn));
    let changes = commit_all(&mut course, late);
    assert_eq!(text(&changes), "execution_cancel_requested execution_cancel_requested");
    run.live.follow(&changes);
    assert_eq!(run.live.stopped, Some(Stopped { cause: StopCause::Rejected, at: late }));
    let stopped = |number| {
        let (lease, at, reason) = (Some(lease(number - 2)), late, String::new());
        cleanup(number, State::Cancelled { lease, outcome: None, reason, at })
    };
    let executions = [succeeded(1), succeeded(2), stopped(3), stopped(4)];
    let changes = restored(&run, &executions, late).take_changes(late);
    assert_eq!((error_in(&changes), stop_in(&changes)), (Some(error), None));
}

#[test]
fn a_waiting_run_with_many_instances_starts_or_ends_in_one_turn() {
    let nodes = u32::try_from(limits::EXECUTIONS_PER_COMMIT).unwrap() + 1;
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let job = serde_json::json!({"target": "all", "tasks": [task]});
    let cases = [
        (vec![admitted()], Status::Pending, RunState::Running),
        (vec![admitted(), paused(true), paused(false)], Status::Pending, RunState::Running),
        (vec![cancelled()], Status::Skipped, RunState::Cancelled),
        (vec![admitted(), cancelled(), paused(true)], Status::Skipped, RunState::Cancelled),
    ];
    for (changes, status, state) in cases {
        let mut course = restored(&run_on(nodes, job.clone(), &RunStage::Waiting, false), &[], NOW);
        turn(NOW, |turn| course.observe_all(&changes, turn));
        assert!(course.is_unfinished(), "{changes:?}");
        let all = commit_all(&mut course, NOW);
        assert_eq!((count(&all, status), course.state()), (nodes as usize, state), "{changes:?}");
    }
}

#[test]
fn nothing_else_is_decided_while_the_timeout_of_a_large_run_is() {
    let nodes = u32::try_from(limits::EXECUTIONS_PER_COMMIT).unwrap() + 2;
    let task = serde_json::json!({"backend": "test", "action": "noop", "timeout": "1s"});
    let job = serde_json::json!({"target": "all", "timeout": "1h", "max_parallel": 1, "tasks": [task]});
    let run = run_on(nodes, job, &RunStage::Running, true);
    let leased = Execution { state: State::Leased { lease: lease(1), stop: false }, ..succeeded(1) };
    let mut course = restored(&run, &[leased], NOW);
    assert_eq!(commit(&mut course), "nothing");
    // The run's timeout is over, and the report is overdue.
    let late = NOW + SignedDuration::from_hours(2);
    turn(late, |turn| course.time_passed(turn));
    assert!(course.is_unfinished());
    let changes = commit_all(&mut course, late);
    assert_eq!(count(&changes, Status::Skipped), nodes as usize - 1);
    assert!(text(&changes).ends_with(" execution_cancel_requested"), "{}", text(&changes[1..]));
    turn(late, |turn| course.time_passed(turn));
    assert_eq!(commit(&mut course), "execution_lost");
}

#[test]
fn a_server_that_takes_over_knows_why_the_rest_of_a_run_was_ended() {
    let skipped = "+skipped +skipped failed";
    let cases = [
        (StopCause::Rejected, "the store cannot hold the next step of the run"),
        (StopCause::TimedOut, "the run timed out after 1m"),
    ];
    for (cause, error) in cases {
        let mut run = run_at(&RunStage::Terminating, true);
        run.live.stopped = Some(Stopped { cause, at: NOW });
        // However late it is.
        for minutes in [0, 60] {
            let mut course = restored(&run, &[], NOW + SignedDuration::from_mins(minutes));
            let changes = course.take_changes(NOW);
            assert_eq!((text(&changes).as_str(), error_in(&changes)), (skipped, Some(error)));
        }
    }
}

#[test]
fn a_rejection_is_the_reason_also_after_the_timeout() {
    let error = "the store cannot hold the next step of the run";
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let undo = serde_json::json!({"backend": "test", "action": "noop", "condition": "on_failure"});
    let late = NOW + SignedDuration::from_mins(2);
    let stopped = Stopped { cause: StopCause::CleaningUp, at: late };
    for (stopped, path) in [(None, "terminating failed"), (Some(stopped), "failed")] {
        let stage = if stopped.is_none() { RunStage::Running } else { RunStage::Terminating };
        let mut run = run_of(&[task.clone(), undo.clone()], &stage, true);
        run.live.stopped = stopped;
        let done = [succeeded(1), succeeded(2)];
        let mut course = turn(late, |turn| Course::reject(plan_of(&run), &run, 2, &done, turn));
        let changes = course.take_changes(late);
        let expected = format!("+skipped +skipped {path}");
        assert_eq!((text(&changes), error_in(&changes)), (expected, Some(error)));
    }
}

#[test]
fn a_run_cleans_up_after_its_timeout_only_if_every_server_would() {
    let task = serde_json::json!({"backend": "test", "action": "noop"});
    let undo = serde_json::json!({"backend": "test", "action": "noop", "condition": "on_failure"});
    let run = run_of(&[task, undo], &RunStage::Running, true);
    let late = NOW + SignedDuration::from_mins(2);
    for (level, expected) in [
        (level::CLEANUP, "+pending +pending terminating"),
        (level::CLEANUP - 1, "+skipped +skipped terminating failed"),
    ] {
        let mut course = turn(late, |turn| {
            turn.level = level;
            Course::restore(plan_of(&run), &run, 2, &[succeeded(1), succeeded(2)], turn)
        });
        let changes = course.take_changes(late);
        assert_eq!(text(&changes), expected);
        if level < level::CLEANUP {
            assert_eq!(error_in(&changes), Some("the run timed out after 1m"));
        }
    }
}

#[test]
fn a_created_run_starts_unless_something_comes_before() {
    let created = |stage, limit, taken: &[Execution]| {
        let run = run_at(&stage, false);
        let admission = AdmissionFacts { is_known: true, limit, max_pending: &|| 7, max_open: None };
        let new = New { run: &run, plan: &plan_of(&run), taken: taken.to_vec(), admission, firing: None };
        let (course, changes) = turn(NOW, |turn| Course::create(new, turn));
        let Change::RunCreated { max_pending, .. } = &changes[0] else { panic!("{changes:?}") };
        (course, *max_pending, text(&changes[1..]))
    };
    let (_, max_pending, did) = created(RunStage::Waiting, None, &[]);
    assert_eq!((max_pending, did.as_str()), (None, "+pending +pending starting running"));
    for (stage, expected) in [(RunStage::Waiting, Some(7)), (RunStage::Scheduled, None)] {
        let (course, max_pending, did) = created(stage, Some(1), &[]);
        assert_eq!((max_pending, did.as_str()), (expected, "nothing"));
        assert_eq!(course.is_waiting(), expected.is_some());
    }
    // A retry that took over a part of a step is cancelled while it waits.
    let carried = Execution { reused: Some(ExecutionId(Uuid::from_u128(9))), ..succeeded(1) };
    let (mut course, _, did) = created(RunStage::Waiting, Some(1), &[carried]);
    assert_eq!(did, "+succeeded");
    turn(NOW, |turn| course.observe_all([&cancelled()], turn));
    assert_eq!(commit(&mut course), "+skipped terminating cancelled");
}

/// Returns a debug command on two nodes.
fn debug_command() -> RunRecord {
    let command = crate::debug::DebugCommand::new("uptime", None).unwrap();
    let definition = command.definition(crate::select::Selector::all());
    let mut run = run_on(2, serde_json::to_value(definition).unwrap(), &RunStage::Waiting, false);
    let made = Arc::make_mut(&mut run.made);
    made.id = RunId::debug(Uuid::from_u128(7));
    run
}

fn offline<T>(now: Timestamp, act: impl FnOnce(&mut Turn<'_>) -> T) -> T {
    turn(now, |turn| act(&mut Turn { reach: &|_| Reach::Offline, dice: turn.dice, ..*turn }))
}

fn given_up(changes: &[Change]) -> Vec<&str> {
    let errors = changes.iter().filter_map(|change| match change {
        Change::ExecutionGivenUp { error, .. } => Some(error.as_str()),
        _ => None,
    });
    errors.collect()
}

#[test]
fn a_debug_command_is_neither_admitted_nor_counted() {
    let run = debug_command();
    let admission = AdmissionFacts { is_known: true, limit: Some(1), max_pending: &|| 0, max_open: Some(0) };
    let new = New { run: &run, plan: &plan_of(&run), taken: Vec::new(), admission, firing: None };
    let (course, changes) = turn(NOW, |turn| Course::create(new, turn));
    assert!(!course.is_waiting());
    assert!(matches!(changes[0], Change::RunCreated { max_pending: None, max_open: None, .. }));
    assert_eq!(text(&changes), "run_created +pending +pending starting running");
}

#[test]
fn a_debug_command_waits_an_hour_for_nodes_that_are_offline() {
    let run = debug_command();
    let admission = AdmissionFacts { is_known: true, limit: None, max_pending: &|| 0, max_open: None };
    let new = New { run: &run, plan: &plan_of(&run), taken: Vec::new(), admission, firing: None };
    let (mut course, changes) = offline(NOW, |turn| Course::create(new, turn));
    assert_eq!(count(&changes, Status::Pending), 2);
    let added = changes.iter().find_map(|change| match change {
        Change::ExecutionsAdded { executions, .. } => Some(executions.clone()),
        _ => None,
    });
    let executions = added.unwrap();
    offline(NOW, |turn| course.nodes_gone(&[node(1), node(2)], turn));
    assert!(commit_all(&mut course, NOW).is_empty());
    let hour = NOW + SignedDuration::from_hours(1);
    assert_eq!(course.next_tick(), Some(hour));
    // The same after a take-over; a command that a node has leased may go on.
    let mut started = run.clone();
    (started.live.stage, started.live.started_at) = (RunStage::Running, Some(NOW));
    let mut leased = executions.clone();
    leased[0].state = State::Leased { lease: lease(1), stop: false };
    let restore = |turn: &mut Turn<'_>| Course::restore(plan_of(&started), &started, 2, &leased, turn);
    let mut taken = offline(NOW, restore);
    let before = hour - SignedDuration::from_secs(1);
    offline(before, |turn| taken.time_passed(turn));
    assert!(given_up(&commit_all(&mut taken, before)).is_empty());
    offline(hour, |turn| taken.time_passed(turn));
    assert_eq!(given_up(&commit_all(&mut taken, hour)), ["not started within 1h"]);
    offline(hour, |turn| course.time_passed(turn));
    assert_eq!(given_up(&commit_all(&mut course, hour)), ["not started within 1h"; 2]);
}

#[test]
fn a_debug_command_for_a_deleted_node_fails() {
    let run = debug_command();
    let admission = AdmissionFacts { is_known: true, limit: None, max_pending: &|| 0, max_open: None };
    let new = New { run: &run, plan: &plan_of(&run), taken: Vec::new(), admission, firing: None };
    let (mut course, _) = turn(NOW, |turn| Course::create(new, turn));
    turn(NOW, |turn| {
        course.nodes_gone(&[node(1)], &mut Turn { reach: &|_| Reach::Deleted, dice: turn.dice, ..*turn });
    });
    assert_eq!(given_up(&commit_all(&mut course, NOW)), ["node web-01 was deleted"]);
}

/// Returns a run of a job with these fields, at a stage.
fn run_with(more: &serde_json::Value, stage: &RunStage) -> RunRecord {
    let mut job = serde_json::json!({
        "name": "nightly", "target": "all", "tasks": [{"backend": "test", "action": "noop"}],
    });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    // A stored definition has lists.
    for field in ["on_violation", "on_success", "on_failure"] {
        if job[field].is_object() {
            job[field] = serde_json::json!([job[field]]);
        }
    }
    run_on(2, job, stage, false)
}

fn created_course(run: &RunRecord) -> (Course, String) {
    let admission = AdmissionFacts { is_known: true, limit: None, max_pending: &|| 7, max_open: None };
    let new = New { run, plan: &plan_of(run), taken: Vec::new(), admission, firing: None };
    let (course, changes) = turn(NOW, |turn| Course::create(new, turn));
    (course, text(&changes[1..]))
}

fn facts(others: &[Other]) -> EffectResult {
    EffectResult::Facts(Facts { others: others.to_vec(), previous: Ok(None) })
}

fn active() -> Other {
    Other {
        id: RunId::from("a"),
        created_at: NOW,
        state: RunState::Running,
        is_away: false,
        is_queued: false,
        is_cancelled: false,
    }
}

/// Gives the course a result, and returns what it commits.
fn done(course: &mut Course, result: EffectResult) -> String {
    turn(NOW, |turn| course.effect_done(result, turn));
    text(&commit_all(course, NOW))
}

const FACTS: Effect = Effect::ReadFacts { previous: false };
const CHECKS: &str = "condition_pending condition_running";

#[test]
fn a_run_with_constraints_starts_when_they_hold() {
    let (mut course, did) =
        created_course(&run_with(&serde_json::json!({"overlap": "skip"}), &RunStage::Waiting));
    assert_eq!((did.as_str(), course.effect()), (CHECKS, Some(FACTS)));
    turn(NOW, |turn| course.effect_done(facts(&[]), turn));
    let changes = course.take_changes(NOW);
    assert_eq!(text(&changes), "run_checked starting");
    let room = changes.iter().find_map(|change| match change {
        Change::RunMoved { room, .. } => *room,
        _ => None,
    });
    assert_eq!((room, course.has_more()), (Some(1), true));
    turn(NOW, |turn| course.finish_turn(turn));
    assert_eq!(commit(&mut course), "+pending +pending running");
}

#[test]
fn each_action_decides_what_becomes_of_a_run_that_violates_a_constraint() {
    let limited = |action: serde_json::Value| serde_json::json!({"constraints": {"max_concurrent_runs": 1}, "on_violation": action});
    let acts = "run_checked action_pending action_running";
    let skipped =
        "run_checked run_acted +skipped +skipped action_pending action_running completed".to_owned();
    let waits = "run_checked run_acted action_pending action_running pending";
    let cases = [
        (serde_json::json!({"overlap": "skip"}), skipped.as_str(), None),
        (limited(serde_json::json!({"action": "skip"})), &skipped, None),
        (serde_json::json!({"constraints": {"max_concurrent_runs": 1}}), &skipped, None),
        (serde_json::json!({"overlap": "queue"}), waits, None),
        (limited(serde_json::json!({"action": "wait"})), waits, None),
        (limited(serde_json::json!({"action": "retry_later", "delay": "5m"})), waits, None),
        (serde_json::json!({"overlap": "replace"}), acts, Some("run_acted pending")),
        (limited(serde_json::json!({"action": "kill_old"})), acts, Some("run_acted pending")),
        (
            limited(serde_json::json!({"action": "trigger_job", "job": "x"})),
            acts,
            Some("run_acted starting +pending +pending running"),
        ),
    ];
    for (job, expected, after) in cases {
        let (mut course, _) = created_course(&run_with(&job, &RunStage::Waiting));
        assert_eq!(done(&mut course, facts(&[active()])), expected, "{job}");
        if let Some(after) = after {
            assert!(course.effect().is_some(), "{job}");
            assert_eq!(done(&mut course, EffectResult::Done(Ok(()))), after, "{job}");
        }
    }
    // An action that failed is recorded; a critical one fails the run.
    for (critical, expected) in [
        (false, "run_acted starting +pending +pending running"),
        (true, "run_acted +skipped +skipped failed"),
    ] {
        let job = limited(serde_json::json!({"action": "trigger_job", "job": "x", "critical": critical}));
        let (mut course, _) = created_course(&run_with(&job, &RunStage::Waiting));
        done(&mut course, facts(&[active()]));
        assert_eq!(done(&mut course, EffectResult::Done(Err("no".to_owned()))), expected);
    }
}

#[test]
fn a_constraint_that_cannot_be_checked_follows_its_rule() {
    for (rule, expected) in [
        ("allow", "run_checked starting +pending +pending running"),
        ("skip", "run_checked run_acted +skipped +skipped action_pending action_running completed"),
    ] {
        let hook = serde_json::json!({"url": "http://x", "if_unknown": rule});
        let job =
            serde_json::json!({"constraints": {"pre_run_hook": hook}, "on_violation": {"action": "wait"}});
        let (mut course, _) = created_course(&run_with(&job, &RunStage::Waiting));
        assert_eq!(done(&mut course, facts(&[])), "nothing");
        assert!(matches!(course.effect(), Some(Effect::CallHook { .. })));
        let unknown = EffectResult::Hook(HookAnswer::Failed("no answer".to_owned()));
        assert_eq!(done(&mut course, unknown), expected);
    }
}

#[test]
fn a_run_that_waits_looks_when_another_one_moves_and_at_times() {
    let (mut course, _) =
        created_course(&run_with(&serde_json::json!({"overlap": "queue"}), &RunStage::Waiting));
    course.reads_facts();
    done(&mut course, facts(&[active()]));
    assert_eq!((course.is_queued(), course.effect()), (true, None));
    course.others_moved();
    assert_eq!(course.effect(), Some(FACTS));
    course.reads_facts();
    assert_eq!(done(&mut course, facts(&[active()])), "nothing");
    assert_eq!(course.effect(), None);
    let minute = NOW + SignedDuration::from_mins(1);
    assert_eq!(course.next_tick(), Some(minute));
    turn(minute, |turn| course.time_passed(turn));
    assert_eq!(course.effect(), Some(FACTS));
    // Another run moved while the facts were read.
    course.reads_facts();
    course.others_moved();
    assert_eq!(done(&mut course, facts(&[active()])), "nothing");
    assert_eq!(course.effect(), Some(FACTS));
    assert_eq!(done(&mut course, facts(&[])), "run_woken");
    assert!(course.is_waiting());
    turn(NOW, |turn| course.observe_all([&admitted()], turn));
    assert_eq!(commit(&mut course), CHECKS);
}

#[test]
fn a_run_that_has_not_started_at_its_deadline_fails() {
    let job = serde_json::json!({"overlap": "queue", "deadline": "1h"});
    let hour = NOW + SignedDuration::from_hours(1);
    let states = [
        (RunStage::Waiting, "+skipped +skipped terminating failed"),
        (RunStage::Checking(Hook::Running), "+skipped +skipped failed"),
    ];
    for (stage, expected) in states {
        let run = run_with(&job, &stage);
        let mut course = restored(&run, &[], NOW);
        assert_eq!(course.next_tick(), Some(hour), "{stage:?}");
        turn(hour, |turn| course.time_passed(turn));
        let changes = commit_all(&mut course, hour);
        assert_eq!((text(&changes).as_str(), error_in(&changes)), (expected, Some("not started within 1h")));
    }
}

#[test]
fn the_end_of_a_run_waits_for_what_follows_its_plan() {
    let call = serde_json::json!({"action": "trigger_job", "job": "x", "critical": true});
    let job = serde_json::json!({
        "constraints": {"max_expected": "1m", "post_run_hook": {"url": "http://x"}},
        "on_violation": {"action": "trigger_job", "job": "y"}, "on_success": call,
    });
    let run = |life: serde_json::Value| {
        let mut run = run_with(&job, &RunStage::Terminating);
        run.live.started_at = Some(NOW);
        run.live.life = serde_json::from_value(life).unwrap();
        run
    };
    let ends = [succeeded(1), succeeded(2)];
    let (new, late) = (run(serde_json::json!({})), NOW + SignedDuration::from_mins(5));
    let mut course = restored(&new, &ends, late);
    assert_eq!(commit(&mut course), "run_checked");
    assert!(matches!(
        course.effect(),
        Some(Effect::CallHook { outcome: Some((RunState::Completed, None)), .. })
    ));
    assert_eq!(done(&mut course, EffectResult::Hook(HookAnswer::Status(204))), "run_checked");
    let job_of = |course: &Course| match course.effect() {
        Some(Effect::StartJob { job, .. }) => job,
        other => panic!("{other:?}"),
    };
    assert_eq!(job_of(&course), "y");
    // The next owner goes on there, and calls with the same key.
    let life = serde_json::json!({"done": 2, "violation": {"of": ["max_expected"], "message": "slow"}});
    let mut taken = restored(&run(life), &ends, late);
    assert_eq!((commit(&mut taken).as_str(), taken.effect()), ("nothing", course.effect()));
    assert_eq!(done(&mut course, EffectResult::Done(Err("no".to_owned()))), "run_acted");
    assert_eq!(job_of(&course), "x");
    let mut cancelled_one = course.clone();
    turn(NOW, |turn| cancelled_one.observe_all([&cancelled()], turn));
    assert_eq!(commit(&mut cancelled_one), "cancelled");
    let mut failed = course.clone();
    assert_eq!(done(&mut failed, EffectResult::Done(Err("no".to_owned()))), "run_acted failed");
    assert_eq!(done(&mut course, EffectResult::Done(Ok(()))), "run_acted completed");
}
