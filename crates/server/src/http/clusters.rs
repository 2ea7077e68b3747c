//! Owns clusters: create, list, show, change, delete, and their status.

use std::collections::HashMap;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{Cluster, ClusterStatus, List};
use downbeat_core::cluster::{ClusterRecord, OnRegister};
use downbeat_core::ids::ClusterId;
use downbeat_core::standing::edit::{self, Settings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Api, Id, Nothing, Query};
use super::paging::{Key, PageQuery, cut};
use super::payload::{Payload, object};
use super::problem::{HttpResult, Reply};
use crate::service::Service;

/// The fields of a cluster that people set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterBody {
    /// Letters, digits, spaces inside, `-`, `_` and `.`, up to 128 bytes; starts with a letter or a digit. Required for a new
    /// cluster.
    name: Option<String>,
    /// For people; up to 4 KiB.
    description: Option<String>,
    /// What a node does with the standing tasks when its agent starts again: `reset` (the default) or `resume`.
    #[schema(value_type = Option<String>)]
    on_register: Option<OnRegister>,
}

impl From<ClusterBody> for Settings {
    fn from(ClusterBody { name, description, on_register }: ClusterBody) -> Self {
        Self { name, description, on_register }
    }
}

/// The key of the list of clusters.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ClusterKey(String);

impl Key for ClusterKey {
    const LIST: &'static str = "clusters";
}

/// Lists clusters, by name
#[utoipa::path(
    get, operation_id = "listClusters", path = "/clusters", tag = "clusters", params(PageQuery),
    responses((status = 200, description = "One page of clusters", body = List<Cluster>))
)]
pub(super) async fn list(Api(service, _): Api, query: Query<PageQuery>) -> Reply<List<Cluster>> {
    let page = query.page()?;
    let mut nodes: HashMap<ClusterId, u64> = HashMap::new();
    for node in service.parts.dispatcher.board().nodes() {
        *nodes.entry(node.cluster).or_default() += 1;
    }
    let all = service.parts.standing.clusters();
    let all = all.iter().map(|cluster| Cluster::of(cluster, nodes.remove(&cluster.id).unwrap_or_default()));
    Ok(Json(cut(all.collect(), &page, |cluster: &Cluster| ClusterKey(cluster.name.clone()))))
}

/// Creates a cluster
#[utoipa::path(
    post, operation_id = "createCluster", path = "/clusters", tag = "clusters", request_body = ClusterBody,
    responses(
        (status = 201, description = "The cluster that was created", body = Cluster),
        (status = 409, description = "The name is in use"),
    )
)]
pub(super) async fn create(
    Api(service, caller): Api,
    _: Query<Nothing>,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let settings = object::<ClusterBody>(&body)?.into();
    let cluster = service.create_cluster(&caller, settings).await?;
    let location = format!("/api/v1/clusters/{}", cluster.id);
    let shown = Json(shown(&service, &cluster));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], shown).into_response())
}

/// Shows a cluster
#[utoipa::path(
    get, operation_id = "showCluster", path = "/clusters/{id}", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")),
    responses((status = 200, description = "The cluster", body = Cluster))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Cluster> {
    let cluster = service.cluster_record(&caller, &id).await?;
    Ok(Json(shown(&service, &cluster)))
}

fn shown(service: &Service, cluster: &ClusterRecord) -> Cluster {
    let board = service.parts.dispatcher.board();
    let nodes = board.nodes().filter(|node| node.cluster == cluster.id).count();
    Cluster::of(cluster, nodes as u64)
}

/// Changes a cluster; fields that the request lacks stay as they are
#[utoipa::path(
    patch, operation_id = "updateCluster", path = "/clusters/{id}", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")), request_body = ClusterBody,
    responses(
        (status = 200, description = "The cluster", body = Cluster),
        (status = 409, description = "The name is in use, or it is that of the cluster `default`"),
    )
)]
pub(super) async fn update(api: Api, id: Id, _: Query<Nothing>, body: Payload) -> Reply<Cluster> {
    changed(api, &id, body).await
}

/// Changes a cluster: the same as with PATCH
#[utoipa::path(
    put, operation_id = "setCluster", path = "/clusters/{id}", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")), request_body = ClusterBody,
    responses(
        (status = 200, description = "The cluster", body = Cluster),
        (status = 409, description = "The name is in use, or it is that of the cluster `default`"),
    )
)]
pub(super) async fn set(api: Api, id: Id, _: Query<Nothing>, body: Payload) -> Reply<Cluster> {
    changed(api, &id, body).await
}

async fn changed(Api(service, caller): Api, id: &str, Payload(body): Payload) -> Reply<Cluster> {
    let settings: Settings = object::<ClusterBody>(&body)?.into();
    let cluster = service.cluster_record(&caller, id).await?.id;
    let (cluster, ()) = service
        .edit_cluster(&caller, cluster, |cluster, at| {
            Ok((vec![edit::settings(cluster, settings.clone(), at)?], ()))
        })
        .await?;
    Ok(Json(shown(&service, &cluster)))
}

/// Deletes a cluster with everything in it: nodes, standing tasks, runs, executions and output
///
/// Its nodes stop their work, and their agents exit. The rows are removed in the background.
#[utoipa::path(
    delete, operation_id = "deleteCluster", path = "/clusters/{id}", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")),
    responses(
        (status = 204, description = "The cluster is deleted"),
        (status = 409, description = "The cluster `default` cannot be deleted"),
    )
)]
pub(super) async fn delete(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> HttpResult<StatusCode> {
    let cluster = service.cluster_record(&caller, &id).await?;
    service.delete_cluster(&caller, &cluster).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows how far the nodes of a cluster are with its standing tasks
#[utoipa::path(
    get, operation_id = "showClusterStatus", path = "/clusters/{id}/status", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")),
    responses((status = 200, description = "Exact counts", body = ClusterStatus))
)]
pub(super) async fn status(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<ClusterStatus> {
    let cluster = service.cluster_record(&caller, &id).await?.id;
    let read = |walks: &downbeat_core::standing::Walks| ClusterStatus::of(walks.cluster(), walks.status());
    let status = service.parts.standing.with_walks(cluster, read);
    Ok(Json(status.ok_or_else(|| service.no_cluster(&id)).map_err(crate::error::Error::from)?))
}
