//! Decides how the status of a silent node changes, and when work for an unreachable node fails.

use std::time::Duration;

use crate::words::words;

words! {
    /// The health of a node, as the servers see it.
    pub enum NodeStatus {
        Online = "online",
        /// Silent for a while: it gets no new work, and its leases expire.
        Stale = "stale",
        /// Silent for long: its work is lost.
        Offline = "offline",
    }
}

/// How long a node may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    pub stale_after: Duration,
    pub offline_after: Duration,
}

impl Health {
    /// Returns the status of a node that has been silent for this long.
    pub fn status(&self, silent_for: Duration) -> NodeStatus {
        if silent_for >= self.offline_after {
            NodeStatus::Offline
        } else if silent_for >= self.stale_after {
            NodeStatus::Stale
        } else {
            NodeStatus::Online
        }
    }

    /// Returns the status of a silent node that has a lease which is not over, or has none. It goes offline when its last
    /// lease is over: otherwise a lease would end before its term.
    pub fn status_with(&self, silent_for: Duration, has_lease: bool) -> NodeStatus {
        let worst = if has_lease { NodeStatus::Stale } else { NodeStatus::Offline };
        self.status(silent_for).min(worst)
    }
}

/// Whether a node can get work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Online, or silent for so short a time that its work waits.
    Here,
    Offline,
    Deleted,
}

impl Reach {
    /// Returns why work for the node fails, if it does. Patient work was re-sent after a loss: it waits for an offline
    /// node, which may come back. A deleted node does not.
    pub fn fails(self, is_patient: bool) -> Option<&'static str> {
        match self {
            Self::Here => None,
            Self::Offline => (!is_patient).then_some("is offline"),
            Self::Deleted => Some("was deleted"),
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

    #[test]
    fn a_node_goes_offline_when_its_last_lease_is_over() {
        let health = Health { stale_after: Duration::from_secs(30), offline_after: Duration::from_secs(100) };
        for (silent_s, has_lease, expected) in [
            (29, true, NodeStatus::Online),
            (30, true, NodeStatus::Stale),
            (99, false, NodeStatus::Stale),
            (100, true, NodeStatus::Stale),
            (100, false, NodeStatus::Offline),
        ] {
            let status = health.status_with(Duration::from_secs(silent_s), has_lease);
            assert_eq!(status, expected, "{silent_s} s, {has_lease}");
        }
    }
}
