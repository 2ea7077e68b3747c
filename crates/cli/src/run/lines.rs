//! Owns how pieces of output of many executions become lines that do not mix.

use std::collections::BTreeMap;

use downbeat_core::ids::ExecutionId;
use downbeat_server::http::view::RunChunk;

use crate::render::table::one_line;

/// Whether lines say whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    None,
    /// `web-01 | line`.
    Node,
    /// `shard[3] web-01 | line`: items of one task are alike, and any node may have any of them.
    Item,
}

/// A line that is this long is printed before it has ended.
const LONGEST_LINE_BYTES: usize = 64 * 1024;

/// Lines in the making.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Prefix,
    /// Prefixes are padded to the longest that was seen.
    width: usize,
    /// What was printed last does not end in a line end.
    unfinished: bool,
    open: BTreeMap<ExecutionId, Open>,
}

#[derive(Debug, Default)]
struct Open {
    whose: String,
    /// Bytes of the execution's output that were printed or are held.
    next: u64,
    line: String,
}

impl Lines {
    pub(super) fn new(prefix: Prefix) -> Self {
        Self { prefix, width: 0, unfinished: false, open: BTreeMap::new() }
    }

    /// Whether it was not pushed before.
    pub(super) fn is_new(&self, chunk: &RunChunk) -> bool {
        self.open.get(&chunk.execution).is_none_or(|open| chunk.chunk.offset >= open.next)
    }

    /// What is to be printed now that this piece came.
    pub(super) fn push(&mut self, chunk: &RunChunk) -> String {
        let whose = self.whose(chunk);
        self.width = self.width.max(whose.chars().count());
        let mut text = String::new();
        let open = self.open.entry(chunk.execution).or_insert_with(|| Open { whose, ..Open::default() });
        if chunk.chunk.offset > open.next {
            let cut = chunk.chunk.offset - open.next;
            if !open.line.is_empty() {
                open.line.push('\n');
            }
            open.line.push_str(&format!("… {cut} bytes are no longer kept …\n"));
        }
        open.next = chunk.chunk.offset + chunk.chunk.text.len() as u64;
        if self.prefix == Prefix::None {
            text.push_str(&std::mem::take(&mut open.line));
            text.push_str(&chunk.chunk.text);
            if !text.is_empty() {
                self.unfinished = !text.ends_with('\n');
            }
            return text;
        }
        open.line.push_str(&chunk.chunk.text);
        let whole = match open.line.rfind('\n') {
            Some(end) => end + 1,
            None if open.line.len() > LONGEST_LINE_BYTES => open.line.len(),
            None => 0,
        };
        let rest = open.line.split_off(whole);
        let lines = std::mem::replace(&mut open.line, rest);
        prefixed(&mut text, &lines, &open.whose, self.width);
        text
    }

    fn whose(&self, chunk: &RunChunk) -> String {
        let whose = match (self.prefix, chunk.item) {
            (Prefix::Item, Some(item)) => format!("{}[{item}] {}", chunk.task, chunk.node),
            (Prefix::Item, None) => format!("{} {}", chunk.task, chunk.node),
            (Prefix::None | Prefix::Node, _) => chunk.node.clone(),
        };
        one_line(&whose)
    }

    /// Whether what was printed last does not end in a line end: a prompt would follow on the same line.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// What never ended in a line end.
    pub(super) fn finish(&mut self) -> String {
        let mut text = String::new();
        for open in std::mem::take(&mut self.open).into_values() {
            prefixed(&mut text, &open.line, &open.whose, self.width);
        }
        text
    }
}

fn prefixed(text: &mut String, lines: &str, whose: &str, width: usize) {
    for line in lines.lines() {
        text.push_str(&format!("{whose:width$} | {line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_server::http::view::Chunk;
    use downbeat_store::Stream;
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

    #[test]
    fn lines_of_two_nodes_never_mix() {
        let mut lines = Lines::new(Prefix::Node);
        let mut text = lines.push(&chunk(1, "web-10", 0, "one\ntw"));
        text += &lines.push(&chunk(2, "web-2", 0, "eins\nzwei\n"));
        text += &lines.push(&chunk(1, "web-10", 6, "o\nthree"));
        text += &lines.finish();
        assert_eq!(text, "web-10 | one\nweb-2  | eins\nweb-2  | zwei\nweb-10 | two\nweb-10 | three\n");
    }

    #[test]
    fn the_name_of_a_node_cannot_speak_to_the_terminal() {
        let mut lines = Lines::new(Prefix::Node);
        assert_eq!(lines.push(&chunk(1, "evil\u{1b}]0;owned\u{7}", 0, "x\n")), "evil ]0;owned | x\n");
    }

    #[test]
    fn lines_of_items_say_which() {
        let mut lines = Lines::new(Prefix::Item);
        let third = RunChunk { item: Some(3), ..chunk(1, "web-1", 0, "x\n") };
        let text = lines.push(&third) + &lines.push(&chunk(2, "web-2", 0, "y\n"));
        assert_eq!(text, "exec run[3] web-1 | x\nexec run web-2    | y\n");
    }

    #[test]
    fn what_is_no_longer_kept_is_said() {
        let mut lines = Lines::new(Prefix::None);
        assert_eq!(lines.push(&chunk(1, "a", 100, "tail")), "… 100 bytes are no longer kept …\ntail");
    }

    #[test]
    fn a_last_line_without_an_end_is_known() {
        let mut lines = Lines::new(Prefix::None);
        assert!(!lines.is_unfinished());
        lines.push(&chunk(1, "a", 0, "one\ntw"));
        assert!(lines.is_unfinished());
        lines.push(&chunk(1, "a", 6, "o\n"));
        assert!(!lines.is_unfinished());
    }

    #[test]
    fn a_piece_that_comes_again_is_known() {
        let mut lines = Lines::new(Prefix::Node);
        let piece = chunk(1, "a", 0, "x\n");
        assert!(lines.is_new(&piece));
        lines.push(&piece);
        assert!(!lines.is_new(&piece));
    }
}
