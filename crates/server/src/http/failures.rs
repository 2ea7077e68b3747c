//! Owns the failures of a run: failed instances grouped by like errors.

use std::cmp::Reverse;

use axum::Json;
use downbeat_api::{Execution as View, FailureGroup, Failures};
use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Execution, Status, common_part};
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_store::{ExecutionFilter, Listed, Page};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::executions::label;
use super::extract::{Api, Id, Nothing, Query};
use super::output::last_stderr_line;
use super::problem::{HttpResult, Reply};
use crate::service::Service;

/// How many executions are read at once: their params may be large.
const PER_READ: u32 = 100;

/// How many outputs are read at the same time, so that other requests get connections to the store, too.
const OUTPUTS_AT_ONCE: usize = 4;

/// How many nodes of a group are named.
const NODES_NAMED: usize = 100;

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
        if group.nodes.len() < NODES_NAMED {
            group.nodes.extend(view.node.clone());
        }
    }
    let mut groups: Vec<FailureGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| (Reverse(group.count), group.step, group.execution));
    Ok(Json(Failures { failed: failed.len() as u64, has_more, groups }))
}

/// Returns the instances that failed for good, up to a bound, and whether there may be more.
async fn failed(service: &Service, run: &RunRecord) -> HttpResult<(Vec<View>, bool)> {
    let statuses = vec![Status::Failed, Status::Lost];
    let filter = ExecutionFilter { run: Some(run.id.clone()), statuses, ..ExecutionFilter::default() };
    let mut failed: Vec<View> = Vec::new();
    let mut page = Page::first(PER_READ);
    for _ in 0..limits::FAILURES_EXAMINED / PER_READ {
        let Listed { rows, next, .. } = service.views().executions(&filter, &page).await?;
        let finally: Vec<&Execution> = rows.iter().filter(|one| one.failed_for_good.is_some()).collect();
        let names = service.names(run, finally.iter().copied()).await?;
        let view = |one: &&Execution| View::of(one, label(&run.definition, one.step()), &names);
        failed.extend(finally.iter().map(view).map(|view| View { params: None, ..view }));
        match next {
            Some(next) => page.start = next,
            None => return Ok((failed, false)),
        }
    }
    Ok((failed, true))
}

/// Returns the last line of each execution on standard error.
async fn last_lines(service: &Service, failed: &[View]) -> HttpResult<Vec<Option<String>>> {
    let ids: Vec<ExecutionId> = failed.iter().map(|view| view.id).collect();
    let lines = stream::iter(ids).map(|id| last_stderr_line(service, id)).buffered(OUTPUTS_AT_ONCE);
    lines.try_collect().await
}
