//! Explains why a run's steps are pending, and shows the last error output of failed ones.

use std::collections::BTreeMap;

use downbeat_api::{Run, StepWaiting};
use downbeat_core::execution::{Execution as Record, Status, Stream};
use downbeat_core::limits;
use downbeat_core::run::RunRecord;

use super::executions::label;
use super::problem::HttpResult;
use crate::service::Service;

/// For how many pending steps to show reasons: each placed step needs a check of every node.
const STEPS_SHOWN: usize = 5;
const NODES_SHOWN: usize = 5;

/// Sets why the run and its steps are pending.
pub(super) async fn explain(
    service: &Service,
    run: &RunRecord,
    executions: &[Record],
    shown: &mut Run,
) -> HttpResult<()> {
    shown.summary.pending_reason = service.pending_reason(run);
    let pending: Vec<&Record> =
        executions.iter().filter(|execution| execution.state.status() == Status::Pending).collect();
    let mut waiting = bound(service, run, &pending, shown).await?;
    waiting.extend(placed(service, run, &pending).await?);
    waiting.sort_by_key(|step| step.step);
    waiting.truncate(STEPS_SHOWN);
    shown.waiting = waiting;
    Ok(())
}

/// Returns the pending steps that are pinned to nodes, and sets the reason in each result.
async fn bound(
    service: &Service,
    run: &RunRecord,
    pending: &[&Record],
    shown: &mut Run,
) -> HttpResult<Vec<StepWaiting>> {
    let bound = pending.iter().copied().filter(|execution| execution.pinned.is_some());
    let bound: Vec<&Record> = bound.take(limits::WAITS_EXPLAINED).collect();
    if bound.is_empty() {
        return Ok(Vec::new());
    }
    let mut waits = service.node_waits(&bound).await?;
    let mut by_step: BTreeMap<u32, StepWaiting> = BTreeMap::new();
    for execution in bound {
        let Some(found) = waits.remove(&execution.id) else { continue };
        let result = shown.results.get_mut(&execution.step()).and_then(|step| step.get_mut(&found.hostname));
        if let Some(result) = result.filter(|result| result.execution == execution.id) {
            result.waits = Some(found.wait.sentence(&found.hostname));
        }
        let step = by_step.entry(execution.step()).or_insert_with(|| StepWaiting {
            step: execution.step(),
            task: label(&run.definition, execution.step()),
            item: None,
            others: 0,
            bound: true,
            execution: execution.id,
            nodes: Vec::new(),
        });
        if step.nodes.len() < NODES_SHOWN {
            step.nodes.push(found.into());
        } else {
            step.others += 1;
        }
    }
    Ok(by_step.into_values().collect())
}

/// Returns the placed steps that no node runs.
async fn placed(service: &Service, run: &RunRecord, pending: &[&Record]) -> HttpResult<Vec<StepWaiting>> {
    // The items of one step mostly wait for the same reason, so only one of them is explained.
    let mut by_step: BTreeMap<u32, (&Record, u64)> = BTreeMap::new();
    for execution in pending.iter().filter(|execution| execution.pinned.is_none()) {
        by_step.entry(execution.step()).and_modify(|(_, others)| *others += 1).or_insert((execution, 0));
    }
    let mut steps = Vec::new();
    for (step, (execution, others)) in by_step.into_iter().take(STEPS_SHOWN) {
        let nodes = service.obstacles(execution).await?;
        let (task, item) = (label(&run.definition, step), execution.item());
        steps.push(StepWaiting { step, task, item, others, bound: false, execution: execution.id, nodes });
    }
    Ok(steps)
}

/// Sets the last standard error line of the first failed instances.
pub(super) async fn add_last_stderr(service: &Service, shown: &mut Run) -> HttpResult<()> {
    let failed = shown
        .results
        .values_mut()
        .flat_map(BTreeMap::values_mut)
        .filter(|result| result.status == Status::Failed && result.reused.is_none());
    for result in failed.take(limits::LAST_LINES_SHOWN) {
        let tail = service.store().output_tail(result.execution, limits::LAST_LINE_CHUNKS).await?;
        let written: String = tail
            .iter()
            .filter(|chunk| chunk.stream == Stream::Stderr)
            .map(|chunk| chunk.text.as_str())
            .collect();
        let line = written.lines().map(str::trim).rfind(|line| !line.is_empty());
        result.stderr = line.map(|line| line.chars().take(limits::LAST_LINE_CHARS).collect());
    }
    Ok(())
}
