//! Checks the checker of schedules: true records, forged in one place, are found.

use serde_json::json;

use super::Findings;
use super::schedules::fire;
use crate::evidence::{Evidence, Run, Stored};

const IDS: [&str; 3] = [
    "default:tick:2026-03-01T10:00:01Z",
    "default:tick:2026-03-01T10:00:02Z",
    "default:tick:2026-03-01T10:00:03Z",
];

fn stored(kind: &str, data: serde_json::Value) -> Stored {
    Stored { seq: 0, kind: kind.to_owned(), data }
}

fn created(id: &str) -> Stored {
    stored("run_created", json!({"run": {"id": id, "job": "tick"}}))
}

fn decided(from: &str, until: &str) -> Stored {
    let time = |second: &str| format!("2026-03-01T10:00:{second}Z");
    stored("job_decided", json!({"job": {"name": "tick"}, "from": time(from), "until": time(until)}))
}

/// A job that fires every second: two times, a decision, one more, and another decision.
fn truth() -> Evidence {
    let run = |id: &str| (id.to_owned(), Run { id: id.to_owned(), ..Run::default() });
    Evidence {
        stored: vec![
            stored("job_applied", json!({"job": {"name": "tick", "at": "2026-03-01T10:00:00.5Z"}})),
            created(IDS[0]),
            created(IDS[1]),
            decided("00.5", "02.1"),
            created(IDS[2]),
            decided("02.1", "03.2"),
            stored("job_pause_set", json!({"job": {"name": "tick"}, "paused": true})),
            // Skipped, because the job is paused.
            decided("03.2", "09.0"),
        ],
        runs: IDS.map(run).into(),
        ..Evidence::default()
    }
}

fn rules(forge: impl FnOnce(&mut Evidence)) -> Vec<&'static str> {
    let (mut evidence, mut findings) = (truth(), Findings::default());
    forge(&mut evidence);
    fire(&evidence, &mut findings);
    findings.0.into_iter().map(|violation| violation.rule).collect()
}

#[test]
fn true_records_of_schedules_have_no_violation() {
    assert_eq!(rules(|_| {}), [""; 0]);
}

#[test]
fn each_forged_record_of_a_schedule_is_found() {
    const MISSED: &str = "no time of a schedule is missed";
    type Forge = fn(&mut Evidence);
    let forged: [(&str, Forge); 8] = [
        (MISSED, |evidence| drop(evidence.stored.remove(2))),
        (MISSED, |evidence| drop(evidence.runs.remove(IDS[1]))),
        (MISSED, |evidence| evidence.stored[3].data["skipped"] = json!([{"reason": "too_late"}])),
        (MISSED, |evidence| evidence.stored[3].data["refused"] = json!([{"error": "no"}])),
        ("no time of a schedule starts twice", |evidence| evidence.stored.push(created(IDS[0]))),
        ("a schedule starts runs at its times only", |evidence| evidence.stored.push(created("another"))),
        ("each decision about a schedule follows the last one", |evidence| drop(evidence.stored.remove(3))),
        ("a schedule starts runs at its times only", |evidence| {
            let tock = json!({"run": {"id": "default:tock:2026-03-01T10:00:03Z", "job": "tock"}});
            let applied = json!({"job": {"name": "tock", "at": "2026-03-01T10:00:03Z"}});
            evidence.stored.extend([stored("job_applied", applied), stored("run_created", tock)]);
        }),
    ];
    for (number, (rule, forge)) in forged.into_iter().enumerate() {
        let found = rules(forge);
        assert!(found.contains(&rule), "forgery {number} of `{rule}`: {found:?}");
    }
}
