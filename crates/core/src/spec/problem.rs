//! Owns the problems that a job file can have.

use std::fmt;

use super::Definition;

/// One thing that is wrong with a job file, and what would have been valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `tasks[1].params.command`; empty for the file as a whole.
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
    /// Where JSON stops being valid.
    pub fn of_json(error: &serde_json::Error) -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { line: number(error.line()), column: number(error.column()).max(1) }
    }
}

/// A definition that is valid, and what in it was probably not meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    pub definition: Definition,
    pub notes: Vec<Problem>,
}

impl Problem {
    /// `job.yaml:3:7: tasks[0].backend: message`, as editors and people expect it.
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
