//! Owns why a request to the server was not carried out, and the class that decides status and exit code.

use downbeat_core::backend::ParamProblem;
use downbeat_core::plan::{self, Unfit};
use downbeat_core::spec;
use downbeat_store as store;

use crate::journal::Lost;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The definition is wrong.
    #[error("the job definition has {} problem(s)", errors.len())]
    Invalid { errors: Vec<Problem> },
    /// The values that a run was given are wrong.
    #[error("the run's params have {} problem(s)", .0.len())]
    Params(Vec<ParamProblem>),
    /// The definition is right, and cannot be carried out as things are.
    #[error("{message}")]
    Refused { message: String, nodes: Vec<(String, String)> },
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    /// There is no room for more; later there may be.
    #[error("{0}")]
    TooMany(String),
    #[error("{0}")]
    Unavailable(String),
    /// Too much of the same is under way; soon there may be room.
    #[error("{0}")]
    Busy(String),
    #[error("bug: {0}")]
    Bug(String),
}

/// One thing that is wrong with a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: String,
    pub line: Option<u32>,
    pub column: Option<u32>,
    pub message: String,
}

/// What kind of failure it is: HTTP status, gRPC code, exit code and retry follow from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Rejected,
    NotFound,
    Conflict,
    TooMany,
    Unavailable,
    Busy,
    Bug,
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Error::Invalid { .. } | Error::Params(_) => Class::Rejected,
            Error::Refused { .. } | Error::Conflict(_) => Class::Conflict,
            Error::NotFound(_) => Class::NotFound,
            Error::TooMany(_) => Class::TooMany,
            Error::Unavailable(_) => Class::Unavailable,
            Error::Busy(_) => Class::Busy,
            Error::Bug(_) => Class::Bug,
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(_) | store::Error::Damaged(_) => Error::Unavailable(error.to_string()),
            store::Error::InUse(_)
            | store::Error::NewerSchema { .. }
            | store::Error::AlteredMigration { .. }
            | store::Error::BadLocation(_)
            | store::Error::BadOption(_)
            | store::Error::Misused(_)
            | store::Error::Corrupt(_) => Error::Bug(error.to_string()),
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::Unavailable(lost.to_string())
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        Error::Refused { message: unfit.message, nodes: unfit.nodes }
    }
}

impl From<plan::Error> for Error {
    fn from(error: plan::Error) -> Self {
        let problem =
            Problem { path: "tasks".to_owned(), line: None, column: None, message: error.to_string() };
        Error::Invalid { errors: vec![problem] }
    }
}

impl From<spec::Problem> for Problem {
    fn from(problem: spec::Problem) -> Self {
        let known = |number: u32| (number > 0).then_some(number);
        Self {
            path: problem.path,
            line: known(problem.line),
            column: known(problem.column),
            message: problem.message,
        }
    }
}
