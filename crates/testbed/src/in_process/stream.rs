//! Streams of server-sent events.

use futures_util::StreamExt;
use serde_json::Value;

use crate::wait::DEADLINE;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub id: Option<String>,
    pub name: String,
    pub data: Value,
}

/// An open stream of events.
pub struct Stream {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stream").field("text", &self.text).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn of(answer: reqwest::Response) -> Self {
        Self { bytes: answer.bytes_stream().boxed(), text: String::new() }
    }

    /// Returns the next event, or nothing if the stream has ended.
    pub async fn next(&mut self) -> Option<Sent> {
        tokio::time::timeout(DEADLINE, self.read()).await.expect("the stream continues or ends")
    }

    async fn read(&mut self) -> Option<Sent> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
                };
                if let Some(data) = field("data") {
                    let data = serde_json::from_str(&data).expect("data is JSON");
                    return Some(Sent { id: field("id"), name: field("event").unwrap_or_default(), data });
                }
            }
            self.receive().await?;
        }
    }

    /// Receives a piece of the stream, as large as it came.
    async fn receive(&mut self) -> Option<()> {
        let bytes = self.bytes.next().await?.ok()?;
        self.text.push_str(std::str::from_utf8(&bytes).expect("text"));
        Some(())
    }

    /// Waits until the server has begun to send the next event, and reads little more than its start.
    pub async fn begun(&mut self) {
        while !self.text.contains("data: ") {
            self.receive().await.expect("the stream continues");
        }
    }

    /// Returns all events until the stream ends.
    pub async fn rest(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(sent) = self.next().await {
            all.push(sent);
        }
        all
    }
}
