//! Owns what the feed says about standing tasks so far: every version of every list, the nodes, and all attempts at each
//! task on each node. It reads the changes with its own code, so that it does not share a mistake with the servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, Status, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId};
use downbeat_core::node::{NodeRecord, NodeStatus, Registration};
use downbeat_core::{Change, Timestamp};

/// One attempt at a task on a node.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) id: ExecutionId,
    pub(super) number: u32,
    pub(super) status: Status,
    pub(super) created_at: Timestamp,
    /// The version of the list that it was decided by.
    pub(super) version: u64,
}

/// A cluster.
#[derive(Debug)]
pub(super) struct Site {
    /// From version 1.
    pub(super) versions: Vec<Arc<ClusterRecord>>,
    /// In the order in which they were added, by node and number of the task.
    pub(super) attempts: BTreeMap<(NodeId, u32), Vec<Attempt>>,
}

impl Site {
    pub(super) fn new(cluster: ClusterRecord) -> Self {
        Self { versions: vec![Arc::new(cluster)], attempts: BTreeMap::new() }
    }

    pub(super) fn current(&self) -> &Arc<ClusterRecord> {
        self.versions.last().expect("a cluster has a version")
    }

    pub(super) fn version(&self, version: u64) -> Option<&Arc<ClusterRecord>> {
        self.versions.iter().rev().find(|cluster| cluster.version == version)
    }

    pub(super) fn of(&self, node: NodeId, number: u32) -> &[Attempt] {
        self.attempts.get(&(node, number)).map_or(&[], Vec::as_slice)
    }

    /// Returns the attempts on a node that have not ended, with the numbers of their tasks.
    pub(super) fn open(&self, node: NodeId) -> impl Iterator<Item = (u32, &Attempt)> {
        let of_node = self.attempts.range((node, 0)..=(node, u32::MAX));
        of_node
            .flat_map(|((_, number), attempts)| attempts.iter().map(move |attempt| (*number, attempt)))
            .filter(|(_, attempt)| attempt.status.is_open())
    }
}

/// Where an execution of a standing task is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) number: u32,
    index: usize,
}

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) sites: BTreeMap<ClusterId, Site>,
    pub(super) nodes: BTreeMap<NodeId, NodeRecord>,
    pub(super) places: BTreeMap<ExecutionId, Place>,
}

impl Default for Ledger {
    fn default() -> Self {
        let default = Site::new(ClusterRecord::default_cluster());
        let sites = BTreeMap::from([(ClusterId::DEFAULT, default)]);
        Self { sites, nodes: BTreeMap::new(), places: BTreeMap::new() }
    }
}

impl Ledger {
    pub(super) fn attempt(&self, execution: ExecutionId) -> Option<(Place, &Attempt)> {
        let place = self.places.get(&execution)?;
        let attempt = self.sites.get(&place.cluster)?.of(place.node, place.number).get(place.index)?;
        Some((*place, attempt))
    }

    /// Takes in a change after it was checked.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::ClusterCreated { cluster, .. } => {
                self.sites.insert(cluster.id, Site::new(cluster.clone()));
            }
            Change::ClusterChanged { cluster, .. } => {
                if let Some(site) = self.sites.get_mut(&cluster.id) {
                    site.versions.push(Arc::new(cluster.clone()));
                }
            }
            Change::ClusterDeleted { cluster, .. } => {
                self.sites.remove(cluster);
                self.nodes.retain(|_, node| node.cluster != *cluster);
                self.places.retain(|_, place| place.cluster != *cluster);
            }
            Change::NodeRegistered { registration } => self.register(registration),
            Change::NodeMoved { node, to, .. } => self.alter_node(*node, |node| node.status = *to),
            Change::NodeDrainSet { node, draining, .. } => {
                self.alter_node(*node, |node| node.draining = *draining);
            }
            Change::NodeDeleted { node, .. } => {
                self.nodes.remove(node);
            }
            Change::ExecutionLeased { execution, .. } => self.alter(*execution, Status::Leased),
            Change::ExecutionStarted { execution, .. } => self.alter(*execution, Status::Running),
            Change::ExecutionFinished { execution, outcome, .. } => {
                let status = match outcome.verdict {
                    Verdict::Succeeded => Status::Succeeded,
                    Verdict::Failed => Status::Failed,
                    Verdict::Cancelled => Status::Cancelled,
                };
                self.alter(*execution, status);
            }
            Change::ExecutionLost { execution, .. } => self.alter(*execution, Status::Lost),
            Change::ExecutionGivenUp { execution, .. } => self.alter(*execution, Status::Failed),
            Change::ExecutionSkipped { execution, .. } => self.alter(*execution, Status::Skipped),
            Change::ExecutionCancelRequested { execution, .. }
                if self.attempt(*execution).is_some_and(|(_, attempt)| attempt.status == Status::Pending) =>
            {
                self.alter(*execution, Status::Skipped);
            }
            // `add` takes these in one by one.
            Change::ExecutionsAdded { .. } => {}
            _ => {}
        }
    }

    /// Adds an execution of a standing task.
    pub(super) fn add(&mut self, cluster: ClusterId, execution: &Execution, version: u64) {
        let (Some(site), Some(node)) = (self.sites.get_mut(&cluster), execution.pinned) else { return };
        let number = execution.step();
        let attempts = site.attempts.entry((node, number)).or_default();
        self.places.insert(execution.id, Place { cluster, node, number, index: attempts.len() });
        attempts.push(Attempt {
            id: execution.id,
            number: execution.attempt,
            status: execution.state.status(),
            created_at: execution.created_at,
            version,
        });
    }

    fn alter(&mut self, execution: ExecutionId, status: Status) {
        let Some(Place { cluster, node, number, index }) = self.places.get(&execution).copied() else {
            return;
        };
        let attempts = self.sites.get_mut(&cluster).and_then(|site| site.attempts.get_mut(&(node, number)));
        if let Some(attempt) = attempts.and_then(|attempts| attempts.get_mut(index)) {
            attempt.status = status;
        }
    }

    fn alter_node(&mut self, node: NodeId, alter: impl FnOnce(&mut NodeRecord)) {
        if let Some(node) = self.nodes.get_mut(&node) {
            alter(node);
        }
    }

    fn register(&mut self, registration: &Registration) {
        // A person drained the node: it stays drained with a new session.
        let draining = self.nodes.get(&registration.node).is_some_and(|node| node.draining);
        let node = NodeRecord {
            id: registration.node,
            cluster: registration.cluster,
            session: registration.session,
            description: registration.description.clone(),
            status: NodeStatus::Online,
            draining,
            registered_at: registration.at,
            seen_at: registration.at,
            installation: None,
            undelivered: Vec::new(),
            kept_since: registration.kept_since,
            displaced: None,
            problems: Vec::new(),
        };
        self.nodes.insert(node.id, node);
    }
}
