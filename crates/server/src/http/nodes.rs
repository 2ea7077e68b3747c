//! Owns nodes.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use downbeat_api::{DeletedNode, List, Node, NodeCount, NodeSummary, Walk};
use downbeat_core::Timestamp;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::select::Selector;
use downbeat_store::Page;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Flag, Id, Query, words};
use super::paging::{Direction, Key, PageQuery, cut, page};
use super::problem::{Failure, HttpResult, Reply};
use super::system::zeros;
use crate::error::{Error, Noun};
use crate::force::Force;
use crate::service::{Drain, Service};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodesQuery {
    /// Only nodes of these statuses, comma-separated: online, stale, offline.
    status: Option<String>,
    /// Only nodes of this group.
    group: Option<String>,
    /// Only nodes that this selector matches: `group:web and not label:zone=b`.
    selector: Option<String>,
    /// Only nodes whose hostname contains this text, in upper or lower case.
    q: Option<String>,
    /// `1` lists only nodes that are drained, `0` only others.
    #[param(value_type = Option<Flag>, inline)]
    draining: Option<Flag>,
    #[serde(default)]
    #[param(inline)]
    sort: Sort,
    /// Default `asc`.
    #[param(inline)]
    order: Option<Direction>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page. It continues a list with the same `sort` and `order`. A node whose status or
    /// heartbeat changes between two pages may be on both or on neither, if the list is sorted by it.
    cursor: Option<String>,
}

impl NodesQuery {
    fn order(&self) -> Direction {
        self.order.unwrap_or(Direction::Asc)
    }
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

/// The key of a list of nodes: what it is sorted by, then the hostname.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeKey {
    sort: Sort,
    order: Direction,
    value: i64,
    hostname: String,
    id: NodeId,
}

impl Key for NodeKey {
    const LIST: &'static str = "nodes";
}

impl NodeKey {
    fn of(query: &NodesQuery, (value, node): &Sorted) -> Self {
        let (sort, order, hostname) = (query.sort, query.order(), node.description.hostname.clone());
        Self { sort, order, value: *value, hostname, id: node.id }
    }
}

/// A node with the number that it is sorted by.
type Sorted = (i64, Arc<NodeRecord>);

fn sort(nodes: &mut [Sorted], order: Direction) {
    // Keys are not made for this: most nodes are on no page, and each key would copy a hostname.
    fn key((value, node): &Sorted) -> (i64, &str, NodeId) {
        (*value, &node.description.hostname, node.id)
    }
    nodes.sort_unstable_by(|a, b| match order {
        Direction::Asc => key(a).cmp(&key(b)),
        Direction::Desc => key(b).cmp(&key(a)),
    });
}

impl Ord for NodeKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let (own, others) = ((self.value, &self.hostname, self.id), (other.value, &other.hostname, other.id));
        match self.order {
            Direction::Asc => own.cmp(&others),
            Direction::Desc => others.cmp(&own),
        }
    }
}

impl PartialOrd for NodeKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Selects nodes.
struct Wanted {
    statuses: Vec<NodeStatus>,
    group: Option<String>,
    selector: Option<Selector>,
    text: Option<String>,
    draining: Option<bool>,
}

impl Wanted {
    fn of(query: &NodesQuery) -> HttpResult<Self> {
        Ok(Self {
            statuses: words("status", query.status.as_deref(), "online, stale, offline", NodeStatus::parse)?,
            group: query.group.clone(),
            selector: query.selector.as_deref().map(selector).transpose()?,
            text: query.q.as_deref().map(str::to_ascii_lowercase),
            draining: query.draining.map(Flag::is_on),
        })
    }

    fn matches(&self, node: &NodeRecord) -> bool {
        let hostname = || node.description.hostname.to_ascii_lowercase();
        (self.statuses.is_empty() || self.statuses.contains(&node.status))
            && self.draining.is_none_or(|draining| node.draining == draining)
            && self.group.as_ref().is_none_or(|group| node.description.groups.contains(group))
            && self.text.as_ref().is_none_or(|text| hostname().contains(text))
            && self.selector.as_ref().is_none_or(|selector| selector.matches(node))
    }
}

fn selector(text: &str) -> HttpResult<Selector> {
    Selector::parse(text)
        .map_err(|error| Failure::bad_query(format!("the query is wrong: selector: {error}")))
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
    Api(service, _): &Api,
    cluster: Option<ClusterId>,
    query: &NodesQuery,
) -> Reply<List<NodeSummary>> {
    let page: Page<NodeKey> = page(query.limit, query.offset, query.cursor.as_deref())?;
    if page.start.after.as_ref().is_some_and(|key| (key.sort, key.order) != (query.sort, query.order())) {
        let detail = "the query is wrong: cursor: it is of a list with another `sort` or `order`";
        return Err(Failure::bad_query(detail));
    }
    let wanted = Wanted::of(query)?;
    let mut nodes = service.known_nodes(cluster);
    nodes.retain(|node| wanted.matches(node));
    let seen = match query.sort {
        Sort::SeenAt => seen(service, nodes.iter().map(|node| node.id)).await?,
        _ => HashMap::new(),
    };
    let value = |node: &NodeRecord| match query.sort {
        Sort::Hostname => 0,
        Sort::Status => node.status as i64,
        Sort::RegisteredAt => node.registered_at.as_microsecond(),
        Sort::SeenAt => seen.get(&node.id).unwrap_or(&node.seen_at).as_microsecond(),
    };
    let mut nodes: Vec<Sorted> = nodes.into_iter().map(|node| (value(&node), node)).collect();
    sort(&mut nodes, query.order());
    let List { data, pagination } = cut(nodes, &page, |node| NodeKey::of(query, node));
    let seen = self::seen(service, data.iter().map(|(_, node)| node.id)).await?;
    let board = service.parts.dispatcher.board();
    let row = |(_, node): Sorted| {
        let mut row = NodeSummary::from(Arc::unwrap_or_clone(node));
        row.seen_at = seen.get(&row.id).copied().unwrap_or(row.seen_at);
        row.slots_in_use = board.slots_in_use(row.id);
        row
    };
    Ok(Json(List { data: data.into_iter().map(row).collect(), pagination }))
}

/// Returns when nodes were last seen.
async fn seen(
    service: &Service,
    nodes: impl Iterator<Item = NodeId>,
) -> HttpResult<HashMap<NodeId, Timestamp>> {
    let nodes: Vec<NodeId> = nodes.collect();
    let seen = service.views().seen(&nodes).await?;
    Ok(seen.into_iter().map(|(node, _, at)| (node, at)).collect())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CountsQuery {
    /// What to count by: `group` (the default), `label:KEY` or `status`.
    by: Option<String>,
    /// Only nodes of this cluster, by name or id.
    cluster: Option<String>,
    /// Only nodes that this selector matches.
    selector: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// The key of the list of counts.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct CountKey(String);

impl Key for CountKey {
    const LIST: &'static str = "node-counts";
}

/// Counts nodes by group, label or status. A node of several groups counts in each
#[utoipa::path(
    get, operation_id = "countNodes", path = "/node-counts", tag = "nodes", params(CountsQuery),
    responses((status = 200, description = "One page of counts", body = List<NodeCount>))
)]
pub(super) async fn counts(Api(service, caller): Api, query: Query<CountsQuery>) -> Reply<List<NodeCount>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let cluster = match &query.cluster {
        Some(cluster) => Some(service.cluster(&caller, Some(cluster)).await?),
        None => None,
    };
    let selector = query.selector.as_deref().map(selector).transpose()?;
    let by = query.by.as_deref().unwrap_or("group");
    let label = by.strip_prefix("label:");
    if label.is_none() && !["group", "status"].contains(&by) {
        return Err(Failure::bad_query("the query is wrong: by: it is not `group`, `label:KEY` or `status`"));
    }
    let mut counts: BTreeMap<String, BTreeMap<NodeStatus, u64>> = BTreeMap::new();
    for node in service.known_nodes(cluster) {
        if selector.as_ref().is_some_and(|selector| !selector.matches(&node)) {
            continue;
        }
        let values = match (label, by) {
            (Some(key), _) => node.description.labels.get(key).cloned().into_iter().collect(),
            (None, "group") => node.description.groups.clone(),
            (None, _) => vec![node.status.to_string()],
        };
        for value in values {
            *counts.entry(value).or_insert_with(|| zeros(NodeStatus::ALL)).entry(node.status).or_default() +=
                1;
        }
    }
    let counts = counts.into_iter().map(|(value, nodes)| NodeCount { value, nodes }).collect();
    Ok(Json(cut(counts, &page, |count: &NodeCount| CountKey(count.value.clone()))))
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
    Ok(Json(shown(&service, node)))
}

fn shown(service: &Service, node: NodeRecord) -> Node {
    let slots_in_use = service.parts.dispatcher.board().slots_in_use(node.id);
    let cluster = service.parts.standing.cluster_by_id(node.cluster);
    let reset_at = cluster.map(|cluster| Walk::reset_at(&cluster, &node));
    let shown = Node::from(node);
    Node { slots_in_use, reset_at: reset_at.or(shown.reset_at), ..shown }
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
    #[param(value_type = Option<Flag>, inline)]
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
///
/// It has the latest 10,000.
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
    Ok(Json(shown(service, service.node(caller, &node.to_string(), None).await?)))
}

/// Makes a node do all standing tasks of its cluster again
#[utoipa::path(
    post, operation_id = "resetNode", path = "/nodes/{id}/reset", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 202, description = "The node; it starts over", body = Node))
)]
pub(super) async fn reset(
    Api(service, caller): Api,
    id: Id,
    query: Query<NodeQuery>,
) -> HttpResult<(StatusCode, Json<Node>)> {
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    service.reset_node(&caller, node.cluster, node.id).await?;
    Ok((StatusCode::ACCEPTED, Json(shown(&service, node))))
}
