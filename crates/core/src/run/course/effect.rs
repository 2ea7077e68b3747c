//! Owns what a course asks its server to do: reads and calls. Each follows from the stored run, so that the next owner of
//! the run asks for the same: each may happen twice.

use jiff::Timestamp;

use crate::backend::Params;
use crate::run::constraints::{Facts, HookAnswer};
use crate::run::life::ConstraintKind;
use crate::run::words::RunState;
use crate::spec::{HttpHook, Notification};
use crate::words::words;

/// How the plan of a run ended, and its error; none before it.
type Outcome = Option<(RunState, Option<String>)>;

/// What a course needs from outside before it can go on.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Read the facts about the other runs of the job.
    ReadFacts {
        previous: bool,
    },
    /// After the plan, with the end of the run and its error.
    CallHook {
        constraint: ConstraintKind,
        hook: HttpHook,
        outcome: Outcome,
    },
    /// Cancel older runs of the job, so that there is room for this one.
    CancelOld,
    Notify(Box<Notify>),
    /// Start a stored job. The key is the same if the start is repeated.
    StartJob {
        job: String,
        params: Params,
        key: String,
    },
}

/// Queue a message about the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Notify {
    pub notification: Notification,
    pub occasion: Occasion,
    pub state: RunState,
    pub error: Option<String>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// The run waits until the message was delivered, and fails if it was not.
    pub is_critical: bool,
    pub epoch: u64,
    /// The same if the effect is repeated: the message is queued once.
    pub place: String,
}

words! {
    /// Why a message is sent.
    pub enum Occasion {
        Violation = "violated",
        Success = "succeeded",
        Failure = "failed",
    }
}

/// The result of an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectResult {
    Facts(Facts),
    Hook(HookAnswer),
    /// An action was executed, or failed with this error.
    Done(Result<(), String>),
}
