//! Owns when somebody who follows a run looks at it: the view comes from the run's events, and the server is asked only for
//! what events do not say.

use std::time::Duration;

use downbeat_api::{Plan, Rules, Run, RunStanding};
use downbeat_client::{Client, Heard, Live};
use downbeat_core::execution::Status;
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::RunStatus;
use tokio::time::Instant;

use crate::exit::Failure;
use crate::out::Out;

/// Looking more often than this shows nothing that a person could see.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The view of a run with more instances than this takes a while to make: it is looked at less often.
const MANY_INSTANCES: u64 = 1_000;
const PAUSE_OF_MANY: Duration = Duration::from_millis(500);
/// While something waits, the server is asked why this often.
const REASONS_PAUSE: Duration = Duration::from_secs(1);
/// The server works for these questions at most one part in this many of the time.
const PAUSE_PER_QUESTION: u32 = 10;

/// Somebody who only waits is told what for: first after this time, then after twice as long, and so on.
const FIRST_GLANCE: Duration = Duration::from_secs(3);
const LONGEST_GLANCE: Duration = Duration::from_secs(30);

/// A run that is followed.
pub(super) struct Follow {
    live: Live,
    rules: Rules,
    /// When the view was last returned.
    shown_at: Option<Instant>,
    /// When the server is asked next for what events do not say.
    ask_at: Instant,
    /// An execution that is pending, and since when that is known.
    waits: Option<(ExecutionId, Instant)>,
    /// Nothing was heard of the run for a while.
    is_quiet: bool,
    /// How many failed instances the last whole view had.
    failed: u64,
}

impl Follow {
    pub(super) async fn new(client: &Client, id: &RunId, out: Out) -> Result<Self, Failure> {
        let away = move |base: &str| out.note(&format!("{base} is away; waiting for it"));
        let mut live = client.follow(id, away).await?;
        let failed = live.run().counts.failed;
        let rules = Rules::of(live.plan());
        let ask_at = Instant::now() + REASONS_PAUSE;
        Ok(Self { live, rules, shown_at: None, ask_at, waits: None, is_quiet: false, failed })
    }

    pub(super) fn plan(&self) -> &Plan {
        self.live.plan()
    }

    /// Returns how the run stands at the next moment worth looking; the first time at once.
    pub(super) async fn next_standing(&mut self) -> Result<RunStanding, Failure> {
        self.hear_news().await?;
        if self.is_time_to_ask() {
            let started = Instant::now();
            self.live.look().await?;
            self.asked(started);
        }
        self.shown_at = Some(Instant::now());
        Ok(self.standing())
    }

    /// Returns the whole run at the next moment worth looking; the first time at once.
    pub(super) async fn next_run(&mut self) -> Result<Run, Failure> {
        self.hear_news().await?;
        let is_due = self.is_quiet && Instant::now() >= self.ask_at;
        if is_due || self.is_time_to_ask() || self.live.run().counts.failed != self.failed {
            self.read_whole().await?;
        }
        self.shown_at = Some(Instant::now());
        Ok(self.live.run().clone())
    }

    /// Waits for the end of the run. Meanwhile shows how it stands, at the moments at which a person who waits begins
    /// to wonder.
    pub(super) async fn until_end(&mut self, mut glance: impl FnMut(&RunStanding)) -> Result<(), Failure> {
        let mut pause = FIRST_GLANCE;
        let mut glance_at = Instant::now() + pause;
        while !self.live.has_ended() {
            let heard = self.live.hear(glance_at).await?;
            if heard == Heard::Nothing && Instant::now() >= glance_at {
                self.live.look().await?;
                glance(&self.standing());
                pause = (pause * 2).min(LONGEST_GLANCE);
                glance_at = Instant::now() + pause;
            }
        }
        Ok(())
    }

    /// Reads what no event says: why something waits, and the last words of what failed.
    async fn read_whole(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        self.live.refresh().await?;
        self.asked(started);
        self.failed = self.live.run().counts.failed;
        Ok(())
    }

    /// Returns the run at its end, and its plan. The run is read once more only if something failed.
    pub(super) async fn at_end(&mut self) -> Result<(&Run, &Plan), Failure> {
        if self.live.run().counts.failed != self.failed {
            self.read_whole().await?;
        }
        Ok(self.live.view())
    }

    fn standing(&mut self) -> RunStanding {
        let (run, plan) = self.live.view();
        RunStanding::of(run, plan, &self.rules)
    }

    /// Waits until something happened to the run; what comes in quick succession is one piece of news.
    async fn hear_news(&mut self) -> Result<(), Failure> {
        let Some(shown_at) = self.shown_at else { return Ok(()) };
        let is_large = self.live.run().counts.total() > MANY_INSTANCES;
        let pause = if is_large { PAUSE_OF_MANY } else { SHORTEST_PAUSE };
        let mut heard = self.live.hear(shown_at + REASONS_PAUSE).await?;
        self.is_quiet = heard == Heard::Nothing;
        while heard == Heard::Something && Instant::now() < shown_at + pause {
            heard = self.live.hear(shown_at + pause).await?;
        }
        Ok(())
    }

    /// Returns whether the server is to be asked why something waits: the run waits for its turn, or one execution has been
    /// pending for a while.
    fn is_time_to_ask(&mut self) -> bool {
        let now = Instant::now();
        let run = self.live.run();
        let mut pending =
            run.results.values().flatten().filter(|(_, result)| result.status == Status::Pending);
        self.waits = match self.waits {
            Some(waits) if pending.any(|(_, result)| result.execution == waits.0) => Some(waits),
            _ => {
                let mut results = run.results.values().flatten();
                let first = results.find(|(_, result)| result.status == Status::Pending);
                first.map(|(_, result)| (result.execution, now))
            }
        };
        let waits = self.waits.is_some_and(|(_, since)| now - since >= REASONS_PAUSE);
        now >= self.ask_at && (waits || run.summary.status == RunStatus::Pending)
    }

    fn asked(&mut self, started: Instant) {
        let now = Instant::now();
        self.ask_at = now + REASONS_PAUSE.max((now - started) * PAUSE_PER_QUESTION);
    }
}
