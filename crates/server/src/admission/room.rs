//! Owns the waiting room: a queue behind a lock, and the loop that admits this server's runs.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use downbeat_core::admission::{Decision, Reason, Verdict};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::RunId;
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::{Change, Event, level};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::queue::{Affects, Queue};
use crate::dispatch::Dispatcher;
use crate::journal::Perform;
use crate::metrics::Metrics;
use crate::parts::Parts;

/// The maximum time until a failed or refused admission is tried again: its obstacle may not be in the feed yet.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The waiting room of runs; cheap to clone. The queue's lock is taken before the board's, and neither is
/// held across an await.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    queue: Arc<Mutex<Queue>>,
    wake: Arc<Notify>,
    dispatcher: Dispatcher,
    metrics: Metrics,
    /// How many runs may be active, over all servers.
    limit: Option<u32>,
}

impl Admission {
    pub(crate) fn new(dispatcher: Dispatcher, metrics: Metrics, limit: Option<u32>) -> Self {
        Self { queue: Arc::default(), wake: Arc::new(Notify::new()), dispatcher, metrics, limit }
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

    pub(crate) fn reasons(&self) -> HashMap<RunId, Reason> {
        let decision = {
            let queue = self.queue();
            queue.decide(&self.dispatcher.board(), self.limit)
        };
        let waiting = decision.verdicts.into_iter().filter_map(|(id, verdict)| match verdict {
            Verdict::Wait(reason) => Some((id, reason)),
            Verdict::Enter => None,
        });
        waiting.collect()
    }

    /// Returns how many more runs could be active: those do not wait for long.
    pub(crate) fn room(&self) -> u32 {
        let active = u32::try_from(self.queue().active()).unwrap_or(u32::MAX);
        self.limit.map_or(0, |limit| limit.saturating_sub(active))
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn run(self, parts: Parts, stop: CancellationToken) {
        loop {
            let waits = self.waiting() > 0;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_AGAIN), if waits => {}
            }
            let changes = self.admissions(&parts);
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
                            Err(refusal) => debug!(%run, %refusal, "run not admitted"),
                        }
                    }
                }
                Err(error) => warn!(%error, "cannot admit runs; trying again"),
            }
        }
    }

    /// Keeps nodes free for the next runs. Returns the changes that admit this server's runs.
    fn admissions(&self, parts: &Parts) -> Vec<Change> {
        let queue = self.queue();
        let mut board = self.dispatcher.board();
        // While an older server is alive, no run can be admitted, and no node is kept free.
        let decision = if parts.level.reaches(level::FLEET) {
            queue.decide(&board, self.limit)
        } else {
            Decision::default()
        };
        if board.keep_free(decision.wanted) {
            self.dispatcher.wake();
        }
        drop(board);
        let now = parts.clock.now();
        let enters = decision.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Enter);
        enters
            // A run without an actor would start unseen: it is admitted when it has one.
            .filter(|(run, _)| parts.runs.owns(run))
            .filter_map(|(run, _)| queue.admit(run, parts.server, self.limit, now))
            .collect()
    }

    fn count(&self, queue: &Queue, change: &Change) {
        match change {
            Change::RunCreated { run, .. } => self.metrics.run_moved(None, run.state()),
            Change::RunMoved { run, path, .. } => {
                if let Some(&to) = path.last() {
                    self.metrics.run_moved(Some(queue.state(run).unwrap_or(RunState::Running)), to);
                }
            }
            _ => {}
        }
    }
}

impl Perform for Admission {
    fn perform(&self, events: &Arc<[Event]>) {
        let mut affects = Affects::Nothing;
        let mut queue = self.queue();
        let waited = queue.waiting() > 0;
        for event in events.iter() {
            self.count(&queue, &event.change);
            affects = affects.max(queue.apply(&event.change));
        }
        let is_affected = match affects {
            Affects::Nothing => false,
            Affects::Nodes => queue.awaits_nodes(),
            Affects::Runs => waited || queue.waiting() > 0,
        };
        drop(queue);
        if is_affected {
            self.wake();
        }
    }
}
