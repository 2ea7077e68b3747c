//! Ranks fitting nodes. It never refuses one.

use std::cmp::Reverse;

use super::fits::{has_capability, has_label, is_named};
use crate::node::NodeRecord;
use crate::spec::{Placement, Preference};

/// How good a node is for a task: greater is better. Fields are compared in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    weight: u64,
    held_in_group: Reverse<u32>,
    free: u32,
}

/// Ranks by preferences, then by the fewest executions of the run (`held_in_group`, if the placement spreads), then by
/// the most free slots.
pub fn rank(placement: &Placement, node: &NodeRecord, held_in_group: u32, free: u32) -> Rank {
    Rank::new(weight(placement, node), placement.spread.as_ref().map_or(0, |_| held_in_group), free)
}

impl Rank {
    /// `held_in_group` is 0 if the placement does not spread.
    pub fn new(weight: u64, held_in_group: u32, free: u32) -> Self {
        Self { weight, held_in_group: Reverse(held_in_group), free }
    }
}

/// Returns the total weight of the preferences that a node satisfies. It does not depend on the node's work.
pub fn weight(placement: &Placement, node: &NodeRecord) -> u64 {
    let satisfied = placement.prefer.iter().filter(|preference| satisfies(node, preference));
    satisfied.map(|preference| u64::from(preference.weight)).sum()
}

fn satisfies(node: &NodeRecord, preference: &Preference) -> bool {
    let Preference { requires, labels, nodes, weight: _ } = preference;
    (nodes.is_empty() || nodes.iter().any(|name| is_named(node, name)))
        && labels.iter().all(|label| has_label(node, label).is_ok())
        && requires.iter().all(|(capability, wanted)| has_capability(node, capability, wanted).is_ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::ids::{ClusterId, NodeId, SessionId};
    use crate::node::{Description, NodeStatus};

    fn node(hostname: &str, zone: &str, cpu: u32) -> NodeRecord {
        NodeRecord {
            id: NodeId::derive(ClusterId::DEFAULT, hostname),
            cluster: ClusterId::DEFAULT,
            session: SessionId(Uuid::nil()),
            description: Description {
                hostname: hostname.to_owned(),
                groups: vec![],
                labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
                capabilities: BTreeMap::from([("cpu".to_owned(), json!(cpu))]),
                backends: vec![],
                slots: 1,
                version: String::new(),
            },
            status: NodeStatus::Online,
            draining: false,
            registered_at: Timestamp::UNIX_EPOCH,
            seen_at: Timestamp::UNIX_EPOCH,
            installation: None,
            undelivered: Vec::new(),
            kept_since: None,
            displaced: None,
            problems: Vec::new(),
        }
    }

    /// Returns the best of three nodes; each holds some executions of the run in its group, and has some free slots.
    fn best(rule: Value, held: [u32; 3], free: [u32; 3]) -> &'static str {
        let placement: Placement = serde_json::from_value(rule).unwrap();
        let nodes = [node("a", "eu", 4), node("b", "eu", 8), node("c", "us", 8)];
        let ranks = (0..3).map(|index| (rank(&placement, &nodes[index], held[index], free[index]), index));
        ["a", "b", "c"][ranks.max().unwrap().1]
    }

    #[test]
    fn preferences_come_before_spreading_and_spreading_before_free_slots() {
        let eu = json!({"labels": ["zone=eu"], "weight": 2});
        let big = json!({"requires": {"cpu": 8}});
        let c = json!({"nodes": ["c"], "weight": 3});
        for (rule, held, free, wanted) in [
            // No preference: the most free slots wins.
            (json!({}), [9, 0, 0], [3, 1, 2], "a"),
            // The weights of satisfied preferences add up.
            (json!({"prefer": [eu, big]}), [0, 0, 0], [9, 1, 9], "b"),
            (json!({"prefer": [eu, big, c]}), [0, 0, 0], [9, 9, 1], "c"),
            (json!({"prefer": [{"labels": ["zone=eu"], "requires": {"cpu": 8}}]}), [0, 0, 0], [9, 1, 9], "b"),
            // A preference that no node satisfies changes nothing.
            (json!({"prefer": [{"nodes": ["d"], "weight": 100}]}), [0, 0, 0], [1, 2, 1], "b"),
            // Spreading comes before free slots.
            (json!({"spread": "node"}), [1, 2, 2], [1, 9, 9], "a"),
            (json!({"spread": {"label": "zone"}}), [3, 3, 2], [9, 9, 1], "c"),
            (json!({"spread": "node"}), [1, 1, 1], [1, 2, 1], "b"),
            // Preferences come before both.
            (json!({"prefer": [eu], "spread": "node"}), [5, 6, 0], [1, 9, 9], "a"),
        ] {
            assert_eq!(best(rule.clone(), held, free), wanted, "{rule} {held:?} {free:?}");
        }
    }
}
