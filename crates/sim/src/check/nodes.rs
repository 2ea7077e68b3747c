//! Checks that a node counts as silent only after it was, and that another installation gets its name only after it went
//! silent, signed off or was deleted.

use std::collections::BTreeMap;

use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;
use downbeat_core::{Change, Timestamp};

use super::evidence::{Evidence, at_least};
use super::{Checker, Findings};

/// The installation that owns a node.
struct Owner {
    digest: Option<String>,
    status: NodeStatus,
    /// When a server got its registration, and when that was committed.
    arrived: Timestamp,
    registered: Timestamp,
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Nodes);
    let stale_after = at_least(evidence.stale_after);
    let mut owners: BTreeMap<NodeId, Owner> = BTreeMap::new();
    for event in &evidence.events {
        let Some(at) = evidence.committed_at(event) else { continue };
        match &event.change {
            Change::NodeRegistered { registration } => {
                let node = registration.node;
                let digest = registration.installation.as_ref().map(|one| one.digest.clone());
                if let Some(former) = owners.get(&node)
                    && former.digest != digest
                    && former.status == NodeStatus::Online
                {
                    let heard = evidence.last_heard(node, at).unwrap_or(former.registered);
                    let heard = heard.max(former.registered);
                    if at < heard + stale_after {
                        let number = evidence.hosts.get(&node);
                        findings.add(format!(
                            "n{number:?} was seen at {heard}, but another installation got its name at {at}"
                        ));
                    }
                }
                let arrived = evidence.truth.arrivals.get(&registration.session).copied().unwrap_or(at);
                owners.insert(node, Owner { digest, status: NodeStatus::Online, arrived, registered: at });
            }
            Change::NodeMoved { node, to, silent_since, .. } => {
                let Some(owner) = owners.get_mut(node) else { continue };
                owner.status = *to;
                // A node that signs off is not silent.
                if silent_since.is_none() {
                    continue;
                }
                // A registration counts from its arrival: its commit may take long. Earlier heartbeats do not count.
                let beat = evidence.last_heard_within(*node, owner.registered, at);
                let heard = beat.map_or(owner.arrived, |beat| beat.max(owner.arrived));
                if *to == NodeStatus::Stale && at < heard + stale_after {
                    findings.add(format!("{node} was seen at {heard}, but counts as silent at {at}"));
                }
            }
            Change::NodeDeleted { node, .. } => {
                owners.remove(node);
            }
            _ => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use downbeat_store::conformance::make::{at, node, registered, session};

    use super::*;
    use crate::truth::Renewal;

    /// Returns whether it is a violation that a node counts as silent at this second. Its registration arrived in second
    /// 0 and was committed in second 2.
    async fn is_early(second: i64, heard: &[i64]) -> bool {
        let moved = Change::NodeMoved {
            node: node(1),
            session: session(1),
            from: NodeStatus::Online,
            to: NodeStatus::Stale,
            silent_since: Some(at(0)),
            at: at(second),
        };
        let commits = vec![(2, vec![registered(1, session(1), 0)]), (second, vec![moved])];
        let mut evidence = Evidence::of(commits).await;
        evidence.truth.arrivals.insert(session(1), at(0));
        let renewal = |second: &i64| Renewal { node: node(1), at: at(*second), applied: at(*second) };
        evidence.truth.renewals = heard.iter().map(renewal).collect();
        !check(&evidence).found.is_empty()
    }

    #[tokio::test]
    async fn a_node_may_be_silent_right_after_its_registration_but_not_too_early() {
        for (second, heard, expected) in [
            (2, &[][..], true),
            (3, &[], false),
            // A heartbeat of the former session.
            (3, &[1], false),
            (5, &[3], true),
            (6, &[3], false),
        ] {
            assert_eq!(is_early(second, heard).await, expected, "{second} {heard:?}");
        }
    }
}
