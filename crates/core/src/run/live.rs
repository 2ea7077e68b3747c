//! Owns the changing part of a run, and the mapping of its stages to the states of the API.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::life::Life;
use super::machine::{RunEvent, step};
use super::states::StateTimes;
use super::words::RunState;
use crate::change::Change;
use crate::ids::ServerId;

/// The stage of a run. Each stage contains only the data that exists in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStage {
    /// The run waits for its scheduled time.
    Scheduled,
    /// The run waits for admission.
    Waiting,
    /// The run is admitted. The first step follows, or the first constraint.
    Admitted,
    /// A constraint is checked.
    Checking(Hook),
    /// A constraint was violated, and its action runs.
    Acting(Hook),
    Starting,
    Running,
    /// Nothing more is started, except the `on_failure` steps of a run that timed out.
    Terminating,
    /// The whole run will be retried.
    Retrying,
    Ended(Ended),
}

/// Whether a constraint or an action has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Pending,
    Running,
}

/// How and when a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub verdict: RunVerdict,
    pub at: Timestamp,
    pub end: RunEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    Completed,
    Failed,
    Cancelled,
    /// The owner stopped sending heartbeats, and no server could take over.
    Orphaned,
}

/// Details of a run's end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Something failed, and the rest of the run continued.
    pub partial: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why and since when the rest of a run has been ended. It is recorded because that may take several commits, and
/// another server may have to make the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    pub cause: StopCause,
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The run timed out, and its `on_failure` steps run.
    CleaningUp,
    /// The run timed out.
    TimedOut,
    /// The store will never accept what was decided.
    Rejected,
}

/// How far a roll-out is. The engine records it with the changes that it follows from, so that lists need not read the
/// results of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutProgress {
    /// The last wave that began, from 1.
    pub wave: u32,
    /// The failures that count against the budget: each node once.
    pub failed: u32,
}

/// The changing part of a run. [`step`](super::step) decides its changes, except those of `rollout`.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLive {
    pub stage: RunStage,
    /// When the run was admitted, if it had to wait. Stays set until the run is pending again.
    pub admitted_at: Option<Timestamp>,
    /// When the run first started. Stays set, also when the whole run is retried.
    pub started_at: Option<Timestamp>,
    /// When a person asked to cancel the run.
    pub cancel_requested_at: Option<Timestamp>,
    /// Since when the run has been paused by a person.
    pub paused_at: Option<Timestamp>,
    /// Set if the rest of the run was ended for another reason than a person's request.
    pub stopped: Option<Stopped>,
    /// Absent before the first wave, and for runs without waves.
    pub rollout: Option<RolloutProgress>,
    /// The attempt of the whole run, from 1. It rises when a run that is retried becomes pending again.
    pub round: u32,
    /// When the run entered its states. Empty before the first move, and if an older program moved the run.
    pub states: StateTimes,
    /// Its constraints and actions so far.
    pub life: Life,
    pub owner: ServerId,
    /// Raised by every take-over. Every change by the owner contains it.
    pub epoch: u64,
}

impl RunStage {
    /// Returns the state that the API shows for this stage. This is the only table of them.
    pub fn state(&self) -> RunState {
        match self {
            RunStage::Scheduled => RunState::PreRun,
            RunStage::Waiting | RunStage::Admitted => RunState::Pending,
            RunStage::Checking(Hook::Pending) => RunState::ConditionPending,
            RunStage::Checking(Hook::Running) => RunState::ConditionRunning,
            RunStage::Acting(Hook::Pending) => RunState::ActionPending,
            RunStage::Acting(Hook::Running) => RunState::ActionRunning,
            RunStage::Starting => RunState::Starting,
            RunStage::Running => RunState::Running,
            RunStage::Terminating => RunState::Terminating,
            RunStage::Retrying => RunState::Retrying,
            RunStage::Ended(ended) => match ended.verdict {
                RunVerdict::Completed => RunState::Completed,
                RunVerdict::Failed => RunState::Failed,
                RunVerdict::Cancelled => RunState::Cancelled,
                RunVerdict::Orphaned => RunState::Orphaned,
            },
        }
    }

    /// Returns the stage for a state: the inverse of [`state`](Self::state). `is_admitted` is true if the run was
    /// admitted; `end` is when and how it ended. Returns `None` if the state is terminal and `end` is missing.
    pub fn of(state: RunState, is_admitted: bool, end: Option<(Timestamp, RunEnd)>) -> Option<Self> {
        let ended = |verdict| end.map(|(at, end)| RunStage::Ended(Ended { verdict, at, end }));
        Some(match state {
            RunState::PreRun => RunStage::Scheduled,
            RunState::Pending if is_admitted => RunStage::Admitted,
            RunState::Pending => RunStage::Waiting,
            RunState::ConditionPending => RunStage::Checking(Hook::Pending),
            RunState::ConditionRunning => RunStage::Checking(Hook::Running),
            RunState::ActionPending => RunStage::Acting(Hook::Pending),
            RunState::ActionRunning => RunStage::Acting(Hook::Running),
            RunState::Starting => RunStage::Starting,
            RunState::Running => RunStage::Running,
            RunState::Terminating => RunStage::Terminating,
            RunState::Retrying => RunStage::Retrying,
            RunState::Completed => return ended(RunVerdict::Completed),
            RunState::Failed => return ended(RunVerdict::Failed),
            RunState::Cancelled => return ended(RunVerdict::Cancelled),
            RunState::Orphaned => return ended(RunVerdict::Orphaned),
        })
    }
}

impl RunLive {
    /// Creates the changing part of a new run, which waits for admission.
    pub fn new(owner: ServerId) -> Self {
        Self {
            stage: RunStage::Waiting,
            admitted_at: None,
            started_at: None,
            cancel_requested_at: None,
            paused_at: None,
            stopped: None,
            rollout: None,
            round: 1,
            states: StateTimes::default(),
            life: Life::default(),
            owner,
            epoch: 1,
        }
    }

    /// Applies committed changes of this run.
    pub fn follow(&mut self, changes: &[Change]) {
        for (_, event) in changes.iter().filter_map(RunEvent::of) {
            if let Ok(next) = step(self, &event) {
                *self = next;
            }
        }
    }

    pub fn state(&self) -> RunState {
        self.stage.state()
    }

    /// Returns when the current round started, if it has. The run's timeout counts from then.
    pub fn round_started_at(&self) -> Option<Timestamp> {
        match self.round {
            1 => self.started_at,
            _ if self.is_before_plan() => None,
            // A round starts when it is admitted. The states are missing if an older program moved the run.
            _ => self.states.last_entered(RunState::Running).or(self.admitted_at),
        }
    }

    /// Returns true if the plan of the current round has not started.
    fn is_before_plan(&self) -> bool {
        match self.stage {
            RunStage::Scheduled
            | RunStage::Waiting
            | RunStage::Admitted
            | RunStage::Checking(_)
            | RunStage::Acting(_)
            | RunStage::Starting => true,
            RunStage::Running | RunStage::Terminating | RunStage::Retrying | RunStage::Ended(_) => false,
        }
    }

    /// Returns true if the run waits for admission.
    pub fn is_waiting(&self) -> bool {
        self.stage == RunStage::Waiting
    }

    /// Returns true if the run waits because of its constraints. It is not admitted until it wakes.
    pub fn is_queued(&self) -> bool {
        self.is_waiting() && self.life.queued.is_some()
    }

    /// Returns true if the run was admitted and has not ended.
    pub fn is_active(&self) -> bool {
        !matches!(self.stage, RunStage::Scheduled | RunStage::Waiting | RunStage::Ended(_))
    }

    pub fn ended(&self) -> Option<&Ended> {
        match &self.stage {
            RunStage::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    pub fn is_ended(&self) -> bool {
        self.ended().is_some()
    }

    pub fn finished_at(&self) -> Option<Timestamp> {
        self.ended().map(|ended| ended.at)
    }

    pub fn end(&self) -> Option<&RunEnd> {
        self.ended().map(|ended| &ended.end)
    }
}
