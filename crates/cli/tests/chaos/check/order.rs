//! Attempts follow the rules of retry and delivery, and never overlap; fleet work of a node is done one at a time.

use std::collections::BTreeMap;

use super::Findings;
use crate::book::{Book, Verb};
use crate::evidence::{Evidence, Execution, Run, Step};

/// How often a lost attempt is sent again.
const RESENDS: usize = 3;

/// The places of an execution's begin and end in the book.
pub(super) type Places<'a> = BTreeMap<&'a str, (Option<usize>, Option<usize>)>;

pub(super) fn places(book: &Book) -> Places<'_> {
    let mut places = Places::new();
    for (index, line) in book.lines.iter().enumerate() {
        let place = places.entry(&line.execution).or_default();
        match line.verb {
            Verb::Begin => place.0.get_or_insert(index),
            Verb::End => place.1.get_or_insert(index),
        };
    }
    places
}

pub(super) fn attempts(evidence: &Evidence, findings: &mut Findings) {
    let places = places(&evidence.book);
    for run in evidence.runs.values() {
        for ((step, place), attempts) in run.instances() {
            let Some(rule) = run.steps.get(step as usize) else {
                findings.note("steps are the definition's", format!("{} has step {step}", run.id));
                continue;
            };
            let instance = format!("{} on {place} of {}", rule.name, run.id);
            counts(&instance, rule, run, &attempts, findings);
            overlaps(&instance, &attempts, &places, findings);
        }
    }
}

fn counts(instance: &str, rule: &Step, run: &Run, attempts: &[&Execution], findings: &mut Findings) {
    let count = |status: &str| attempts.iter().filter(|attempt| attempt.status == status).count();
    let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.attempt).collect();
    if !numbers.iter().copied().eq(1..=u32::try_from(numbers.len()).unwrap()) {
        findings.note("attempts are numbered one by one", format!("{instance}: {numbers:?}"));
    }
    if count("succeeded") > 1 {
        findings.note("at most one success", format!("{instance}: {attempts:?}"));
    }
    if attempts.iter().rev().skip(1).any(|attempt| attempt.status == "succeeded") {
        findings.note("nothing follows a success", format!("{instance}: {attempts:?}"));
    }
    if count("failed") > rule.retries as usize + 1 {
        findings.note("retries are bounded", format!("{instance} failed {} times", count("failed")));
    }
    // An attempt that was cancelled without a request counts as lost. A cancelled run has many of those.
    let gone = count("lost") + if run.status == "cancelled" { 0 } else { count("cancelled") };
    let most = if rule.resend { RESENDS + 1 } else { 1 };
    if gone > most {
        findings.note("resends are bounded", format!("{instance} was lost {gone} times"));
    }
    let again = attempts.iter().zip(attempts.iter().skip(1));
    for (earlier, later) in again {
        let allowed = match earlier.status.as_str() {
            "failed" => rule.retries > 0,
            "lost" | "cancelled" => rule.resend,
            _ => false,
        };
        if !allowed {
            let text = format!("{instance}: attempt {} followed a {} one", later.attempt, earlier.status);
            findings.note("a new attempt has a reason", text);
        }
    }
}

fn overlaps(instance: &str, attempts: &[&Execution], places: &Places<'_>, findings: &mut Findings) {
    for (index, earlier) in attempts.iter().enumerate() {
        // A lost attempt may still run.
        if earlier.status == "lost" {
            continue;
        }
        let Some(&(Some(_), ended)) = places.get(earlier.id.as_str()) else { continue };
        for later in &attempts[index + 1..] {
            let Some(&(Some(begun), _)) = places.get(later.id.as_str()) else { continue };
            if ended.is_some_and(|ended| ended > begun) {
                let text = format!(
                    "{instance}: attempt {} began before {} had ended",
                    later.attempt, earlier.attempt
                );
                findings.note("attempts do not overlap", text);
            }
        }
    }
}

/// Pinned work of one node, lost or not: an agent does one thing after the other.
pub(super) fn lanes(evidence: &Evidence, findings: &mut Findings) {
    let pinned: BTreeMap<&str, &str> = evidence
        .all_runs()
        .flat_map(|run| run.executions.iter().map(move |execution| (run, execution)))
        .filter(|(run, execution)| run.steps.get(execution.step as usize).is_some_and(|step| !step.placed))
        .map(|(_, execution)| (execution.id.as_str(), execution.status.as_str()))
        .collect();
    let places = places(&evidence.book);
    // An attempt without an end was killed at an unknown time.
    let whole = |id: &str| matches!(places.get(id), Some((Some(_), Some(_))));
    let mut running: BTreeMap<&str, &str> = BTreeMap::new();
    for line in &evidence.book.lines {
        let id = line.execution.as_str();
        if !pinned.contains_key(id) || !whole(id) {
            continue;
        }
        match line.verb {
            Verb::Begin => {
                if let Some(other) = running.insert(&line.node, id) {
                    let text = format!(
                        "{}: {id} ({}) began while {other} ({}) ran",
                        line.node, pinned[id], pinned[other]
                    );
                    findings.note("fleet work is done one at a time", text);
                }
            }
            Verb::End => {
                if running.get(line.node.as_str()) == Some(&id) {
                    running.remove(line.node.as_str());
                }
            }
        }
    }
}
