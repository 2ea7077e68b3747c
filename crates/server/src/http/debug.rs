//! Owns debug commands: starting, showing, listing and cancelling them.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{ClusterDebugRequest, DebugCommand, DebugRequest, DebugResult, List, Names, code};
use downbeat_core::collections::HashMap;
use downbeat_core::debug::DebugCommand as Command;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::RunRecord;
use downbeat_core::select::Selector;
use downbeat_core::{Portion, Span, limits};
use downbeat_store::{InstanceFilter, Listed, Page, Position, RunFilter, RunKey, RunKind};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Id, Nothing, Query};
use super::idempotency::{Scope, idempotency_key};
use super::nodes::NodeQuery;
use super::output::whole;
use super::paging::{Key, listed, page};
use super::payload::{Payload, object};
use super::problem::{Failure, HttpResult, Reply};
use crate::error::{Error, Noun};
use crate::force::Force;
use crate::service::{DebugTarget, Service, StartDebug};

/// Results of one debug command are ordered by execution, which is the order of the nodes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DebugKey(ExecutionId);

impl Key for DebugKey {
    const LIST: &'static str = "debug-results";
}

/// Runs a command on a node
///
/// It runs besides the node's other work, also if the node is drained or held by an exclusive run. It waits for an hour if
/// the node is not online. Only nodes whose agents allow `exec` run commands. The command is kept for a day after its end.
#[utoipa::path(
    post, operation_id = "debugNode", path = "/nodes/{id}/debug", tag = "debug",
    params(
        ("id" = String, Path, description = "The node's hostname or id"), NodeQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first command"),
    ),
    request_body = DebugRequest,
    responses(
        (status = 201, description = "The command", body = DebugResult),
        (status = 200, description = "The first command of this idempotency key", body = DebugResult),
        (status = 429, description = "Too many commands have not ended; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn start_on_node(
    Api(service, caller): Api,
    id: Id,
    query: Query<NodeQuery>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let request: DebugRequest = object(&body)?;
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?.id;
    let command = command(&request.command, request.timeout_seconds, request.timeout)?;
    let sent = [Some(node.0.as_bytes().as_slice()), Some(&*body)];
    let idempotency_key = idempotency_key(&headers, Scope::Debug, &sent)?;
    let start = StartDebug { target: DebugTarget::Node(node), command, idempotency_key };
    let started = service.start_debug(&caller, start).await?;
    let (mut results, _) = results(&service, &started.run, &InstanceFilter::default(), 1).await?;
    let result = results.pop().ok_or_else(|| Error::from(Noun::Debug(started.run.id.clone())))?;
    Ok(created(started.created, &result.id, &result))
}

/// Runs a command on each node of a cluster that a selector matches
///
/// All nodes have to allow `exec`; otherwise none runs the command. A failure on one node does not stop the others.
#[utoipa::path(
    post, operation_id = "debugNodes", path = "/clusters/{id}/debug", tag = "debug",
    params(
        ("id" = String, Path, description = "The cluster's name or id"),
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first command"),
    ),
    request_body = ClusterDebugRequest,
    responses(
        (status = 201, description = "The command, with the first results", body = DebugCommand),
        (status = 200, description = "The first command of this idempotency key", body = DebugCommand),
        (status = 429, description = "Too many commands have not ended; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn start_on_nodes(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let request: ClusterDebugRequest = object(&body)?;
    let cluster = service.cluster(&caller, Some(&id)).await?;
    let selector =
        Selector::parse(&request.selector).map_err(|error| malformed(&format!("selector: {error}")))?;
    let command = command(&request.command, request.timeout_seconds, request.timeout)?;
    let sent = [Some(cluster.0.as_bytes().as_slice()), Some(&*body)];
    let idempotency_key = idempotency_key(&headers, Scope::Debug, &sent)?;
    let start = StartDebug { target: DebugTarget::Nodes(cluster, selector), command, idempotency_key };
    let started = service.start_debug(&caller, start).await?;
    let shown = shown(&service, &started.run, &page(None, None, None)?).await?;
    Ok(created(started.created, &started.run.id, &shown))
}

fn malformed(why: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, code::MALFORMED, format!("the body is not valid: {why}"))
}

fn command(command: &str, seconds: Option<u64>, timeout: Option<Span>) -> HttpResult<Command> {
    let timeout = match (seconds, timeout) {
        (Some(_), Some(_)) => {
            return Err(malformed("`timeout_seconds` and `timeout` cannot be used together"));
        }
        (seconds, timeout) => seconds.map(Span::from_secs).or(timeout),
    };
    Ok(Command::new(command, timeout).map_err(Error::from)?)
}

fn created(is_new: bool, id: &RunId, shown: &impl Serialize) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, [(header::LOCATION, format!("/api/v1/debug/{id}"))], Json(shown)).into_response()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeDebugQuery {
    /// The cluster in which to look up a hostname; default `default`.
    cluster: Option<String>,
    /// The number of rows; default 100, at most 1,000. A page with much output has fewer.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists the debug commands of a node, the newest first
#[utoipa::path(
    get, operation_id = "listNodeDebug", path = "/nodes/{id}/debug", tag = "debug",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeDebugQuery),
    responses((status = 200, description = "One page of commands", body = List<DebugResult>))
)]
pub(super) async fn of_node(
    Api(service, caller): Api,
    id: Id,
    query: Query<NodeDebugQuery>,
) -> Reply<List<DebugResult>> {
    let page: Page<RunKey> = page(query.limit, query.offset, query.cursor.as_deref())?;
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    let filter = RunFilter { kind: RunKind::Debug, node: Some(node.id), ..RunFilter::default() };
    let Listed { rows, total, mut next } = service.runs(&caller, &filter, &page).await?;
    let ids: Vec<RunId> = rows.iter().map(|run| run.id.clone()).collect();
    let records = service.views().runs_by_id(&ids).await?;
    let records: HashMap<&RunId, &RunRecord> = records.iter().map(|run| (&run.id, run)).collect();
    let of_node = InstanceFilter { node: Some(node.id), ..InstanceFilter::default() };
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for row in &rows {
        // One that was removed meanwhile is left out.
        let Some(run) = records.get(&row.id) else { continue };
        let (mut results, _) = results(&service, run, &of_node, 1).await?;
        bytes += results.iter().map(|result| result.output.len()).sum::<usize>();
        if bytes > limits::PAGE_BYTES && !shown.is_empty() {
            let last = shown.last().map(|last: &DebugResult| last.id.clone());
            let last = rows.iter().find(|row| Some(&row.id) == last.as_ref());
            next = last.map(|run| {
                Position::after(RunKey { order: filter.order, at: run.created_at, id: run.id.clone() })
            });
            break;
        }
        shown.append(&mut results);
    }
    Ok(Json(listed(&page, Listed { rows: shown, total, next }, |row| row)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ResultsQuery {
    /// The number of results; default 100, at most 1,000. A page with much output has fewer.
    limit: Option<u32>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Shows a debug command, with one result for each node
///
/// `/runs/{id}/output` and `/runs/{id}/events` accept the id as well, and stream with `follow=1`.
#[utoipa::path(
    get, operation_id = "showDebug", path = "/debug/{id}", tag = "debug",
    params(("id" = String, Path, description = "The id of the debug command"), ResultsQuery),
    responses((status = 200, description = "The command, with one page of results", body = DebugCommand))
)]
pub(super) async fn show(
    Api(service, caller): Api,
    id: Id,
    query: Query<ResultsQuery>,
) -> Reply<DebugCommand> {
    let page = page(query.limit, None, query.cursor.as_deref())?;
    let run = service.debug(&caller, &id.run()).await?;
    Ok(Json(shown(&service, &run, &page).await?))
}

/// Cancels a debug command on all its nodes
#[utoipa::path(
    post, operation_id = "cancelDebug", path = "/debug/{id}/cancel", tag = "debug",
    params(("id" = String, Path, description = "The id of the debug command")),
    responses((status = 202, description = "The command, which is being cancelled", body = DebugCommand))
)]
pub(super) async fn cancel(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
) -> HttpResult<(StatusCode, Json<DebugCommand>)> {
    let run = service.debug(&caller, &id.run()).await?.id.clone();
    service.cancel(&caller, &run, Force::Off).await?;
    let run = service.debug(&caller, &run).await?;
    Ok((StatusCode::ACCEPTED, Json(shown(&service, &run, &page(None, None, None)?).await?)))
}

async fn shown(service: &Service, run: &RunRecord, page: &Page<DebugKey>) -> HttpResult<DebugCommand> {
    let after = page.start.after.map(|DebugKey(execution)| (0, execution));
    let filter = InstanceFilter { after, ..InstanceFilter::default() };
    let (rows, more) = results(service, run, &filter, page.limit as usize).await?;
    let next = rows.last().filter(|_| more).map(|last| Position::after(DebugKey(last.execution)));
    let total = page.start.after.is_none().then(|| u64::from(run.resolved.node_count()));
    Ok(DebugCommand::of(run, listed(page, Listed { rows, total, next }, |row| row)))
}

/// Returns results with their output: at most this many, and so many that their output fits onto a page, but at least
/// one. Returns also whether there are more.
async fn results(
    service: &Service,
    run: &RunRecord,
    filter: &InstanceFilter,
    most: usize,
) -> HttpResult<(Vec<DebugResult>, bool)> {
    let portion = Portion::new(most + 1, limits::RESULTS_PAGE_BYTES);
    let found = service.views().instances(&run.id, filter, portion).await?;
    let names = Names::of_run(run);
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for execution in found.iter().take(most) {
        let Some(result) = with_output(service, execution, run, &names).await? else { continue };
        bytes += result.output.len();
        if bytes > limits::PAGE_BYTES && !shown.is_empty() {
            return Ok((shown, true));
        }
        shown.push(result);
    }
    Ok((shown, found.len() > most))
}

async fn with_output(
    service: &Service,
    execution: &Execution,
    run: &RunRecord,
    names: &Names,
) -> HttpResult<Option<DebugResult>> {
    let Some(result) = DebugResult::of(execution, run, names) else { return Ok(None) };
    let output = whole(service.views().as_ref(), execution, 0).await?;
    Ok(Some(DebugResult { output: output.text, truncated: output.truncated, ..result }))
}
