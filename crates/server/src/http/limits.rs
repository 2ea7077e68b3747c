//! Owns the limits that jobs share.

use axum::Json;
use downbeat_api::{LimitUsage, List};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Query};
use super::paging::{Key, listed, page};
use super::problem::Reply;
use crate::dispatch::LimitKey;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LimitsQuery {
    /// The cluster, by name or id.
    cluster: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

impl Key for LimitKey {
    const LIST: &'static str = "limits";
}

/// Lists the limits that open executions declare: who uses them, and who waits
#[utoipa::path(
    get, operation_id = "listLimits", path = "/limits", tag = "system", params(LimitsQuery),
    responses((status = 200, description = "One page of limits, by key", body = List<LimitUsage>))
)]
pub(super) async fn list(Api(service, caller): Api, query: Query<LimitsQuery>) -> Reply<List<LimitUsage>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let cluster = service.cluster(&caller, query.cluster.as_deref()).await?;
    let found = service.parts.dispatcher.board().limit_usage(cluster, &page, service.now());
    Ok(Json(listed(&page, found, |row| row)))
}
