//! Owns the connection to a primary: which of its servers, from which event on, and the pause after a failure.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::{Dice, Portion, limits};
use downbeat_store::{self as store, EventFilter};
use futures_util::StreamExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::apply::{Applier, Failure};
use super::frame::{Frame, fingerprint};
use super::upstream::{Lost, Since, Upstream};

/// A primary sends a beat twice a second, unless it waits for its store.
const SILENCE: Duration = Duration::from_secs(15);
/// The pause between two tries: doubled each time up to the maximum, with some randomness.
const FIRST_PAUSE_MS: u64 = 100;
const MOST_PAUSE_MS: u64 = 5_000;

#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("the stream has ended")]
    Closed,
    #[error("nothing was received for {}s", SILENCE.as_secs())]
    Silent,
    #[error("the primary sent a line of more than {} bytes", limits::REPLICA_LINE_BYTES)]
    TooLong,
    #[error("the primary sent a line that is not a frame: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error(transparent)]
    Apply(#[from] Failure),
    #[error(transparent)]
    Store(#[from] store::Error),
}

#[derive(Debug)]
pub(crate) struct Follower {
    applier: Applier,
    upstream: Arc<dyn Upstream>,
    /// Servers of one primary site. If one fails, the next is tried.
    primaries: Vec<String>,
    dice: Dice,
}

impl Follower {
    pub(crate) fn new(applier: Applier, upstream: Arc<dyn Upstream>, seed: u64) -> Self {
        let primaries = applier.parts.settings.replica_of.clone();
        Self { applier, upstream, primaries, dice: Dice::new(seed) }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow_forever()).await;
        // A half-received snapshot must not keep the store open.
        self.applier.forget_loading();
    }

    async fn follow_forever(&mut self) {
        let (mut turn, mut pause_ms) = (0, FIRST_PAUSE_MS);
        loop {
            let primary = self.primaries[turn % self.primaries.len()].clone();
            let mut frames = 0;
            let why = match self.follow(&primary, &mut frames).await {
                Ok(never) => match never {},
                Err(why) => why,
            };
            self.applier.forget_loading();
            warn!(primary, %why, "lost the primary; trying the next server");
            self.applier.following.disconnected(why.to_string());
            turn += 1;
            // A primary that sent frames is probably restarting, so the pause stays short. A copy that differs
            // again and again, or fails at the same event, does not try at full speed.
            let is_stuck = self.applier.has_diverged() || self.applier.following.is_stuck();
            let is_healthy = frames > 0 && !is_stuck;
            pause_ms = if is_healthy { FIRST_PAUSE_MS } else { (pause_ms * 2).min(MOST_PAUSE_MS) };
            sleep(Duration::from_millis(pause_ms / 2 + self.dice.next_u64() % pause_ms)).await;
        }
    }

    /// Returns the last event of the copy.
    async fn since(&self) -> Result<Since, store::Error> {
        if self.applier.has_diverged() || !self.applier.following.is_copied() {
            return Ok(Since::default());
        }
        let store = &self.applier.copy;
        let seq = store.last_seq().await?;
        let before = EventFilter { since: seq.saturating_sub(1), run: None };
        let last = store.events(&before, Portion::of_rows(1)).await?;
        Ok(Since { seq, fingerprint: last.first().map(fingerprint) })
    }

    async fn follow(&mut self, primary: &str, frames: &mut u64) -> Result<std::convert::Infallible, Ended> {
        let opening = self.upstream.open(primary, self.since().await?);
        let mut bytes = timeout(SILENCE, opening).await.map_err(|_| Ended::Silent)??;
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            let more = match timeout(SILENCE, bytes.next()).await {
                Ok(Some(more)) => more?,
                Ok(None) => return Err(Ended::Closed),
                Err(_) => return Err(Ended::Silent),
            };
            let mut more = &more[..];
            while let Some(end) = more.iter().position(|byte| *byte == b'\n') {
                buffer.extend_from_slice(&more[..end]);
                more = &more[end + 1..];
                let frame: Frame = serde_json::from_slice(&buffer)?;
                buffer.clear();
                self.applier.apply(primary, frame).await?;
                *frames += 1;
            }
            buffer.extend_from_slice(more);
            if buffer.len() > limits::REPLICA_LINE_BYTES {
                return Err(Ended::TooLong);
            }
        }
    }
}
