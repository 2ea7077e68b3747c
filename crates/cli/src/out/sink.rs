//! Owns standard output and standard error. Text is written with colours in it; they are taken out where the other
//! end is no terminal or `NO_COLOR` is set.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use downbeat_core::shown::escaped;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::yaml;
use crate::exit::{Code, Failure};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    // One document, or one per line for what goes on.
    Json,
    // One document, or several for what goes on.
    Yaml,
}

/// A narrower terminal wraps lines by itself: nothing could be laid out in it.
const NARROWEST_TERMINAL: usize = 40;

/// The way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    format: Format,
    terminal: bool,
}

impl Out {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, terminal: io::stdout().is_terminal() }
    }

    /// The same way out, with another format.
    pub(crate) fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    pub(crate) fn format(self) -> Format {
        self.format
    }

    /// Whether somebody looks: progress bars and wrapped columns.
    pub(crate) fn is_terminal(self) -> bool {
        self.terminal
    }

    /// Whether what others wrote may be painted.
    pub(crate) fn has_colour(self) -> bool {
        self.terminal && anstream::stdout().current_choice() != anstream::ColorChoice::Never
    }

    /// Columns to wrap at: those of the terminal, or `COLUMNS` if it is set. Nothing where nobody looks, so that a pipe
    /// gets whole lines.
    pub(crate) fn width(self) -> Option<usize> {
        if !self.terminal {
            return None;
        }
        let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let columns = match said {
            Some(columns) => columns,
            None => usize::from(crossterm::terminal::size().ok()?.0),
        };
        Some(columns).filter(|columns| *columns >= NARROWEST_TERMINAL)
    }

    /// Text as it is, with a line end if it has none.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        let mut stdout = anstream::stdout().lock();
        let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        written(write!(stdout, "{text}{end}").and_then(|()| stdout.flush()))
    }

    /// What somebody else wrote, byte for byte.
    pub(crate) fn raw(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }

    /// One result: `table` draws it for people, the other formats are drawn from the value itself.
    pub(crate) fn result<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Table => self.text(&table()),
            Format::Json => self.text(&pretty(value)?),
            Format::Yaml => self.text(&yaml::document(&tree(value)?)),
        }
    }

    /// One of many results that come over time: a line of JSON, or a YAML document with its separator.
    pub(crate) fn item<T: Serialize>(self, value: &T, line: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Table => self.text(&line()),
            Format::Json => self.text(&compact(value)?),
            Format::Yaml => self.text(&format!("---\n{}", yaml::document(&tree(value)?))),
        }
    }

    /// Something to know that is no result.
    pub(crate) fn note(self, text: &str) {
        let mut stderr = anstream::stderr().lock();
        // Nothing is left to tell it to when standard error is gone.
        let _ = writeln!(stderr, "{text}");
    }

    /// Why the program ends.
    pub(crate) fn failure(self, failure: &Failure) {
        if !failure.message.is_empty() {
            // It may repeat what nodes say of themselves.
            let failure = failure.to_string();
            self.note(&format!("{} {}", "error:".red().bold(), escaped(&failure)));
        }
    }
}

fn tree<T: Serialize>(value: &T) -> Result<serde_json::Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::bug(format!("cannot print the result: {error}")))
}

fn pretty<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map_err(|error| Failure::bug(format!("cannot print the result: {error}")))
}

fn compact<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::bug(format!("cannot print the result: {error}")))
}

/// A reader that left (`| head`) is no failure of ours: the program ends quietly, as if it were done.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(Code::Bug, format!("cannot write to standard output: {error}"))),
    }
}
