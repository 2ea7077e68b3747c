//! Owns the backends that the nodes of a cluster offer.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use downbeat_api::{List, OfferedBackend};
use downbeat_core::backend::BackendSchema;
use downbeat_core::collections::HashMap;
use downbeat_core::node::{NodeRecord, NodeStatus};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Query};
use super::paging::{first_place, page, window};
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
    let offered = offered(&service.nodes_of(cluster));
    let total = offered.len() as u64;
    let first = usize::try_from(first_place(&page)).unwrap_or(usize::MAX);
    let rows = offered.into_iter().skip(first).take(page.limit as usize);
    let row = |Offer { backend, nodes, online }: Offer| OfferedBackend {
        backend: (*backend).clone().into(),
        nodes,
        online,
    };
    Ok(Json(window(rows.map(row).collect(), &page, total)))
}

struct Offer {
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
                backend: Arc::clone(backend),
                nodes: 0,
                online: 0,
            });
            offer.nodes += 1;
            offer.online += u64::from(node.status == NodeStatus::Online);
        }
    }
    let mut offers: Vec<Offer> = offers.into_values().collect();
    // Declarations that as many nodes share need a fixed order, too.
    offers.sort_by_cached_key(|offer| {
        let text = serde_json::to_string(&offer.backend.actions).unwrap_or_default();
        (offer.backend.name.clone(), Reverse(offer.nodes), text)
    });
    offers
}
