//! Explains why a run's steps are pending, and shows the last error output of failed ones.

use downbeat_api::{InstanceResult, Run, StepWaiting};
use downbeat_core::execution::{Execution as Record, Status};
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_store::InstanceFilter;

use super::output::last_stderr_line;
use super::problem::HttpResult;
use crate::service::Service;

/// For how many pending steps to show reasons: each placed step needs a check of every node.
const STEPS_SHOWN: usize = 5;
const NODES_SHOWN: usize = 5;

/// Sets why the run and its steps are pending.
pub(super) async fn explain(service: &Service, run: &RunRecord, shown: &mut Run) -> HttpResult<()> {
    shown.summary.pending_reason = service.pending_reason(run);
    let steps = shown.steps().iter();
    let pending =
        steps.filter_map(|step| Some((step.step, step.task.clone(), *step.counts.get(&Status::Pending)?)));
    let pending: Vec<(u32, String, u64)> = pending.take(STEPS_SHOWN).collect();
    for (step, task, count) in pending {
        let statuses = vec![Status::Pending];
        let filter = InstanceFilter { step: Some(step), statuses, ..InstanceFilter::default() };
        let found = service.views().instances(&run.id, &filter, limits::WAITS_EXPLAINED).await?;
        let waiting = match found.first() {
            Some(first) if first.pinned.is_some() => bound(service, task, &found, count).await?,
            Some(first) => Some(StepWaiting {
                step,
                task,
                item: first.item(),
                // The items of one step mostly wait for the same reason, so only one of them is explained.
                others: count.saturating_sub(1),
                bound: false,
                execution: first.id,
                nodes: service.obstacles(first).await?,
            }),
            None => None,
        };
        shown.waiting.extend(waiting);
    }
    Ok(())
}

/// Explains a step that is pinned to nodes: the first of its `count` pending instances were found.
async fn bound(
    service: &Service,
    task: String,
    found: &[Record],
    count: u64,
) -> HttpResult<Option<StepWaiting>> {
    let mut waits = service.node_waits(&found.iter().collect::<Vec<_>>()).await?;
    let mut waiting: Option<StepWaiting> = None;
    for execution in found {
        let Some(wait) = waits.remove(&execution.id) else { continue };
        let step = waiting.get_or_insert_with(|| StepWaiting {
            step: execution.step(),
            task: task.clone(),
            item: None,
            others: count.saturating_sub(found.len() as u64),
            bound: true,
            execution: execution.id,
            nodes: Vec::new(),
        });
        if step.nodes.len() < NODES_SHOWN {
            step.nodes.push(wait.into());
        } else {
            step.others += 1;
        }
    }
    Ok(waiting)
}

/// Sets why pending results wait for their node. `records` are the executions of `results`.
pub(super) async fn add_waits(
    service: &Service,
    records: &[Record],
    results: &mut [InstanceResult],
) -> HttpResult<()> {
    let is_bound = |record: &&Record| record.pinned.is_some() && record.state.status() == Status::Pending;
    let pending: Vec<&Record> = records.iter().filter(is_bound).collect();
    if pending.is_empty() {
        return Ok(());
    }
    let mut waits = service.node_waits(&pending).await?;
    for result in results {
        result.waits = waits.remove(&result.execution).map(|found| found.wait.sentence(&found.hostname));
    }
    Ok(())
}

/// Sets the last standard error line of the first failed results.
pub(super) async fn add_last_stderr(service: &Service, results: &mut [InstanceResult]) -> HttpResult<()> {
    let failed =
        results.iter_mut().filter(|result| result.status == Status::Failed && result.reused.is_none());
    for result in failed.take(limits::LAST_LINES_SHOWN) {
        result.stderr = last_stderr_line(service, result.execution).await?;
    }
    Ok(())
}
