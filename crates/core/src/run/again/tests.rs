//! What a retry carries over, and what it does again.

use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::execution::{Lease, Outcome, State, Verdict};
use crate::ids::{ClusterId, LeaseToken, ServerId, SessionId};
use crate::plan::{NodeRef, SetIx};
use crate::run::{RunEnd, RunMade, RunStage};

fn at() -> Timestamp {
    Timestamp::from_second(1_000).unwrap()
}

fn retry_of<'a>(
    run: &RunRecord,
    executions: &'a [Execution],
    scope: RetryScope,
) -> Result<RetryStart<'a>, CannotRetry> {
    let plan = Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)).unwrap();
    super::retry_of(run, &plan, executions, scope)
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn lease(number: u128) -> Lease {
    let (token, session) = (LeaseToken(Uuid::from_u128(7)), SessionId(Uuid::nil()));
    Lease { token, node: node(number), session, granted_at: at() }
}

fn outcome(verdict: Verdict) -> Outcome {
    let outputs = [("version".to_owned(), json!("1.2"))].into();
    Outcome {
        verdict,
        exit_code: Some(0),
        error: None,
        outputs,
        started_at: at(),
        finished_at: at(),
        received_at: None,
    }
}

fn state(status: &str, number: u128) -> State {
    let lease = lease(number);
    match status {
        "succeeded" => State::Succeeded { lease: Some(lease), outcome: outcome(Verdict::Succeeded) },
        "failed" => State::Failed { lease: Some(lease), outcome: None, error: None, at: at() },
        "given up" => State::Failed { lease: None, outcome: None, error: None, at: at() },
        "lost" => State::Lost { lease, started_at: None, reason: String::new(), at: at() },
        "skipped" => State::Skipped { reason: String::new(), at: at() },
        "cancelled" => State::Cancelled { lease: None, outcome: None, reason: String::new(), at: at() },
        other => panic!("{other}"),
    }
}

/// `(step, node or 0 when placed, attempt, status)`.
fn executions(list: &[(u32, u128, u32, &str)]) -> Vec<Execution> {
    let make = |(number, &(step, on, attempt, status)): (u128, &(u32, u128, u32, &str))| Execution {
        id: ExecutionId(Uuid::from_u128(100 + number)),
        of: Origin::Step { run: RunId::from("first"), step, item: None },
        pinned: (on > 0).then(|| node(on)),
        attempt,
        former: None,
        params: None,
        reused: None,
        limits: None,
        cache_key: None,
        failed_for_good: None,
        round: 1,
        created_at: at(),
        state: state(status, on),
    };
    (0..).zip(list).map(make).collect()
}

/// Creates a run with three nodes, which every entry with a target has.
fn run(definition: serde_json::Value, state: RunState, partial: bool) -> RunRecord {
    let definition: Definition = serde_json::from_value(definition).unwrap();
    let placed = |entry: &Entry| entry.leaves()[0].placement.is_some();
    let entries = definition.tasks.iter().map(|entry| (!placed(entry)).then_some(SetIx(0))).collect();
    let nodes = (1..=3).map(|n| NodeRef { id: node(n), hostname: format!("web-0{n}") }).collect();
    let waves = definition.rollout.as_ref().map(|rollout| rollout.batch.waves(3)).unwrap_or_default();
    let resolved = Resolved {
        nodes,
        sets: vec![NodeIx::first(3).collect()],
        entries,
        idempotent: vec![StepIx(0)],
        waves,
        left_out: Vec::new(),
        retry: None,
    };
    let made = RunMade {
        id: RunId::from("first"),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: Arc::new(definition),
        resolved: Arc::new(resolved),
        params: Default::default(),
        retry_of: None,
        by: "ada".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at(),
        no_cache: false,
        job_version: None,
    };
    let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
    let end = RunEnd { partial, error: None };
    run.live.stage = RunStage::of(state, false, Some((at(), end))).unwrap();
    run
}

fn task() -> serde_json::Value {
    json!({"backend": "test", "action": "noop"})
}

fn two_steps() -> serde_json::Value {
    json!({"target": "all", "tasks": [task(), task()]})
}

fn carried(second: &RetryStart<'_>) -> Vec<(u32, u128)> {
    let place = |e: &&Execution| (e.step(), e.pinned.map_or(0, |node| node.0.as_u128()));
    second.carried.iter().map(place).collect()
}

fn hostnames<'a>(second: &'a RetryStart<'_>) -> Vec<&'a str> {
    second.resolved.nodes.iter().map(|node| node.hostname.as_str()).collect()
}

#[test]
fn only_what_ended_and_did_not_go_well_is_tried_again() {
    let cases = [
        (RunState::Running, false, Some("has not ended: it is running")),
        (RunState::Terminating, false, Some("has not ended")),
        (RunState::Completed, false, Some("nothing failed in it")),
        (RunState::Completed, true, None),
        (RunState::Failed, false, None),
        (RunState::Failed, true, None),
        (RunState::Cancelled, false, None),
    ];
    for (state, partial, refused) in cases {
        let run = run(two_steps(), state, partial);
        let answer = retry_of(&run, &[], RetryScope::AllNodes);
        match (answer, refused) {
            (Ok(second), None) => {
                let retry = Some(RetryScope::AllNodes);
                let resolved = Resolved { retry, ..(*run.resolved).clone() };
                assert_eq!(second.resolved, resolved, "{state} {partial}");
            }
            (Err(why), Some(words)) => assert!(why.to_string().contains(words), "{why}"),
            (answer, _) => panic!("{state} {partial}: {answer:?}"),
        }
    }
}

#[test]
fn the_last_attempt_decides_what_is_taken_over() {
    let run = run(two_steps(), RunState::Failed, false);
    let list = executions(&[
        (0, 1, 1, "failed"),
        (0, 1, 2, "succeeded"),
        (0, 2, 1, "lost"),
        (0, 2, 2, "succeeded"),
        (0, 3, 1, "succeeded"),
        (1, 1, 1, "succeeded"),
        (1, 2, 1, "failed"),
        (1, 3, 1, "skipped"),
    ]);
    let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
    assert_eq!(carried(&second), [(0, 1), (0, 2), (0, 3), (1, 1)]);
    assert_eq!(hostnames(&second), ["web-01", "web-02", "web-03"]);
    let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
    assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 2)], vec!["web-02"]));
    assert_eq!(second.resolved.sets, [[NodeIx(0)]]);
    assert_eq!(second.resolved.entries, [Some(SetIx(0)), Some(SetIx(0))]);
}

#[test]
fn a_node_failed_when_the_last_attempt_of_any_of_its_steps_did() {
    let cases = [
        ("failed", 1, RunState::Failed, true),
        ("given up", 1, RunState::Failed, true),
        ("lost", 1, RunState::Failed, true),
        ("skipped", 1, RunState::Failed, false),
        ("cancelled", 1, RunState::Failed, true),
        ("cancelled", 1, RunState::Cancelled, false),
        ("cancelled", 2, RunState::Cancelled, true),
        ("succeeded", 3, RunState::Failed, false),
    ];
    for (status, attempt, state, expected) in cases {
        let last = &executions(&[(0, 1, attempt, status)])[0];
        assert_eq!(instance_failed(last, state), expected, "{status} {attempt} {state}");
    }
}

#[test]
fn what_answers_failures_is_never_taken_over_and_neither_is_what_it_may_have_undone() {
    let answer = json!({"backend": "test", "action": "noop", "condition": "on_failure"});
    let definition = json!({"target": "all", "tasks": [{"tasks": [task(), answer]}, answer]});
    let run = run(definition, RunState::Failed, false);
    let list = executions(&[
        (0, 1, 1, "succeeded"),
        (2, 1, 1, "succeeded"),
        (0, 2, 1, "succeeded"),
        (1, 2, 1, "lost"),
        (0, 3, 1, "succeeded"),
        (1, 3, 1, "skipped"),
        (2, 3, 1, "skipped"),
    ]);
    assert_eq!(carried(&retry_of(&run, &list, RetryScope::AllNodes).unwrap()), [(0, 3)]);
}

#[test]
fn all_that_depends_on_what_is_done_again_is_done_again() {
    let with = |mut task: serde_json::Value, more: serde_json::Value| {
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let placed = || json!({"backend": "test", "action": "noop", "placement": {}});
    let named = |name: &str| with(task(), json!({"name": name, "outputs": ["v"]}));
    let reads = |what: &str| json!({"backend": "test", "action": "echo", "params": {"message": what}});
    let list = |tasks: &[serde_json::Value]| json!({"target": "all", "strategy": "continue", "tasks": tasks});
    let all = |step: u32| [1, 2, 3].map(|node| (step, node, 1, "succeeded"));
    let but_two = |step: u32| [(step, 1, 1, "succeeded"), (step, 2, 1, "failed"), (step, 3, 1, "succeeded")];
    let always = json!({"depends_on": ["a"], "condition": "always"});
    let graph = |rest: serde_json::Value| {
        let first = with(named("a"), json!({"depends_on": []}));
        json!({"target": "all", "strategy": "continue", "tasks": [first, rest]})
    };
    let cases = [
        // A node's later steps depend on its earlier ones, also when they succeeded.
        (list(&[task(), task()]), [but_two(0), all(1)].concat(), vec![(0, 1), (0, 3), (1, 1), (1, 3)]),
        // Every step depends on earlier placed ones, and placed ones on everything.
        (list(&[placed(), task()]), [vec![(0, 0, 1, "failed")], all(1).to_vec()].concat(), vec![]),
        (
            list(&[task(), placed()]),
            [but_two(0).to_vec(), vec![(1, 0, 1, "succeeded")]].concat(),
            vec![(0, 1), (0, 3)],
        ),
        // Outputs of the same node are the same; those of all nodes are not.
        (
            list(&[named("a"), reads("{{ steps.a.outputs.v }}")]),
            [but_two(0), all(1)].concat(),
            vec![(0, 1), (0, 3), (1, 1), (1, 3)],
        ),
        (
            list(&[named("a"), reads("{{ steps.a.nodes['web-02'].outputs.v }}")]),
            [but_two(0), all(1)].concat(),
            vec![(0, 1), (0, 3)],
        ),
        // In a graph it is the same node, or the whole task.
        (
            graph(with(task(), always.clone())),
            [but_two(0), all(1)].concat(),
            vec![(0, 1), (0, 3), (1, 1), (1, 3)],
        ),
        (
            graph(with(placed(), always.clone())),
            [but_two(0).to_vec(), vec![(1, 0, 1, "succeeded")]].concat(),
            vec![(0, 1), (0, 3)],
        ),
    ];
    for (definition, records, expected) in cases {
        let run = run(definition.clone(), RunState::Failed, true);
        let list = executions(&records);
        let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
        assert_eq!(carried(&second), expected, "{definition}");
    }
}

#[test]
fn waves_are_made_of_the_nodes_that_are_left() {
    let rollout = json!({"batch": [1, 2]});
    let definition = json!({"target": "all", "rollout": rollout, "tasks": [task()]});
    let run = run(definition, RunState::Failed, false);
    assert_eq!(run.resolved.waves, [1, 3]);
    let list = executions(&[(0, 1, 1, "succeeded"), (0, 2, 1, "failed"), (0, 3, 1, "lost")]);
    assert_eq!(retry_of(&run, &list, RetryScope::AllNodes).unwrap().resolved.waves, [1, 3]);
    let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
    assert_eq!(
        (second.resolved.waves.as_slice(), hostnames(&second)),
        (&[1, 2][..], vec!["web-02", "web-03"])
    );
}

#[test]
fn a_cancelled_run_without_failures_has_no_failed_nodes() {
    let run = run(two_steps(), RunState::Cancelled, false);
    let list = executions(&[(0, 1, 1, "succeeded"), (0, 2, 1, "cancelled")]);
    assert_eq!(
        retry_of(&run, &list, RetryScope::FailedNodes).unwrap_err(),
        CannotRetry::NoFailedNode { run: RunId::from("first") }
    );
    assert_eq!(carried(&retry_of(&run, &list, RetryScope::AllNodes).unwrap()), [(0, 1)]);
}

#[test]
fn a_placed_step_belongs_to_no_node() {
    let placed = json!({"backend": "test", "action": "noop", "placement": {}});
    let run = run(json!({"target": "all", "tasks": [placed, task(), placed]}), RunState::Failed, false);
    let list = executions(&[(0, 0, 1, "succeeded"), (1, 2, 1, "failed"), (1, 1, 1, "succeeded")]);
    let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
    assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 0)], vec!["web-02"]));
}

#[test]
fn an_entry_elsewhere_stays_whole_when_it_is_done_and_is_never_left_out_silently() {
    let mut run = run(two_steps(), RunState::Failed, false);
    let resolved = Arc::make_mut(&mut Arc::make_mut(&mut run.made).resolved);
    resolved.sets = vec![vec![NodeIx(0), NodeIx(1)], vec![NodeIx(2)]];
    resolved.entries = vec![Some(SetIx(1)), Some(SetIx(0))];
    let done = executions(&[(0, 3, 1, "succeeded"), (1, 1, 1, "failed"), (1, 2, 1, "succeeded")]);
    let second = retry_of(&run, &done, RetryScope::FailedNodes).unwrap();
    assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 3)], vec!["web-01", "web-03"]));
    assert_eq!(second.resolved.sets, [[NodeIx(0)], [NodeIx(1)]]);
    let skipped = executions(&[(0, 3, 1, "failed"), (1, 1, 1, "skipped"), (1, 2, 1, "skipped")]);
    assert_eq!(
        retry_of(&run, &skipped, RetryScope::FailedNodes).unwrap_err(),
        CannotRetry::LeftOut { task: "test noop".to_owned() }
    );
}

#[test]
fn what_is_taken_over_is_born_succeeded_and_says_what_it_was() {
    let run = run(two_steps(), RunState::Failed, false);
    let mut list = executions(&[(0, 1, 3, "succeeded"), (0, 2, 1, "succeeded"), (0, 3, 1, "failed")]);
    let original = ExecutionId(Uuid::from_u128(5));
    list[1].reused = Some(original);
    let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
    let (new, now) = (RunId::from("second"), Timestamp::from_second(2_000).unwrap());
    let carried = second.executions(&new, now, &mut Dice::new(1));
    assert_eq!(carried.len(), 2);
    for (own, former) in carried.iter().zip(&list) {
        assert_eq!((own.run(), own.attempt, own.created_at), (&new, 1, now));
        assert_eq!((&own.state, own.pinned), (&former.state, former.pinned));
        assert_ne!(own.id, former.id);
    }
    assert_eq!((carried[0].reused, carried[1].reused), (Some(list[0].id), Some(original)));
}
