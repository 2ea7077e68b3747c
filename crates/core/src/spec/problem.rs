//! Owns what is said of a job file that is wrong.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Definition;

/// One thing that is wrong with a job file, and what would have been valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `tasks[1].params.command`; empty for the file as a whole.
    pub path: String,
    /// From 1; 0 when there is no text to point into.
    pub line: u32,
    pub column: u32,
    pub message: String,
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
        if self.line == 0 {
            format!("{origin}: {self}")
        } else {
            format!("{origin}:{}:{}: {self}", self.line, self.column)
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
