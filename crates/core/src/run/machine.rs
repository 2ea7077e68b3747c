//! Owns the run's states and the one table of allowed transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a run stands, strictly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    PreRun,
    Pending,
    ConditionPending,
    ConditionRunning,
    ActionPending,
    ActionRunning,
    Starting,
    Running,
    Terminating,
    Retrying,
    Completed,
    Failed,
    Cancelled,
    /// Set from outside: the owner stopped proving that it lives and nobody could take over.
    Orphaned,
}

/// The coarse view, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

/// A transition that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {from} cannot become {to}")]
pub struct Illegal {
    pub from: RunState,
    pub to: RunState,
}

impl RunState {
    pub const ALL: [RunState; 14] = [
        RunState::PreRun,
        RunState::Pending,
        RunState::ConditionPending,
        RunState::ConditionRunning,
        RunState::ActionPending,
        RunState::ActionRunning,
        RunState::Starting,
        RunState::Running,
        RunState::Terminating,
        RunState::Retrying,
        RunState::Completed,
        RunState::Failed,
        RunState::Cancelled,
        RunState::Orphaned,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RunState::PreRun => "pre_run",
            RunState::Pending => "pending",
            RunState::ConditionPending => "condition_pending",
            RunState::ConditionRunning => "condition_running",
            RunState::ActionPending => "action_pending",
            RunState::ActionRunning => "action_running",
            RunState::Starting => "starting",
            RunState::Running => "running",
            RunState::Terminating => "terminating",
            RunState::Retrying => "retrying",
            RunState::Completed => "completed",
            RunState::Failed => "failed",
            RunState::Cancelled => "cancelled",
            RunState::Orphaned => "orphaned",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub fn is_terminal(self) -> bool {
        matches!(self, RunState::Completed | RunState::Failed | RunState::Cancelled)
    }

    pub fn status(self) -> RunStatus {
        match self {
            RunState::PreRun
            | RunState::Pending
            | RunState::ConditionPending
            | RunState::ConditionRunning
            | RunState::ActionPending
            | RunState::ActionRunning
            | RunState::Retrying => RunStatus::Pending,
            RunState::Starting | RunState::Running | RunState::Terminating | RunState::Orphaned => {
                RunStatus::Running
            }
            RunState::Completed => RunStatus::Completed,
            RunState::Failed => RunStatus::Failed,
            RunState::Cancelled => RunStatus::Cancelled,
        }
    }
}

impl RunStatus {
    pub const ALL: [RunStatus; 5] = [
        RunStatus::Pending,
        RunStatus::Running,
        RunStatus::Completed,
        RunStatus::Failed,
        RunStatus::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RunStatus::Pending => "pending",
            RunStatus::Running => "running",
            RunStatus::Completed => "completed",
            RunStatus::Failed => "failed",
            RunStatus::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// The states that people see as this status.
    pub fn states(self) -> impl Iterator<Item = RunState> {
        RunState::ALL.into_iter().filter(move |state| state.status() == self)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The table: where a run may go from here.
pub fn successors(from: RunState) -> &'static [RunState] {
    use RunState::*;
    match from {
        PreRun => &[Pending, Cancelled, Failed, Orphaned],
        // Without constraints there is nothing to check: straight to starting.
        Pending => &[ConditionPending, Starting, Terminating, Cancelled, Failed, Orphaned],
        ConditionPending => &[ConditionRunning, Cancelled, Failed, Orphaned],
        ConditionRunning => &[ActionPending, Starting, Cancelled, Failed, Orphaned],
        ActionPending => &[ActionRunning, Cancelled, Failed, Orphaned],
        // `wait` and `retry_later` go back; the others go on or end the run.
        ActionRunning => &[Pending, Starting, Cancelled, Failed, Orphaned],
        Starting => &[Running, Terminating, Orphaned],
        Running => &[Terminating, Orphaned],
        Terminating => &[Completed, Failed, Cancelled, Retrying, Orphaned],
        Retrying => &[Pending, Cancelled, Failed, Orphaned],
        // Taken over after all, or given up by a person.
        Orphaned => &[Pending, Running, Terminating, Cancelled, Failed],
        Completed | Failed | Cancelled => &[],
    }
}

/// Checks a walk of several transitions, as one change may hold them.
pub fn check_path(from: RunState, path: &[RunState]) -> Result<RunState, Illegal> {
    path.iter().try_fold(from, |from, &to| {
        if successors(from).contains(&to) { Ok(to) } else { Err(Illegal { from, to }) }
    })
}
