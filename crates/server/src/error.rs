//! Owns why a request to the server failed, and the class that decides HTTP status and exit code.

use downbeat_core::backend::ParamProblem;
use downbeat_core::debug;
use downbeat_core::ids::{BackfillId, DeliveryId, NodeId, RunId};
use downbeat_core::nearest::advice;
use downbeat_core::plan::{self, Unfit};
use downbeat_core::run::RunState;
use downbeat_core::run::again::CannotRetry;
use downbeat_core::shown::shown;
use downbeat_core::spec;
use downbeat_core::standing::edit::EditError;
use downbeat_core::trigger::{BadPayload, Unproven};
use downbeat_store as store;

use crate::journal::CommitError;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the job definition has {} problem(s)", .0.len())]
    Invalid(Vec<spec::Problem>),
    #[error("the run's params have {} problem(s)", .0.len())]
    Params(Vec<ParamProblem>),
    /// The definition is valid but cannot run in the current state.
    #[error(transparent)]
    Refused(#[from] Unfit),
    /// Standing tasks, one or a list.
    #[error("the standing tasks have {} problem(s)", .0.len())]
    InvalidTask(Vec<spec::Problem>),
    /// The edit of a cluster or of its list is not possible.
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    NoSuch(#[from] Noun),
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error("{pending} runs are pending (max_pending_runs: {most}); try again later")]
    TooManyRuns { most: u32, pending: u32 },
    #[error("the Idempotency-Key belongs to another request, which created run `{0}`; use a new key")]
    KeyReused(RunId),
    #[error("{open} runs are open (max_pending_runs: {most}); try again when some have ended")]
    TooManyOpenRuns { most: u32, open: u32 },
    #[error(
        "{open} debug commands have not ended; at most {most} are possible: try again when some have ended"
    )]
    TooManyDebug { most: usize, open: usize },
    /// The range of a backfill, or what is wrong with it.
    #[error("cannot backfill the job: {0}")]
    InvalidBackfill(String),
    #[error(transparent)]
    InvalidDebug(#[from] debug::Invalid),
    #[error("{matched} runs match; at most {most} can be retried at once: narrow the request")]
    TooManyMatch { matched: u64, most: u32 },
    /// The sender of a request to a trigger does not know its secret.
    #[error(transparent)]
    Unproven(#[from] Unproven),
    #[error(transparent)]
    BadPayload(#[from] BadPayload),
    #[error("the trigger `{path}` accepts {most} requests per second (hook_rate); try again later")]
    TooManyRequests { path: String, most: u32 },
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Noun {
    #[error("there is no run `{}`", shown(.0.as_str()))]
    Run(RunId),
    #[error("there is no debug command `{}`; they are removed a day after their end", shown(.0.as_str()))]
    Debug(RunId),
    #[error("there is no execution `{}`", shown(.0))]
    Execution(String),
    /// By name or id, with the names that exist.
    #[error("there is no node `{}`{}", shown(.0), advice_on(.0, .1, "nodes"))]
    Node(String, Vec<String>),
    /// By name or id, with the names that exist.
    #[error("there is no cluster `{}`{}", shown(.0), advice_on(.0, .1, "clusters"))]
    Cluster(String, Vec<String>),
    /// By name, with the names that exist.
    #[error("there is no job `{}`{}", shown(.0), advice_on(.0, .1, "jobs"))]
    Job(String, Vec<String>),
    #[error("job `{0}` has no version {1}; the last {most} are kept", most = downbeat_core::limits::JOB_VERSIONS)]
    JobVersion(String, u64),
    #[error("there is no backfill `{}`", shown(.0))]
    Backfill(String),
    /// Names no others: a path is part of what a sender has to know.
    #[error("no trigger has this path")]
    Hook,
    #[error("there is no standing task `{}`", shown(.0))]
    StandingTask(String),
    #[error("there is no delivery `{}`; they are removed with their run", shown(.0))]
    Delivery(String),
    /// A task of a run, with advice on the tasks that exist.
    #[error("run `{run}` has no task `{task}`; {known}")]
    Task { run: RunId, task: String, known: String },
}

impl Noun {
    /// A node of which only the id is known.
    pub(crate) fn node(id: NodeId) -> Self {
        Noun::Node(id.to_string(), Vec::new())
    }
}

fn advice_on(name: &str, known: &[String], what: &str) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    if known.is_empty() { String::new() } else { format!("; {}", advice(name, &known, what)) }
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
    #[error("job `{0}` is already paused")]
    JobPaused(String),
    #[error("job `{0}` is not paused")]
    JobNotPaused(String),
    #[error("job `{0}` is paused: its triggers start no runs")]
    TriggerPaused(String),
    #[error("job `{job}` of cluster `{cluster}` has a trigger with the path `{path}`; choose another path")]
    HookPath { path: String, job: String, cluster: String },
    #[error("several jobs have a trigger with the path `{0}`: change one of them")]
    HookPathTwice(String),
    #[error("job `{0}` is being changed by others; try again")]
    JobBusy(String),
    #[error("the cluster has {0} jobs; this is the maximum")]
    TooManyJobs(usize),
    #[error("{0} backfills of the job are open; this is the maximum")]
    TooManyBackfills(usize),
    #[error("backfill `{0}` has ended")]
    BackfillEnded(BackfillId),
    #[error("backfill `{0}` is already cancelled")]
    BackfillCancelled(BackfillId),
    #[error("step `{}` of run `{run}` {why}", shown(step))]
    NoApproval { run: RunId, step: String, why: String },
    #[error("delivery `{0}` is pending: it is sent without a request")]
    DeliveryPending(DeliveryId),
    #[error("run `{0}` was just removed")]
    RunRemoved(RunId),
    #[error(transparent)]
    CannotRetry(#[from] CannotRetry),
    #[error("{0} is online; stop its agent first, or use --force")]
    NodeOnline(String),
    #[error("{0} has registered again in the meantime; check it, then try again")]
    NodeRegistered(String),
    #[error("a cluster is named `{}`; choose another name", shown(.0))]
    ClusterName(String),
    #[error("the cluster `default` cannot be deleted")]
    DefaultCluster,
    #[error("there are {0} clusters; this is the maximum")]
    TooManyClusters(usize),
    #[error("cluster `{}` is changed by many requests at the same time; try again", shown(.0))]
    ClusterBusy(String),
}

/// The class of an error decides HTTP status, exit code and retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Rejected,
    Unproven,
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
            Error::Invalid(_)
            | Error::InvalidTask(_)
            | Error::InvalidDebug(_)
            | Error::InvalidBackfill(_)
            | Error::Params(_)
            | Error::KeyReused(_)
            | Error::BadPayload(_)
            | Error::TooManyMatch { .. } => Class::Rejected,
            Error::Edit(edit) => match edit {
                EditError::NoTask { .. } => Class::NotFound,
                EditError::NameInUse { .. } | EditError::DefaultName => Class::Conflict,
                EditError::Position { .. }
                | EditError::Order(_)
                | EditError::TooMany(_)
                | EditError::TooLarge(_)
                | EditError::Name(_)
                | EditError::Description(_) => Class::Rejected,
            },
            Error::Refused(_) | Error::Conflict(_) => Class::Conflict,
            Error::NoSuch(_) => Class::NotFound,
            Error::Unproven(_) => Class::Unproven,
            Error::TooManyRequests { .. }
            | Error::TooManyRuns { .. }
            | Error::TooManyOpenRuns { .. }
            | Error::TooManyDebug { .. } => Class::TooMany,
            Error::Unavailable(_) | Error::OlderServer(_) => Class::Unavailable,
            Error::Busy(_) => Class::Busy,
            Error::Bug(_) => Class::Bug,
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(_) | store::Error::Damaged(_) => Error::Unavailable(error.to_string()),
            // The others occur only when a store is opened, or are bugs.
            _ => Error::Bug(error.to_string()),
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

impl From<plan::Error> for Error {
    fn from(error: plan::Error) -> Self {
        Error::Invalid(vec![spec::Problem { path: "tasks".to_owned(), at: None, message: error.to_string() }])
    }
}
