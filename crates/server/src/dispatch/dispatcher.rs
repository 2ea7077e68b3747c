//! Owns the dispatcher: the board behind a lock, and the loop that claims after a change.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, NodeId, RunId, ServerId};
use downbeat_core::plan::StepIx;
use downbeat_core::run::engine::Turn;
use downbeat_core::run::{RunMetrics, RunRecord};
use downbeat_core::{Change, Dice, Event, Refusal, Timestamp, expr};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Board;
use crate::clock::Clock;
use crate::cluster::CommonLevel;
use crate::journal::{Journal, Perform};
use crate::metrics::Metrics;
use crate::nodes::Serving;
use crate::works::Works;

/// The pause after a failed commit, so that the store can recover.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A handle to the board; cheap to clone. The lock is never held across an await.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher {
    board: Arc<Mutex<Board>>,
    works: Works,
    wake: Arc<Notify>,
    metrics: Metrics,
    /// Only this server's claims count in its metrics.
    server: ServerId,
    level: CommonLevel,
    serving: Serving,
}

impl Dispatcher {
    pub(crate) fn new(
        metrics: Metrics,
        server: ServerId,
        lease_ttl: Duration,
        level: CommonLevel,
        serving: Serving,
    ) -> Self {
        Self {
            board: Arc::new(Mutex::new(empty_board(lease_ttl))),
            works: Works::default(),
            wake: Arc::new(Notify::new()),
            metrics,
            server,
            level,
            serving,
        }
    }

    /// Counts a refused change that may have held claims.
    pub(crate) fn refused(&self, change: &Change, refusal: &Refusal) {
        self.metrics.per_node().refused(change, refusal);
    }

    /// Measures the end of a run that this server committed. `run` is the run as it was before.
    pub(crate) fn measure(&self, event: &Event, run: &RunRecord) {
        let Some(job) = run.job.as_deref().filter(|_| event.server == self.server) else { return };
        if let Change::RunMoved { path, .. } = &event.change
            && path.last().is_some_and(|state| state.is_terminal())
        {
            let mut live = run.live.clone();
            live.follow(std::slice::from_ref(&event.change));
            self.metrics.per_job().run_ended(run.cluster, job, &RunMetrics::of(run.created_at, &live));
        }
    }

    /// Lets the engine decide: calls `act` with the time, the dice and the board's knowledge of nodes.
    pub(crate) fn turn<T>(
        &self,
        run: &RunId,
        now: Timestamp,
        dice: &mut Dice,
        act: impl FnOnce(&mut Turn<'_>) -> T,
    ) -> T {
        let reach = |node: NodeId| self.board().reach(node);
        let facts = |node: NodeId| self.board().node(node).map(|node| expr::facts(node));
        let work = self.works.run(run);
        let fits = |step: StepIx| {
            let work = work.as_ref().and_then(|work| work.step(step.0));
            work.map_or(Ok(()), |work| self.board().fits_any(work))
        };
        let (level, serving_since) = (self.level.get(), self.serving.since(now));
        act(&mut Turn { now, dice, reach: &reach, facts: &facts, fits: &fits, level, serving_since })
    }

    pub(crate) fn works(&self) -> &Works {
        &self.works
    }

    /// Leases new executions to nodes that wait for work.
    pub(crate) fn reserve(&self, changes: &mut [Change], now: Timestamp, dice: &mut Dice) {
        for executions in added(changes) {
            self.board().reserve(executions, &self.works, now, dice);
        }
    }

    /// Takes such leases back if their commit failed.
    pub(crate) fn release(&self, changes: &mut [Change]) {
        for executions in added(changes) {
            self.board().release(executions);
        }
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().expect("nothing panics while it holds the board")
    }

    /// Returns an empty board with the settings of this one.
    pub(crate) fn empty_board(&self) -> Board {
        empty_board(self.board().stray.lease_ttl)
    }

    /// Forgets a deleted cluster: its nodes, its open executions and its runs. Returns those runs.
    pub(crate) fn forget_cluster(&self, cluster: ClusterId) -> Vec<RunId> {
        self.metrics.per_job().forget(cluster);
        let runs = self.works.remove_cluster(cluster);
        let mut board = self.board();
        board.remove_cluster(cluster);
        runs.iter().for_each(|run| _ = board.paused.remove(run));
        runs
    }

    /// Starts a round of claims: a change may allow pending work to be claimed.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn run(self, journal: Journal, clock: Clock, seed: u64, stop: CancellationToken) {
        let mut dice = Dice::new(seed);
        loop {
            let next_due = self.board().next_due();
            let pause = next_due.map(|due| clock.until(due));
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause.unwrap_or(Duration::MAX)), if pause.is_some() => {}
                () = stop.cancelled() => return,
            }
            let claims = self.board().claim(clock.now(), &mut dice);
            if claims.is_empty() {
                continue;
            }
            match journal.commit(claims.clone()).await {
                Ok(outcomes) => {
                    let (mut board, now) = (self.board(), clock.now());
                    for (claim, outcome) in claims.iter().zip(&outcomes) {
                        let Err(refusal) = outcome else { continue };
                        self.refused(claim, refusal);
                        board.unclaim(claim);
                        if let Refusal::LimitReached(key) = refusal {
                            board.rest(claim, key, now);
                            // Another execution can use its slot.
                            self.wake();
                        }
                    }
                }
                Err(error) => {
                    warn!(%error, claims = claims.len(), "cannot commit leases; they are retried");
                    self.board().claims_failed(claims);
                    tokio::time::sleep(AFTER_FAILURE).await;
                    self.wake();
                }
            }
        }
    }
}

fn empty_board(lease_ttl: Duration) -> Board {
    let mut board = Board::default();
    board.stray.lease_ttl = lease_ttl;
    board
}

/// Returns the executions that changes add.
pub(crate) fn added(changes: &mut [Change]) -> impl Iterator<Item = &mut Vec<Execution>> {
    changes.iter_mut().filter_map(|change| match change {
        Change::ExecutionsAdded { executions, .. } => Some(executions),
        _ => None,
    })
}

#[async_trait]
impl Perform for Dispatcher {
    async fn prepare(&self, events: &[Event]) {
        self.works.learn(events).await;
    }

    fn perform(&self, events: &Arc<[Event]>) {
        let has_work = {
            let mut board = self.board();
            board.apply(events, &self.works);
            // Under the board's lock: a node that has just registered is known when it is counted.
            let own = events.iter().filter(|event| event.server == self.server);
            self.metrics.per_node().committed(own.map(|event| &event.change));
            for waited in board.take_waits() {
                self.metrics.observe_pending_to_leased(waited);
            }
            for _ in 0..std::mem::take(&mut board.cancelled) {
                self.metrics.execution_ended(Status::Cancelled);
            }
            board.has_work()
        };
        self.works.forget(events);
        if has_work {
            self.wake();
        }
    }
}
