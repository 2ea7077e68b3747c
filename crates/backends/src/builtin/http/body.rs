//! Owns the body of a response on its way to the output: streamed as it comes, or held back where it is to be read as
//! a whole.

use downbeat_core::limits::VALUES_BYTES;
use downbeat_core::shown::shown;
use serde_json::Value;

use super::expect::{Expect, Search};
use crate::backend::Call;
use crate::output::{OutputSink, Stream};

/// A server that sends for ever is given up on.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct Body<'b> {
    expect: &'b Expect,
    output: &'b OutputSink,
    search: Option<Search>,
    bytes: u64,
    /// All of it, as long as it may be what is expected or what the task says as values.
    held: Option<Vec<u8>>,
    /// Whether the task declares values: an object over several lines is then written on one, where they are looked for.
    says_values: bool,
}

impl<'b> Body<'b> {
    pub(super) fn new(expect: &'b Expect, call: &'b Call) -> Self {
        let says_values = call.values.is_some();
        Self {
            expect,
            output: &call.output,
            search: expect.contains.as_deref().map(Search::new),
            bytes: 0,
            held: (says_values || expect.json.is_some()).then(Vec::new),
            says_values,
        }
    }

    /// The next piece.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes += bytes.len() as u64;
        if let Some(search) = &mut self.search {
            search.feed(bytes);
        }
        match &mut self.held {
            None => self.output.write(Stream::Stdout, bytes),
            Some(held) => {
                held.extend_from_slice(bytes);
                // Longer than values may be, together.
                if held.len() > VALUES_BYTES {
                    self.output.write(Stream::Stdout, held);
                    self.held = None;
                }
            }
        }
        if self.bytes > MOST_BYTES {
            return Err(format!("the response is longer than {} MiB", MOST_BYTES >> 20));
        }
        Ok(())
    }

    /// There is no more: what was held back is written.
    pub(super) fn end(&self) {
        let Some(held) = &self.held else { return };
        match serde_json::from_slice(held) {
            Ok(Value::Object(object)) if self.says_values => {
                self.output.write(Stream::Stdout, format!("{}\n", Value::Object(object)).as_bytes());
            }
            _ => self.output.write(Stream::Stdout, held),
        }
    }

    /// What is wrong with all of it.
    pub(super) fn wrong(&self) -> Option<String> {
        if self.search.as_ref().is_some_and(|search| !search.found()) {
            let wanted = shown(self.expect.contains.as_deref().unwrap_or_default());
            return Some(format!("the response does not contain \"{wanted}\""));
        }
        self.expect.wrong_json(self.held.as_deref())
    }
}
