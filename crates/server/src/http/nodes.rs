//! Owns nodes and clusters.

use std::cmp::{Ordering, Reverse};

use axum::Json;
use downbeat_api::{Cluster, DeletedNode, List, Node, NodeSummary};
use downbeat_core::Timestamp;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_store::Page;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Flag, Id, Nothing, Query, words};
use super::paging::{Key, PageQuery, cut, page};
use super::problem::{Failure, HttpResult, Reply};
use super::system::zeros;
use crate::caller::Caller;
use crate::error::{Error, Noun};
use crate::nodes::Force;
use crate::service::{Drain, Service};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodesQuery {
    /// Only nodes of these statuses, comma-separated: online, stale, offline.
    status: Option<String>,
    /// Only nodes of this group.
    group: Option<String>,
    #[serde(default)]
    #[param(inline)]
    sort: Sort,
    #[serde(default)]
    #[param(inline)]
    order: Order,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page. It continues a list with the same `sort` and `order`.
    cursor: Option<String>,
}

/// Sorts the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Hostname,
    Status,
    RegisteredAt,
    SeenAt,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    #[default]
    Asc,
    Desc,
}

/// The key of a list of nodes: what it is sorted by, then the hostname.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeKey {
    sort: Sort,
    order: Order,
    value: i64,
    hostname: String,
    id: NodeId,
}

impl Key for NodeKey {
    const LIST: &'static str = "nodes";
}

impl NodeKey {
    fn of(query: &NodesQuery, node: &NodeRecord) -> Self {
        let value = match query.sort {
            Sort::Hostname => 0,
            Sort::Status => node.status as i64,
            Sort::RegisteredAt => node.registered_at.as_microsecond(),
            Sort::SeenAt => node.seen_at.as_microsecond(),
        };
        let (sort, order, hostname) = (query.sort, query.order, node.description.hostname.clone());
        Self { sort, order, value, hostname, id: node.id }
    }
}

impl Ord for NodeKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |key: &Self| (key.value, key.hostname.clone(), key.id);
        match self.order {
            Order::Asc => key(self).cmp(&key(other)),
            Order::Desc => key(other).cmp(&key(self)),
        }
    }
}

impl PartialOrd for NodeKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Lists the nodes of all clusters
#[utoipa::path(
    get, operation_id = "listNodes", path = "/nodes", tag = "nodes", params(NodesQuery),
    responses((status = 200, description = "One page of nodes", body = List<NodeSummary>))
)]
pub(super) async fn list(api: Api, query: Query<NodesQuery>) -> Reply<List<NodeSummary>> {
    listed(&api, None, &query).await
}

/// Lists the nodes of a cluster
#[utoipa::path(
    get, operation_id = "listClusterNodes", path = "/clusters/{id}/nodes", tag = "nodes",
    params(("id" = String, Path, description = "The cluster's name or id"), NodesQuery),
    responses((status = 200, description = "One page of nodes", body = List<NodeSummary>))
)]
pub(super) async fn list_of_cluster(api: Api, id: Id, query: Query<NodesQuery>) -> Reply<List<NodeSummary>> {
    let Api(service, caller) = &api;
    let cluster = service.cluster(caller, Some(&id)).await?;
    listed(&api, Some(cluster), &query).await
}

async fn listed(
    Api(service, caller): &Api,
    cluster: Option<ClusterId>,
    query: &NodesQuery,
) -> Reply<List<NodeSummary>> {
    let page: Page<NodeKey> = page(query.limit, query.offset, query.cursor.as_deref())?;
    if page.start.after.as_ref().is_some_and(|key| (key.sort, key.order) != (query.sort, query.order)) {
        let detail = "the query is wrong: cursor: it is of a list with another `sort` or `order`";
        return Err(Failure::bad_query(detail));
    }
    let statuses = words("status", query.status.as_deref(), "online, stale, offline", NodeStatus::parse)?;
    let mut nodes = service.nodes(caller, cluster).await?;
    nodes.retain(|node| {
        (statuses.is_empty() || statuses.contains(&node.status))
            && query.group.as_ref().is_none_or(|group| node.description.groups.contains(group))
    });
    nodes.sort_by_cached_key(|node| NodeKey::of(query, node));
    let List { data, pagination } = cut(nodes, &page, |node| NodeKey::of(query, node));
    Ok(Json(List { data: data.into_iter().map(NodeSummary::from).collect(), pagination }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeQuery {
    /// The cluster in which to look up a hostname; default `default`.
    pub(super) cluster: Option<String>,
}

/// Shows a node with all its details
#[utoipa::path(
    get, operation_id = "showNode", path = "/nodes/{id}", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 200, description = "The node", body = Node))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, query: Query<NodeQuery>) -> Reply<Node> {
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    Ok(Json(Node::from(node)))
}

/// Drains a node: it finishes its work and gets no new work
#[utoipa::path(
    post, operation_id = "drainNode", path = "/nodes/{id}/drain", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 200, description = "The node", body = Node))
)]
pub(super) async fn drain(api: Api, id: Id, query: Query<NodeQuery>) -> Reply<Node> {
    set_drain(&api, &id, &query, Drain::On).await
}

/// Ends a drain: the node gets new work again
#[utoipa::path(
    post, operation_id = "undrainNode", path = "/nodes/{id}/undrain", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 200, description = "The node", body = Node))
)]
pub(super) async fn undrain(api: Api, id: Id, query: Query<NodeQuery>) -> Reply<Node> {
    set_drain(&api, &id, &query, Drain::Off).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// The cluster in which to look up a hostname; default `default`.
    cluster: Option<String>,
    /// `1` or `true` also deletes a node that is online.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    force: Flag,
}

/// Deletes a node: its running work is lost, pending work for it fails, and its agent exits as soon as it
/// notices. An agent that is started again registers as a new node. Deleting a node twice changes nothing
#[utoipa::path(
    delete, operation_id = "deleteNode", path = "/nodes/{id}", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), DeleteQuery),
    responses((status = 200, description = "The deleted node", body = DeletedNode))
)]
pub(super) async fn delete(
    Api(service, caller): Api,
    id: Id,
    query: Query<DeleteQuery>,
) -> Reply<DeletedNode> {
    let node = service.node_id(&caller, &id, query.cluster.as_deref()).await?;
    let force = if query.force.is_on() { Force::On } else { Force::Off };
    match service.delete_node(&caller, node, force).await {
        // Names the node as the request did.
        Err(Error::NoSuch(Noun::Node(..))) => Err(Error::NoSuch(Noun::Node(id.0, Vec::new())).into()),
        deleted => Ok(Json(deleted?.into())),
    }
}

/// Lists deleted nodes, the latest first, for as long as the store remembers them
#[utoipa::path(
    get, operation_id = "listDeletedNodes", path = "/deleted-nodes", tag = "nodes", params(PageQuery),
    responses((status = 200, description = "One page of deleted nodes", body = List<DeletedNode>))
)]
pub(super) async fn list_deleted(
    Api(service, caller): Api,
    query: Query<PageQuery>,
) -> Reply<List<DeletedNode>> {
    let page = query.page()?;
    let mut deleted: Vec<DeletedNode> =
        service.deleted_nodes(&caller).await?.into_iter().map(DeletedNode::from).collect();
    let key = |node: &DeletedNode| {
        DeletedKey(Reverse(node.deleted_at), node.hostname.clone(), node.id, node.session)
    };
    deleted.sort_by_cached_key(key);
    Ok(Json(cut(deleted, &page, key)))
}

/// The key of the list of deleted nodes: the latest first.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct DeletedKey(Reverse<Timestamp>, String, NodeId, SessionId);

impl Key for DeletedKey {
    const LIST: &'static str = "deleted-nodes";
}

async fn set_drain(Api(service, caller): &Api, id: &str, query: &NodeQuery, drain: Drain) -> Reply<Node> {
    let node = service.node(caller, id, query.cluster.as_deref()).await?.id;
    service.set_drain(caller, node, drain).await?;
    Ok(Json(Node::from(service.node(caller, &node.to_string(), None).await?)))
}

/// Lists clusters
#[utoipa::path(
    get, operation_id = "listClusters", path = "/clusters", tag = "clusters", params(PageQuery),
    responses((status = 200, description = "One page of clusters", body = List<Cluster>))
)]
pub(super) async fn clusters(Api(service, caller): Api, query: Query<PageQuery>) -> Reply<List<Cluster>> {
    let page = query.page()?;
    let all = vec![shown_cluster(&service, &caller, ClusterId::DEFAULT).await?];
    Ok(Json(cut(all, &page, |cluster| ClusterKey(cluster.name.clone()))))
}

/// The key of the list of clusters.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ClusterKey(String);

impl Key for ClusterKey {
    const LIST: &'static str = "clusters";
}

/// Shows a cluster
#[utoipa::path(
    get, operation_id = "showCluster", path = "/clusters/{id}", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id")),
    responses((status = 200, description = "The cluster", body = Cluster))
)]
pub(super) async fn cluster(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Cluster> {
    let id = service.cluster(&caller, Some(&id)).await?;
    Ok(Json(shown_cluster(&service, &caller, id).await?))
}

async fn shown_cluster(service: &Service, caller: &Caller, id: ClusterId) -> HttpResult<Cluster> {
    let mut nodes = zeros(NodeStatus::ALL);
    for node in service.nodes(caller, Some(id)).await? {
        *nodes.entry(node.status).or_default() += 1;
    }
    let name = if id == ClusterId::DEFAULT { "default".to_owned() } else { id.to_string() };
    Ok(Cluster { id, name, nodes })
}
