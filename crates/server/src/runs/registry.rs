//! Owns the mailboxes of the runs' actors, and routes committed events to them.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use downbeat_core::collections::HashMap;
use downbeat_core::execution::Status;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::job::JobKey;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::engine::Progress;
use downbeat_core::run::{Course, RunState};
use downbeat_core::{Change, Dice, Event, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, info_span};

use super::actor::{Actor, ActorParts};
use super::effects::Effects;
use crate::journal::Perform;
use crate::metrics::Metrics;

#[derive(Debug)]
pub(super) enum Input {
    /// Committed changes of its run, without what it need not observe.
    Committed(Vec<Change>),
    /// Nodes that went offline or were deleted.
    NodesGone(Arc<[NodeId]>),
    /// Another run of its job has started, has ended, or waits.
    OthersMoved,
}

/// The runs that this server owns; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    mailboxes: Arc<Mutex<HashMap<RunId, Entry>>>,
    /// The runs that have to know of the other runs of their job. Locked before the mailboxes.
    followers: Arc<Mutex<Followers>>,
    tasks: TaskTracker,
    metrics: Metrics,
    stop: CancellationToken,
}

/// The runs of each job that have constraints, by age, and whether each waits for another run.
type Followers = HashMap<JobKey, BTreeMap<(Timestamp, RunId), IsQueued>>;

/// Whether a run waits until another run of its job has ended.
type IsQueued = bool;

/// The entrance of a mailbox.
#[derive(Debug)]
struct Entry {
    // Unbounded: a mailbox is limited by the instances of its run, and the journal must not wait for it. It has copies,
    // because a batch in it would keep the changes of all other runs in memory while a long turn is committed.
    sender: mpsc::UnboundedSender<Input>,
    delivery: Delivery,
}

/// Whether inputs are delivered. They are not while a run waits to be read from the store, which has everything that they
/// contain: the wait may be long, and meanwhile they would only take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    On,
    Off,
}

/// A registered mailbox. Dropping it without an actor unregisters its run.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(super) inputs: mpsc::UnboundedReceiver<Input>,
    run: RunId,
    sender: mpsc::WeakUnboundedSender<Input>,
    runs: Runs,
    /// The job whose other runs it follows, and its place among them.
    follows: Option<(JobKey, Timestamp)>,
}

impl Entry {
    fn deliver(&self, input: Input) {
        if self.delivery == Delivery::On {
            // An actor that has ended needs no inputs.
            let _ = self.sender.send(input);
        }
    }
}

impl Mailbox {
    /// Starts or stops the delivery of inputs. Earlier ones are dropped: read the store after a start.
    pub(super) fn set_delivery(&mut self, delivery: Delivery) {
        let mut mailboxes = self.runs.mailboxes();
        if let Some(entry) = mailboxes.get_mut(&self.run).filter(|entry| self.is_at(entry)) {
            entry.delivery = delivery;
        }
        while self.inputs.try_recv().is_ok() {}
    }

    /// The run may have been taken again: then the entry is that of a newer mailbox.
    fn is_at(&self, entry: &Entry) -> bool {
        self.sender.upgrade().is_some_and(|own| own.same_channel(&entry.sender))
    }
}

impl Mailbox {
    /// Delivers from now on what the other runs of a job do.
    fn follow(&mut self, job: JobKey, created_at: Timestamp) {
        let place = (created_at, self.run.clone());
        self.runs.followers().entry(job.clone()).or_default().insert(place, false);
        self.follows = Some((job, created_at));
    }

    /// Sets whether the run waits for another one: then only the oldest such run learns that another one has moved.
    pub(super) fn set_queued(&mut self, is_queued: IsQueued) {
        let Some((job, created_at)) = &self.follows else { return };
        let mut followers = self.runs.followers();
        let known = followers.get_mut(job).and_then(|all| all.get_mut(&(*created_at, self.run.clone())));
        if let Some(known) = known {
            *known = is_queued;
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut followers = self.runs.followers();
        let mut mailboxes = self.runs.mailboxes();
        if !mailboxes.get(&self.run).is_none_or(|entry| self.is_at(entry)) {
            return;
        }
        mailboxes.remove(&self.run);
        let Some((job, created_at)) = self.follows.take() else { return };
        if let Some(all) = followers.get_mut(&job) {
            all.remove(&(created_at, self.run.clone()));
            if all.is_empty() {
                followers.remove(&job);
            }
        }
    }
}

impl Runs {
    pub(crate) fn new(metrics: Metrics, stop: CancellationToken) -> Self {
        Self {
            mailboxes: Arc::default(),
            followers: Arc::default(),
            tasks: TaskTracker::new(),
            metrics,
            stop,
        }
    }

    fn mailboxes(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Entry>> {
        self.mailboxes.lock().expect("nothing panics while it holds the mailboxes")
    }

    fn followers(&self) -> std::sync::MutexGuard<'_, Followers> {
        self.followers.lock().expect("nothing panics while it holds the followers")
    }

    /// Tells runs that other runs of their job have moved: those that are being checked, and of those that wait the
    /// oldest, which is next. When that one starts, the next one learns of it.
    fn tell_followers(&self, events: &[Event]) {
        let jobs: HashSet<JobKey> = events.iter().filter_map(moved_job).collect();
        if jobs.is_empty() {
            return;
        }
        let followers = self.followers();
        let mailboxes = self.mailboxes();
        for all in jobs.iter().filter_map(|job| followers.get(job)) {
            let queued = all.iter().find(|(_, is_queued)| **is_queued);
            let checked = all.iter().filter(|(_, is_queued)| !**is_queued);
            for ((_, run), _) in checked.chain(queued) {
                if let Some(entry) = mailboxes.get(run) {
                    entry.deliver(Input::OthersMoved);
                }
            }
        }
    }

    /// Opens a run's mailbox. Called before the commit that creates or takes the run, so that nothing is missed.
    pub(super) fn open(&self, run: &RunId, delivery: Delivery) -> Mailbox {
        let (sender, inputs) = mpsc::unbounded_channel();
        let own = sender.downgrade();
        self.mailboxes().insert(run.clone(), Entry { sender, delivery });
        Mailbox { inputs, run: run.clone(), sender: own, runs: self.clone(), follows: None }
    }

    /// Opens the mailbox of a new run, unless this server has one for it.
    pub(super) fn open_new(&self, run: &RunId, delivery: Delivery) -> Option<Mailbox> {
        let (sender, inputs) = mpsc::unbounded_channel();
        let own = sender.downgrade();
        match self.mailboxes().entry(run.clone()) {
            MapEntry::Occupied(_) => return None,
            MapEntry::Vacant(place) => _ = place.insert(Entry { sender, delivery }),
        }
        Some(Mailbox { inputs, run: run.clone(), sender: own, runs: self.clone(), follows: None })
    }

    /// Ends the actors of runs that no longer exist.
    pub(crate) fn forget(&self, runs: &[RunId]) {
        let mut mailboxes = self.mailboxes();
        for run in runs {
            mailboxes.remove(run);
        }
    }

    pub(crate) fn owns(&self, run: &RunId) -> bool {
        self.mailboxes().contains_key(run)
    }

    /// Starts the actor of a run whose first changes are committed. It commits those in `again` once more.
    pub(crate) fn start(
        &self,
        mut mailbox: Mailbox,
        course: Course,
        again: Vec<Change>,
        parts: ActorParts,
        seed: u64,
    ) {
        let span = info_span!("run", run = %course.run());
        if let Some(job) = parts.effects.as_ref().and_then(Effects::job) {
            mailbox.follow(job, course.created_at());
        }
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
                self.metrics.execution_ended(outcome.verdict.status());
            }
            Change::ExecutionLost { .. } => self.metrics.execution_ended(Status::Lost),
            Change::ApprovalDecided { decision, .. } if decision.approved => {
                self.metrics.execution_ended(Status::Succeeded);
            }
            Change::ApprovalDecided { .. } | Change::ExecutionGivenUp { .. } => {
                self.metrics.execution_ended(Status::Failed);
            }
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

/// Returns the job of a run whose move may concern the other runs of the job.
fn moved_job(event: &Event) -> Option<JobKey> {
    let concerns = match &event.change {
        Change::RunMoved { path, .. } => {
            path.iter().any(|state| state.is_terminal() || *state == RunState::Starting)
        }
        // With `queue_latest` a newer run replaces an older one that waits.
        Change::RunActed { queued, .. } => queued.is_some(),
        Change::RunPauseSet { .. } => true,
        _ => false,
    };
    let (cluster, job) = (event.about.cluster?, event.about.job.as_ref()?);
    concerns.then(|| JobKey::new(cluster, Arc::clone(job)))
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
        self.tell_followers(events);
        let mailboxes = self.mailboxes();
        if !gone.is_empty() {
            // Runs must not wait for these nodes. One message for all of them: a whole fleet may go at once.
            let gone: Arc<[NodeId]> = gone.into();
            for entry in mailboxes.values() {
                entry.deliver(Input::NodesGone(Arc::clone(&gone)));
            }
        }
        for (run, changes) in by_run {
            let Some(entry) = mailboxes.get(run) else { continue };
            let changes: Vec<Change> = changes.into_iter().filter_map(Progress::observable).collect();
            if !changes.is_empty() {
                entry.deliver(Input::Committed(changes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::change::About;
    use downbeat_core::ids::{ClusterId, ServerId, SessionId};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_run_that_waits_to_be_read_keeps_no_events() {
        let runs = Runs::new(Metrics::new(), CancellationToken::new());
        let run = RunId::from("run-1");
        let mut mailbox = runs.open(&run, Delivery::Off);
        let commit = || {
            let (by, at) = ("ada".to_owned(), Timestamp::UNIX_EPOCH);
            let change = Change::RunCancelRequested { run: run.clone(), by, at };
            let server = ServerId(Uuid::nil());
            runs.perform(&[Event { seq: 1, server, about: About::default(), change }].into());
        };
        commit();
        assert_eq!(mailbox.inputs.len(), 0);
        mailbox.set_delivery(Delivery::On);
        commit();
        assert_eq!(mailbox.inputs.len(), 1);
        assert!(runs.owns(&run));
        mailbox.set_delivery(Delivery::Off);
        commit();
        assert_eq!(mailbox.inputs.len(), 0);
        // A run that was taken again has a newer mailbox.
        let newer = runs.open(&run, Delivery::On);
        mailbox.set_delivery(Delivery::Off);
        drop(mailbox);
        commit();
        assert_eq!(newer.inputs.len(), 1);
        drop(newer);
        assert!(!runs.owns(&run));
    }

    #[tokio::test]
    async fn a_fleet_that_goes_offline_is_one_message_for_each_run() {
        let runs = Runs::new(Metrics::new(), CancellationToken::new());
        let mut mailboxes: Vec<Mailbox> =
            (0..3).map(|number| runs.open(&RunId::from(format!("run-{number}")), Delivery::On)).collect();
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
