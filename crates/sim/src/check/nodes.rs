//! Checks that another installation gets a node's name only after the node went silent, signed off or was deleted.

use std::collections::BTreeMap;

use downbeat_core::Change;
use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;
use jiff::SignedDuration;

use super::evidence::Evidence;
use super::{Checker, Findings};

/// The largest error of a server's estimate of the store's clock; see `terms`.
const CLOCK_DOUBT: SignedDuration = SignedDuration::from_millis(250);

/// The installation that owns a node.
struct Owner {
    digest: Option<String>,
    status: NodeStatus,
    registered: downbeat_core::Timestamp,
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Nodes);
    if !evidence.is_shared {
        // The server uses its own clock here, which may jump.
        return findings;
    }
    let stale_after =
        SignedDuration::try_from(evidence.stale_after).expect("durations are short") - CLOCK_DOUBT;
    let mut owners: BTreeMap<NodeId, Owner> = BTreeMap::new();
    for event in &evidence.events {
        let index = usize::try_from(event.seq - 1).expect("sequence numbers are small here");
        let Some(at) = evidence.truth.commits.get(index).copied() else { continue };
        match &event.change {
            Change::NodeRegistered { registration } => {
                let node = registration.node;
                let digest = registration.installation.as_ref().map(|one| one.digest.clone());
                if let Some(former) = owners.get(&node)
                    && former.digest != digest
                    && former.status == NodeStatus::Online
                {
                    let renewals = evidence.truth.renewals.iter();
                    let heard =
                        renewals.filter(|one| one.node == node && one.applied <= at).map(|one| one.at);
                    let heard = heard.max().unwrap_or(former.registered).max(former.registered);
                    if at < heard + stale_after {
                        let number = evidence.hosts.get(&node);
                        findings.add(format_args!(
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
