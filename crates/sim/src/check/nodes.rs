//! Checks that a node counts as silent only after it was, and that another installation gets its name only after it went
//! silent, signed off or was deleted.

use std::collections::BTreeMap;

use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;
use downbeat_core::{Change, Timestamp};
use jiff::SignedDuration;

use super::evidence::{Evidence, at_least};
use super::{Checker, Findings};

/// How long a commit may take while the store is slow.
const SLOW_COMMIT: SignedDuration = SignedDuration::from_secs(20);

/// The installation that owns a node.
struct Owner {
    digest: Option<String>,
    status: NodeStatus,
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
                owners.insert(node, Owner { digest, status: NodeStatus::Online, registered: at });
            }
            Change::NodeMoved { node, to, silent_since, .. } => {
                let Some(owner) = owners.get_mut(node) else { continue };
                owner.status = *to;
                // A node that signs off is not silent.
                if silent_since.is_none() {
                    continue;
                }
                // The commit of a registration may take long.
                let is_new = at < owner.registered + stale_after + SLOW_COMMIT;
                let Some(heard) = evidence.last_heard(*node, at).filter(|_| !is_new) else { continue };
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
