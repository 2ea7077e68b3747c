//! Every constraint as a table: what was found from which facts.

use serde_json::json;

use super::*;
use crate::run::RunState::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn definition(more: &serde_json::Value) -> Definition {
    let mut job = json!({"name": "nightly", "tasks": []});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(job).unwrap()
}

fn constrained(constraints: &serde_json::Value) -> Definition {
    definition(&json!({"constraints": constraints}))
}

/// Another run, created at this second.
fn other(second: i64, state: RunState) -> Other {
    Other {
        id: RunId::from(format!("run-{second}")),
        created_at: at(second),
        state,
        is_away: false,
        is_queued: false,
        is_cancelled: false,
    }
}

fn queued(second: i64) -> Other {
    Other { is_queued: true, ..other(second, Pending) }
}

/// Checks the run that was created at second 5.
fn words(definition: &Definition, others: &[Other], is_retry: bool) -> Vec<String> {
    let facts = Facts { others: others.to_vec(), previous: Ok(None) };
    let id = RunId::from("run-5");
    let subject = Subject { id: &id, created_at: at(5), is_retry };
    check_facts(definition, subject, &facts).iter().map(word).collect()
}

fn word(checked: &Checked) -> String {
    let found = match &checked.found {
        Found::Passed => "passed".to_owned(),
        Found::Violated { message } => format!("violated: {message}"),
        Found::Unknown { reason, skips } => format!("unknown ({skips}): {reason}"),
    };
    format!("{} {found}", checked.constraint)
}

#[test]
fn active_runs_and_older_ones_that_are_about_to_start_count() {
    let one = constrained(&json!({"max_concurrent_runs": 1}));
    let away = Other { is_away: true, ..queued(1) };
    let cancelled = Other { is_cancelled: true, ..queued(1) };
    let counted = [
        other(1, Starting),
        other(1, Running),
        other(1, Terminating),
        other(9, Starting),
        other(9, Running),
        other(9, Terminating),
        other(1, ConditionPending),
        other(1, ConditionRunning),
        other(1, ActionPending),
        other(1, ActionRunning),
        other(1, Retrying),
        queued(1),
        // Its end was requested, but it is active until it has ended.
        Other { is_cancelled: true, ..other(1, Running) },
    ];
    for run in counted {
        let violated = format!(
            "max_concurrent_runs violated: run {} of the job is active or before it, and at most 1 may be",
            run.id
        );
        assert_eq!(words(&one, std::slice::from_ref(&run), false), [violated], "{run:?}");
    }
    let passed = [
        other(1, PreRun),
        other(1, Pending),
        other(9, Pending),
        other(9, ConditionRunning),
        other(9, ActionRunning),
        other(9, Retrying),
        queued(9),
        away,
        cancelled,
        other(5, Running),
    ];
    for run in passed {
        assert_eq!(words(&one, std::slice::from_ref(&run), false), ["max_concurrent_runs passed"], "{run:?}");
    }
    let two = constrained(&json!({"max_concurrent_runs": 2}));
    assert_eq!(words(&two, &[other(1, Running)], false), ["max_concurrent_runs passed"]);
    let text = "max_concurrent_runs violated: 2 runs of the job are active or before it (the oldest is run-1), and at most 2 may be";
    assert_eq!(words(&two, &[other(2, Running), other(1, Running)], false), [text]);
    for overlap in ["skip", "queue", "queue_latest", "replace"] {
        let job = definition(&json!({"overlap": overlap}));
        assert!(words(&job, &[other(1, Running)], false)[0].contains("violated"), "{overlap}");
    }
    let job = definition(&json!({"overlap": "allow"}));
    assert_eq!(words(&job, &[other(1, Running)], false), [""; 0]);
}

#[test]
fn the_previous_run_must_have_completed_if_that_is_required() {
    let id = RunId::from("run-5");
    let find = |constraints: &serde_json::Value, previous, is_retry| {
        let facts = Facts { others: Vec::new(), previous };
        let subject = Subject { id: &id, created_at: at(5), is_retry };
        let found = check_facts(&constrained(constraints), subject, &facts);
        found.iter().map(word).collect::<Vec<_>>()
    };
    let ended = |succeeded| Ok(Some(Previous { run: RunId::from("run-4"), succeeded }));
    let required = || json!({"require_previous_success": true});
    let skips = json!({"require_previous_success": true, "if_unknown": "skip"});
    let why = || Err("too many".to_owned());
    assert_eq!(find(&required(), Ok(None), false), ["require_previous_success passed"]);
    assert_eq!(find(&required(), ended(true), false), ["require_previous_success passed"]);
    let violated = "require_previous_success violated: the previous run run-4 did not complete";
    assert_eq!(find(&required(), ended(false), false), [violated]);
    assert_eq!(find(&required(), ended(false), true), [""; 0], "a retry makes it good");
    assert_eq!(find(&required(), why(), false), ["require_previous_success unknown (false): too many"]);
    assert_eq!(find(&skips, why(), false), ["require_previous_success unknown (true): too many"]);
    assert_eq!(find(&json!({}), ended(false), false), [""; 0]);
}

#[test]
fn the_answer_of_a_hook_passes_or_violates_or_is_not_known() {
    let rules = [
        (json!({"url": "http://x"}), "allow", false),
        (json!({"url": "http://x"}), "skip", true),
        (json!({"url": "http://x", "if_unknown": "allow"}), "skip", false),
        (json!({"url": "http://x", "if_unknown": "skip"}), "allow", true),
    ];
    for (hook, rule, skips) in rules {
        let job = constrained(&json!({"pre_run_hook": hook, "if_unknown": rule}));
        let hook = job.pre_run_hook().unwrap();
        let find = |answer| word(&check_hook(&job, ConstraintKind::PreRunHook, hook, &answer));
        for status in [200, 204, 299] {
            assert_eq!(find(HookAnswer::Status(status)), "pre_run_hook passed");
        }
        for status in [301, 400, 404, 409, 499] {
            let text = format!("pre_run_hook violated: pre_run_hook answered with status {status}");
            assert_eq!(find(HookAnswer::Status(status)), text);
        }
        for status in [500, 503] {
            let text = format!("pre_run_hook unknown ({skips}): pre_run_hook answered with status {status}");
            assert_eq!(find(HookAnswer::Status(status)), text);
        }
        let text = format!("pre_run_hook unknown ({skips}): pre_run_hook failed: no route");
        assert_eq!(find(HookAnswer::Failed("no route".to_owned())), text);
    }
}

#[test]
fn a_run_that_took_too_long_violates_its_constraints() {
    let job = constrained(&json!({"max_expected": "10m", "max_allowed": "1h"}));
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let find =
        |took, is_stopped| -> Vec<String> { check_times(&job, took, is_stopped).iter().map(word).collect() };
    assert_eq!(find(minutes(10), false), ["max_expected passed", "max_allowed passed"]);
    let expected = "max_expected violated: the run took 11m, and at most 10m is expected";
    assert_eq!(find(minutes(11), false), [expected, "max_allowed passed"]);
    let longer = "max_expected violated: the run took 1h, and at most 10m is expected";
    let allowed = "max_allowed violated: the run took longer than 1h, which is the maximum";
    assert_eq!(find(minutes(60), true), [longer, allowed]);
    assert_eq!(check_times(&constrained(&json!({})), minutes(60), false), []);
}

#[test]
fn only_as_many_old_runs_are_cancelled_as_needed() {
    let id = RunId::from("run-5");
    let cancelled = |most: u32, others: &[Other]| {
        let job = constrained(&json!({"max_concurrent_runs": most}));
        let facts = Facts { others: others.to_vec(), previous: Ok(None) };
        let runs = to_cancel(&job, Subject { id: &id, created_at: at(5), is_retry: false }, &facts);
        runs.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let three = [other(3, Running), other(1, Terminating), queued(2)];
    assert_eq!(cancelled(1, &three), ["run-1", "run-2", "run-3"]);
    assert_eq!(cancelled(2, &three), ["run-1", "run-2"]);
    assert_eq!(cancelled(4, &three), [""; 0]);
    assert_eq!(cancelled(1, &[other(9, Running), other(1, Pending)]), [""; 0]);
    // A request that was made before is not repeated.
    assert_eq!(cancelled(1, &[Other { is_cancelled: true, ..other(1, Running) }]), [""; 0]);
}

#[test]
fn a_run_that_waits_wakes_when_it_is_next_and_is_replaced_by_a_newer_one_if_only_the_latest_waits() {
    let id = RunId::from("run-5");
    let see = |overlap: &str, others: &[Other]| {
        let facts = Facts { others: others.to_vec(), previous: Ok(None) };
        let subject = Subject { id: &id, created_at: at(5), is_retry: false };
        look(&definition(&json!({"overlap": overlap})), subject, &facts)
    };
    let replaced = Look::Replaced(RunId::from("run-9"));
    let cases: [(&[Other], Look, Look); 6] = [
        (&[], Look::Wake, Look::Wake),
        (&[other(1, Running)], Look::Wait, Look::Wait),
        (&[queued(1)], Look::Wait, Look::Wait),
        (&[queued(9)], Look::Wake, replaced.clone()),
        (&[other(1, Running), queued(7), queued(9)], Look::Wait, replaced.clone()),
        (&[other(1, Running), other(9, ConditionRunning)], Look::Wait, replaced),
    ];
    for (others, queue, latest) in cases {
        assert_eq!(see("queue", others), queue, "{others:?}");
        assert_eq!(see("queue_latest", others), latest, "{others:?}");
    }
}
