//! Owns the walks of the nodes of a cluster through its standing tasks: the matrix of nodes and tasks.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use downbeat_api::{Execution, List, Names, Walk};
use downbeat_core::execution::Execution as Record;
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::limits;
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::standing::{WalkState, WalkView, Walks};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Id, Query, words};
use super::paging::{Key, cut, page};
use super::problem::{HttpResult, Reply};
use crate::error::{Error, Noun};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WalksQuery {
    /// Only nodes in these states of their walk, comma-separated: complete, pending, running, failed, blocked.
    state: Option<String>,
    /// Only nodes of these statuses, comma-separated: online, stale, offline.
    status: Option<String>,
    /// Only nodes that are stuck at this task, by name or id.
    task: Option<String>,
    /// The number of rows; default 100, at most 1,000. A page of a long list of tasks has fewer.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// The key of the list of walks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct WalkKey(String, NodeId);

impl Key for WalkKey {
    const LIST: &'static str = "walks";
}

/// Lists what each node of a cluster did with each standing task, by hostname
#[utoipa::path(
    get, operation_id = "listWalks", path = "/clusters/{id}/walks", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id"), WalksQuery),
    responses((status = 200, description = "One page of walks", body = List<Walk>))
)]
pub(super) async fn list(Api(service, caller): Api, id: Id, query: Query<WalksQuery>) -> Reply<List<Walk>> {
    let mut page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let known = "complete, pending, running, failed, blocked";
    let states = words("state", query.state.as_deref(), known, WalkState::parse)?;
    let statuses = words("status", query.status.as_deref(), "online, stale, offline", NodeStatus::parse)?;
    let cluster = service.cluster_record(&caller, &id).await?;
    page.limit = page.limit.min(most_rows(cluster.list.tasks.len()));
    let cluster = cluster.id;
    let read = |walks: &Walks| -> Result<Vec<Arc<NodeRecord>>, Noun> {
        let list = &walks.cluster().list;
        let place = match query.task.as_deref() {
            None => None,
            Some(task) => {
                let by_id = task.parse().ok().and_then(|id| list.by_id(id));
                let found = by_id.or_else(|| list.by_name(task)).map(|(place, _)| place);
                Some(found.ok_or_else(|| Noun::StandingTask(task.to_owned()))?)
            }
        };
        let is_wanted = |walk: &WalkView| {
            (states.is_empty() || states.contains(&walk.state))
                && place.is_none_or(|place| walk.stuck.is_some_and(|(stuck, _)| stuck == place))
        };
        // The walk of a node is put together only if it is shown or decides whether it is.
        let is_any = states.is_empty() && place.is_none();
        let nodes = walks.nodes().filter(|node| statuses.is_empty() || statuses.contains(&node.status));
        let found = nodes.filter(|node| is_any || walks.walk(node.id).as_ref().is_some_and(is_wanted));
        Ok(found.map(Arc::clone).collect())
    };
    let read = service.parts.standing.with_walks(cluster, read);
    let gone = || Error::from(service.no_cluster(&id));
    let mut found = read.ok_or_else(gone)?.map_err(|missing: Noun| Error::from(missing))?;
    let place = |node: &Arc<NodeRecord>| (node.description.hostname.clone(), node.id);
    found.sort_by_cached_key(place);
    let List { data, pagination } = cut(found, &page, |node| WalkKey(place(node).0, node.id));
    let shown = service.parts.standing.with_walks(cluster, |walks| {
        let data: Vec<WalkView> = data.iter().filter_map(|node| walks.walk(node.id)).collect();
        (Arc::clone(walks.cluster()), data)
    });
    let (cluster, data) = shown.ok_or_else(gone)?;
    let mut reasons = reasons(&service, &data).await?;
    let data = data.iter().map(|walk| Walk::of(&cluster, walk, |execution| reasons.remove(&execution)));
    Ok(Json(List { data: data.collect(), pagination }))
}

/// Returns how many nodes fit onto a page: each has a cell for each task.
fn most_rows(tasks: usize) -> u32 {
    let rows = limits::CELLS_PER_PAGE / tasks.max(1);
    u32::try_from(rows).unwrap_or(u32::MAX).max(1)
}

/// Returns why the executions at which nodes are stuck failed. They are at most as many as a page has rows, and are read at
/// once, without what may be large.
async fn reasons(service: &Service, walks: &[WalkView]) -> HttpResult<HashMap<ExecutionId, String>> {
    let stuck = walks.iter().filter_map(|walk| walk.stuck.and_then(|(_, execution)| execution));
    let stuck: Vec<ExecutionId> = stuck.collect();
    if stuck.is_empty() {
        return Ok(HashMap::new());
    }
    let records = service.views().bare_executions_by_id(&stuck).await?;
    let reason = |record: &Record| {
        let shown = Execution::of(record, String::new(), &Names::default());
        let exit = shown.exit_code.map(|code| format!("exit code {code}"));
        Some((record.id, shown.error.or(exit).or(shown.reason)?))
    };
    Ok(records.iter().filter_map(reason).collect())
}
