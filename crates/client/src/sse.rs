//! Reads a stream of server-sent events.

use std::fmt;
use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use reqwest::Response;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// No event of a server is near this size; a stream without line ends must not fill the memory.
const MOST_BUFFERED_BYTES: usize = 32 * 1024 * 1024;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub id: Option<String>,
    pub name: String,
    pub data: String,
}

impl Message {
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.data)
            .map_err(|error| Error::UnreadableEvent { name: self.name.clone(), why: error.to_string() })
    }
}

type Bytes = Pin<Box<dyn Stream<Item = Result<Vec<u8>, reqwest::Error>> + Send>>;

/// An open stream.
pub struct Feed {
    bytes: Bytes,
    base: String,
    parser: Parser,
}

impl Feed {
    pub(crate) fn new(response: Response, base: String) -> Self {
        let bytes = response.bytes_stream().map(|piece| piece.map(|bytes| bytes.to_vec()));
        Self { bytes: Box::pin(bytes), base, parser: Parser::default() }
    }

    /// Returns the next event, or nothing if the server ended the stream. The call may be dropped without losing data.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = self.parser.message() {
                return Ok(Some(message));
            }
            match self.bytes.next().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::no_response(&self.base, &error)),
                Some(Ok(piece)) => self.parser.push(&piece)?,
            }
        }
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("base", &self.base).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Parser {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were parsed.
    parsed: usize,
    partial: Message,
    has_data: bool,
}

impl Parser {
    fn push(&mut self, piece: &[u8]) -> Result<()> {
        self.buffer.drain(..self.parsed);
        self.parsed = 0;
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() > MOST_BUFFERED_BYTES {
            return Err(Error::EventTooLarge);
        }
        Ok(())
    }
    fn message(&mut self) -> Option<Message> {
        while let Some(end) = self.buffer[self.parsed..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.buffer[self.parsed..self.parsed + end]).into_owned();
            self.parsed += end + 1;
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                let message = std::mem::take(&mut self.partial);
                if std::mem::take(&mut self.has_data) {
                    return Some(message);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.partial.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.partial.name),
                "data" => {
                    if std::mem::replace(&mut self.has_data, true) {
                        self.partial.data.push('\n');
                    }
                    self.partial.data.push_str(value);
                }
                // Comments keep the connection open; other fields are not used.
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_the_bytes_are_cut() {
        let text = ": hello\n\nid: 7\nevent: run_created\ndata: {\"a\":\ndata:  1}\n\r\nretry: 5\n\nevent: x\ndata: ü\n\n";
        let expected = [
            Message { id: Some("7".into()), name: "run_created".into(), data: "{\"a\":\n 1}".into() },
            Message { id: None, name: "x".into(), data: "ü".into() },
        ];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                parser.push(piece).unwrap();
                found.extend(std::iter::from_fn(|| parser.message()));
            }
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
