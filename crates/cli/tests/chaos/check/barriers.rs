//! Barriers and dependencies hold by what was really done: nothing begins before all that it waits for has ended.

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
                    compare("barriers hold", run, earlier, execution, begun, &places, findings);
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

fn compare(
    rule: &'static str,
    run: &Run,
    earlier: &Execution,
    later: &Execution,
    begun: usize,
    places: &Places<'_>,
    findings: &mut Findings,
) {
    // What was lost may still run, or begin late on a node that was frozen.
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

/// A step for failures runs only when an earlier one failed.
fn reason(run: &Run, execution: &Execution, findings: &mut Findings) {
    let failed = run
        .executions
        .iter()
        .any(|one| one.step < execution.step && matches!(one.status.as_str(), "failed" | "lost"));
    if !failed {
        findings.note("on_failure has a failure", format!("{}: {} ran", run.id, execution.id));
    }
}
