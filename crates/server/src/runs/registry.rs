//! Owns the mailboxes of the runs' actors, and routes committed events to them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Status, Verdict};
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::Course;
use downbeat_core::run::engine::Progress;
use downbeat_core::{Change, Dice, Event};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info_span};

use super::actor::{Actor, ActorParts};
use crate::journal::Perform;
use crate::metrics::Metrics;

#[derive(Debug)]
pub(super) enum Input {
    /// Committed changes of its run, without what it need not observe.
    Committed(Vec<Change>),
    /// Nodes that went offline or were deleted.
    NodesGone(Arc<[NodeId]>),
}

/// The runs that this server owns; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    // Unbounded: a mailbox is limited by the instances of its run, and the journal must not wait for it. It has copies,
    // because a batch in it would keep the changes of all other runs in memory while a long turn is committed.
    mailboxes: Arc<Mutex<HashMap<RunId, mpsc::UnboundedSender<Input>>>>,
    tasks: TaskTracker,
    metrics: Metrics,
    stop: CancellationToken,
}

/// A registered mailbox. Dropping it without an actor unregisters its run.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(super) inputs: mpsc::UnboundedReceiver<Input>,
    run: RunId,
    sender: mpsc::WeakUnboundedSender<Input>,
    runs: Runs,
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut mailboxes = self.runs.mailboxes();
        // The run may have been taken again: then the newer mailbox stays.
        let own = self.sender.upgrade();
        let is_own = |sender: &mpsc::UnboundedSender<Input>| own.is_some_and(|own| own.same_channel(sender));
        if mailboxes.get(&self.run).is_some_and(is_own) {
            mailboxes.remove(&self.run);
        }
    }
}

impl Runs {
    pub(crate) fn new(metrics: Metrics, stop: CancellationToken) -> Self {
        Self { mailboxes: Arc::default(), tasks: TaskTracker::new(), metrics, stop }
    }

    fn mailboxes(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, mpsc::UnboundedSender<Input>>> {
        self.mailboxes.lock().expect("nothing panics while it holds the mailboxes")
    }

    /// Opens a run's mailbox. Called before the commit that creates or takes the run, so that nothing is missed.
    pub(crate) fn open(&self, run: &RunId) -> Mailbox {
        let (sender, inputs) = mpsc::unbounded_channel();
        let own = sender.downgrade();
        self.mailboxes().insert(run.clone(), sender);
        Mailbox { inputs, run: run.clone(), sender: own, runs: self.clone() }
    }

    pub(crate) fn owns(&self, run: &RunId) -> bool {
        self.mailboxes().contains_key(run)
    }

    /// Starts the actor of a run whose first changes are committed. It commits those in `again` once more.
    pub(crate) fn start(
        &self,
        mailbox: Mailbox,
        course: Course,
        again: Vec<Change>,
        parts: ActorParts,
        seed: u64,
    ) {
        let span = info_span!("run", run = %course.run());
        let actor = Actor {
            mailbox,
            course,
            parts,
            dice: Dice::new(seed),
            is_disowned: false,
            again,
            kept: VecDeque::new(),
        };
        self.tasks.spawn(actor.run(self.stop.clone()).instrument(span));
    }

    /// Runs a task about runs until it ends or the server stops.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(task).await });
    }

    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Counts the executions that a change ends.
    fn count(&self, change: &Change) {
        match change {
            Change::ExecutionFinished { outcome, .. } => {
                self.metrics.execution_ended(match outcome.verdict {
                    Verdict::Succeeded => Status::Succeeded,
                    Verdict::Failed => Status::Failed,
                    Verdict::Cancelled => Status::Cancelled,
                });
            }
            Change::ExecutionLost { .. } => self.metrics.execution_ended(Status::Lost),
            Change::ExecutionGivenUp { .. } => self.metrics.execution_ended(Status::Failed),
            Change::ExecutionSkipped { .. } => self.metrics.execution_ended(Status::Skipped),
            Change::ExecutionsAdded { executions, .. } => {
                // Reused results were counted in their own run.
                let own = executions.iter().filter(|execution| execution.reused.is_none());
                for execution in own.filter(|execution| !execution.state.status().is_open()) {
                    self.metrics.execution_ended(execution.state.status());
                }
            }
            _ => {}
        }
    }
}

impl Perform for Runs {
    fn perform(&self, events: &Arc<[Event]>) {
        let mut by_run: HashMap<&RunId, Vec<&Change>> = HashMap::default();
        let mut gone: Vec<NodeId> = Vec::new();
        for event in events.iter() {
            self.count(&event.change);
            if let Some(run) = event.change.run() {
                by_run.entry(run).or_default().push(&event.change);
            }
            if let Change::NodeMoved { node, to: NodeStatus::Offline, .. }
            | Change::NodeDeleted { node, .. } = event.change
            {
                gone.push(node);
            }
        }
        let mailboxes = self.mailboxes();
        if !gone.is_empty() {
            // Runs must not wait for these nodes. One message for all of them: a whole fleet may go at once.
            let gone: Arc<[NodeId]> = gone.into();
            for mailbox in mailboxes.values() {
                // An actor that has ended needs no messages.
                let _ = mailbox.send(Input::NodesGone(Arc::clone(&gone)));
            }
        }
        for (run, changes) in by_run {
            let Some(mailbox) = mailboxes.get(run) else { continue };
            let changes: Vec<Change> = changes.into_iter().filter_map(Progress::observable).collect();
            if !changes.is_empty() {
                let _ = mailbox.send(Input::Committed(changes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_core::change::About;
    use downbeat_core::ids::{ClusterId, ServerId, SessionId};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_fleet_that_goes_offline_is_one_message_for_each_run() {
        let runs = Runs::new(Metrics::new(), CancellationToken::new());
        let mut mailboxes: Vec<Mailbox> =
            (0..3).map(|number| runs.open(&RunId::from(format!("run-{number}")))).collect();
        let nodes: Vec<NodeId> =
            (0..100).map(|number| NodeId::derive(ClusterId::DEFAULT, &format!("n{number}"))).collect();
        let moved = |(seq, node): (u64, &NodeId)| Event {
            seq,
            server: ServerId(Uuid::nil()),
            about: About::default(),
            change: Change::NodeMoved {
                node: *node,
                session: SessionId(Uuid::nil()),
                from: NodeStatus::Stale,
                to: NodeStatus::Offline,
                silent_since: None,
                at: Timestamp::UNIX_EPOCH,
            },
        };
        let events: Vec<Event> = (1..).zip(&nodes).map(moved).collect();
        runs.perform(&events.into());
        for mailbox in &mut mailboxes {
            let Ok(Input::NodesGone(gone)) = mailbox.inputs.try_recv() else { panic!("the nodes are gone") };
            assert_eq!(*gone, *nodes);
            assert!(mailbox.inputs.try_recv().is_err());
        }
    }
}
