//! Demands that the end of an agent is noticed in time, while the clocks of the store and of the servers jump by hours.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::node::NodeStatus;
use downbeat_store::{Executions, Nodes};

use crate::check::{Checker, Violation};
use crate::cluster::Cluster;
use crate::faults::jump_us;
use crate::world::HostId;

/// The time until every server is up again after everything has healed.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(40);
/// How long after `node_offline_after` a node may go offline: one sweep, one commit, and the difference between the
/// servers' clock and the true time.
pub(crate) const SLACK: Duration = Duration::from_secs(5);
const NEVER_FAILS: &str = "the memory store does not fail";

pub(crate) async fn check(cluster: &Arc<Cluster>) -> Option<Violation> {
    let world = &cluster.world;
    tokio::time::sleep(SETTLE_TIME).await;
    let number = world.index(cluster.shape.agents);
    let bound = cluster.shape.offline_after() + SLACK;
    cluster.crash(HostId::Agent(number), bound + SLACK);
    let before_jump = world.up_to(bound / 2);
    tokio::time::sleep(before_jump).await;
    cluster.jump_servers(|| jump_us(world));
    world.log(format_args!("the clocks of the store and of all servers jump"));
    tokio::time::sleep(bound - before_jump).await;
    let node = NodeId::derive(ClusterId::DEFAULT, &format!("n{number}"));
    let status = cluster.memory.node(node).await.expect(NEVER_FAILS).map(|node| node.status);
    let held = cluster.memory.held_by(&[node]).await.expect(NEVER_FAILS);
    let is_noticed = status.is_none_or(|status| status == NodeStatus::Offline) && held.is_empty();
    (!is_noticed).then(|| Violation {
        checker: Checker::Detection,
        what: format!("n{number} was gone for {bound:?} but is {status:?} with {} leases", held.len()),
    })
}
