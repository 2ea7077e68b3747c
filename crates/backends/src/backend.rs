//! Owns `Backend`: the one trait between an agent and what it can do, and what passes through it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::{BackendSchema, Params};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::ExecutionId;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::guard::Guard;
use crate::output::OutputSink;

/// Something that an agent can do.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    fn schema(&self) -> BackendSchema;

    /// Carries out one action to its end, or ends it early once `call.cancel` is set; never returns while anything
    /// that it started and was told to stop still runs.
    async fn run(&self, call: Call) -> Finish;

    /// Ends what an earlier process of the agent left behind outside of its process tree, and returns what that was.
    /// A failure must not keep the agent from starting.
    async fn sweep(&self) -> Vec<Identity> {
        Vec::new()
    }
}

/// One execution, as a backend sees it.
#[derive(Debug)]
pub struct Call {
    pub action: String,
    /// Checked against the action's schema.
    pub params: Params,
    pub identity: Identity,
    pub output: OutputSink,
    /// Where a program may say values for later tasks, as lines `name=value`.
    pub values: Option<PathBuf>,
    /// Set when the work is to end early. Why is the agent's to know.
    pub cancel: CancellationToken,
    /// From asking to end until force is used.
    pub grace: Duration,
    /// The environment of the programs that it starts, before its own variables.
    pub environment: Environment,
    /// Ends what it starts when the agent cannot. Only for work that must never overlap with another attempt.
    pub guard: Option<Guard>,
}

/// The name of what runs: no two attempts ever share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub execution: ExecutionId,
    /// From 1.
    pub attempt: u32,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.execution, self.attempt)
    }
}

impl std::str::FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (execution, attempt) = text.rsplit_once('.').ok_or(())?;
        Ok(Self { execution: execution.parse().map_err(|_| ())?, attempt: attempt.parse().map_err(|_| ())? })
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    pub verdict: Verdict,
    pub exit_code: Option<i32>,
    pub error: Option<String>,
}

impl Finish {
    pub fn succeeded() -> Self {
        Self { verdict: Verdict::Succeeded, exit_code: Some(0), error: None }
    }

    pub fn failed(exit_code: Option<i32>, error: impl Into<String>) -> Self {
        Self { verdict: Verdict::Failed, exit_code, error: Some(error.into()) }
    }

    pub fn cancelled(exit_code: Option<i32>) -> Self {
        Self { verdict: Verdict::Cancelled, exit_code, error: None }
    }
}
