//! Creates the summary of a run from counts of its results, so that its cost hardly depends on the size of the run.

use std::collections::HashMap;

use downbeat_api::{Absent, InstanceState, Outline, Rollout, Run, RunSummary, StepProgress, StepTotals};
use downbeat_core::execution::Status;
use downbeat_core::ids::NodeId;
use downbeat_core::run::RunRecord;
use downbeat_core::{Portion, limits};
use downbeat_store::{InstanceCount, InstanceFacts, InstanceFilter};
use serde_json::Value;

use super::problem::HttpResult;
use super::waits;
use crate::heavy::is_heavy_run;
use crate::service::Service;

/// How many steps with one result are read to find out whether it is the result of all their items.
const MOST_READ: usize = 20;

/// Returns the summary of a run.
pub(super) async fn summary(service: &Service, run: &RunRecord) -> HttpResult<Run> {
    let counts = service.parts.counted.of(service.views().as_ref(), run).await?;
    let (steps, mut totals) = by_step(run, &counts);
    mark_wholes(service, run, &counts, &mut totals).await?;
    let mut shown = Run::of(run, steps, &totals);
    shown.summary.cluster_name = service.cluster_name(run.cluster);
    shown.rollout = rollout(service, run, &shown).await?;
    waits::explain(service, run, &mut shown).await?;
    if run.state().is_terminal() {
        let exit_code = exit_code(service, run, &counts).await?;
        shown.metrics.iter_mut().for_each(|metrics| metrics.exit_code = exit_code);
    } else {
        shown.silent = Absent::group(&service.silent_nodes(&run.resolved));
    }
    Ok(shown)
}

/// Returns the exit code of the first result that failed, otherwise of the first result of the last step.
async fn exit_code(service: &Service, run: &RunRecord, counts: &[InstanceCount]) -> HttpResult<Option<i32>> {
    let has_failed = counts.iter().any(|count| count.status == Status::Failed && count.total > 0);
    let filter = if has_failed {
        InstanceFilter { statuses: vec![Status::Failed], ..InstanceFilter::default() }
    } else {
        let step = run.definition.step_count().checked_sub(1);
        InstanceFilter { step, statuses: vec![Status::Succeeded], ..InstanceFilter::default() }
    };
    let first = service.views().instances(&run.id, &filter, Portion::of_rows(1)).await?;
    Ok(first.first().and_then(|result| result.state.outcome()?.exit_code))
}

/// Returns the summary of a run that was just created and has no results.
pub(super) fn new_run(service: &Service, run: &RunRecord) -> Run {
    let (steps, totals) = by_step(run, &[]);
    let mut shown = Run::of(run, steps, &totals);
    shown.summary.cluster_name = service.cluster_name(run.cluster);
    shown.summary.pending_reason = service.pending_reason(run);
    // Also for a run that has already failed because they are silent.
    shown.silent = Absent::group(&service.silent_nodes(&run.resolved));
    shown
}

fn by_step(run: &RunRecord, counts: &[InstanceCount]) -> (Vec<StepProgress>, Vec<StepTotals>) {
    let labels = (0..).zip(run.definition.steps().map(|task| task.label()));
    let mut steps: Vec<StepProgress> =
        labels.map(|(step, task)| StepProgress { step, task, ..StepProgress::default() }).collect();
    let mut totals = vec![StepTotals::default(); steps.len()];
    for count in counts {
        let index = count.step as usize;
        let (Some(step), Some(totals)) = (steps.get_mut(index), totals.get_mut(index)) else { continue };
        step.counts.insert(count.status, count.total);
        step.reused += count.carried;
        step.cached += count.cached;
        totals.all += count.total;
        totals.ended += if count.status.is_open() { 0 } else { count.total };
    }
    (steps, totals)
}

/// Marks the steps with `for_each` whose only result is that of all items. Only a step with one result and a list of
/// another length can be such a step.
async fn mark_wholes(
    service: &Service,
    run: &RunRecord,
    counts: &[InstanceCount],
    totals: &mut [StepTotals],
) -> HttpResult<()> {
    let entries = run.definition.tasks.iter();
    let items =
        entries.flat_map(|entry| entry.leaves().iter().map(|_| entry.for_each().map(|each| &each.items)));
    let may_be_whole = |items: Option<&Value>, totals: &StepTotals| {
        totals.all == 1
            && totals.ended == 1
            && items.and_then(Value::as_array).is_some_and(|items| items.len() != 1)
    };
    let steps: Vec<u32> = (0..)
        .zip(items.zip(totals.iter()))
        .filter(|(_, (items, totals))| may_be_whole(*items, totals))
        .map(|(step, _)| step)
        .collect();
    for (place, step) in steps.into_iter().enumerate() {
        // After its end, a run gets no further results.
        let is_read = place < MOST_READ && !run.state().is_terminal();
        let statuses = counts.iter().filter(|count| count.step == step).map(|count| count.status).collect();
        let filter = InstanceFilter { step: Some(step), statuses, ..InstanceFilter::default() };
        let as_a_whole = !is_read || {
            let only = service.views().instances(&run.id, &filter, Portion::of_rows(1)).await?;
            only.first().is_some_and(|only| only.item().is_none())
        };
        totals[step as usize].as_a_whole = as_a_whole;
    }
    Ok(())
}

/// Returns the progress of a roll-out; none for other runs. That of a large one that has not ended may be a little old.
///
/// Of a large one, only the unsuccessful results are read: the server that executes it records the rest. An older one does
/// not.
async fn rollout(service: &Service, run: &RunRecord, shown: &Run) -> HttpResult<Option<Rollout>> {
    if run.definition.rollout.is_none() {
        return Ok(None);
    }
    let find = async || -> HttpResult<(u64, Option<Rollout>)> {
        if let Some(progress) = run.live.rollout.filter(|_| is_heavy_run(run)) {
            let unsuccessful = unsuccessful(service, run).await?;
            let outline = Outline::of_run(run);
            let rollout = Rollout::kept(&outline, &shown.summary, progress, shown.steps(), unsuccessful);
            return Ok((shown.steps().iter().map(|step| step.instances).sum(), rollout));
        }
        let (facts, place) = service.instance_facts(run).await?;
        let (size, run) = (facts.len() as u64, run.clone());
        Ok((size, place.make(move || rollout_of(&run, &facts)).await?))
    };
    service.parts.counted.rollouts.of(run, find).await
}

/// Returns the results of a roll-out that failed, were lost or were cancelled: each with its step and the position of its
/// node.
async fn unsuccessful(service: &Service, run: &RunRecord) -> HttpResult<Vec<(u32, usize, InstanceState)>> {
    let set = run.resolved.sets.first().map(Vec::as_slice).unwrap_or_default();
    let positions: HashMap<NodeId, usize> =
        (0..).zip(set).map(|(position, &node)| (run.resolved.nodes[node].id, position)).collect();
    let mut statuses = vec![Status::Failed, Status::Lost];
    // Cancelling a run does not mean that its nodes failed.
    if run.live.cancel_requested_at.is_none() {
        statuses.push(Status::Cancelled);
    }
    let mut filter = InstanceFilter { statuses, ..InstanceFilter::default() };
    let portion = Portion::new(limits::ROWS_READ as usize, limits::RESULTS_PAGE_BYTES);
    let mut all = Vec::new();
    loop {
        let found = service.views().instances(&run.id, &filter, portion).await?;
        let Some(last) = found.last() else { return Ok(all) };
        filter.after = Some((last.step(), last.id));
        all.extend(found.iter().filter_map(|one| {
            let state = InstanceState {
                status: one.state.status(),
                attempts: one.attempt,
                is_reused: one.reused.is_some(),
                failed_for_good: one.failed_for_good.is_some(),
            };
            Some((one.step(), *positions.get(&one.node()?)?, state))
        }));
    }
}

fn rollout_of(run: &RunRecord, facts: &[InstanceFacts]) -> Option<Rollout> {
    let steps = run.definition.steps().count();
    let nodes = &run.resolved.nodes;
    let by_id: HashMap<NodeId, usize> = (0..).zip(nodes).map(|(index, node)| (node.id, index)).collect();
    let by_name: HashMap<&str, usize> =
        (0..).zip(nodes).map(|(index, node)| (node.hostname.as_str(), index)).collect();
    let mut states: Vec<Option<InstanceState>> = vec![None; steps * nodes.len()];
    for fact in facts {
        let node = fact.node.and_then(|node| by_id.get(&node));
        let cell = node.and_then(|node| states.get_mut(fact.step as usize * nodes.len() + node));
        if let Some(cell) = cell {
            *cell = Some(InstanceState {
                status: fact.status,
                attempts: fact.attempt,
                is_reused: fact.is_reused,
                failed_for_good: fact.failed_for_good,
            });
        }
    }
    let state_of = |step: u32, node: &str| {
        states.get(step as usize * nodes.len() + by_name.get(node)?).copied().flatten()
    };
    Rollout::of(&Outline::of_run(run), &RunSummary::of(&run.into()), state_of)
}
