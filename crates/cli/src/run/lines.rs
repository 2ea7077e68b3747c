//! Turns output chunks of many executions into lines that do not mix.

use std::collections::BTreeMap;

use downbeat_api::RunChunk;
use downbeat_core::execution::Stream;
use downbeat_core::ids::ExecutionId;
use owo_colors::OwoColorize;

use crate::render::table::one_line;

/// The prefix of each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    None,
    /// `web-01 | line`.
    Node,
    /// `shard[3] web-01 | line`: any node may have any item of a task.
    Item,
}

/// The colour of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    On,
    Off,
}

/// A longer line is printed before it ends.
const LONGEST_LINE_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Prefix,
    colour: Colour,
    /// Prefixes are padded to the longest one so far.
    width: usize,
    /// The execution and stream whose printed line has no line end yet.
    unfinished: Option<(ExecutionId, Stream)>,
    open: BTreeMap<ExecutionId, OpenLines>,
}

/// Output of one execution that was not printed yet.
#[derive(Debug, Default)]
struct OpenLines {
    whose: String,
    /// Bytes of the execution's output that were printed or are buffered.
    next: u64,
    /// Text without a line end yet, per stream.
    out: String,
    err: String,
}

impl OpenLines {
    fn line(&mut self, stream: Stream) -> &mut String {
        match stream {
            Stream::Stdout => &mut self.out,
            Stream::Stderr => &mut self.err,
        }
    }
}

impl Lines {
    pub(crate) fn new(prefix: Prefix, colour: Colour) -> Self {
        Self { prefix, colour, width: 0, unfinished: None, open: BTreeMap::new() }
    }

    /// Returns whether the chunk was not pushed before.
    pub(crate) fn is_new(&self, chunk: &RunChunk) -> bool {
        self.open.get(&chunk.execution).is_none_or(|open| chunk.chunk.offset >= open.next)
    }

    /// Adds a chunk and returns the text to print now.
    pub(crate) fn push(&mut self, chunk: &RunChunk) -> String {
        let whose = self.whose(chunk);
        self.width = self.width.max(whose.chars().count());
        let is_first = !self.open.contains_key(&chunk.execution);
        let open =
            self.open.entry(chunk.execution).or_insert_with(|| OpenLines { whose, ..OpenLines::default() });
        let missing = chunk.chunk.offset.saturating_sub(open.next);
        open.next = chunk.chunk.offset + chunk.chunk.text.len() as u64;
        let mut notes = String::new();
        if self.prefix == Prefix::None && is_first && chunk.attempt > 1 {
            let RunChunk { attempt, step, task, .. } = chunk;
            notes.push_str(&format!("--- attempt {attempt} of step {step} ({task}) ---\n"));
        }
        if missing > 0 {
            notes.push_str(&format!("… {missing} bytes are no longer kept …\n"));
        }
        if self.prefix == Prefix::None { self.flow(chunk, &notes) } else { self.whole_lines(chunk, &notes) }
    }

    /// Returns the text as it was written, at once: it may be a prompt or a progress display. A line that another stream
    /// or attempt interrupts gets a line end.
    fn flow(&mut self, chunk: &RunChunk, notes: &str) -> String {
        let (whose, written) = ((chunk.execution, chunk.chunk.stream), chunk.chunk.text.as_str());
        let mut text = String::new();
        let interrupts = !notes.is_empty() || self.unfinished.is_some_and(|last| last != whose);
        if self.unfinished.is_some() && interrupts && !(written.is_empty() && notes.is_empty()) {
            text.push('\n');
            self.unfinished = None;
        }
        text.push_str(notes);
        self.paint(&mut text, written, chunk.chunk.stream);
        if !written.is_empty() {
            self.unfinished = (!written.ends_with('\n')).then_some(whose);
        }
        text
    }

    /// Returns only complete lines, each with its prefix.
    fn whole_lines(&mut self, chunk: &RunChunk, notes: &str) -> String {
        let stream = chunk.chunk.stream;
        let Some(open) = self.open.get_mut(&chunk.execution) else { return String::new() };
        let mut text = String::new();
        let whose = open.whose.clone();
        if !notes.is_empty() {
            // Buffered text precedes the missing bytes.
            for stream in [Stream::Stdout, Stream::Stderr] {
                let buffered = std::mem::take(open.line(stream));
                prefixed(&mut text, &buffered, &whose, self.width, stream, self.colour);
            }
            prefixed(&mut text, notes, &whose, self.width, Stream::Stdout, self.colour);
        }
        let line = open.line(stream);
        line.push_str(&chunk.chunk.text);
        let whole = match line.rfind('\n') {
            Some(end) => end + 1,
            None if line.len() > LONGEST_LINE_BYTES => line.len(),
            None => 0,
        };
        let rest = line.split_off(whole);
        let lines = std::mem::replace(line, rest);
        prefixed(&mut text, &lines, &whose, self.width, stream, self.colour);
        text
    }

    fn paint(&self, text: &mut String, written: &str, stream: Stream) {
        if stream == Stream::Stdout || self.colour == Colour::Off {
            text.push_str(written);
            return;
        }
        for line in written.split_inclusive('\n') {
            let (words, end) = line.strip_suffix('\n').map_or((line, ""), |words| (words, "\n"));
            if words.is_empty() {
                text.push_str(end);
            } else {
                text.push_str(&format!("{}{end}", words.red()));
            }
        }
    }

    fn whose(&self, chunk: &RunChunk) -> String {
        let whose = match (self.prefix, chunk.item) {
            (Prefix::Item, Some(item)) => format!("{}[{item}] {}", chunk.task, chunk.node),
            (Prefix::Item, None) => format!("{} {}", chunk.task, chunk.node),
            (Prefix::None | Prefix::Node, _) => chunk.node.clone(),
        };
        let whose = one_line(&whose);
        if chunk.attempt > 1 { format!("{whose} attempt {}", chunk.attempt) } else { whose }
    }

    /// Returns whether the last printed text has no line end: a shell prompt would follow on the same line.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Returns the buffered text that never got a line end.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = String::new();
        for mut open in std::mem::take(&mut self.open).into_values() {
            for stream in [Stream::Stdout, Stream::Stderr] {
                text.push_str(&self.rest_of(&mut open, stream));
            }
        }
        text
    }

    /// Returns the buffered text of one stream that never got a line end.
    pub(crate) fn finish_stream(&mut self, stream: Stream) -> String {
        let mut open = std::mem::take(&mut self.open);
        let text = open.values_mut().map(|open| self.rest_of(open, stream)).collect();
        self.open = open;
        text
    }

    fn rest_of(&self, open: &mut OpenLines, stream: Stream) -> String {
        let mut text = String::new();
        let buffered = std::mem::take(open.line(stream));
        prefixed(&mut text, &buffered, &open.whose, self.width, stream, self.colour);
        text
    }
}

/// `web-01 | line` of standard output, `web-01 err| line` of standard error.
fn prefixed(text: &mut String, lines: &str, whose: &str, width: usize, stream: Stream, colour: Colour) {
    for line in lines.lines() {
        match (stream, colour) {
            (Stream::Stdout, _) => text.push_str(&format!("{whose:width$} | {line}\n")),
            (Stream::Stderr, Colour::Off) => text.push_str(&format!("{whose:width$} err| {line}\n")),
            (Stream::Stderr, Colour::On) => {
                text.push_str(&format!("{whose:width$} err| {}\n", line.red()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_api::Chunk;
    use downbeat_core::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn chunk(execution: u128, node: &str, offset: u64, text: &str) -> RunChunk {
        RunChunk {
            execution: ExecutionId(Uuid::from_u128(execution)),
            step: 0,
            task: "exec run".to_owned(),
            item: None,
            node: node.to_owned(),
            attempt: 1,
            chunk: Chunk { offset, stream: Stream::Stdout, text: text.to_owned(), at: Timestamp::UNIX_EPOCH },
        }
    }

    fn error(execution: u128, node: &str, offset: u64, text: &str) -> RunChunk {
        let mut error = chunk(execution, node, offset, text);
        error.chunk.stream = Stream::Stderr;
        error
    }

    fn lines(prefix: Prefix) -> Lines {
        Lines::new(prefix, Colour::Off)
    }

    #[test]
    fn lines_of_two_nodes_never_mix() {
        let mut lines = lines(Prefix::Node);
        let mut text = lines.push(&chunk(1, "web-10", 0, "one\ntw"));
        text += &lines.push(&chunk(2, "web-2", 0, "eins\nzwei\n"));
        text += &lines.push(&chunk(1, "web-10", 6, "o\nthree"));
        text += &lines.finish();
        assert_eq!(text, "web-10 | one\nweb-2  | eins\nweb-2  | zwei\nweb-10 | two\nweb-10 | three\n");
    }

    #[test]
    fn the_name_of_a_node_cannot_speak_to_the_terminal() {
        let mut lines = lines(Prefix::Node);
        assert_eq!(lines.push(&chunk(1, "evil\u{1b}]0;owned\u{7}", 0, "x\n")), "evil ]0;owned | x\n");
    }

    #[test]
    fn lines_of_items_say_which() {
        let mut lines = lines(Prefix::Item);
        let third = RunChunk { item: Some(3), ..chunk(1, "web-1", 0, "x\n") };
        let text = lines.push(&third) + &lines.push(&chunk(2, "web-2", 0, "y\n"));
        assert_eq!(text, "exec run[3] web-1 | x\nexec run web-2    | y\n");
    }

    #[test]
    fn a_line_without_an_end_is_not_glued_to_the_other_streams() {
        let mut flow = lines(Prefix::None);
        let text = flow.push(&chunk(1, "a", 0, "no newline"))
            + &flow.push(&error(1, "a", 10, "err\n"))
            + &flow.push(&chunk(1, "a", 14, "on\n"));
        assert_eq!(text, "no newline\nerr\non\n");
        let mut prefixed = lines(Prefix::Node);
        let text = prefixed.push(&chunk(1, "a", 0, "no newline"))
            + &prefixed.push(&error(1, "a", 10, "err\n"))
            + &prefixed.push(&chunk(1, "a", 14, " yet\n"));
        assert_eq!(text, "a err| err\na | no newline yet\n");
    }

    #[test]
    fn a_line_that_comes_in_pieces_stays_whole() {
        let mut flow = lines(Prefix::None);
        assert_eq!(
            flow.push(&chunk(1, "a", 0, "10%")) + &flow.push(&chunk(1, "a", 3, " 20%\n")),
            "10% 20%\n"
        );
    }

    #[test]
    fn attempts_have_different_prefixes() {
        let second = RunChunk { attempt: 2, ..chunk(2, "a", 0, "again\n") };
        let mut flow = lines(Prefix::None);
        let text = flow.push(&chunk(1, "a", 0, "first")) + &flow.push(&second);
        assert_eq!(text, "first\n--- attempt 2 of step 0 (exec run) ---\nagain\n");
        let mut prefixed = lines(Prefix::Node);
        let text = prefixed.push(&chunk(1, "a", 0, "first\n")) + &prefixed.push(&second);
        assert_eq!(text, "a | first\na attempt 2 | again\n");
    }

    #[test]
    fn standard_error_has_a_colour_on_a_terminal() {
        let mut flow = Lines::new(Prefix::None, Colour::On);
        let text = flow.push(&error(1, "a", 0, "bad\nworse"));
        assert_eq!(text, "\u{1b}[31mbad\u{1b}[39m\n\u{1b}[31mworse\u{1b}[39m");
        assert_eq!(flow.push(&chunk(1, "a", 9, "fine\n")), "\nfine\n");
    }

    #[test]
    fn what_is_no_longer_kept_is_said() {
        let mut lines = lines(Prefix::None);
        assert_eq!(lines.push(&chunk(1, "a", 100, "tail")), "… 100 bytes are no longer kept …\ntail");
    }

    #[test]
    fn a_last_line_without_an_end_is_known() {
        let mut lines = lines(Prefix::None);
        assert!(!lines.is_unfinished());
        lines.push(&chunk(1, "a", 0, "one\ntw"));
        assert!(lines.is_unfinished());
        lines.push(&chunk(1, "a", 6, "o\n"));
        assert!(!lines.is_unfinished());
    }

    #[test]
    fn a_piece_that_comes_again_is_known() {
        let mut lines = lines(Prefix::Node);
        let piece = chunk(1, "a", 0, "x\n");
        assert!(lines.is_new(&piece));
        lines.push(&piece);
        assert!(!lines.is_new(&piece));
    }
}
