//! Owns the backends that the nodes of a cluster offer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Json;
use downbeat_api::{List, OfferedBackend};
use downbeat_core::backend::BackendSchema;
use downbeat_core::collections::HashMap;
use downbeat_core::node::{NodeRecord, NodeStatus};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Query};
use super::paging::{Key, cut, page};
use super::problem::Reply;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BackendsQuery {
    /// The cluster, by name or id.
    cluster: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// A backend's name, and a hash of its declaration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct BackendKey(String, u64);

impl Key for BackendKey {
    const LIST: &'static str = "backends";
}

/// Lists the backends that the nodes of a cluster offer, with actions and params
#[utoipa::path(
    get, operation_id = "listBackends", path = "/backends", tag = "nodes", params(BackendsQuery),
    responses((status = 200, description = "One page of backends, by name", body = List<OfferedBackend>))
)]
pub(super) async fn list(
    Api(service, caller): Api,
    query: Query<BackendsQuery>,
) -> Reply<List<OfferedBackend>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let cluster = service.cluster(&caller, query.cluster.as_deref()).await?;
    let List { data, pagination } =
        cut(offered(&service.known_nodes(Some(cluster))), &page, |offer| offer.key.clone());
    let row = |Offer { backend, nodes, online, .. }: Offer| OfferedBackend {
        backend: (*backend).clone().into(),
        nodes,
        online,
    };
    Ok(Json(List { data: data.into_iter().map(row).collect(), pagination }))
}

struct Offer {
    key: BackendKey,
    backend: Arc<BackendSchema>,
    nodes: u64,
    online: u64,
}

/// Counts the nodes that offer each backend. The board shares equal schemas, so that pointers identify them.
fn offered(nodes: &[Arc<NodeRecord>]) -> Vec<Offer> {
    let mut offers: HashMap<*const BackendSchema, Offer> = HashMap::default();
    for node in nodes {
        for backend in &node.description.backends {
            let offer = offers.entry(Arc::as_ptr(backend)).or_insert_with(|| Offer {
                key: key(backend),
                backend: Arc::clone(backend),
                nodes: 0,
                online: 0,
            });
            offer.nodes += 1;
            offer.online += u64::from(node.status == NodeStatus::Online);
        }
    }
    let mut offers: Vec<Offer> = offers.into_values().collect();
    offers.sort_by(|a, b| a.key.cmp(&b.key));
    offers
}

fn key(backend: &BackendSchema) -> BackendKey {
    let mut hasher = DefaultHasher::new();
    backend.hash(&mut hasher);
    BackendKey(backend.name.clone(), hasher.finish())
}
