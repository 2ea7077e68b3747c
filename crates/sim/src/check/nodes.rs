//! Checks that another installation gets a node's name only after the node went silent, signed off or was deleted.

use std::collections::BTreeMap;

use downbeat_core::Change;
use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;

use super::evidence::{Evidence, at_least};
use super::{Checker, Findings};

/// The installation that owns a node.
struct Owner {
    digest: Option<String>,
    status: NodeStatus,
    registered: downbeat_core::Timestamp,
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
                owners.insert(node, Owner { digest, status: NodeStatus::Online, registered: at });
            }
            Change::NodeMoved { node, to, .. } => {
                if let Some(owner) = owners.get_mut(node) {
                    owner.status = *to;
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
