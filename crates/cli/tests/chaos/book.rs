//! Owns the book: the executions write a line into it at each begin and end.
//!
//! All nodes append to one file, each line with one write: the order of lines is the order in which things happened.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Begin,
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) verb: Verb,
    pub(crate) execution: String,
    pub(crate) attempt: u32,
    pub(crate) step: String,
    pub(crate) node: String,
    /// Seconds since the machine started: a clock that cannot be set.
    pub(crate) at: f64,
    /// The exit code that it was about to return.
    pub(crate) code: i32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    pub(crate) lines: Vec<Line>,
    /// Lines that cannot be parsed: a write was torn, and proves nothing.
    pub(crate) torn: Vec<String>,
}

/// The shell that a task runs: it notes its begin, sleeps, notes its end, and exits. Attempts before
/// `succeeds_on` fail.
pub(crate) fn script(book: &Path, name: &str, seconds: f64, succeeds_on: u32) -> String {
    let book = book.display();
    format!(
        "say() {{ read t _ </proc/uptime; \
         echo \"$1 $DOWNBEAT_EXECUTION {name} $DOWNBEAT_TEST_NODE $t $2\" >>{book}; }}; \
         say begin 0; sleep {seconds:.2}; c=0; [ ${{DOWNBEAT_EXECUTION##*.}} -lt {succeeds_on} ] && c=3; \
         say end $c; exit $c"
    )
}

/// A task that writes into the book.
pub(crate) fn task(book: &Path, name: &str, seconds: f64, succeeds_on: u32) -> Value {
    let command = script(book, name, seconds, succeeds_on);
    json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": command}})
}

impl Book {
    pub(crate) fn read(path: &Path) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut book = Self::default();
        for line in text.lines() {
            match parse(line) {
                Some(line) => book.lines.push(line),
                None => book.torn.push(line.to_owned()),
            }
        }
        book
    }

    pub(crate) fn ends(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.verb == Verb::End)
    }

    /// The longest time in which no execution ended, in seconds.
    pub(crate) fn longest_pause(&self) -> f64 {
        let mut ends: Vec<f64> = self.ends().map(|line| line.at).collect();
        ends.sort_by(f64::total_cmp);
        ends.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let verb = match words.next()? {
        "begin" => Verb::Begin,
        "end" => Verb::End,
        _ => return None,
    };
    let (execution, attempt) = words.next()?.rsplit_once('.')?;
    let line = Line {
        verb,
        execution: execution.to_owned(),
        attempt: attempt.parse().ok()?,
        step: words.next()?.to_owned(),
        node: words.next()?.to_owned(),
        at: words.next()?.parse().ok()?,
        code: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(line)
}
