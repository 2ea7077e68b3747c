//! Owns the body of a response on its way to the output: streamed, or kept where it has to be read as a whole.

use downbeat_core::limits::VALUES_BYTES;
use downbeat_core::shown::shown;
use serde_json::Value;

use super::expect::{Expect, Search};
use crate::backend::Call;
use crate::output::{OutputSink, Stream};

/// The limit for a response.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct Body<'b> {
    expect: &'b Expect,
    output: &'b OutputSink,
    search: Option<Search>,
    bytes: u64,
    /// The whole body, while it may contain expected JSON or the task's outputs.
    held: Option<Vec<u8>>,
    /// The task declares outputs: an object over several lines is then written on one line, where outputs are searched.
    has_outputs: bool,
}

impl<'b> Body<'b> {
    pub(super) fn new(expect: &'b Expect, call: &'b Call) -> Self {
        let has_outputs = call.values.is_some();
        Self {
            expect,
            output: &call.output,
            search: expect.contains.as_deref().map(Search::new),
            bytes: 0,
            held: (has_outputs || expect.json.is_some()).then(Vec::new),
            has_outputs,
        }
    }

    /// Passes on the next piece.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes += bytes.len() as u64;
        if let Some(search) = &mut self.search {
            search.feed(bytes);
        }
        match &mut self.held {
            None => self.output.write(Stream::Stdout, bytes),
            Some(held) => {
                held.extend_from_slice(bytes);
                // Longer than all outputs together may be.
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

    /// Writes the body that was kept, at its end.
    pub(super) fn end(&self) {
        let Some(held) = &self.held else { return };
        match serde_json::from_slice(held) {
            Ok(Value::Object(object)) if self.has_outputs => {
                self.output.write(Stream::Stdout, format!("{}\n", Value::Object(object)).as_bytes());
            }
            _ => self.output.write(Stream::Stdout, held),
        }
    }

    /// Returns why the body is not as expected.
    pub(super) fn wrong(&self) -> Option<String> {
        if self.search.as_ref().is_some_and(|search| !search.found()) {
            let wanted = shown(self.expect.contains.as_deref().unwrap_or_default());
            return Some(format!("the response does not contain \"{wanted}\""));
        }
        self.expect.wrong_json(self.held.as_deref())
    }
}
