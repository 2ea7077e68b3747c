//! Decides how a node's status moves with silence.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a node is doing, as the servers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    Online,
    /// Silent for a while: no new work, its leases run out.
    Stale,
    /// Silent for long: what it ran is lost.
    Offline,
}

impl NodeStatus {
    pub const ALL: [NodeStatus; 3] = [NodeStatus::Online, NodeStatus::Stale, NodeStatus::Offline];

    pub fn as_str(self) -> &'static str {
        match self {
            NodeStatus::Online => "online",
            NodeStatus::Stale => "stale",
            NodeStatus::Offline => "offline",
        }
    }
}

/// The thresholds that silence is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    pub stale_after: Duration,
    pub offline_after: Duration,
}

impl Health {
    /// The status that a silence of this length amounts to.
    pub fn status(&self, silent_for: Duration) -> NodeStatus {
        if silent_for >= self.offline_after {
            NodeStatus::Offline
        } else if silent_for >= self.stale_after {
            NodeStatus::Stale
        } else {
            NodeStatus::Online
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_moves_a_node_to_stale_then_offline() {
        let health = Health { stale_after: Duration::from_secs(30), offline_after: Duration::from_secs(100) };
        let status = |seconds| health.status(Duration::from_secs(seconds));
        assert_eq!(
            [0, 29, 30, 99, 100, 1_000].map(status),
            [
                NodeStatus::Online,
                NodeStatus::Online,
                NodeStatus::Stale,
                NodeStatus::Stale,
                NodeStatus::Offline,
                NodeStatus::Offline
            ]
        );
    }
}
