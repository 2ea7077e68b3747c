//! Owns the failures of a run: failed instances grouped by like errors.

use std::cmp::Reverse;

use axum::Json;
use downbeat_api::{Execution as View, FailureGroup, Failures};
use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Status, common_part};
use downbeat_core::ids::ExecutionId;
use downbeat_core::run::RunRecord;
use downbeat_core::{Portion, limits};
use downbeat_store::InstanceFilter;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::executions::Labels;
use super::extract::{Api, Id, Nothing, Query};
use super::output::last_stderr_line;
use super::problem::{HttpResult, Reply};
use crate::service::Service;

/// How many outputs are read at the same time, so that other requests get connections to the store, too.
const OUTPUTS_AT_ONCE: usize = 2;
const _: () = assert!(OUTPUTS_AT_ONCE * 2 <= limits::VIEWS_AT_ONCE);

/// Shows the failures of a run, grouped by step and like error
///
/// Errors are alike if they differ only in numbers, ids and the like. The last line on standard error counts as the
/// error, if there is one.
#[utoipa::path(
    get, operation_id = "showRunFailures", path = "/runs/{id}/failures", tag = "runs",
    params(("id" = String, Path, description = "The run's id")),
    responses((status = 200, description = "Groups of failed instances", body = Failures))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Failures> {
    let run = service.run(&caller, &id.run()).await?;
    let (failed, has_more) = failed(&service, &run).await?;
    let lines = last_lines(&service, &failed).await?;
    let mut groups: HashMap<(u32, Status, String), FailureGroup> = HashMap::default();
    for (view, stderr) in failed.iter().zip(lines) {
        let text = common_part(stderr.as_deref().or(view.error.as_deref()).unwrap_or_default());
        let group =
            groups.entry((view.step, view.status, text)).or_insert_with_key(|(_, _, text)| FailureGroup {
                step: view.step,
                task: view.task.clone(),
                status: view.status,
                text: text.clone(),
                count: 0,
                nodes: Vec::new(),
                execution: view.id,
                error: view.error.clone(),
                stderr,
            });
        group.count += 1;
        if group.nodes.len() < limits::NODES_NAMED {
            group.nodes.extend(view.node.clone());
        }
    }
    let mut groups: Vec<FailureGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| (Reverse(group.count), group.step, group.execution));
    Ok(Json(Failures { failed: failed.len() as u64, has_more, groups }))
}

/// Returns the failed instances, up to a bound, and whether there are more.
async fn failed(service: &Service, run: &RunRecord) -> HttpResult<(Vec<View>, bool)> {
    let statuses = vec![Status::Failed, Status::Lost];
    let mut filter = InstanceFilter { statuses, ..InstanceFilter::default() };
    let labels = Labels::of(&run.definition);
    let mut failed: Vec<View> = Vec::new();
    while failed.len() <= limits::FAILURES_EXAMINED {
        let room = limits::FAILURES_EXAMINED + 1 - failed.len();
        let portion = Portion::new(room, limits::RESULTS_PAGE_BYTES);
        let found = service.views().instances(&run.id, &filter, portion).await?;
        let Some(last) = found.last() else { return Ok((failed, false)) };
        filter.after = Some((last.step(), last.id));
        let names = service.names(run, &found).await?;
        failed.extend(found.iter().map(|one| View::of(one, labels.get(one.step()), &names)));
    }
    failed.truncate(limits::FAILURES_EXAMINED);
    Ok((failed, true))
}

/// Returns the last line of each execution on standard error.
async fn last_lines(service: &Service, failed: &[View]) -> HttpResult<Vec<Option<String>>> {
    let ids: Vec<ExecutionId> = failed.iter().map(|view| view.id).collect();
    let lines = stream::iter(ids).map(|id| last_stderr_line(service, id)).buffered(OUTPUTS_AT_ONCE);
    lines.try_collect().await
}
