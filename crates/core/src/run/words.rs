//! Owns the words that people read about a run: its exact state, and its coarse status.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The exact state of a run, as the API shows it.
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
    Orphaned,
}

/// The coarse status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
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

    /// Returns the states that people see as this status.
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
