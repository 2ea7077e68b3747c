//! Owns the limits that jobs share.

use axum::Json;
use downbeat_api::{LimitUsage, List};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Query, page};
use super::problem::Reply;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LimitsQuery {
    /// The cluster, by name or id.
    cluster: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip.
    offset: Option<u64>,
}

/// Lists the limits that open executions declare: who uses them, and who waits
#[utoipa::path(
    get, operation_id = "listLimits", path = "/limits", tag = "system", params(LimitsQuery),
    responses((status = 200, description = "One page of limits, by key", body = List<LimitUsage>))
)]
pub(super) async fn list(Api(service, caller): Api, query: Query<LimitsQuery>) -> Reply<List<LimitUsage>> {
    let page = page(query.limit, query.offset)?;
    let cluster = service.cluster(&caller, query.cluster.as_deref()).await?;
    let part = (usize::try_from(page.offset).unwrap_or(usize::MAX), page.limit as usize);
    let (rows, total) = service.parts.dispatcher.board().limit_usage(cluster, part, service.now());
    Ok(Json(List::window(rows, page.limit, page.offset, total as u64)))
}
