//! Owns the counts per node: leases, refused claims, expired leases. Each server counts only its own
//! commits, so the sum over all servers is exact.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::NodeId;
use downbeat_core::{Change, Refusal};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    claims: u64,
    contention: u64,
    expired: u64,
}

#[derive(Debug, Default)]
struct Table {
    counts: HashMap<NodeId, Counts>,
    /// The existing nodes: only these are shown.
    names: Vec<(NodeId, NodeName)>,
}

/// The labels of a node. Nodes of two clusters may have the same hostname.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeName {
    pub(crate) cluster: String,
    pub(crate) hostname: String,
}

impl Table {
    fn of(&mut self, node: NodeId) -> &mut Counts {
        self.counts.entry(node).or_default()
    }
}

/// The counts of all nodes; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerNode(Arc<Mutex<Table>>);

/// A metric: its name, its help text, and its value.
type Figure = (&'static str, &'static str, fn(&Counts) -> u64);

const FIGURES: [Figure; 3] = [
    ("node_claims", "Leases that this server committed for a node", |counts| counts.claims),
    (
        "node_claim_contention",
        "Claims of this server for a node that were refused: another server was faster, or the state had changed",
        |counts| counts.contention,
    ),
    (
        "node_leases_expired",
        "Leases of a node that this server ended because they were not renewed",
        |counts| counts.expired,
    ),
];

impl PerNode {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("nothing panics while it counts")
    }

    pub(crate) fn committed<'a>(&self, changes: impl Iterator<Item = &'a Change>) {
        let mut table = self.table();
        for change in changes {
            match change {
                Change::ExecutionLeased { lease, .. } => table.of(lease.node).claims += 1,
                Change::ExecutionsAdded { executions, .. } => {
                    born_leased(executions).for_each(|node| table.of(node).claims += 1);
                }
                Change::ExecutionLost { silence: Some(silence), .. } => table.of(silence.node).expired += 1,
                _ => {}
            }
        }
    }

    pub(crate) fn refused(&self, change: &Change, refusal: &Refusal) {
        let mut table = self.table();
        match (change, refusal) {
            // No other server was faster: an older server does not know the change.
            (_, Refusal::NotKnownToAll) => {}
            (Change::ExecutionLeased { lease, .. }, _) => table.of(lease.node).contention += 1,
            // A refusal for their state means that an earlier try of the same commit succeeded.
            (
                Change::ExecutionsAdded { executions, .. },
                Refusal::NodeHeld(_) | Refusal::LimitReached(_) | Refusal::StaleEpoch,
            ) => {
                born_leased(executions).for_each(|node| table.of(node).contention += 1);
            }
            _ => {}
        }
    }

    /// Sets the existing nodes, and drops the counts of others.
    pub(crate) fn name(&self, names: Vec<(NodeId, NodeName)>) {
        let mut table = self.table();
        let known: HashSet<NodeId> = names.iter().map(|(node, _)| *node).collect();
        table.counts.retain(|node, _| known.contains(node));
        table.names = names;
    }

    /// Returns the counts by cluster and hostname.
    fn by_name(&self) -> BTreeMap<NodeName, Counts> {
        let table = self.table();
        let counts = |node: &NodeId| table.counts.get(node).copied().unwrap_or_default();
        table.names.iter().map(|(node, name)| (name.clone(), counts(node))).collect()
    }
}

fn born_leased(executions: &[Execution]) -> impl Iterator<Item = NodeId> {
    executions.iter().filter_map(|execution| match &execution.state {
        State::Leased { lease, .. } => Some(lease.node),
        _ => None,
    })
}

impl Collector for PerNode {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let by_name = self.by_name();
        for (name, help, read) in FIGURES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (NodeName { cluster, hostname }, counts) in &by_name {
                let labels = [("cluster", cluster.as_str()), ("node", hostname.as_str())];
                ConstCounter::new(read(counts)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::execution::Lease;
    use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, RunId, SessionId};
    use downbeat_core::work::{Origin, Parent};
    use downbeat_core::{Silence, Timestamp};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use uuid::Uuid;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::derive(ClusterId::DEFAULT, name)
    }

    fn lease(name: &str) -> Lease {
        Lease {
            token: LeaseToken(Uuid::nil()),
            node: node(name),
            session: SessionId(Uuid::nil()),
            granted_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn run() -> RunId {
        RunId::from("r")
    }

    fn leased(name: &str) -> Change {
        Change::ExecutionLeased {
            of: Parent::Run(run()),
            execution: ExecutionId(Uuid::nil()),
            lease: lease(name),
        }
    }

    fn added(states: Vec<State>) -> Change {
        let execution = |state| Execution {
            id: ExecutionId(Uuid::nil()),
            of: Origin::Step { run: run(), step: 0, item: None },
            pinned: None,
            attempt: 1,
            created_at: Timestamp::UNIX_EPOCH,
            state,
            params: None,
            reused: None,
            limits: None,
            cache_key: None,
            former: None,
            failed_for_good: None,
            round: 1,
        };
        let executions = states.into_iter().map(execution).collect();
        Change::ExecutionsAdded {
            run: run(),
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn lost(silence: Option<Silence>) -> Change {
        Change::ExecutionLost {
            of: Parent::Run(run()),
            execution: ExecutionId(Uuid::nil()),
            token: LeaseToken(Uuid::nil()),
            silence,
            reason: "why".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn counts(per_node: &PerNode, name: &str) -> Counts {
        per_node.by_name().get(&name_of(name)).copied().unwrap_or_default()
    }

    fn name_of(hostname: &str) -> NodeName {
        NodeName { cluster: "default".to_owned(), hostname: hostname.to_owned() }
    }

    fn shown(per_node: &PerNode) -> Vec<String> {
        per_node.by_name().into_keys().map(|name| name.hostname).collect()
    }

    fn named(names: &[&str]) -> PerNode {
        let per_node = PerNode::default();
        per_node.name(names.iter().map(|name| (node(name), name_of(name))).collect());
        per_node
    }

    #[test]
    fn a_lease_is_a_claim_also_when_its_execution_was_born_with_it() {
        let per_node = named(&["a", "b"]);
        let born = |name| State::Leased { lease: lease(name), stop: false };
        let changes = [
            leased("a"),
            added(vec![born("a"), born("b"), State::Pending { not_before: None }]),
            leased("b"),
        ];
        per_node.committed(changes.iter());
        assert_eq!((counts(&per_node, "a").claims, counts(&per_node, "b").claims), (2, 2));
    }

    #[test]
    fn a_lease_expires_by_silence_and_not_by_a_restart() {
        let per_node = named(&["a"]);
        let silence = Silence { node: node("a"), since: Timestamp::UNIX_EPOCH };
        per_node.committed([lost(Some(silence)), lost(None)].iter());
        assert_eq!(counts(&per_node, "a"), Counts { expired: 1, ..Counts::default() });
    }

    #[test]
    fn a_refused_claim_is_contention_unless_nobody_was_faster() {
        let per_node = named(&["a"]);
        let born = added(vec![State::Leased { lease: lease("a"), stop: false }]);
        for (change, refusal, contention) in [
            (leased("a"), Refusal::WrongState, 1),
            (leased("a"), Refusal::StaleSession, 2),
            (leased("a"), Refusal::NotKnownToAll, 2),
            (born.clone(), Refusal::NodeHeld(run()), 3),
            (born.clone(), Refusal::StaleEpoch, 4),
            (born.clone(), Refusal::LimitReached("db".to_owned()), 5),
            (born, Refusal::WrongState, 5),
            (lost(None), Refusal::StaleLease, 5),
        ] {
            per_node.refused(&change, &refusal);
            let counted = counts(&per_node, "a");
            assert_eq!(counted, Counts { contention, ..Counts::default() }, "{change:?} {refusal:?}");
        }
    }

    #[test]
    fn a_node_that_is_gone_leaves_the_metrics_and_starts_at_zero_when_it_is_back() {
        let per_node = named(&["a", "b"]);
        per_node.committed([leased("a"), leased("b"), leased("stranger")].iter());
        assert_eq!(shown(&per_node), ["a", "b"]);
        per_node.name(vec![(node("b"), name_of("b"))]);
        assert_eq!(shown(&per_node), ["b"]);
        assert_eq!(per_node.table().counts.len(), 1, "no counts of missing nodes are kept");
        per_node.name(vec![(node("a"), name_of("a")), (node("b"), name_of("b"))]);
        assert_eq!((counts(&per_node, "a").claims, counts(&per_node, "b").claims), (0, 1));
    }

    #[test]
    fn every_node_has_its_figures_from_the_start_and_namesakes_of_two_clusters_have_their_own() {
        let per_node = PerNode::default();
        let other = NodeId(Uuid::from_u128(7));
        per_node.name(vec![
            (node("a"), name_of("a")),
            (other, NodeName { cluster: "web 1".to_owned(), hostname: "a".to_owned() }),
            (node("b"), name_of("b\"\\")),
        ]);
        per_node.committed([leased("a")].iter());
        per_node.committed([lost(Some(Silence { node: other, since: Timestamp::UNIX_EPOCH }))].iter());
        let mut registry = Registry::with_prefix("downbeat");
        registry.register_collector(Box::new(per_node));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let figures: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            figures,
            [
                r#"downbeat_node_claims_total{cluster="default",node="a"} 1"#,
                r#"downbeat_node_claims_total{cluster="default",node="b\"\\"} 0"#,
                r#"downbeat_node_claims_total{cluster="web 1",node="a"} 0"#,
                r#"downbeat_node_claim_contention_total{cluster="default",node="a"} 0"#,
                r#"downbeat_node_claim_contention_total{cluster="default",node="b\"\\"} 0"#,
                r#"downbeat_node_claim_contention_total{cluster="web 1",node="a"} 0"#,
                r#"downbeat_node_leases_expired_total{cluster="default",node="a"} 0"#,
                r#"downbeat_node_leases_expired_total{cluster="default",node="b\"\\"} 0"#,
                r#"downbeat_node_leases_expired_total{cluster="web 1",node="a"} 1"#,
            ]
        );
    }
}
