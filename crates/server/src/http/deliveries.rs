//! Owns deliveries of messages: list, show, send again.

use axum::Json;
use downbeat_api::{Delivery, List};
use downbeat_core::delivery::DeliveryStatus;
use downbeat_core::ids::RunId;
use downbeat_store::{DeliveryFilter, DeliveryKey, Listed, Position};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Id, Nothing, Query};
use super::paging::{Key, listed, page};
use super::problem::Reply;

impl Key for DeliveryKey {
    const LIST: &'static str = "deliveries";
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only deliveries of this cluster, by name or id.
    cluster: Option<String>,
    /// Only deliveries about this run.
    run: Option<String>,
    /// Only deliveries about runs of this job.
    job: Option<String>,
    /// Only those that are `pending`, `delivered` or `failed`.
    #[param(value_type = Option<String>)]
    status: Option<DeliveryStatus>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists messages about runs, the newest first
#[utoipa::path(
    get, operation_id = "listDeliveries", path = "/deliveries", tag = "deliveries", params(ListQuery),
    responses((status = 200, description = "One page of deliveries, without their bodies", body = List<Delivery>))
)]
pub(super) async fn list(Api(service, caller): Api, query: Query<ListQuery>) -> Reply<List<Delivery>> {
    let page = page::<DeliveryKey>(query.limit, None, query.cursor.as_deref())?;
    let cluster = match &query.cluster {
        Some(cluster) => Some(service.cluster(&caller, Some(cluster)).await?),
        None => None,
    };
    let filter = DeliveryFilter {
        cluster,
        run: query.run.as_deref().map(RunId::from),
        job: query.job.clone(),
        status: query.status,
    };
    let found = service.parts.views.deliveries(&filter, page.start.after, page.limit + 1).await;
    let mut rows = found.map_err(crate::error::Error::from)?;
    let has_more = rows.len() > page.limit as usize;
    rows.truncate(page.limit as usize);
    let next = rows.last().filter(|_| has_more).map(|row| Position::after(DeliveryKey::of(row)));
    Ok(Json(listed(&page, Listed { rows, total: None, next }, |row| Delivery::of(&row))))
}

/// Returns a message about a run, with its body
#[utoipa::path(
    get, operation_id = "getDelivery", path = "/deliveries/{id}", tag = "deliveries",
    params(("id" = String, Path, description = "The delivery's id")),
    responses((status = 200, description = "The delivery", body = Delivery))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Delivery> {
    Ok(Json(Delivery::whole(&service.delivery(&caller, &id).await?)))
}

/// Sends a message again that was delivered or given up
///
/// It keeps its id, by which receivers recognise it, and its body.
#[utoipa::path(
    post, operation_id = "sendDelivery", path = "/deliveries/{id}/send", tag = "deliveries",
    params(("id" = String, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "The delivery, which is pending", body = Delivery),
        (status = 409, description = "It is pending already"),
    )
)]
pub(super) async fn send(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Delivery> {
    Ok(Json(Delivery::whole(&service.send_again(&caller, &id).await?)))
}
