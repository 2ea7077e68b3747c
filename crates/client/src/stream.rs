//! Owns streams that resume: after a broken connection, the next one starts after the last received event.

use std::fmt;

use downbeat_api::request::Request;
use tokio::time::sleep;

use crate::error::Result;
use crate::http::{Client, RETRY_PAUSE};
use crate::sse::{Feed, Message};

/// The last message of a stream.
const END: &str = "end";

/// A stream of server-sent events that resumes.
pub struct Stream<T> {
    client: Client,
    request: Request<T>,
    feed: Option<Feed>,
    /// The id of the last received message.
    last: Option<String>,
}

impl Client {
    /// Returns a stream, which connects when the first message is requested.
    pub fn stream<T>(&self, request: Request<T>) -> Stream<T> {
        Stream { client: self.clone(), request, feed: None, last: None }
    }
}

impl<T> Stream<T> {
    /// Returns the next message, or nothing if the stream has ended. Once the first connection was made, waits for
    /// a server that does not respond.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        loop {
            self.connect().await?;
            if let Some(received) = self.receive().await {
                return Ok(received);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    pub(crate) async fn connect(&mut self) -> Result<()> {
        if self.feed.is_none() {
            self.feed = Some(self.client.feed(&self.request, self.last.as_deref()).await?);
            if !self.client.is_waiting() {
                self.client = self.client.waiting(|_| {});
            }
        }
        Ok(())
    }

    /// Returns the next message of the connection, `Some(None)` at the end of the stream, and nothing if the connection
    /// broke. The call may be dropped without losing data.
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
