//! Owns the results of a run's instances: a list in pages.

use axum::Json;
use downbeat_api::{InstanceResult, List};
use downbeat_core::execution::Status;
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_store::{InstanceFilter, Listed, Page, Position};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Id, Query, words};
use super::paging::{Key, listed, page};
use super::problem::Reply;
use super::waits;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ResultsQuery {
    /// Only results with these statuses, comma-separated.
    status: Option<String>,
    /// Only results of this node, by hostname or id.
    node: Option<String>,
    /// Only results of this step.
    step: Option<u32>,
    /// Only results for this item of `for_each`, from 0.
    item: Option<u32>,
    /// The number of rows; default 100, at most 1,000. A page with much text may have fewer.
    limit: Option<u32>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Results are ordered by step, then by execution.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ResultKey(u32, ExecutionId);

impl Key for ResultKey {
    const LIST: &'static str = "results";
}

/// Lists the results of a run: one for each step on each node and for each item
///
/// The result of an instance is its last attempt that counts. They are ordered by step; those of a step by the start of
/// their last attempt.
#[utoipa::path(
    get, operation_id = "listRunResults", path = "/runs/{id}/results", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), ResultsQuery),
    responses((status = 200, description = "One page of results", body = List<InstanceResult>))
)]
pub(super) async fn list(
    Api(service, caller): Api,
    id: Id,
    query: Query<ResultsQuery>,
) -> Reply<List<InstanceResult>> {
    let page: Page<ResultKey> = page(query.limit, None, query.cursor.as_deref())?;
    let run = service.run(&caller, &id.run()).await?;
    let node = match &query.node {
        Some(node) => Some(service.node_id(&caller, node, Some(&run.cluster.to_string())).await?),
        None => None,
    };
    let known = Status::ALL.map(Status::as_str).join(", ");
    let statuses = words("status", query.status.as_deref(), &known, Status::parse)?;
    let after = page.start.after.map(|ResultKey(step, execution)| (step, execution));
    let filter = InstanceFilter { step: query.step, item: query.item, node, statuses, after };
    let found = service.views().instances(&run.id, &filter, page.limit + 1).await?;
    let names = service.names(&run, &found).await?;
    let tasks: Vec<String> = run.definition.steps().map(|task| task.label()).collect();
    let task = |step: u32| tasks.get(step as usize).cloned().unwrap_or_else(|| format!("step {step}"));
    let mut rows = Vec::new();
    let mut bytes = 0;
    for execution in found.iter().take(page.limit as usize) {
        let row = InstanceResult::of(execution, task(execution.step()), &names);
        bytes += serde_json::to_vec(&row).map_or(0, |text| text.len());
        if bytes > limits::RESULTS_PAGE_BYTES && !rows.is_empty() {
            break;
        }
        rows.push(row);
    }
    let next = rows.last().filter(|_| rows.len() < found.len());
    let next = next.map(|last| Position::after(ResultKey(last.step, last.execution)));
    waits::add_waits(&service, &found[..rows.len()], &mut rows).await?;
    waits::add_last_stderr(&service, &mut rows).await?;
    Ok(Json(listed(&page, Listed { rows, total: None, next }, |row| row)))
}
