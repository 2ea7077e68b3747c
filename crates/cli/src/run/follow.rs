//! Owns when the view of a followed run is updated: it is built from the run's events, and the server is read only for
//! facts that events do not contain.

use std::time::Duration;

use downbeat_api::{EndRules, Plan, Run};
use downbeat_client::{Client, Live, Update};
use downbeat_core::execution::Status;
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::RunStatus;
use tokio::time::Instant;

use crate::exit::Result;

/// A person would not see faster updates.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Building the view of a large run takes time: at most one part in this many.
const PAUSE_PER_VIEW: u32 = 10;
/// While an execution is pending, the server is asked for the reason this often.
const REASONS_PAUSE: Duration = Duration::from_secs(1);
/// Reading reasons takes at most one part in this many of the server's time.
const PAUSE_PER_READ: u32 = 10;

/// `--wait` prints what the run waits for: first after this time, then after twice as long, and so on.
const FIRST_GLANCE: Duration = Duration::from_secs(3);
const LONGEST_GLANCE: Duration = Duration::from_secs(30);

pub(super) struct Follow {
    live: Live,
    rules: EndRules,
    /// When the view was last returned.
    shown_at: Option<Instant>,
    /// When the server is asked next for facts that events do not contain.
    read_at: Instant,
    /// The first pending execution, and since when it is known to be pending.
    waits: Option<(ExecutionId, Instant)>,
    /// How long building the last view took.
    cost: Duration,
}

impl Follow {
    pub(super) async fn new(client: &Client, id: &RunId) -> Result<Self> {
        let live = client.follow(id).await?;
        let rules = EndRules::of(live.plan());
        let read_at = Instant::now() + REASONS_PAUSE;
        Ok(Self { live, rules, shown_at: None, read_at, waits: None, cost: Duration::ZERO })
    }

    pub(super) fn plan(&self) -> &Plan {
        self.live.plan()
    }

    /// Returns the progress of the run after its next change; the first time at once.
    pub(super) async fn next_progress(&mut self) -> Result<Run> {
        self.wait_for_change().await?;
        if self.is_time_to_read() {
            let started = Instant::now();
            self.live.refresh_waiting().await?;
            self.schedule_next_read(started);
        }
        let started = Instant::now();
        let progress = self.progress();
        let now = Instant::now();
        (self.shown_at, self.cost) = (Some(now), now - started);
        Ok(progress)
    }

    /// Waits for the end of the run. Calls `glance` with its progress, at growing intervals.
    pub(super) async fn until_end(&mut self, mut glance: impl FnMut(&Run)) -> Result {
        let mut pause = FIRST_GLANCE;
        let mut glance_at = Instant::now() + pause;
        while !self.live.has_ended() {
            let update = self.live.next_update(glance_at).await?;
            if update == Update::Timeout && Instant::now() >= glance_at {
                self.live.refresh_waiting().await?;
                glance(&self.progress());
                pause = (pause * 2).min(LONGEST_GLANCE);
                glance_at = Instant::now() + pause;
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Run {
        let (whole, plan) = self.live.view();
        whole.progress(plan, &self.rules)
    }

    /// Waits until the run changes; changes in quick succession count as one.
    async fn wait_for_change(&mut self) -> Result {
        let Some(shown_at) = self.shown_at else { return Ok(()) };
        let pause = SHORTEST_PAUSE.max(self.cost * PAUSE_PER_VIEW);
        let mut update = self.live.next_update(shown_at + REASONS_PAUSE.max(pause)).await?;
        while update == Update::Event && Instant::now() < shown_at + pause {
            update = self.live.next_update(shown_at + pause).await?;
        }
        Ok(())
    }

    /// Returns whether to ask the server why something waits: the run is pending, or one execution has been pending for
    /// a while.
    fn is_time_to_read(&mut self) -> bool {
        let now = Instant::now();
        if now < self.read_at {
            return false;
        }
        let whole = self.live.whole();
        let pending = || {
            let results = whole.results.values().flatten().map(|(_, result)| result);
            results.filter(|result| result.status == Status::Pending).map(|result| result.execution)
        };
        let still = self.waits.filter(|(execution, _)| pending().any(|one| one == *execution));
        self.waits = still.or_else(|| pending().next().map(|first| (first, now)));
        let waits = self.waits.is_some_and(|(_, since)| now - since >= REASONS_PAUSE);
        waits || whole.run.summary.status == RunStatus::Pending
    }

    fn schedule_next_read(&mut self, started: Instant) {
        let now = Instant::now();
        self.read_at = now + REASONS_PAUSE.max((now - started) * PAUSE_PER_READ);
    }
}
