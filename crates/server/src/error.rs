//! Owns why a request to the server failed, and the class that decides HTTP status and exit code.

use std::fmt;

use downbeat_core::backend::ParamProblem;
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::nearest::advice;
use downbeat_core::plan::{self, Unfit};
use downbeat_core::run::RunState;
use downbeat_core::run::again::CannotRetry;
use downbeat_core::shown::shown;
use downbeat_core::spec;
use downbeat_store as store;

use crate::journal::CommitError;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The definition is not valid.
    #[error("the job definition has {} problem(s)", .0.len())]
    Invalid(Vec<spec::Problem>),
    /// The params of the run are not valid.
    #[error("the run's params have {} problem(s)", .0.len())]
    Params(Vec<ParamProblem>),
    /// The definition is valid but cannot run in the current state.
    #[error("{message}")]
    Refused { message: String, nodes: Vec<(String, String)> },
    /// The request names something that does not exist.
    #[error("{0}")]
    NoSuch(Noun),
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// There is no room for more runs now.
    #[error("{pending} runs are pending, and at most {most} may be (max_pending_runs); try again later")]
    TooManyRuns { most: u32, pending: u32 },
    #[error("{0}")]
    Unavailable(String),
    /// The request needs a feature that not every server on this store has.
    #[error("an older server shares this store and does not support {0}; upgrade all servers")]
    OlderServer(&'static str),
    /// Too many requests of this kind are in progress.
    #[error("{0}")]
    Busy(String),
    #[error("bug: {0}")]
    Bug(String),
}

/// Something that a request names and that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noun {
    Run(RunId),
    Execution(String),
    /// By name or id, with the names that exist.
    Node(String, Vec<String>),
    Cluster(String),
    /// A task of a run, with advice on the tasks that exist.
    Task {
        run: RunId,
        task: String,
        known: String,
    },
}

impl Noun {
    /// A node of which only the id is known.
    pub(crate) fn node(id: NodeId) -> Self {
        Noun::Node(id.to_string(), Vec::new())
    }
}

impl fmt::Display for Noun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Noun::Run(run) => write!(f, "there is no run `{}`", shown(run.as_str())),
            Noun::Execution(id) => write!(f, "there is no execution `{}`", shown(id)),
            Noun::Node(name, known) if known.is_empty() => write!(f, "there is no node `{}`", shown(name)),
            Noun::Node(name, known) => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                write!(f, "there is no node `{}`; {}", shown(name), advice(name, &known, "nodes"))
            }
            // This version has only one cluster.
            Noun::Cluster(name) => {
                write!(f, "there is no cluster `{}`; {}", shown(name), advice(name, &["default"], "clusters"))
            }
            Noun::Task { run, task, known } => write!(f, "run `{run}` has no task `{task}`; {known}"),
        }
    }
}

/// The state of a run or node that forbids a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("run `{0}` has ended: it is {1}")]
    RunEnded(RunId, RunState),
    #[error("run `{0}` is already paused")]
    RunPaused(RunId),
    #[error("run `{0}` is not paused")]
    RunNotPaused(RunId),
    #[error("run `{0}` was just removed")]
    RunRemoved(RunId),
    #[error(transparent)]
    CannotRetry(#[from] CannotRetry),
    #[error("{0} is online; stop its agent first, or use --force")]
    NodeOnline(String),
    #[error("{0} has registered again in the meantime; check it, then try again")]
    NodeRegistered(String),
}

/// The class of an error decides HTTP status, exit code and retry.
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
            Error::Invalid(_) | Error::Params(_) => Class::Rejected,
            Error::Refused { .. } | Error::Conflict(_) => Class::Conflict,
            Error::NoSuch(_) => Class::NotFound,
            Error::TooManyRuns { .. } => Class::TooMany,
            Error::Unavailable(_) | Error::OlderServer(_) => Class::Unavailable,
            Error::Busy(_) => Class::Busy,
            Error::Bug(_) => Class::Bug,
        }
    }
}

impl From<Noun> for Error {
    fn from(noun: Noun) -> Self {
        Error::NoSuch(noun)
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

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Unavailable(_) => Error::Unavailable(error.to_string()),
            CommitError::Rejected(_) => Error::Bug(error.to_string()),
        }
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        Error::Refused { message: unfit.message, nodes: unfit.nodes }
    }
}

impl From<plan::Error> for Error {
    fn from(error: plan::Error) -> Self {
        Error::Invalid(vec![spec::Problem { path: "tasks".to_owned(), at: None, message: error.to_string() }])
    }
}
