//! Owns the words that people read about a run: its exact state, and its coarse status.

use crate::words::words;

words! {
    /// The exact state of a run, as the API shows it.
    pub enum RunState {
        PreRun = "pre_run",
        Pending = "pending",
        ConditionPending = "condition_pending",
        ConditionRunning = "condition_running",
        ActionPending = "action_pending",
        ActionRunning = "action_running",
        Starting = "starting",
        Running = "running",
        Terminating = "terminating",
        Retrying = "retrying",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
        Orphaned = "orphaned",
    }
}

words! {
    /// The coarse status of a run.
    pub enum RunStatus {
        Pending = "pending",
        Running = "running",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl RunState {
    pub fn is_terminal(self) -> bool {
        matches!(self, RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::Orphaned)
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
            RunState::Starting | RunState::Running | RunState::Terminating => RunStatus::Running,
            RunState::Completed => RunStatus::Completed,
            RunState::Failed | RunState::Orphaned => RunStatus::Failed,
            RunState::Cancelled => RunStatus::Cancelled,
        }
    }
}

impl RunStatus {
    /// Returns the states that people see as this status.
    pub fn states(self) -> impl Iterator<Item = RunState> {
        RunState::ALL.into_iter().filter(move |state| state.status() == self)
    }
}
