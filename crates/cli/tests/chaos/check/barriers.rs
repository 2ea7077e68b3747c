//! Checks barriers and dependencies in the book: nothing begins before its dependencies have ended.

use std::collections::BTreeMap;

use super::Findings;
use super::order::{Places, places};
use crate::evidence::{Evidence, Execution, Run};

pub(super) fn hold(evidence: &Evidence, findings: &mut Findings) {
    let places = places(&evidence.book);
    for run in evidence.runs.values() {
        let mut by_step: BTreeMap<u32, Vec<&Execution>> = BTreeMap::new();
        for execution in &run.executions {
            by_step.entry(execution.step).or_default().push(execution);
        }
        for execution in &run.executions {
            let Some(step) = run.steps.get(execution.step as usize) else { continue };
            let Some(&(Some(begun), _)) = places.get(execution.id.as_str()) else { continue };
            for before in &step.barrier {
                for earlier in by_step.get(before).into_iter().flatten() {
                    // Each wave has its own barriers; on-failure steps run after all waves.
                    if step.on_failure || wave(run, earlier) == wave(run, execution) {
                        compare("barriers hold", run, earlier, execution, begun, &places, findings);
                    }
                }
            }
            if !step.on_failure && !run.waves.is_empty() {
                let before = |earlier: &&Execution| wave(run, earlier) < wave(run, execution);
                let answers =
                    |one: &Execution| run.steps.get(one.step as usize).is_some_and(|step| step.on_failure);
                for earlier in run.executions.iter().filter(before).filter(|one| !answers(one)) {
                    compare("a wave ends before the next", run, earlier, execution, begun, &places, findings);
                }
            }
            for before in &step.per_node {
                for earlier in by_step.get(before).into_iter().flatten() {
                    if step.placed || earlier.node == execution.node {
                        compare("a node walks in order", run, earlier, execution, begun, &places, findings);
                    }
                }
            }
            if step.on_failure {
                reason(run, execution, findings);
            }
        }
    }
}

fn wave(run: &Run, execution: &Execution) -> Option<usize> {
    run.waves.get(execution.node.as_deref()?).copied()
}

/// Checks that no other run does anything on a node between the first and the last line of an exclusive run.
pub(super) fn exclusive(evidence: &Evidence, findings: &mut Findings) {
    let mut of: BTreeMap<&str, (&Run, &Execution)> = BTreeMap::new();
    for run in evidence.all_runs() {
        of.extend(run.executions.iter().map(|execution| (execution.id.as_str(), (run, execution))));
    }
    for run in evidence.runs.values().filter(|run| run.exclusive) {
        let mut spans: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (place, line) in evidence.book.lines.iter().enumerate() {
            let own = of.get(line.execution.as_str()).filter(|(other, _)| other.id == run.id);
            // A lost attempt may go on after the run has ended.
            if own.is_some_and(|(_, execution)| execution.status != "lost") {
                spans.entry(&line.node).or_insert((place, place)).1 = place;
            }
        }
        for (node, (first, last)) in spans {
            for line in &evidence.book.lines[first..=last] {
                let Some((other, execution)) = of.get(line.execution.as_str()) else { continue };
                if line.node == node && other.id != run.id && execution.status != "lost" {
                    let text =
                        format!("{} of {} on {node}, which {} holds", line.execution, other.id, run.id);
                    findings.note("an exclusive run has its nodes to itself", text);
                }
            }
        }
    }
}

fn compare(
    rule: &'static str,
    run: &Run,
    earlier: &Execution,
    later: &Execution,
    begun: usize,
    places: &Places<'_>,
    findings: &mut Findings,
) {
    // A lost attempt may still run, or begin late on a node that was frozen.
    if earlier.status == "lost" {
        return;
    }
    let (began, ended) = places.get(earlier.id.as_str()).copied().unwrap_or_default();
    if began.is_some_and(|began| began > begun) || ended.is_some_and(|ended| ended > begun) {
        let text = format!(
            "{}: step {} ({}) began before step {} ({}, {}) had ended",
            run.id, later.step, later.id, earlier.step, earlier.id, earlier.status
        );
        findings.note(rule, text);
    }
    if matches!(earlier.status.as_str(), "pending" | "leased" | "running") {
        let text =
            format!("{}: step {} began while {} is {}", run.id, later.step, earlier.id, earlier.status);
        findings.note(rule, text);
    }
}

/// Checks that an on-failure step runs only after an earlier step failed.
fn reason(run: &Run, execution: &Execution, findings: &mut Findings) {
    let failed = run
        .executions
        .iter()
        .any(|one| one.step < execution.step && matches!(one.status.as_str(), "failed" | "lost"));
    if !failed {
        findings.note("on_failure has a failure", format!("{}: {} ran", run.id, execution.id));
    }
}
