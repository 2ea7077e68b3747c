//! Owns streams that resume: when a connection breaks, the next one begins after the last event that was received.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use downbeat_api::request::Request;
use tokio::time::sleep;

use crate::error::Error;
use crate::http::Client;
use crate::sse::{Feed, Message};

/// How long between two tries to resume, and how many in a row may fail.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const MOST_RETRIES: u32 = 60;

/// The last message of a stream: nothing more follows.
const END: &str = "end";

/// Called with a server that does not answer, when it begins to be waited for.
pub(crate) type Away = Arc<dyn Fn(&str) + Send + Sync>;

/// A stream of server-sent events that resumes.
pub struct Stream<T> {
    client: Client,
    request: Request<T>,
    feed: Option<Feed>,
    /// The id of the last message that was received.
    last: Option<String>,
    was_open: bool,
    failures: u32,
    away: Away,
}

impl Client {
    /// Returns a stream, which connects with the first message that is asked for.
    pub fn stream<T>(&self, request: Request<T>) -> Stream<T> {
        self.stream_telling(request, Arc::new(|_: &str| {}))
    }

    pub(crate) fn stream_telling<T>(&self, request: Request<T>, away: Away) -> Stream<T> {
        Stream { client: self.clone(), request, feed: None, last: None, was_open: false, failures: 0, away }
    }
}

impl<T> Stream<T> {
    /// Returns the next message, or nothing when the stream has ended. Connects again as often as it takes, once the first
    /// connection was made.
    pub async fn next(&mut self) -> Result<Option<Message>, Error> {
        loop {
            self.connect().await?;
            if let Some(received) = self.receive().await {
                return Ok(received);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes sure that the stream is connected.
    pub(crate) async fn connect(&mut self) -> Result<(), Error> {
        while self.feed.is_none() {
            match self.client.feed(&self.request, self.last.as_deref()).await {
                Ok(feed) => (self.feed, self.was_open, self.failures) = (Some(feed), true, 0),
                Err(error) if error.is_unreachable() && self.was_open && self.failures < MOST_RETRIES => {
                    if self.failures == 0 {
                        (self.away)(self.client.base());
                    }
                    self.failures += 1;
                    sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the next message of the connection, `Some(None)` at the end of the stream, and nothing when the connection
    /// broke. Dropping the call loses nothing.
    pub(crate) async fn receive(&mut self) -> Option<Option<Message>> {
        let feed = self.feed.as_mut()?;
        match feed.next().await {
            Ok(Some(message)) if message.name == END => Some(None),
            Ok(Some(message)) => {
                if message.id.is_some() {
                    self.last.clone_from(&message.id);
                }
                Some(Some(message))
            }
            Ok(None) | Err(_) => {
                self.feed = None;
                None
            }
        }
    }
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("last", &self.last).finish_non_exhaustive()
    }
}
