//! Owns the problems that a job file can have.

use std::fmt;

use super::Definition;

/// One problem of a job file, with the valid alternative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// For example `tasks[1].params.command`; empty for the file as a whole.
    pub path: String,
    /// `None` when there is no text to point into.
    pub at: Option<At>,
    pub message: String,
}

/// A position in a text, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub line: u32,
    pub column: u32,
}

impl At {
    /// Returns the position of a JSON syntax error.
    pub fn of_json(error: &serde_json::Error) -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { line: number(error.line()), column: number(error.column()).max(1) }
    }
}

/// A valid definition, with notes about parts that were probably not intended.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    pub definition: Definition,
    pub notes: Vec<Problem>,
}

impl Problem {
    /// Renders the problem as editors expect it: `job.yaml:3:7: tasks[0].backend: message`.
    pub fn render(&self, origin: &str) -> String {
        match self.at {
            None => format!("{origin}: {self}"),
            Some(At { line, column }) => format!("{origin}:{line}:{column}: {self}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}
