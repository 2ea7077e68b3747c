//! Cancels, retries and drains many runs or nodes with one request, or counts them.

use std::collections::BTreeSet;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use downbeat_api::{Many, code};
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use downbeat_core::select::Selector;
use serde::Deserialize;
use utoipa::ToSchema;

use super::extract::{Api, Nothing, Query};
use super::idempotency::{Scope, idempotency_key};
use super::payload::{Payload, object};
use super::problem::{Failure, HttpResult, Reply};
use super::runs::{redo, states};
use crate::caller::Caller;
use crate::service::{Drain, Effect, Service, WhichNodes, WhichRuns};

/// Which runs to cancel. Every criterion that is present must hold; at least one is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelRuns {
    /// Ids of runs, at most 1,000.
    ids: Option<Vec<String>>,
    /// Statuses or states, comma-separated: `pending,running`.
    status: Option<String>,
    /// The name of their job.
    job: Option<String>,
    /// Their cluster, by name or id.
    cluster: Option<String>,
    /// Only counts the runs.
    #[serde(default)]
    dry_run: bool,
}

/// Which runs to retry, and how. Every criterion that is present must hold; at least one is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryRuns {
    /// Ids of runs, at most 100.
    ids: Option<Vec<String>>,
    /// Statuses, comma-separated: `failed,cancelled`.
    status: Option<String>,
    /// The name of their job.
    job: Option<String>,
    /// Their cluster, by name or id.
    cluster: Option<String>,
    /// Only on nodes with a failure.
    #[serde(default)]
    failed_only: bool,
    /// Only counts the runs.
    #[serde(default)]
    dry_run: bool,
}

/// Which nodes of a cluster to drain. Every criterion that is present must hold; at least one is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainNodes {
    /// Hostnames or ids of nodes, at most 1,000.
    nodes: Option<Vec<String>>,
    /// A selector as in a job's `target`: `group:web and not node:web-09`.
    selector: Option<String>,
    /// The cluster, by name or id.
    cluster: Option<String>,
    /// Only counts the nodes.
    #[serde(default)]
    dry_run: bool,
}

/// Cancels all open runs that match
///
/// `refused` names ids without a run.
#[utoipa::path(
    post, operation_id = "cancelRuns", path = "/runs/cancel", tag = "runs", request_body = CancelRuns,
    responses(
        (status = 202, description = "How many runs are being cancelled", body = Many),
        (status = 200, description = "How many runs would be cancelled, with `dry_run`", body = Many),
    )
)]
pub(super) async fn cancel(
    Api(service, caller): Api,
    _: Query<Nothing>,
    Payload(body): Payload,
) -> HttpResult<(StatusCode, Json<Many>)> {
    let CancelRuns { ids, status, job, cluster, dry_run } = object(&body)?;
    let which = which_runs(&service, &caller, (ids, status, job, cluster), limits::PAGE_MOST).await?;
    let many = service.cancel_many(&caller, &which, effect(dry_run)).await?;
    Ok((if dry_run { StatusCode::OK } else { StatusCode::ACCEPTED }, Json(many)))
}

/// Retries all runs that match and failed or were cancelled, at most 100
///
/// `refused` names ids without a run. Without `ids`, the newest 100,000 runs of the job or the statuses are searched. With
/// an `Idempotency-Key`, a second request retries only runs that the first one did not retry.
#[utoipa::path(
    post, operation_id = "retryRuns", path = "/runs/retry", tag = "runs", request_body = RetryRuns,
    params(("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key creates no second runs")),
    responses(
        (status = 200, description = "How many runs are retried, and why others are not", body = Many),
        (status = 422, description = "More than 100 runs match"),
    )
)]
pub(super) async fn retry(
    Api(service, caller): Api,
    _: Query<Nothing>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Reply<Many> {
    let key = idempotency_key(&headers, Scope::RetryMany, &[Some(&*body)])?;
    let RetryRuns { ids, status, job, cluster, failed_only, dry_run } = object(&body)?;
    let which = which_runs(&service, &caller, (ids, status, job, cluster), limits::RETRIES_AT_ONCE).await?;
    let redo = redo(failed_only, None)?;
    Ok(Json(service.retry_many(&caller, &which, &redo, key.as_ref(), effect(dry_run)).await?))
}

/// Drains all nodes that match
#[utoipa::path(
    post, operation_id = "drainNodes", path = "/nodes/drain", tag = "nodes", request_body = DrainNodes,
    responses((status = 200, description = "How many nodes are drained", body = Many))
)]
pub(super) async fn drain(api: Api, _: Query<Nothing>, Payload(body): Payload) -> Reply<Many> {
    set_drain(api, &body, Drain::On).await
}

/// Ends the drain of all nodes that match
#[utoipa::path(
    post, operation_id = "undrainNodes", path = "/nodes/undrain", tag = "nodes", request_body = DrainNodes,
    responses((status = 200, description = "How many nodes accept new executions again", body = Many))
)]
pub(super) async fn undrain(api: Api, _: Query<Nothing>, Payload(body): Payload) -> Reply<Many> {
    set_drain(api, &body, Drain::Off).await
}

async fn set_drain(Api(service, caller): Api, body: &[u8], drain: Drain) -> Reply<Many> {
    let DrainNodes { nodes, selector, cluster, dry_run } = object(body)?;
    if nodes.is_none() && selector.is_none() {
        return Err(refused("name the nodes: `nodes` or `selector`; `{\"selector\": \"all\"}` means all"));
    }
    check_number("nodes", nodes.as_deref(), limits::PAGE_MOST)?;
    let selector = selector.as_deref().map(Selector::parse).transpose();
    let which = WhichNodes {
        cluster: service.cluster(&caller, cluster.as_deref()).await?,
        names: nodes.map(BTreeSet::from_iter),
        selector: selector.map_err(|error| refused(format!("selector: {error}")))?,
    };
    Ok(Json(service.drain_many(&caller, &which, drain, effect(dry_run)).await?))
}

type RunCriteria = (Option<Vec<String>>, Option<String>, Option<String>, Option<String>);

async fn which_runs(
    service: &Service,
    caller: &Caller,
    (ids, status, job, cluster): RunCriteria,
    most: u32,
) -> HttpResult<WhichRuns> {
    if ids.is_none() && status.is_none() && job.is_none() {
        return Err(refused("name the runs: `ids`, `status` or `job`"));
    }
    check_number("ids", ids.as_deref(), most)?;
    let cluster = match cluster {
        Some(cluster) => Some(service.cluster(caller, Some(&cluster)).await?),
        None => None,
    };
    let ids = ids.map(|ids| ids.into_iter().map(RunId::from).collect());
    let states = status.map(|status| states(Some(&status))).transpose()?;
    Ok(WhichRuns { ids, states, job, cluster })
}

fn check_number(field: &str, list: Option<&[String]>, most: u32) -> HttpResult<()> {
    match list.map_or(0, <[String]>::len) {
        number if number > most as usize => {
            Err(refused(format!("{field}: {number} are given; at most {most} are allowed in one request")))
        }
        _ => Ok(()),
    }
}

fn effect(dry_run: bool) -> Effect {
    if dry_run { Effect::Count } else { Effect::Change }
}

fn refused(detail: impl Into<String>) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, code::REJECTED, detail)
}
