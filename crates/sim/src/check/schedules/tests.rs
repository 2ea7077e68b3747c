//! Checks the checker: a true history, forged in one place, is found.

use downbeat_core::backend::Catalogue;
use downbeat_core::job::definition_hash;
use downbeat_core::run::RunMade;
use downbeat_core::spec::from_json;
use downbeat_store::conformance::make::{SERVER, made};
use serde_json::{Value, json};

use super::*;

/// A whole minute.
const START: i64 = 1_750_000_020;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn key() -> JobKey {
    JobKey::new(ClusterId::DEFAULT, "tick")
}

fn applied(version: u64, second: i64, schedule: &Value) -> Change {
    let job = json!({
        "name": "tick", "schedule": schedule, "tasks": [{"backend": "test", "action": "noop", "name": "t0"}],
    });
    let definition = from_json(&job, &Catalogue::builtin()).unwrap();
    let (hash, definition) = (definition_hash(&definition), Arc::new(definition));
    let (by, at) = (String::new(), at(second));
    Change::JobApplied {
        job: JobVersion { key: key(), version, definition, hash, by, at },
        triggers_seen: None,
    }
}

fn paused(paused: bool, second: i64) -> Change {
    Change::JobPauseSet { job: key(), paused, by: String::new(), at: at(second) }
}

fn deleted(second: i64) -> Change {
    Change::JobDeleted { job: key(), by: String::new(), at: at(second) }
}

/// Starts the run of a time, on time, as a server decided that knew everything until `from`.
fn fired(second: i64, version: u64, from: i64) -> Change {
    let made = RunMade {
        id: RunId::scheduled("default", "tick", at(second)),
        job: Some("tick".to_owned()),
        job_version: Some(version),
        idempotency_key: Some(format!("schedule\ntick\n{}", at(second))),
        created_at: at(second),
        ..made(1)
    };
    let firing = Some(FiringGuard { version, from: at(from), backfill: None });
    Change::RunCreated { run: RunRecord::new(made, SERVER), max_pending: None, max_open: None, firing }
}

fn decided(version: u64, from: i64, until: i64, skipped: Vec<Skipped>) -> Change {
    let (from, until) = (at(from), at(until));
    Change::JobDecided { job: key(), version, from, until, skipped, refused: Vec::new(), at: until }
}

fn skipped(reason: SkipReason, first: i64, last: i64, count: usize) -> Vec<Skipped> {
    vec![Skipped { reason, first: at(first), last: at(last), count }]
}

/// Every five seconds, until the job is paused for a while.
fn history() -> Vec<Change> {
    vec![
        applied(1, 1, &json!({"every": "5s"})),
        fired(5, 1, 1),
        decided(1, 1, 5, Vec::new()),
        fired(10, 1, 5),
        decided(1, 5, 10, Vec::new()),
        paused(true, 12),
        decided(1, 10, 21, skipped(SkipReason::Paused, 15, 20, 2)),
        paused(false, 22),
        applied(2, 23, &json!({"cron": "*/10 * * * * *"})),
        fired(30, 2, 21),
        decided(2, 21, 30, Vec::new()),
        deleted(31),
    ]
}

fn found(changes: &[Change]) -> Vec<String> {
    let mut follower = Follower::default();
    let mut found = Vec::new();
    changes.iter().for_each(|change| follower.follow(change, true, &mut found));
    found
}

/// Returns what is found if the history is different from the `index`th change on, for `count` changes.
fn forged(index: usize, count: usize, instead: Vec<Change>) -> String {
    let mut changes = history();
    changes.splice(index..index + count, instead);
    found(&changes).join("; ")
}

#[test]
fn a_true_history_has_no_fault() {
    assert_eq!(found(&history()), [""; 0]);
}

#[test]
fn each_forgery_is_found() {
    let second_id = |change: Change| match change {
        Change::RunCreated { mut run, max_pending, max_open, firing } => {
            run.made = Arc::new(RunMade { id: RunId::from("another"), ..(*run.made).clone() });
            Change::RunCreated { run, max_pending, max_open, firing }
        }
        other => other,
    };
    for (name, text, expected) in [
        ("missed", forged(3, 1, Vec::new()), "10Z was due at"),
        ("twice", forged(4, 0, vec![fired(10, 1, 5)]), "fires twice"),
        ("under another id", forged(4, 0, vec![second_id(fired(10, 1, 5))]), "not the id of a time"),
        ("paused", forged(6, 0, vec![fired(15, 1, 10)]), "its job is paused"),
        ("older version", forged(9, 0, vec![fired(25, 1, 21)]), "is of version Some(1), not 2"),
        ("deleted", forged(12, 0, vec![fired(40, 2, 30)]), "its job does not exist"),
        ("outdated decision", forged(4, 0, vec![fired(5, 1, 1)]), "everything until"),
        ("not a time", forged(4, 0, vec![fired(9, 1, 5)]), "when it was not due"),
        ("skipped, but not paused", forged(5, 1, Vec::new()), "are skipped, not None"),
        ("not recorded", forged(6, 1, vec![decided(1, 10, 21, Vec::new())]), "None are skipped, not Some"),
        ("a gap", forged(4, 1, vec![decided(1, 6, 10, Vec::new())]), "follows one about 1 until"),
        ("in the future", forged(11, 1, vec![decided(2, 30, 29, Vec::new())]), "reaches until"),
        ("behind", forged(9, 3, vec![deleted(60)]), "are behind: 2 times"),
    ] {
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn a_missed_time_has_a_run_or_a_reason_that_is_true() {
    let applied = |catch_up: &str| applied(1, 1, &json!({"every": "30s", "catch_up": catch_up}));
    let late = |skipped| Change::JobDecided {
        job: key(),
        version: 1,
        from: at(1),
        until: at(55),
        skipped,
        refused: Vec::new(),
        at: at(55),
    };
    let too_late = skipped(SkipReason::TooLate, 30, 30, 1);
    assert_eq!(found(&[applied("none"), late(too_late.clone())]), [""; 0]);
    assert_eq!(found(&[applied("1m"), late(too_late)]).len(), 2);
    assert_eq!(found(&[applied("1m"), fired(30, 1, 1), late(Vec::new())]), [""; 0]);
}
