//! Owns following a run to its end: the event stream says when to look, and looks are light and rare for large runs.
//!
//! A server that goes away for a moment does not end it: the run goes on without us, and so do we.

use std::time::Duration;

use downbeat_api::request::Request;
use downbeat_api::{Plan, Rules, Run, RunStanding, request};
use downbeat_client::{Client, Feed};
use downbeat_core::ids::RunId;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

use crate::exit::{Code, Failure};
use crate::out::Out;

/// Looking more often than this shows nothing that a person could see.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Of a run with more instances than this the server reads as many rows for each look: it is looked at less often.
const MANY_INSTANCES: u64 = 1_000;
const PAUSE_OF_MANY: Duration = Duration::from_millis(500);
/// The server works for a look at most one part in this many of the time.
const PAUSE_PER_LOOK: u32 = 10;
/// Looks anyway, for what the stream did not say.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries to open the stream.
const FEED_PAUSE: Duration = Duration::from_millis(500);

/// Who only waits looks for reasons to wait: first after this time, then after twice as long, and so on.
const FIRST_GLANCE: Duration = Duration::from_secs(3);
const LONGEST_GLANCE: Duration = Duration::from_secs(30);

/// A run that is followed.
pub(super) struct Follow<'a> {
    client: &'a Client,
    out: Out,
    id: RunId,
    feed: Option<Feed>,
    /// The last event that was received: a stream that broke goes on after it.
    last_event: Option<String>,
    looked_at: Option<Instant>,
    pause: Duration,
    /// The stream has said that the run has ended.
    has_ended: bool,
    light: Light,
}

/// Whether the server answers `results=0`.
enum Light {
    Known,
    /// A server from before: whole runs are read, and counted here.
    Unknown(Box<(Plan, Rules)>),
}

/// What was heard of the run.
enum Heard {
    Something,
    End,
    Nothing,
}

impl<'a> Follow<'a> {
    pub(super) fn new(client: &'a Client, id: RunId, out: Out) -> Self {
        Self {
            client,
            out,
            id,
            feed: None,
            last_event: None,
            looked_at: None,
            pause: SHORTEST_PAUSE,
            has_ended: false,
            light: Light::Known,
        }
    }

    /// How the run stands at the next moment worth looking; the first at once.
    pub(super) async fn next_standing(&mut self) -> Result<RunStanding, Failure> {
        self.news().await;
        self.standing().await
    }

    /// The same with all results, for those who want them.
    pub(super) async fn next_run(&mut self) -> Result<Run, Failure> {
        self.news().await;
        self.whole().await
    }

    /// Waits for the end of the run. Meanwhile shows how it stands, at the moments at which a person who waits begins
    /// to wonder.
    pub(super) async fn until_end(&mut self, mut glance: impl FnMut(&RunStanding)) -> Result<(), Failure> {
        let mut pause = FIRST_GLANCE;
        let mut glance_at = Instant::now() + pause;
        while !self.has_ended {
            match self.hear(glance_at).await {
                Heard::Something | Heard::End => {}
                Heard::Nothing => {
                    let standing = self.standing().await?;
                    glance(&standing);
                    self.has_ended |= standing.summary.state.is_terminal();
                    pause = (pause * 2).min(LONGEST_GLANCE).max(self.pause);
                    glance_at = Instant::now() + pause;
                }
            }
        }
        Ok(())
    }

    /// A light look.
    async fn standing(&mut self) -> Result<RunStanding, Failure> {
        let started = Instant::now();
        let standing = match &self.light {
            Light::Known => match self.ask(request::standing(&self.id)).await {
                Err(failure) if failure.code == Code::BadInput => {
                    let plan: Plan = self.plan().await?;
                    let rules = Rules::of(&plan);
                    let run = self.whole().await?;
                    let standing = RunStanding::of(run, &plan, &rules);
                    self.light = Light::Unknown(Box::new((plan, rules)));
                    standing
                }
                answer => answer?,
            },
            Light::Unknown(known) => {
                let (plan, rules) = &**known;
                RunStanding::of(self.ask(request::run(&self.id)).await?, plan, rules)
            }
        };
        self.looked(started, standing.counts.total());
        Ok(standing)
    }

    /// A look at everything.
    pub(super) async fn whole(&mut self) -> Result<Run, Failure> {
        let started = Instant::now();
        let run = self.ask(request::run(&self.id)).await?;
        self.looked(started, run.counts.total());
        Ok(run)
    }

    pub(super) async fn plan(&self) -> Result<Plan, Failure> {
        self.ask(request::run_plan(&self.id)).await
    }

    /// The server answered before: it is waited for while it is away.
    async fn ask<T: DeserializeOwned>(&self, request: Request<T>) -> Result<T, Failure> {
        let away = |base: &str| self.out.note(&format!("{base} is away; waiting for it"));
        Ok(self.client.ask_patiently(request, away).await?)
    }

    fn looked(&mut self, started: Instant, instances: u64) {
        let now = Instant::now();
        self.looked_at = Some(now);
        self.pause = pause_after(now - started, instances);
    }

    /// Waits until something happened to the run, or might have; what comes in quick succession is one piece of news.
    async fn news(&mut self) {
        let Some(looked_at) = self.looked_at else { return };
        let at_the_latest = looked_at + LONGEST_PAUSE.max(self.pause);
        let mut heard = self.hear(at_the_latest).await;
        let quiet_until = looked_at + self.pause;
        while matches!(heard, Heard::Something) && Instant::now() < quiet_until {
            heard = self.hear(quiet_until).await;
        }
    }

    /// The next event of the run, or nothing at the given time.
    async fn hear(&mut self, until: Instant) -> Heard {
        if self.has_ended {
            return Heard::End;
        }
        if self.feed.is_none() {
            let events = request::run_events(&self.id).with("follow", 1);
            self.feed = self.client.feed(&events, self.last_event.as_deref()).await.ok();
        }
        let Some(feed) = &mut self.feed else {
            sleep(FEED_PAUSE).await;
            return Heard::Nothing;
        };
        match timeout_at(until, feed.next()).await {
            Err(_) => Heard::Nothing,
            Ok(Ok(Some(message))) if message.name == "end" => {
                self.has_ended = true;
                Heard::End
            }
            Ok(Ok(Some(message))) => {
                self.last_event = message.id.or(self.last_event.take());
                Heard::Something
            }
            Ok(Ok(None) | Err(_)) => {
                self.feed = None;
                sleep(SHORTEST_PAUSE).await;
                Heard::Nothing
            }
        }
    }
}

/// How long to leave the server alone after a look.
fn pause_after(look: Duration, instances: u64) -> Duration {
    let shortest = if instances > MANY_INSTANCES { PAUSE_OF_MANY } else { SHORTEST_PAUSE };
    shortest.max(look * PAUSE_PER_LOOK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_run_or_a_slow_server_is_looked_at_less_often() {
        let quick = Duration::from_millis(2);
        assert_eq!(pause_after(quick, 1_000), SHORTEST_PAUSE);
        assert_eq!(pause_after(quick, 1_001), PAUSE_OF_MANY);
        assert_eq!(pause_after(Duration::from_millis(30), 10), Duration::from_millis(300));
        assert_eq!(pause_after(Duration::from_secs(2), 1_000_000), Duration::from_secs(20));
    }
}
