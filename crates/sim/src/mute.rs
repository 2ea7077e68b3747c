//! Owns an agent that is alive and never reports: its heartbeats arrive, and its results do not. Demands that a server
//! ends its work in time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::ids::{ClusterId, ExecutionId, NodeId};
use downbeat_core::limits;
use downbeat_store::Executions;

use crate::check::{Checker, Violation};
use crate::cluster::Cluster;
use crate::detection::{SETTLE_TIME, SLACK};
use crate::world::HostId;

/// After this time an attempt has to have ended: the longest timeout of a task in the simulation, and the time for its
/// report.
const BOUND: Duration = Duration::from_secs(limits::TASK_TIMEOUT_DEFAULT_S + limits::REPORT_GRACE_S);

/// Makes an agent mute within this time, and returns it.
pub(crate) fn start(cluster: &Arc<Cluster>, within: Duration) -> usize {
    let number = cluster.world.index(cluster.shape.agents);
    let cluster = cluster.clone();
    tokio::spawn(async move {
        tokio::time::sleep(cluster.world.up_to(within)).await;
        cluster.world.log(format_args!("a{number} reports nothing any more"));
        cluster.network.mute(HostId::Agent(number));
    });
    number
}

/// Checks that all work that a mute agent has now is ended in time, and lets the agent report again.
pub(crate) async fn check(cluster: &Cluster, number: usize) -> Option<Violation> {
    let node = NodeId::derive(ClusterId::DEFAULT, &format!("n{number}"));
    let held = async || -> BTreeSet<ExecutionId> {
        let held = cluster.memory.held_by(&[node]).await.expect("the memory store does not fail");
        held.into_iter().map(|execution| execution.id).collect()
    };
    tokio::time::sleep(SETTLE_TIME).await;
    let (before, bound) = (held().await, BOUND + BOUND / 100 + SLACK);
    let mut left = BTreeSet::new();
    if !before.is_empty() {
        tokio::time::sleep(bound).await;
        left = &held().await & &before;
    }
    cluster.world.log(format_args!("a{number} reports again"));
    cluster.network.unmute(HostId::Agent(number));
    (!left.is_empty()).then(|| Violation {
        checker: Checker::Detection,
        what: format!("n{number} reported nothing for {bound:?}, but has the leases of {left:?}"),
    })
}
