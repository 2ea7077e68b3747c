//! Owns a node's work. All of it comes from the store, so all servers that share the store, and replicas,
//! return the same.

use std::collections::HashMap;

use axum::Json;
use downbeat_api::{HeldWork, NodeWork, Slots};
use downbeat_core::Timestamp;
use downbeat_core::execution::Status;
use downbeat_core::ids::RunId;
use downbeat_core::node::NodeRecord;
use downbeat_core::run::RunRecord;
use downbeat_store::NodeTotals;

use super::extract::{Api, Id, Query};
use super::nodes::NodeQuery;
use super::problem::Reply;
use super::system::zeros;

/// Shows what a node holds and has done: leases and their ages, free slots, totals by status, last activity
#[utoipa::path(
    get, operation_id = "showNodeWork", path = "/nodes/{id}/workers", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeQuery),
    responses((status = 200, description = "The node's work", body = NodeWork))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, query: Query<NodeQuery>) -> Reply<NodeWork> {
    let store = service.views().as_ref();
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    let (lease_ttl, now) = (service.parts.settings.lease_ttl.0, service.now());
    let mut runs: HashMap<RunId, Option<RunRecord>> = HashMap::new();
    let mut held = Vec::new();
    for execution in store.held_by(&[node.id]).await? {
        if !runs.contains_key(execution.run()) {
            runs.insert(execution.run().clone(), store.run(execution.run()).await?);
        }
        let mut work = HeldWork::of(&execution, runs[execution.run()].as_ref(), &node, lease_ttl, now);
        let task = service.parts.standing.task_of_step(execution.run(), execution.step());
        if let (Some(work), Some(task)) = (&mut work, task.map(|(_, name)| name)) {
            work.task = task;
        }
        held.extend(work);
    }
    // After the leases: an execution that ends in between is then in both rather than in neither.
    let totals = store.node_totals(node.id).await?;
    Ok(Json(node_work(&node, held, totals, now)))
}

fn node_work(node: &NodeRecord, held: Vec<HeldWork>, totals: NodeTotals, now: Timestamp) -> NodeWork {
    let mut by_status = zeros(Status::ALL);
    by_status.extend(totals.executions);
    let taken = u32::try_from(held.iter().filter(|held| held.placed).count()).unwrap_or(u32::MAX);
    let total = node.description.slots;
    // A node's clock may be ahead; `now` is the upper bound.
    let finished_at = totals.finished_at.map(|at| at.min(now));
    NodeWork {
        id: node.id,
        hostname: node.description.hostname.clone(),
        status: node.status,
        draining: node.draining,
        slots: Slots { total, free: total.saturating_sub(taken) },
        held,
        expired_leases: by_status.get(&Status::Lost).copied().unwrap_or(0),
        totals: by_status,
        active_at: Some(node.seen_at).max(totals.claimed_at).max(finished_at).unwrap_or(node.seen_at),
        heartbeat_at: node.seen_at,
        claimed_at: totals.claimed_at,
        finished_at,
    }
}
