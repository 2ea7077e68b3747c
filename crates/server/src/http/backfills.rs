//! Owns backfills: start, list, show and cancel.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{Backfill, List};
use downbeat_core::Timestamp;
use downbeat_core::job::BackfillRecord;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Api, Id, Nothing, Query};
use super::jobs::{ClusterQuery, find};
use super::paging::{Key, cut, page};
use super::payload::{Payload, object};
use super::problem::{HttpResult, Reply};
use crate::service::{BackfillRequest, Mode, Service};

/// The range of a backfill.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackfillBody {
    /// The first time of the range.
    from: Timestamp,
    /// The range ends before this time, which is not in the future.
    to: Timestamp,
    /// How many of its runs are open at once; at most 100.
    #[serde(default = "one")]
    #[schema(default = 1)]
    parallel: u32,
    /// Times that have a run already run again.
    #[serde(default)]
    again: bool,
    /// Only returns the times.
    #[serde(default)]
    dry_run: bool,
}

fn one() -> u32 {
    1
}

/// The key of the list of backfills: the newest first.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ListKey(std::cmp::Reverse<String>);

impl Key for ListKey {
    const LIST: &'static str = "backfills";
}

fn shown(service: &Service, backfill: &BackfillRecord) -> Backfill {
    Backfill::of(backfill, service.cluster_name(backfill.made.job.cluster))
}

/// Starts the runs of all times of a job's schedules in a range of the past, the oldest first
///
/// A time that has a run already is not run again, unless `again` is set. At most 10,000 times.
#[utoipa::path(
    post, operation_id = "backfillJob", path = "/jobs/{id}/backfill", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery), request_body = BackfillBody,
    responses(
        (status = 201, description = "The backfill, which is running", body = Backfill),
        (status = 200, description = "A dry run: the backfill that would start, with its times", body = Backfill),
        (status = 422, description = "The range is not valid; `errors` says why"),
    )
)]
pub(super) async fn start(
    Api(service, caller): Api,
    id: Id,
    query: Query<ClusterQuery>,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let BackfillBody { from, to, parallel, again, dry_run } = object(&body)?;
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    let mode = if dry_run { Mode::DryRun } else { Mode::Commit };
    let request = BackfillRequest { from, to, parallel, again };
    let (record, times) = service.backfill_job(&caller, &job, request, mode).await?;
    let mut backfill = shown(&service, &record);
    if dry_run {
        backfill.planned = times;
        return Ok(Json(backfill).into_response());
    }
    let location = format!("/api/v1/backfills/{}", backfill.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(backfill)).into_response())
}

/// Lists the backfills of a job, the newest first
#[utoipa::path(
    get, operation_id = "listBackfills", path = "/jobs/{id}/backfills", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery),
    responses((status = 200, description = "All that are kept: ended ones beyond the last 100 are removed", body = List<Backfill>))
)]
pub(super) async fn list(
    Api(service, caller): Api,
    id: Id,
    query: Query<ClusterQuery>,
) -> Reply<List<Backfill>> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    let backfills = service.backfills(job.record.key()).await?;
    let page = page(Some(1_000), None, None)?;
    let key = |backfill: &BackfillRecord| ListKey(std::cmp::Reverse(backfill.made.id.to_string()));
    let List { data, pagination } = cut(backfills, &page, key);
    Ok(Json(List { data: data.iter().map(|one| shown(&service, one)).collect(), pagination }))
}

/// Shows a backfill with its progress
#[utoipa::path(
    get, operation_id = "showBackfill", path = "/backfills/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The backfill's id")),
    responses((status = 200, description = "The backfill", body = Backfill))
)]
pub(super) async fn show(Api(service, _): Api, id: Id, _: Query<Nothing>) -> Reply<Backfill> {
    Ok(Json(shown(&service, &service.backfill(&id).await?)))
}

/// Cancels a backfill: nothing more starts, and its open runs are cancelled
#[utoipa::path(
    post, operation_id = "cancelBackfill", path = "/backfills/{id}/cancel", tag = "jobs",
    params(("id" = String, Path, description = "The backfill's id")),
    responses(
        (status = 200, description = "The backfill, which ends when its open runs have ended", body = Backfill),
        (status = 409, description = "It has ended, or was cancelled before"),
    )
)]
pub(super) async fn cancel(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Backfill> {
    Ok(Json(shown(&service, &service.cancel_backfill(&caller, &id).await?)))
}
