//! Checks that schedules missed no time and started none twice: every whole second that a job has to start at, from its first
//! version until its last decision, has exactly one run.

use std::collections::BTreeMap;

use downbeat_core::Timestamp;
use serde_json::Value;

use super::Findings;
use crate::evidence::{Evidence, Stored};
use crate::schedules::JOBS;

const MISSED: &str = "no time of a schedule is missed";
const TWICE: &str = "no time of a schedule starts twice";
const ONLY: &str = "a schedule starts runs at its times only";
const DECISIONS: &str = "each decision about a schedule follows the last one";

pub(super) fn fire(evidence: &Evidence, findings: &mut Findings) {
    for (name, period) in JOBS {
        let of_job = |stored: &&Stored| name_of(stored) == Some(name);
        let events: Vec<&Stored> = evidence.stored.iter().filter(of_job).collect();
        let Some(until) = decisions(name, &events, findings) else { continue };
        let mut runs: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        for stored in events.iter().filter(|stored| stored.kind == "run_created") {
            let id = stored.data["run"]["id"].as_str().unwrap_or_default();
            match at(name, id) {
                Some(at) => runs.entry(at).or_default().push(id),
                None => findings.note(ONLY, format!("{id} of {name}")),
            }
        }
        for (second, ids) in runs.iter().filter(|(_, ids)| ids.len() > 1) {
            findings.note(TWICE, format!("{name} at {second}: {ids:?}"));
        }
        for id in runs.iter().filter(|(second, _)| *second % period != 0).flat_map(|(_, ids)| ids) {
            findings.note(ONLY, *id);
        }
        let (from, until) = until;
        let times = (from.as_second() + 1..=until.as_second()).filter(|second| second % period == 0);
        for second in times.filter(|second| !runs.contains_key(second)) {
            let at = Timestamp::from_second(second).map(|at| at.to_string()).unwrap_or_default();
            findings.note(MISSED, format!("{name} at {at}"));
        }
        // A run that started must be there.
        for id in runs.values().flatten().filter(|id| !evidence.runs.contains_key(**id)) {
            findings.note(MISSED, format!("{id} was created and is not listed"));
        }
    }
}

fn name_of(stored: &Stored) -> Option<&str> {
    match stored.kind.as_str() {
        "run_created" => stored.data["run"]["job"].as_str(),
        "job_applied" | "job_decided" | "job_pause_set" => stored.data["job"]["name"].as_str(),
        _ => None,
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Returns the time in the id of a run of a schedule, in seconds.
fn at(job: &str, id: &str) -> Option<i64> {
    let at: Timestamp = id.strip_prefix("default:")?.strip_prefix(job)?.strip_prefix(':')?.parse().ok()?;
    Some(at.as_second())
}

/// Follows the decisions about a job until it is paused. Returns the time in which everything is decided.
fn decisions(name: &str, events: &[&Stored], findings: &mut Findings) -> Option<(Timestamp, Timestamp)> {
    let applied = events.iter().find(|stored| stored.kind == "job_applied")?;
    let from = time(&applied.data["job"]["at"])?;
    let mut until = from;
    let before = events.iter().take_while(|stored| stored.kind != "job_pause_set");
    for stored in before.filter(|stored| stored.kind == "job_decided") {
        if time(&stored.data["from"]) != Some(until) {
            findings
                .note(DECISIONS, format!("{name}: event {} continues {}", stored.seq, stored.data["from"]));
        }
        for field in ["skipped", "refused"] {
            let list = stored.data[field].as_array().cloned().unwrap_or_default();
            if !list.is_empty() {
                findings.note(MISSED, format!("{name}: event {} has {field} {list:?}", stored.seq));
            }
        }
        until = time(&stored.data["until"])?;
    }
    Some((from, until))
}
