//! Owns the waiting room: a queue behind a lock, and the loop that admits this server's runs.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use downbeat_core::admission::{Nodes, RunDecision};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::run::RunRecord;
use downbeat_core::{Change, Event, level};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::queue::{Batch, Queue};
use crate::dispatch::{Board, Dispatcher};
use crate::journal::Perform;
use crate::parts::Parts;
use crate::stats::Stats;

/// The maximum time until a failed or refused admission is tried again: its obstacle may not be in the feed yet.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The waiting room of runs; cheap to clone. The queue's lock is taken before the board's, and neither is
/// held across an await.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    queue: Arc<Mutex<Queue>>,
    wake: Arc<Notify>,
    dispatcher: Dispatcher,
    stats: Stats,
    /// How many runs of a cluster may be active, over all servers.
    limit: Option<u32>,
}

impl Admission {
    pub(crate) fn new(dispatcher: Dispatcher, stats: Stats, limit: Option<u32>) -> Self {
        let queue = Arc::new(Mutex::new(Queue::new(limit)));
        Self { queue, wake: Arc::new(Notify::new()), dispatcher, stats, limit }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics while it holds the queue")
    }

    pub(crate) fn load(&self, runs: &[RunRecord]) {
        let mut queue = self.queue();
        queue.clear();
        runs.iter().for_each(|run| queue.add(run));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    /// Returns why runs wait, for those that do.
    pub(crate) fn reasons<'a>(&self, runs: impl Iterator<Item = &'a RunId>) -> HashMap<RunId, String> {
        let decisions = {
            let mut queue = self.queue();
            with_nodes(&self.dispatcher.board(), |nodes| queue.decisions(nodes))
        };
        let reason = |id: &RunId| decisions.iter().find_map(|decided| decided.reasons.get(id));
        runs.filter_map(|id| Some((id.clone(), reason(id)?.to_string()))).collect()
    }

    /// Returns the open runs that pass a filter, the oldest first.
    pub(crate) fn open_runs(&self, filter: impl Fn(&RunRecord) -> bool) -> Vec<RunId> {
        let queue = self.queue();
        let mut runs: Vec<&RunRecord> = queue.runs().filter(|run| filter(run)).collect();
        runs.sort_unstable_by_key(|run| (run.created_at, &run.id));
        runs.into_iter().map(|run| run.id.clone()).collect()
    }

    /// Returns the open runs that pass a filter, each as `map` shows it.
    pub(crate) fn map_open<T>(
        &self,
        filter: impl Fn(&RunRecord) -> bool,
        map: impl Fn(&RunRecord) -> T,
    ) -> Vec<T> {
        self.queue().runs().filter(|run| filter(run)).map(map).collect()
    }

    /// Returns how many debug commands of a cluster have not ended.
    pub(crate) fn open_debug(&self, cluster: ClusterId) -> usize {
        self.queue().runs().filter(|run| run.cluster == cluster && run.id.is_debug()).count()
    }

    /// Returns how many more runs of a cluster could be active: those do not wait for long.
    pub(crate) fn room(&self, cluster: ClusterId) -> u32 {
        let active = u32::try_from(self.queue().active(cluster)).unwrap_or(u32::MAX);
        self.limit.map_or(0, |limit| limit.saturating_sub(active))
    }

    /// Returns whether a cluster may be close to `most` open runs. The store is asked only then, because it counts them.
    pub(crate) fn is_nearly_full(&self, cluster: ClusterId, most: u32) -> bool {
        // Half of it is for runs of other servers that the feed has not delivered yet.
        self.queue().open(cluster) >= most as usize / 2
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn run(self, parts: Parts, stop: CancellationToken) {
        let mut must_look_again = false;
        loop {
            let waits = self.waiting() > 0;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_AGAIN), if waits => self.look_again(must_look_again),
            }
            let Admissions { changes, is_incomplete } = self.admissions(&parts);
            must_look_again = is_incomplete;
            if changes.is_empty() {
                continue;
            }
            match parts.journal.commit(changes.clone()).await {
                Ok(outcomes) => {
                    for (change, outcome) in changes.iter().zip(outcomes) {
                        let Change::RunAdmitted { run, nodes, .. } = change else { continue };
                        match outcome {
                            Ok(()) => info!(%run, nodes = nodes.len(), "run admitted"),
                            // Another server was faster; the feed will deliver its change.
                            Err(refusal) => {
                                debug!(%run, %refusal, "run not admitted");
                                must_look_again = true;
                            }
                        }
                    }
                }
                Err(error) => {
                    warn!(%error, "cannot admit runs; trying again");
                    must_look_again = true;
                }
            }
        }
    }

    /// Discards decisions that no longer hold although the feed delivered nothing: an admission was refused, or a claim
    /// that kept a node busy was not committed.
    fn look_again(&self, was_refused: bool) {
        let mut queue = self.queue();
        if was_refused {
            queue.decide_again();
        } else {
            with_nodes(&self.dispatcher.board(), |nodes| queue.check_awaited(nodes));
        }
    }

    /// Keeps nodes free for the next runs. Returns the changes that admit this server's runs.
    fn admissions(&self, parts: &Parts) -> Admissions {
        let mut queue = self.queue();
        let mut board = self.dispatcher.board();
        // While an older server is alive, no run can be admitted, and no node is kept free.
        let is_known = parts.level.reaches(level::FLEET);
        let decisions =
            if is_known { with_nodes(&board, |nodes| queue.decisions(nodes)) } else { Vec::new() };
        let wanted = decisions.iter().flat_map(|decided| &decided.decision.wanted);
        if board.keep_free(wanted.map(|(node, run)| (*node, run.clone())).collect()) {
            self.dispatcher.wake();
        }
        drop(board);
        let now = parts.clock.now();
        let runs = decisions.iter().flat_map(|decided| &decided.decision.runs);
        let enters = runs.filter(|(_, decision)| *decision == RunDecision::Enter);
        let own: Vec<(RunId, Change)> =
            enters.filter_map(|(run, _)| Some((run.clone(), queue.admit(run, parts.server, now)?))).collect();
        let waiting = queue.waiting();
        drop(queue);
        let found = own.len();
        // A run without an actor would start unseen: it is admitted when it has one.
        let changes: Vec<Change> =
            own.into_iter().filter(|(run, _)| parts.runs.owns(run)).map(|(_, change)| change).collect();
        let is_incomplete = changes.len() < found || (!is_known && waiting > 0);
        Admissions { changes, is_incomplete }
    }

    /// Counts an event in the statistics, before the queue applies it.
    fn count(&self, queue: &Queue, event: &Event) {
        let run = event.change.run().filter(|run| !run.is_debug());
        let run = run.and_then(|run| queue.run(run));
        self.stats.note(event, run);
        if let Some(run) = run {
            self.dispatcher.measure(event, run);
        }
    }
}

impl Perform for Admission {
    /// The board has already performed the events.
    fn perform(&self, events: &Arc<[Event]>) {
        let mut queue = self.queue();
        let waited = queue.waiting() > 0;
        let mut batch = Batch::default();
        for event in events.iter() {
            self.count(&queue, event);
            queue.apply(&event.change, &mut batch);
        }
        let must_decide = (waited || queue.waiting() > 0)
            && with_nodes(&self.dispatcher.board(), |nodes| queue.end(&batch, nodes));
        drop(queue);
        if must_decide {
            self.wake();
        }
    }
}

/// The result of one round of decisions.
struct Admissions {
    changes: Vec<Change>,
    /// A run may enter, and this server cannot admit it yet.
    is_incomplete: bool,
}

/// Calls `act` with what the board knows about nodes.
fn with_nodes<T>(board: &Board, act: impl FnOnce(&Nodes<'_>) -> T) -> T {
    let holder = |node: NodeId| board.holder(node).cloned();
    let busy = |node: NodeId, run: &RunId| board.other_run_on(node, run).cloned();
    let drained = |node: NodeId| board.node(node).is_some_and(|node| node.draining);
    act(&Nodes { holder: &holder, busy: &busy, drained: &drained })
}
