//! Owns the open runs of each cluster as admission sees them, kept up to date by the feed, and the last decision about
//! them. A decision stays valid until something changes that a run waits for. It is synchronous and never waits.

use std::sync::Arc;

use downbeat_core::admission::{Applicant, Decision, Nodes, Reason, RunDecision, decide};
use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::ids::{ClusterId, RunId, ServerId};
use downbeat_core::plan::NodeRef;
use downbeat_core::run::{RunEvent, RunLive, RunRecord, step};
use downbeat_core::{Change, Timestamp};

/// The open runs of all clusters.
#[derive(Debug)]
pub(super) struct Queue {
    clusters: HashMap<ClusterId, Line>,
    /// The cluster of each open run.
    homes: HashMap<RunId, ClusterId>,
    /// How many runs of a cluster may be active, over all servers.
    limit: Option<u32>,
}

/// The open runs of one cluster, with their counts.
#[derive(Debug, Default)]
struct Line {
    runs: HashMap<RunId, RunRecord>,
    counts: Counts,
    decided: Option<Arc<Decided>>,
    /// Something changed that a run may have waited for, or a run that waited no longer does.
    is_stale: bool,
}

/// A decision, with its reasons by run.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) reasons: HashMap<RunId, Reason>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    waiting: usize,
    active: usize,
    /// The waiting runs that want nodes for themselves.
    exclusive: usize,
}

impl Counts {
    /// Debug commands are not counted: they wait for nobody, and nobody waits for them.
    fn moved(&mut self, run: &RunRecord, before: Option<&RunLive>) {
        if run.id.is_debug() {
            return;
        }
        let (waited, waits) = (before.is_some_and(RunLive::is_waiting), run.live.is_waiting());
        self.waiting += usize::from(waits);
        self.waiting -= usize::from(waited);
        self.active += usize::from(run.live.is_active());
        self.active -= usize::from(before.is_some_and(RunLive::is_active));
        self.exclusive += usize::from(waits && run.definition.exclusive);
        self.exclusive -= usize::from(waited && run.definition.exclusive);
    }
}

/// What a batch of changes did that may affect waiting runs.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The runs that it created. Most start in the same batch.
    created: HashSet<RunId>,
    /// Whether an execution ended, which may free a node.
    execution_ended: bool,
}

impl Line {
    fn add(&mut self, run: &RunRecord) {
        let before = self.runs.insert(run.id.clone(), run.clone());
        self.counts.moved(run, before.as_ref().map(|before| &before.live));
    }

    fn discard_decision(&mut self) {
        (self.decided, self.is_stale) = (None, true);
    }

    /// Applies an event to a run. `is_new` is true if the run was created in the same batch.
    fn alter(&mut self, id: &RunId, event: &RunEvent<'_>, limit: Option<u32>, is_new: bool) {
        let Some(run) = self.runs.get_mut(id) else { return };
        // An event without an effect was part of the loaded state.
        let Ok(next) = step(&run.live, event) else { return };
        let before = std::mem::replace(&mut run.live, next);
        self.counts.moved(run, Some(&before));
        let now = &run.live;
        let has_moved = before.is_waiting() != now.is_waiting();
        let is_handled_again = now.is_waiting()
            && (before.paused_at != now.paused_at
                || before.owner != now.owner
                || before.is_queued() != now.is_queued());
        // The end of any other run leaves neither room nor nodes.
        let frees = before.is_active() && !now.is_active() && (limit.is_some() || run.definition.exclusive);
        let is_ended = now.is_ended();
        if (has_moved && !is_new) || is_handled_again || frees {
            self.discard_decision();
        }
        if is_ended {
            self.runs.remove(id);
        }
    }

    fn decide(&self, nodes: &Nodes<'_>, limit: Option<u32>) -> Decided {
        let applicants: Vec<Applicant<'_>> = self
            .runs
            .iter()
            .filter(|(id, _)| !id.is_debug())
            .map(|(id, run)| Applicant {
                id,
                live: &run.live,
                priority: run.definition.priority,
                created_at: run.created_at,
                nodes: wanted_nodes(run),
            })
            .collect();
        let decision = decide(&applicants, nodes, limit);
        let waits = |(id, decision): &(RunId, RunDecision)| match decision {
            RunDecision::Wait(reason) => Some((id.clone(), reason.clone())),
            RunDecision::Enter => None,
        };
        let reasons = decision.runs.iter().filter_map(waits).collect();
        Decided { decision, reasons }
    }
}

impl Queue {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { clusters: HashMap::default(), homes: HashMap::default(), limit }
    }

    pub(super) fn add(&mut self, run: &RunRecord) {
        self.homes.insert(run.id.clone(), run.cluster);
        self.clusters.entry(run.cluster).or_default().add(run);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Returns how many runs wait, over all clusters.
    pub(super) fn waiting(&self) -> usize {
        self.clusters.values().map(|line| line.counts.waiting).sum()
    }

    /// Returns how many runs of a cluster are waiting or active.
    pub(super) fn open(&self, cluster: ClusterId) -> usize {
        self.counts(cluster).waiting + self.counts(cluster).active
    }

    pub(super) fn active(&self, cluster: ClusterId) -> usize {
        self.counts(cluster).active
    }

    fn counts(&self, cluster: ClusterId) -> Counts {
        self.clusters.get(&cluster).map_or_else(Counts::default, |line| line.counts)
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.clusters.values().flat_map(|line| line.runs.values())
    }

    pub(super) fn run(&self, id: &RunId) -> Option<&RunRecord> {
        self.clusters.get(self.homes.get(id)?)?.runs.get(id)
    }

    /// Applies a change of a batch. [`end`](Self::end) follows the last one.
    pub(super) fn apply(&mut self, change: &Change, batch: &mut Batch) {
        match change {
            Change::ClusterDeleted { cluster, .. } => {
                self.clusters.remove(cluster);
                self.homes.retain(|_, home| home != cluster);
            }
            // A standing run is not admitted.
            Change::RunCreated { run, .. } if run.id.is_standing() => {}
            Change::RunCreated { run, .. } => {
                self.add(run);
                batch.created.insert(run.id.clone());
            }
            Change::ExecutionFinished { .. }
            | Change::ExecutionLost { .. }
            | Change::ExecutionGivenUp { .. }
            | Change::ExecutionSkipped { .. } => batch.execution_ended = true,
            Change::NodeDrainSet { .. } | Change::NodeDeleted { .. } => {
                let lines = self.clusters.values_mut().filter(|line| line.counts.exclusive > 0);
                lines.for_each(Line::discard_decision);
            }
            Change::RunMoved { path, .. } if path.is_empty() => {}
            _ => {
                let Some((run, event)) = RunEvent::of(change) else { return };
                let home = self.homes.get(run).and_then(|cluster| self.clusters.get_mut(cluster));
                let Some(line) = home else { return };
                line.alter(run, &event, self.limit, batch.created.contains(run));
                if !line.runs.contains_key(run) {
                    self.homes.remove(run);
                }
            }
        }
    }

    /// Ends a batch. Returns whether a decision is needed. `nodes` already reflects the batch.
    pub(super) fn end(&mut self, batch: &Batch, nodes: &Nodes<'_>) -> bool {
        for run in &batch.created {
            let line = self.homes.get(run).and_then(|cluster| self.clusters.get_mut(cluster));
            if let Some(line) = line
                && line.runs.get(run).is_some_and(|run| run.live.is_waiting())
            {
                line.discard_decision();
            }
        }
        if batch.execution_ended {
            self.check_awaited(nodes);
        }
        self.clusters.values().any(|line| line.is_stale)
    }

    /// Discards the decisions whose runs wait for a node that is free now.
    pub(super) fn check_awaited(&mut self, nodes: &Nodes<'_>) {
        for line in self.clusters.values_mut() {
            let is_free = |decided: &Arc<Decided>| {
                let mut awaited = decided.decision.awaited.iter();
                awaited.any(|(node, waiter)| (nodes.busy)(*node, waiter).is_none())
            };
            if line.decided.as_ref().is_some_and(is_free) {
                line.discard_decision();
            }
        }
    }

    /// Discards the decisions: something contradicts them that the feed has not delivered yet.
    pub(super) fn decide_again(&mut self) {
        self.clusters.values_mut().for_each(Line::discard_decision);
    }

    /// Returns the decision of each cluster in which a run waits.
    pub(super) fn decisions(&mut self, nodes: &Nodes<'_>) -> Vec<Arc<Decided>> {
        let limit = self.limit;
        let decide = |line: &mut Line| {
            line.is_stale = false;
            if line.counts.waiting == 0 {
                return None;
            }
            let decided = line.decided.take().unwrap_or_else(|| Arc::new(line.decide(nodes, limit)));
            Some(Arc::clone(line.decided.insert(decided)))
        };
        self.clusters.values_mut().filter_map(decide).collect()
    }

    /// Returns the change that admits a run, if this server owns it.
    pub(super) fn admit(&self, id: &RunId, server: ServerId, at: Timestamp) -> Option<Change> {
        let run = self.run(id).filter(|run| run.live.owner == server)?;
        let nodes = wanted_nodes(run).iter().map(|node| node.id).collect();
        Some(Change::RunAdmitted { run: id.clone(), epoch: run.live.epoch, limit: self.limit, nodes, at })
    }
}

/// Returns the nodes that the run wants for itself.
fn wanted_nodes(run: &RunRecord) -> &[NodeRef] {
    if run.definition.exclusive { &run.resolved.nodes } else { &[] }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use downbeat_core::ids::{ExecutionId, LeaseToken, NodeId};
    use downbeat_core::plan::Resolved;
    use downbeat_core::run::{RunMade, RunStage, RunState};
    use downbeat_core::work::Parent;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    const OTHER: ClusterId = ClusterId(Uuid::from_u128(7));

    fn run_of(cluster: ClusterId, name: &str, state: RunState, nodes: &[u128]) -> RunRecord {
        let exclusive = !nodes.is_empty();
        let definition = json!({"exclusive": exclusive, "tasks": [{"backend": "test", "action": "noop"}]});
        let reference = |&number: &u128| NodeRef { id: node(number), hostname: format!("web-{number:02}") };
        let made = RunMade {
            id: RunId::from(name),
            cluster,
            job: None,
            definition: Arc::new(serde_json::from_value(definition).unwrap()),
            resolved: Arc::new(Resolved {
                nodes: nodes.iter().map(reference).collect(),
                ..Resolved::default()
            }),
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            job_version: None,
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
        run.live.stage = RunStage::of(state, false, None).unwrap();
        run
    }

    fn run(name: &str, state: RunState) -> RunRecord {
        run_of(ClusterId::DEFAULT, name, state, &[])
    }

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    fn moved(name: &str, path: &[RunState]) -> Change {
        let (run, path) = (RunId::from(name), path.to_vec());
        Change::RunMoved { room: None, run, epoch: 1, path, stop: None, end: None, at: Timestamp::UNIX_EPOCH }
    }

    fn created(name: &str) -> Change {
        Change::RunCreated {
            run: run(name, RunState::Pending),
            max_pending: None,
            max_open: None,
            firing: None,
        }
    }

    fn ended(name: &str) -> Change {
        Change::ExecutionLost {
            of: Parent::Run(RunId::from(name)),
            execution: ExecutionId(Uuid::nil()),
            token: LeaseToken(Uuid::nil()),
            silence: None,
            reason: "silent".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// A queue, and the run that is busy on node 1.
    struct World {
        queue: Queue,
        busy: Cell<Option<&'static str>>,
    }

    impl World {
        fn new(limit: Option<u32>, runs: &[RunRecord]) -> Self {
            let mut queue = Queue::new(limit);
            runs.iter().for_each(|run| queue.add(run));
            Self { queue, busy: Cell::new(None) }
        }

        fn with_nodes<T>(&mut self, act: impl FnOnce(&mut Queue, &Nodes<'_>) -> T) -> T {
            let busy = |at: NodeId, but: &RunId| {
                let other = self.busy.get().filter(|_| at == node(1)).map(RunId::from);
                other.filter(|other| other != but)
            };
            act(&mut self.queue, &Nodes { holder: &|_| None, busy: &busy, drained: &|_| false })
        }

        /// Applies a batch. Returns whether a decision is needed.
        fn apply(&mut self, changes: &[Change]) -> bool {
            self.with_nodes(|queue, nodes| {
                let mut batch = Batch::default();
                changes.iter().for_each(|change| queue.apply(change, &mut batch));
                queue.end(&batch, nodes)
            })
        }

        /// Returns the runs that may enter.
        fn decide(&mut self) -> Vec<String> {
            let decided = self.with_nodes(Queue::decisions);
            let runs = decided.iter().flat_map(|decided| &decided.decision.runs);
            let mut enter: Vec<String> = runs
                .filter(|(_, decision)| *decision == RunDecision::Enter)
                .map(|(run, _)| run.to_string())
                .collect();
            enter.sort();
            enter
        }
    }

    #[test]
    fn a_scheduled_run_neither_waits_nor_is_active() {
        let runs = [run("scheduled", RunState::PreRun), run("running", RunState::Running)];
        let mut world = World::new(None, &runs);
        let mut becomes = |path: &[RunState]| {
            world.apply(&[moved("scheduled", path)]);
            (world.queue.waiting(), world.queue.active(ClusterId::DEFAULT))
        };
        assert_eq!(becomes(&[]), (0, 1));
        assert_eq!(becomes(&[RunState::Pending]), (1, 1));
        assert_eq!(becomes(&[RunState::Starting]), (0, 2));
        assert_eq!(becomes(&[RunState::Terminating, RunState::Retrying]), (0, 2));
        assert_eq!(becomes(&[RunState::Pending]), (1, 1));
        assert_eq!(becomes(&[RunState::Cancelled]), (0, 1));
        assert_eq!((world.queue.homes.len(), world.queue.open(ClusterId::DEFAULT)), (1, 1));
    }

    #[test]
    fn a_cluster_waits_only_for_its_own_runs() {
        let runs = [
            run("here", RunState::Running),
            run("next", RunState::Pending),
            run_of(OTHER, "there", RunState::Pending, &[]),
        ];
        let mut world = World::new(Some(1), &runs);
        assert_eq!(world.decide(), ["there"]);
        assert_eq!((world.queue.open(ClusterId::DEFAULT), world.queue.open(OTHER)), (2, 1));
        let ends = [RunState::Terminating, RunState::Completed];
        assert!(world.apply(&[moved("here", &ends)]));
        assert_eq!(world.decide(), ["next", "there"]);
    }

    #[test]
    fn no_run_of_a_deleted_cluster_waits() {
        let runs = [run("here", RunState::Pending), run_of(OTHER, "there", RunState::Pending, &[])];
        let mut world = World::new(Some(1), &runs);
        let (name, by, at) = ("other".to_owned(), "ada".to_owned(), Timestamp::UNIX_EPOCH);
        world.apply(&[Change::ClusterDeleted { cluster: OTHER, name, by, at }]);
        assert_eq!((world.queue.waiting(), world.queue.homes.len()), (1, 1));
        assert_eq!(world.decide(), ["here"]);
    }

    #[test]
    fn nothing_is_decided_until_something_changes_that_a_run_waits_for() {
        let runs = [
            run("small", RunState::Running),
            run("large", RunState::Running),
            run_of(ClusterId::DEFAULT, "alone", RunState::Pending, &[1, 2]),
        ];
        let mut world = World::new(None, &runs);
        world.busy.set(Some("large"));
        assert_eq!(world.decide(), [""; 0]);
        // Other runs start, work and end; executions end on other nodes.
        assert!(!world.apply(&[created("quick"), moved("quick", &[RunState::Starting, RunState::Running])]));
        assert!(!world.apply(&[ended("large"), ended("small")]));
        let ends = [RunState::Terminating, RunState::Completed];
        assert!(!world.apply(&[moved("small", &ends), moved("quick", &ends)]));
        // The node is free for a moment, then busy with another run.
        world.busy.set(Some("later"));
        assert!(!world.apply(&[ended("large")]));
        world.busy.set(None);
        assert!(world.apply(&[ended("later")]));
        assert_eq!(world.decide(), ["alone"]);
        assert!(!world.apply(&[ended("small")]), "an admission is on its way");
        // Nodes are kept free until it is decided that no run waits any more.
        assert!(world.apply(&[moved("alone", &[RunState::Cancelled])]));
        assert_eq!(world.decide(), [""; 0]);
        assert!(!world.apply(&[ended("large")]));
        world.queue.decide_again();
        assert!(world.apply(&[]), "its admission was refused");
    }
}
