//! Describes the nodes of a run that have been silent for a while, or that were deleted.

use crate::ids::NodeId;
use crate::node::NodeStatus;
use crate::run::Resolved;

/// Returns the run's nodes that are stale, offline or deleted (no status), by hostname, each with the consequence for
/// its steps.
pub fn silent_nodes(
    resolved: &Resolved,
    status: impl Fn(NodeId) -> Option<NodeStatus>,
) -> Vec<(String, &'static str)> {
    let reason = |id| match status(id) {
        None => Some("was deleted: its steps fail"),
        Some(NodeStatus::Online) => None,
        Some(NodeStatus::Stale) => Some("is stale: its steps wait for it, and fail when it goes offline"),
        Some(NodeStatus::Offline) => Some("is offline: its steps fail unless it is online when they start"),
    };
    let nodes = resolved.nodes.iter();
    nodes.filter_map(|node| reason(node.id).map(|why| (node.hostname.clone(), why))).collect()
}
