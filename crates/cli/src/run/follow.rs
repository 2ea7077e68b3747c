//! Owns following a run to its end: the event stream says when to look, the run itself says what there is.
//!
//! A server that goes away for a moment does not end it: the run goes on without us, and so do we.

use std::time::Duration;

use downbeat_core::ids::RunId;
use downbeat_server::http::view::Run;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Client, Feed};
use crate::exit::Failure;
use crate::out::Out;

/// Looking more often than this shows nothing that a person could see.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Looks anyway, for what the stream did not say.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Between two tries to open the stream.
const FEED_PAUSE: Duration = Duration::from_millis(500);

/// A run that is followed.
pub(crate) struct Follow<'a> {
    client: &'a Client,
    out: Out,
    id: RunId,
    feed: Option<Feed>,
    looked_at: Option<Instant>,
}

impl<'a> Follow<'a> {
    pub(crate) fn new(client: &'a Client, id: RunId, out: Out) -> Self {
        Self { client, out, id, feed: None, looked_at: None }
    }

    /// The run at the next moment worth looking; the first at once.
    pub(crate) async fn next(&mut self) -> Result<Run, Failure> {
        if self.looked_at.is_some() {
            self.news().await;
        }
        let run = self.patient_look().await?;
        self.looked_at = Some(Instant::now());
        Ok(run)
    }

    /// Waits until something happened to the run, or might have.
    async fn news(&mut self) {
        if self.feed.is_none() {
            let follow = [("follow", "1".to_owned())];
            self.feed = self.client.feed(&["runs", self.id.as_str(), "events"], &follow, None).await.ok();
        }
        match &mut self.feed {
            Some(feed) => match timeout(LONGEST_PAUSE, feed.next()).await {
                Ok(Ok(Some(_))) => self.drain().await,
                Err(_) => {}
                Ok(Ok(None) | Err(_)) => {
                    self.feed = None;
                    sleep(SHORTEST_PAUSE).await;
                }
            },
            None => sleep(FEED_PAUSE).await,
        }
    }

    /// What comes in quick succession is one piece of news.
    async fn drain(&mut self) {
        let quiet_until = self.looked_at.map_or_else(Instant::now, |at| at + SHORTEST_PAUSE);
        while let Some(feed) = &mut self.feed {
            match tokio::time::timeout_at(quiet_until, feed.next()).await {
                Err(_) => return,
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None) | Err(_)) => self.feed = None,
            }
        }
    }

    /// Whoever follows a run has spoken to the server before.
    async fn patient_look(&self) -> Result<Run, Failure> {
        self.client.get_patiently(&["runs", self.id.as_str()], &[], self.out).await
    }
}
