//! Owns standard output and standard error. Text contains colours; they are removed if the reader is not a terminal or
//! `NO_COLOR` is set.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use downbeat_core::shown::escaped;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::yaml;
use crate::exit::{Code, Failure, Result};

/// The format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    // One document, or one per line for a stream.
    Json,
    // One document, or several for a stream.
    Yaml,
}

/// A narrower terminal wraps lines by itself: no layout would fit.
const NARROWEST_TERMINAL: usize = 40;

/// Standard output and standard error of the program, with a format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    format: Format,
    terminal: bool,
}

impl Out {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, terminal: io::stdout().is_terminal() }
    }

    pub(crate) fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    pub(crate) fn format(self) -> Format {
        self.format
    }

    /// Returns whether standard output is a terminal, which gets progress bars and wrapped columns.
    pub(crate) fn is_terminal(self) -> bool {
        self.terminal
    }

    /// Returns whether output of tasks may be coloured.
    pub(crate) fn has_colour(self) -> bool {
        self.terminal && anstream::stdout().current_choice() != anstream::ColorChoice::Never
    }

    /// Returns the columns to wrap at: `COLUMNS` if it is set, otherwise those of the terminal. Returns `None` without a
    /// terminal, so that a pipe gets whole lines.
    pub(crate) fn width(self) -> Option<usize> {
        if !self.terminal {
            return None;
        }
        let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let columns = match set {
            Some(columns) => columns,
            None => usize::from(crossterm::terminal::size().ok()?.0),
        };
        Some(columns).filter(|columns| *columns >= NARROWEST_TERMINAL)
    }

    /// Prints text, with a line end if it has none.
    pub(crate) fn text(self, text: &str) -> Result {
        let mut stdout = anstream::stdout().lock();
        let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        written(write!(stdout, "{text}{end}").and_then(|()| stdout.flush()))
    }

    /// Prints output of a task, byte for byte.
    pub(crate) fn raw(self, text: &str) -> Result {
        let mut stdout = io::stdout().lock();
        written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }

    /// Prints error output of a task to standard error, byte for byte.
    pub(crate) fn raw_error(self, text: &str) {
        let mut stderr = io::stderr().lock();
        // If standard error is closed, the output is lost.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Prints one result: `table` draws it for users, the other formats serialize the value.
    pub(crate) fn result<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> Result {
        match self.format {
            Format::Table => self.text(&table()),
            Format::Json => self.text(&printable(serde_json::to_string_pretty(value))?),
            Format::Yaml => self.text(&yaml::document(&printable(serde_json::to_value(value))?)),
        }
    }

    /// Prints one result of a stream: a line of JSON, or a YAML document with its separator.
    pub(crate) fn item<T: Serialize>(self, value: &T, line: impl FnOnce() -> String) -> Result {
        match self.format {
            Format::Table => self.text(&line()),
            Format::Json => self.text(&printable(serde_json::to_string(value))?),
            Format::Yaml => {
                let document = yaml::document(&printable(serde_json::to_value(value))?);
                self.text(&format!("---\n{document}"))
            }
        }
    }

    /// Prints a note, which is not a result, to standard error.
    pub(crate) fn note(self, text: &str) {
        let mut stderr = anstream::stderr().lock();
        // If standard error is closed, the note is lost.
        let _ = writeln!(stderr, "{text}");
    }

    pub(crate) fn failure(self, failure: &Failure) {
        if !failure.message.is_empty() {
            // The text may contain names that nodes have chosen.
            let failure = failure.to_string();
            self.note(&format!("{} {}", "error:".red().bold(), escaped(&failure)));
        }
    }
}

fn printable<T>(serialized: serde_json::Result<T>) -> Result<T> {
    serialized.map_err(|error| Failure::bug(format!("cannot print the result: {error}")))
}

/// Ends the program quietly if the reader has closed the pipe (`| head`).
fn written(result: io::Result<()>) -> Result {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(Code::Bug, format!("cannot write to standard output: {error}"))),
    }
}
