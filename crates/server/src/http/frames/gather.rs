//! Gathers events into the net change of a frame.

use std::collections::BTreeMap;

use downbeat_api::{Cell, Frame, NodeChange, RunChange, ServerState};
use downbeat_core::change::{Change, Event};
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::limits;
use downbeat_core::node::NodeStatus;

/// What a client wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topics {
    pub(super) runs: bool,
    pub(super) nodes: bool,
    pub(super) servers: bool,
    /// The run whose executions are sent as cells.
    pub(super) cells: Option<RunId>,
    /// Only this run, of all runs.
    pub(super) run: Option<RunId>,
    /// Only runs and nodes of this cluster.
    pub(super) cluster: Option<ClusterId>,
}

impl Topics {
    /// Returns whether nothing but servers is wanted.
    fn is_about_servers(&self) -> bool {
        !self.runs && !self.nodes && self.cells.is_none() && self.run.is_none()
    }
}

/// The net change since the last frame.
#[derive(Debug, Default)]
pub(super) struct Gather {
    topics: Topics,
    seq: u64,
    runs: BTreeMap<RunId, RunChange>,
    cells: BTreeMap<ExecutionId, Cell>,
    nodes: BTreeMap<NodeId, NodeChange>,
    servers: Vec<ServerState>,
    /// More has gone than a frame can say: the client has to read everything again.
    is_cut: bool,
}

impl Gather {
    pub(super) fn new(topics: Topics) -> Self {
        Self { topics, ..Self::default() }
    }

    pub(super) fn topics(&self) -> &Topics {
        &self.topics
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether a frame with more changes would be too large.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= limits::FRAME_CHANGES
    }

    fn len(&self) -> usize {
        self.runs.len() + self.cells.len() + self.nodes.len() + self.servers.len()
    }

    /// Returns the frame, and starts the next one.
    pub(super) fn take_frame(&mut self) -> Frame {
        let topics = self.topics.clone();
        let Self { seq, runs, cells, nodes, servers, .. } = std::mem::replace(self, Self::new(topics));
        self.seq = seq;
        Frame {
            seq,
            runs: runs.into_values().collect(),
            cells: cells.into_values().collect(),
            nodes: nodes.into_values().collect(),
            servers,
        }
    }

    /// Starts at a number: earlier events are not sent.
    pub(super) fn start_at(&mut self, seq: u64) {
        *self = Self { seq, ..Self::new(self.topics.clone()) };
    }

    pub(super) fn set_servers(&mut self, servers: Vec<ServerState>) {
        self.servers = servers;
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.seq = event.seq;
        if self.topics.cluster.is_some_and(|cluster| event.about.cluster != Some(cluster)) {
            return;
        }
        match &event.change {
            Change::NodeRegistered { registration } => self.node(registration.node, |node| {
                node.hostname = Some(registration.description.hostname.clone());
                (node.status, node.problems, node.deleted) = (Some(NodeStatus::Online), Some(0), false);
            }),
            Change::NodeMoved { node, to, .. } => self.node(*node, |node| node.status = Some(*to)),
            Change::NodeDrainSet { node, draining, .. } => {
                self.node(*node, |node| node.draining = Some(*draining));
            }
            Change::NodeProblemsSet { node, problems, .. } => {
                self.node(*node, |node| node.problems = Some(problems.len() as u64));
            }
            Change::NodeDeleted { node, .. } => self.node(*node, |node| node.deleted = true),
            Change::RunCreated { run, .. } => self.run(&run.id, event, |it| it.state = Some(run.state())),
            Change::RunMoved { run, path, .. } => {
                if let Some(to) = path.last() {
                    self.run(run, event, |run| run.state = Some(*to));
                }
            }
            Change::RunPauseSet { run, paused, .. } => {
                self.run(run, event, |run| run.paused = Some(*paused));
            }
            Change::RunCancelRequested { run, .. } => {
                self.run(run, event, |run| run.cancel_requested = true);
            }
            Change::ExecutionsAdded { run, executions, .. } => {
                for execution in executions {
                    self.added(run, event, execution);
                }
            }
            Change::ExecutionLeased { .. }
            | Change::ExecutionStarted { .. }
            | Change::ExecutionFinished { .. }
            | Change::ExecutionLost { .. }
            | Change::ApprovalDecided { .. }
            | Change::ExecutionCancelRequested { .. }
            | Change::ExecutionGivenUp { .. }
            | Change::ExecutionSkipped { .. } => self.moved(event),
            // All its nodes and runs are gone, without an event of each.
            Change::ClusterDeleted { .. } => self.is_cut = !self.topics.is_about_servers(),
            // They change nothing that a frame shows.
            Change::ClusterCreated { .. }
            | Change::ClusterChanged { .. }
            | Change::JobApplied { .. }
            | Change::JobPauseSet { .. }
            | Change::JobDeleted { .. }
            | Change::JobDecided { .. }
            | Change::BackfillCreated { .. }
            | Change::BackfillMoved { .. }
            | Change::BackfillCancelled { .. }
            | Change::JobNotTriggered { .. }
            | Change::TriggersFollowed { .. }
            | Change::RunTaken { .. }
            | Change::RunAdmitted { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::InstanceFailed { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. }
            | Change::Unknown { .. } => {}
        }
    }

    fn node(&mut self, node: NodeId, change: impl FnOnce(&mut NodeChange)) {
        if !self.topics.nodes {
            return;
        }
        change(self.nodes.entry(node).or_insert_with(|| NodeChange {
            node,
            hostname: None,
            status: None,
            draining: None,
            problems: None,
            deleted: false,
        }));
    }

    fn run(&mut self, run: &RunId, event: &Event, change: impl FnOnce(&mut RunChange)) {
        // The runs of standing tasks are not shown.
        if !self.topics.runs || run.is_standing() || self.topics.run.as_ref().is_some_and(|only| only != run)
        {
            return;
        }
        change(self.runs.entry(run.clone()).or_insert_with(|| RunChange {
            run: run.clone(),
            job: event.about.job.as_deref().map(str::to_owned),
            state: None,
            paused: None,
            cancel_requested: false,
            counts: BTreeMap::new(),
            retries: 0,
        }));
    }

    fn cell(&mut self, run: &RunId, execution: ExecutionId, cell: Cell) {
        if self.topics.cells.as_ref() == Some(run) {
            self.cells.insert(execution, cell);
        }
    }

    fn added(&mut self, run: &RunId, event: &Event, execution: &Execution) {
        let status = execution.state.status();
        self.run(run, event, |run| {
            count(run, status, 1);
            run.retries += u64::from(execution.attempt > 1);
        });
        let (step, node, item) = (execution.step(), execution.node(), execution.item());
        self.cell(run, execution.id, Cell { step, node, item, attempt: execution.attempt, status });
    }

    fn moved(&mut self, event: &Event) {
        let (Some(run), Some(execution)) = (event.change.run(), event.change.execution()) else { return };
        let (was, about) = (event.about.was, &event.about);
        let Some(status) = status_after(&event.change, was) else { return };
        self.run(run, event, |run| {
            if let Some(was) = was {
                count(run, was, -1);
                count(run, status, 1);
            }
        });
        // An older server recorded neither.
        if let (Some(step), Some(attempt)) = (about.step, about.attempt) {
            self.cell(run, execution, Cell { step, node: about.node, item: about.item, attempt, status });
        }
    }
}

fn count(run: &mut RunChange, status: Status, by: i64) {
    let total = run.counts.entry(status).or_default();
    *total += by;
    if *total == 0 {
        run.counts.remove(&status);
    }
}

/// Returns the status of an execution after a change, if the change sets one.
fn status_after(change: &Change, was: Option<Status>) -> Option<Status> {
    match change {
        Change::ExecutionLeased { .. } => Some(Status::Leased),
        Change::ExecutionStarted { .. } => Some(Status::Running),
        Change::ExecutionFinished { outcome, .. } => Some(outcome.verdict.status()),
        Change::ExecutionLost { .. } => Some(Status::Lost),
        Change::ApprovalDecided { decision, .. } if decision.approved => Some(Status::Succeeded),
        Change::ApprovalDecided { .. } | Change::ExecutionGivenUp { .. } => Some(Status::Failed),
        Change::ExecutionSkipped { .. } => Some(Status::Skipped),
        // A node that has it is asked to end it, and reports that.
        Change::ExecutionCancelRequested { .. } => {
            (was == Some(Status::Pending)).then_some(Status::Cancelled)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_core::change::About;
    use downbeat_core::ids::{LeaseToken, ServerId};
    use downbeat_core::run::RunState;
    use downbeat_core::work::Parent;
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId(Uuid::from_u128(number))
    }

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    fn started(run: &str, execution: u128) -> Change {
        Change::ExecutionStarted {
            of: Parent::Run(RunId::from(run)),
            execution: id(execution),
            token: LeaseToken(Uuid::nil()),
            at: Timestamp::UNIX_EPOCH,
            received_at: None,
        }
    }

    fn lost(run: &str, execution: u128) -> Change {
        Change::ExecutionLost {
            of: Parent::Run(RunId::from(run)),
            execution: id(execution),
            token: LeaseToken(Uuid::nil()),
            silence: None,
            reason: "silent".to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn stop_requested(run: &str, execution: u128) -> Change {
        let (run, execution, reason) = (RunId::from(run), id(execution), "fail-fast".to_owned());
        Change::ExecutionCancelRequested { run, execution, epoch: 1, reason, at: Timestamp::UNIX_EPOCH }
    }

    fn moved(run: &str, to: RunState) -> Change {
        let (run, path) = (RunId::from(run), vec![to]);
        Change::RunMoved { room: None, run, epoch: 1, path, stop: None, end: None, at: Timestamp::UNIX_EPOCH }
    }

    fn drained(number: u128, draining: bool) -> Change {
        let (by, at) = ("ada".to_owned(), Timestamp::UNIX_EPOCH);
        Change::NodeDrainSet { node: node(number), draining, by, at }
    }

    /// Returns the frame of these changes. Each execution was in the given status, on node 1, in step 4.
    fn frame(topics: Topics, changes: Vec<(Change, Option<Status>)>) -> Frame {
        let mut gather = Gather::new(topics);
        for (seq, (change, was)) in (1..).zip(changes) {
            let (node, step, attempt) = (Some(node(1)), Some(4), Some(2));
            let about = About { node, step, attempt, was, job: Some("copy".into()), ..About::default() };
            gather.add(&Event { seq, server: ServerId(Uuid::nil()), about, change });
        }
        let frame = gather.take_frame();
        assert!(gather.is_empty());
        frame
    }

    fn all(run: &str) -> Topics {
        let run = Some(RunId::from(run));
        Topics { runs: true, nodes: true, servers: true, cells: run, run: None, cluster: None }
    }

    #[test]
    fn a_frame_has_the_last_status_and_the_net_counts() {
        let changes = vec![
            (started("a", 7), Some(Status::Leased)),
            (started("a", 8), Some(Status::Leased)),
            (lost("a", 7), Some(Status::Running)),
            (moved("a", RunState::Running), None),
            (moved("a", RunState::Terminating), None),
            (drained(1, true), None),
            (drained(1, false), None),
        ];
        let frame = frame(all("a"), changes);
        assert_eq!(frame.seq, 7);
        let [run] = &frame.runs[..] else { panic!("{frame:?}") };
        assert_eq!((run.state, run.job.as_deref()), (Some(RunState::Terminating), Some("copy")));
        let counts = [(Status::Leased, -2), (Status::Running, 1), (Status::Lost, 1)];
        assert_eq!(run.counts, counts.into());
        let statuses: Vec<_> =
            frame.cells.iter().map(|cell| (cell.step, cell.attempt, cell.status)).collect();
        assert_eq!(statuses, [(4, 2, Status::Lost), (4, 2, Status::Running)]);
        assert_eq!((frame.nodes.len(), frame.nodes[0].draining), (1, Some(false)));
    }

    #[test]
    fn a_request_to_stop_ends_only_what_no_node_has() {
        let stopped = |was| frame(all("a"), vec![(stop_requested("a", 7), Some(was))]);
        assert_eq!(stopped(Status::Pending).cells[0].status, Status::Cancelled);
        assert_eq!(stopped(Status::Running), Frame { seq: 1, ..Frame::default() });
    }

    #[test]
    fn only_what_was_asked_for_is_in_a_frame() {
        let changes = || vec![(started("a", 7), Some(Status::Leased)), (drained(1, true), None)];
        assert_eq!(frame(Topics::default(), changes()), Frame { seq: 2, ..Frame::default() });
        let nodes = frame(Topics { nodes: true, ..Topics::default() }, changes());
        assert_eq!((nodes.nodes.len(), nodes.runs.len(), nodes.cells.len()), (1, 0, 0));
        let other = Topics { run: Some(RunId::from("b")), ..all("b") };
        let other = frame(other, changes());
        assert_eq!((other.nodes.len(), other.runs.len(), other.cells.len()), (1, 0, 0));
    }

    #[test]
    fn an_event_of_an_older_server_counts_nothing() {
        let frame = frame(all("a"), vec![(lost("a", 7), None)]);
        assert!(frame.runs[0].counts.is_empty());
    }
}
