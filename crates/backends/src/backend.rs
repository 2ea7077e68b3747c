//! Owns `Backend`, the only trait between an agent and its backends, and the types of its calls.

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

#[async_trait]
pub trait Backend: Send + Sync + fmt::Debug {
    fn schema(&self) -> BackendSchema;

    /// Runs one action to its end, or ends it early once `call.cancel` is set. Never returns while a process that it
    /// started and was asked to stop still runs.
    async fn run(&self, call: Call) -> Finish;

    /// Ends work that an earlier run of the agent left outside of its process tree, and returns its identities. A
    /// failure must not prevent the agent from starting.
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
    /// The file in which a program may set outputs for later tasks, as lines `name=value`.
    pub values: Option<PathBuf>,
    /// Set when the work has to end early. The agent knows why.
    pub cancel: CancellationToken,
    /// The time from TERM to KILL.
    pub grace: Duration,
    /// The environment of the programs that it starts, before its own variables.
    pub environment: Environment,
    /// Ends its processes when the agent cannot. Only for work that must never overlap with another attempt.
    pub guard: Option<Guard>,
}

/// The name of an attempt: no two attempts share one.
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
