//! Every stage of a run as a table: what a server does that takes the run over, admits it, or cancels it.

use uuid::Uuid;

use super::*;
use crate::dice::Dice;
use crate::execution::{Lease, Outcome, State, Verdict};
use crate::ids::{ClusterId, ExecutionId, LeaseToken, ServerId, SessionId};
use crate::level;
use crate::node::Reach;
use crate::plan::{NodeIx, SetIx};
use crate::plan::{NodeRef, Resolved};
use crate::run::{Ended, Hook, RunEnd, RunMade, RunVerdict};
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
    let definition = serde_json::json!({"target": "all", "timeout": "1m", "tasks": tasks});
    let resolved = Resolved {
        nodes: (1..=2).map(|n| NodeRef { id: node(n), hostname: format!("web-0{n}") }).collect(),
        sets: vec![NodeIx::first(2).collect()],
        entries: vec![Some(SetIx(0)); tasks.len()],
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

/// The step on a node, as it succeeded.
fn succeeded(number: u128) -> Execution {
    let lease = Lease {
        token: LeaseToken(Uuid::nil()),
        node: node(number),
        session: SessionId(Uuid::nil()),
        granted_at: NOW,
    };
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
        created_at: NOW,
        state: State::Succeeded { lease, outcome },
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
        (RunStage::Checking(Hook::Pending), "nothing", "cancelled"),
        (RunStage::Checking(Hook::Running), "nothing", "cancelled"),
        (RunStage::Acting(Hook::Pending), "nothing", "cancelled"),
        (RunStage::Acting(Hook::Running), "nothing", "cancelled"),
        (RunStage::Retrying, "nothing", "cancelled"),
        (RunStage::Orphaned, "nothing", "terminating cancelled"),
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
        (RunStage::Terminating, format!("{SKIPPED} failed")),
        (RunStage::Orphaned, format!("{STARTED} running")),
        (RunStage::Ended(ended), "nothing".to_owned()),
    ];
    for (stage, expected) in runs {
        let run = run_at(&stage, true);
        assert_eq!(commit(&mut restored(&run, &[], NOW)), expected, "{stage:?}");
    }
}

#[test]
fn a_cancelled_run_ends_from_every_stage_when_a_server_takes_it_over() {
    let stages = [
        RunStage::Scheduled,
        RunStage::Waiting,
        RunStage::Checking(Hook::Pending),
        RunStage::Checking(Hook::Running),
        RunStage::Acting(Hook::Pending),
        RunStage::Acting(Hook::Running),
        RunStage::Retrying,
        RunStage::Orphaned,
    ];
    for stage in stages {
        let mut run = run_at(&stage, false);
        run.live.cancel_requested_at = Some(NOW);
        let mut course = restored(&run, &[], NOW);
        let did = commit(&mut course);
        assert!(did.starts_with("+skipped +skipped ") && did.ends_with("cancelled"), "{stage:?}: {did}");
    }
}

#[test]
fn a_run_that_will_be_retried_is_left_alone_after_its_timeout() {
    let run = run_at(&RunStage::Retrying, true);
    let mut course = restored(&run, &[succeeded(1), succeeded(2)], NOW + SignedDuration::from_hours(1));
    turn(NOW, |turn| course.observe_all([&paused(true)], turn));
    assert_eq!(commit(&mut course), "nothing");
    turn(NOW, |turn| course.observe_all([&cancelled()], turn));
    assert_eq!(commit(&mut course), "cancelled");
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
    // Another server noticed it after five minutes, and sent the first step of the cleanup.
    let mut sent = [succeeded(1), succeeded(2), succeeded(3)];
    sent[2].of = Origin::Step { run: RunId::from("run"), step: 1, item: None };
    (sent[2].pinned, sent[2].created_at) = (Some(node(1)), after(5));
    let mut course = restored(&run(RunStage::Terminating), &sent, after(8));
    assert_eq!((commit(&mut course).as_str(), course.next_tick()), ("+pending", Some(after(15))));
    turn(after(15), |turn| course.time_passed(turn));
    assert_eq!(commit(&mut course), "execution_cancel_requested");
    // The cleanup has taken too long when the next server takes over.
    let mut course = restored(&run(RunStage::Terminating), &sent, after(15));
    assert_eq!(commit(&mut course), "+skipped failed");
}

#[test]
fn a_created_run_starts_unless_something_comes_before() {
    let created = |stage, limit, taken: &[Execution]| {
        let run = run_at(&stage, false);
        let admission = AdmissionFacts { is_known: true, limit, max_pending: &|| 7, max_open: None };
        let new = New { run: &run, plan: &plan_of(&run), taken, admission };
        let (course, changes) = turn(NOW, |turn| Course::create(&new, turn));
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
