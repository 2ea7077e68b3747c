//! What a node is at. All of it comes from the store: every server that shares it answers the same, and so does a replica.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use downbeat_core::ids::RunId;
use downbeat_core::run::RunRecord;

use super::extract::{Id, Query};
use super::nodes::NodeQuery;
use super::problem::Answer;
use super::view::{HeldWork, NodeWork};
use crate::caller::Caller;
use crate::service::Service;

/// Shows what a node holds and has done: leases and their ages, free slots, totals by status, last activity
#[utoipa::path(
    get, operation_id = "showNodeWork", path = "/nodes/{id}/workers", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 200, description = "The node's work", body = NodeWork))
)]
pub(super) async fn show(
    State(service): State<Service>,
    caller: Caller,
    Id(id): Id,
    Query(query): Query<NodeQuery>,
) -> Answer<Json<NodeWork>> {
    let store = service.store().as_ref();
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    let (lease_ttl, now) = (service.settings().lease_ttl.0, service.now());
    let mut runs: HashMap<RunId, Option<RunRecord>> = HashMap::new();
    let mut held = Vec::new();
    for execution in store.held_by(node.id).await? {
        if !runs.contains_key(&execution.run) {
            runs.insert(execution.run.clone(), store.run(&execution.run).await?);
        }
        held.extend(HeldWork::of(&execution, runs[&execution.run].as_ref(), &node, lease_ttl, now));
    }
    // After the leases: an execution that ends in between is in both rather than in neither.
    let totals = store.node_totals(node.id).await?;
    Ok(Json(NodeWork::of(&node, held, totals, now)))
}
