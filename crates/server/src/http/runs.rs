//! Owns runs: submit, list, show, pause, cancel, retry.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{List, Plan, Run, RunRow, code};
use downbeat_core::Timestamp;
use downbeat_core::ids::RunId;
use downbeat_core::run::{RunState, RunStatus};
use downbeat_store::{RunFilter, RunKey, RunKind, RunOrder};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::definition::{Body, TargetQuery};
use super::docs::JobRequest;
use super::extract::{Api, Flag, Id, Nothing, Query, words};
use super::idempotency::{Scope, idempotency_key};
use super::paging::{Direction, listed, page};
use super::payload::{Payload, object};
use super::problem::{Failure, HttpResult, Reply};
use super::{plans, run_view};
use crate::error::Error;
use crate::force::Force;
use crate::service::{Redo, Retry, Submit};

/// Submits a run
///
/// The body is an inline definition: a job file as JSON or YAML, or `{"definition": …, "params": {…},
/// "no_cache": true}`, in which only the definition is required. A request that is sent again with the
/// same `Idempotency-Key` returns the run of the first one; another request with that key is refused.
#[utoipa::path(
    post, operation_id = "submitRun", path = "/runs", tag = "runs",
    params(
        TargetQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first run"),
    ),
    request_body(
        content((JobRequest = "application/json"), (String = "application/yaml")),
        description = "A job file; in JSON also with the params of a run"
    ),
    responses(
        (status = 201, description = "The run that was created", body = Run),
        (status = 200, description = "The first run of this idempotency key", body = Run),
        (status = 429, description = "Too many runs are pending or open; `Retry-After` says when to try again"),
        (status = 503, description = "The server is creating too many large plans; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn submit(
    Api(service, caller): Api,
    query: Query<TargetQuery>,
    headers: HeaderMap,
    body: Body,
) -> HttpResult<Response> {
    let sent = [query.target(), query.cluster(), Some(body.as_bytes())];
    let idempotency_key = idempotency_key(&headers, Scope::Submit, &sent)?;
    let submitted = match service.repeated(idempotency_key.as_ref()).await? {
        Some(repeated) => repeated,
        None => {
            let (submit, _) = body.read(&service, &query).await?;
            service.submit(&caller, Submit { idempotency_key, ..submit }).await?
        }
    };
    let shown = if submitted.created {
        run_view::new_run(&service, &submitted.run)
    } else {
        run_view::summary(&service, &submitted.run).await?
    };
    Ok(created(submitted.created, shown))
}

pub(super) fn created(is_new: bool, shown: Run) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/api/v1/runs/{}", shown.summary.id);
    (status, [(header::LOCATION, location)], Json(shown)).into_response()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only runs of these statuses or states, comma-separated: `running`, `pending,terminating`. `failed` is the state:
    /// runs that are `orphaned` are listed by that word.
    status: Option<String>,
    /// Only runs of the job with this name.
    job: Option<String>,
    /// Only runs of this cluster, by name or id.
    cluster: Option<String>,
    /// Only runs that this caller requested.
    by: Option<String>,
    /// Only runs with one of the last 10,000 executions on this node, by hostname or id.
    node: Option<String>,
    /// Only runs whose id or job contains this text, in upper or lower case.
    q: Option<String>,
    /// Only runs that were created at this time or later.
    from: Option<Timestamp>,
    /// Only runs that were created before this time.
    to: Option<Timestamp>,
    /// `1` lists only runs that are paused, `0` only others.
    #[param(value_type = Option<Flag>, inline)]
    paused: Option<Flag>,
    #[serde(default)]
    #[param(inline)]
    sort: Sort,
    /// Default `desc`.
    #[param(inline)]
    order: Option<Direction>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// By which time runs are sorted. Only runs that have ended are sorted by `finished`.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Created,
    Finished,
}

fn order_of(sort: Sort, direction: Direction) -> RunOrder {
    match (sort, direction) {
        (Sort::Created, Direction::Desc) => RunOrder::NewestFirst,
        (Sort::Created, Direction::Asc) => RunOrder::OldestFirst,
        (Sort::Finished, Direction::Desc) => RunOrder::LastEndedFirst,
        (Sort::Finished, Direction::Asc) => RunOrder::FirstEndedFirst,
    }
}

/// Lists runs, by default the newest first
#[utoipa::path(
    get, operation_id = "listRuns", path = "/runs", tag = "runs", params(ListQuery),
    responses((status = 200, description = "One page of runs", body = List<RunRow>))
)]
pub(super) async fn list(Api(service, caller): Api, query: Query<ListQuery>) -> Reply<List<RunRow>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let states = states(query.status.as_deref())?;
    let cluster = match &query.cluster {
        Some(cluster) => Some(service.cluster(&caller, Some(cluster)).await?),
        None => None,
    };
    let node = match &query.node {
        Some(node) => Some(service.node_id(&caller, node, query.cluster.as_deref()).await?),
        None => None,
    };
    let Query(ListQuery { job, by, paused, q: text, from, to, sort, order, .. }) = query;
    let order = order_of(sort, order.unwrap_or(Direction::Desc));
    if page.start.after.as_ref().is_some_and(|after: &RunKey| after.order != order) {
        return Err(Failure::bad_query("the query is wrong: cursor: it is of a list in another order"));
    }
    let paused = paused.map(Flag::is_on);
    let filter =
        RunFilter { kind: RunKind::Jobs, cluster, states, job, by, paused, text, node, from, to, order };
    let found = service.runs(&caller, &filter, &page).await?;
    let ids: Vec<RunId> = found.rows.iter().map(|run| run.id.clone()).collect();
    let counts = service.views().run_counts(&ids).await?;
    let mut reasons = service.pending_reasons(found.rows.iter().map(|run| (&run.id, &run.live)));
    Ok(Json(listed(&page, found, |run| {
        let mut row = RunRow::of(&run, counts.get(&run.id));
        row.summary.pending_reason = reasons.remove(&run.id);
        row.summary.cluster_name = service.cluster_name(run.cluster);
        row
    })))
}

/// Returns the states that comma-separated statuses and states mean.
pub(super) fn states(text: Option<&str>) -> HttpResult<Vec<RunState>> {
    let known = "pending, running, completed, failed, cancelled, or a state such as terminating";
    let states = words("status", text, known, |word| match RunStatus::parse(word) {
        // An index finds the runs of one terminal state.
        Some(RunStatus::Failed) => Some(vec![RunState::Failed]),
        Some(status) => Some(status.states().collect::<Vec<_>>()),
        None => RunState::parse(word).map(|state| vec![state]),
    })?;
    Ok(states.concat())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ShowQuery {
    /// `1` adds the run's definition.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    definition: Flag,
}

/// Shows a run: its state, and counts of its results by step
///
/// The answer is a summary, however large the run is; `/runs/{id}/results` lists the results.
#[utoipa::path(
    get, operation_id = "showRun", path = "/runs/{id}", tag = "runs", params(("id" = String, Path, description = "The run's id"), ShowQuery),
    responses((status = 200, description = "The run", body = Run))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, query: Query<ShowQuery>) -> Reply<Run> {
    let run = service.run(&caller, &id.run()).await?;
    let mut shown = run_view::summary(&service, &run).await?;
    if query.definition.is_on() {
        let value = serde_json::to_value(&*run.definition);
        shown.definition =
            Some(value.map_err(|error| Error::Bug(format!("cannot show a definition: {error}")))?);
    }
    Ok(Json(shown))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CancelQuery {
    /// `1` or `true` ends the run without waiting for its agents.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    force: Flag,
}

/// Cancels a run
///
/// Returns at once; running executions are stopped, and the run ends as `cancelled` soon after. With `force` the run does
/// not wait for its agents: running executions are `lost` at once, although their work may still run
#[utoipa::path(
    post, operation_id = "cancelRun", path = "/runs/{id}/cancel", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), CancelQuery),
    responses((status = 202, description = "The run, which is being cancelled", body = Run))
)]
pub(super) async fn cancel(
    Api(service, caller): Api,
    id: Id,
    query: Query<CancelQuery>,
) -> HttpResult<(StatusCode, Json<Run>)> {
    let force = if query.force.is_on() { Force::On } else { Force::Off };
    service.cancel(&caller, &id.run(), force).await?;
    let run = service.run(&caller, &id.run()).await?;
    Ok((StatusCode::ACCEPTED, Json(run_view::summary(&service, &run).await?)))
}

/// Pauses a run
///
/// Running executions finish; nothing else starts until the run is resumed.
#[utoipa::path(
    post, operation_id = "pauseRun", path = "/runs/{id}/pause", tag = "runs", params(("id" = String, Path, description = "The run's id")),
    responses((status = 200, description = "The run, which is paused", body = Run))
)]
pub(super) async fn pause(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Run> {
    service.pause(&caller, &id.run()).await?;
    let run = service.run(&caller, &id.run()).await?;
    Ok(Json(run_view::summary(&service, &run).await?))
}

/// Resumes a paused run
#[utoipa::path(
    post, operation_id = "resumeRun", path = "/runs/{id}/resume", tag = "runs", params(("id" = String, Path, description = "The run's id")),
    responses((status = 200, description = "The run, which continues", body = Run))
)]
pub(super) async fn resume(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Run> {
    service.resume(&caller, &id.run()).await?;
    let run = service.run(&caller, &id.run()).await?;
    Ok(Json(run_view::summary(&service, &run).await?))
}

/// How to retry a run.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryRequest {
    /// Only on nodes with a failure.
    #[serde(default)]
    failed_only: bool,
    /// Also this task, by name or step number, and all tasks after it, even if they succeeded.
    #[serde(default)]
    from: Option<String>,
}

/// Retries an ended run
///
/// The new run has the same definition, params and nodes. Successful results are reused; those executions
/// do not run again.
#[utoipa::path(
    post, operation_id = "retryRun", path = "/runs/{id}/retry", tag = "runs",
    params(
        ("id" = String, Path, description = "The run's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first run"),
    ),
    request_body(content = Option<RetryRequest>, description = "Optional: how to retry"),
    responses(
        (status = 201, description = "The run that was created", body = Run),
        (status = 200, description = "The first run of this idempotency key", body = Run),
        (status = 429, description = "Too many runs are pending or open; `Retry-After` says when to try again"),
        (status = 503, description = "The server is creating too many large plans; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn retry(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let sent = [Some(id.as_bytes()), Some(&*body)];
    let idempotency_key = idempotency_key(&headers, Scope::Retry, &sent)?;
    let request = match body.trim_ascii() {
        b"" | b"null" => RetryRequest::default(),
        body => object(body)?,
    };
    let redo = redo(request.failed_only, request.from)?;
    let run = id.run();
    let submitted = service.retry(&caller, Retry { run, redo, idempotency_key }).await?;
    let shown = run_view::summary(&service, &submitted.run).await?;
    Ok(created(submitted.created, shown))
}

/// Returns the part of a run that a request repeats.
pub(super) fn redo(failed_only: bool, from: Option<String>) -> HttpResult<Redo> {
    match (failed_only, from) {
        (false, None) => Ok(Redo::Failed),
        (true, None) => Ok(Redo::FailedNodes),
        (false, Some(task)) => Ok(Redo::From(task)),
        (true, Some(_)) => {
            let detail = "`failed_only` and `from` cannot be used together: `from` repeats the later tasks on all nodes";
            Err(Failure::new(StatusCode::BAD_REQUEST, code::MALFORMED, detail))
        }
    }
}

/// Shows the plan of a run
#[utoipa::path(
    get, operation_id = "showRunPlan", path = "/runs/{id}/plan", tag = "runs",
    params(
        ("id" = String, Path, description = "The run's id"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of a plan that the client has"),
    ),
    responses(
        (status = 200, description = "Its steps, where each runs, and what it waits for; with an `ETag`", body = Plan),
        (status = 304, description = "It is the plan that `If-None-Match` names"),
        (status = 503, description = "The server is creating too many large plans; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn plan(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let run = service.run(&caller, &id.run()).await?;
    // The plan of a run never changes; another version of the program may show it differently.
    let tag = format!("\"{}-{}\"", env!("CARGO_PKG_VERSION"), run.id);
    let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| plans::matches(known, &tag));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        plans::shown(service.plan_of(run, |plan| plans::written(&Plan::of(&plan))).await?)
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}
