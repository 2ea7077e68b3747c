//! Owns how the states of a run are shown: when each was entered, how long it lasted, and the metrics that follow.

use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::run::{RunMetrics as Derived, RunRecord, RunState, Stay};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// A state that a run has entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateStay {
    #[schema(schema_with = schema::run_state)]
    pub state: RunState,
    /// When the run entered the state last.
    pub entered_at: Timestamp,
    /// How long the run stayed in it, over all times that it did; null while it is in it for the first time.
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    /// How often the run has entered it.
    pub times: u32,
}

impl StateStay {
    /// Returns the states of a run in the order of their first entry. Empty if an older server executed the run.
    pub fn all_of(run: &RunRecord) -> Vec<Self> {
        let current = run.state();
        let shown = |stay: Stay| {
            let is_over = stay.state != current || stay.times > 1;
            Self {
                state: stay.state,
                entered_at: stay.last_at,
                duration: is_over.then(|| Span(stay.spent.try_into().unwrap_or_default())),
                times: stay.times,
            }
        };
        run.live.states.since(run.created_at, current).into_iter().map(shown).collect()
    }
}

impl StateStay {
    /// Adds the states that a run has entered to those that are shown. Does nothing, and returns false, if those are not
    /// known, or if they have the move already.
    pub fn follow(states: &mut Vec<Self>, from: RunState, path: &[RunState], at: Timestamp) -> bool {
        if states.iter().any(|stay| path.last() == Some(&stay.state) && stay.entered_at >= at) {
            return false;
        }
        let mut from = from;
        for &to in path {
            let Some(left) = states.iter_mut().find(|stay| stay.state == from) else { return false };
            let took: Duration = at.duration_since(left.entered_at).try_into().unwrap_or_default();
            let exact = Span(left.duration.unwrap_or_default().0 + took);
            // With the server's rounding.
            left.duration = Some(exact.to_string().parse().unwrap_or(exact));
            match states.iter_mut().find(|stay| stay.state == to) {
                Some(again) => (again.times, again.entered_at) = (again.times.saturating_add(1), at),
                None => states.push(Self { state: to, entered_at: at, duration: None, times: 1 }),
            }
            from = to;
        }
        true
    }
}

/// The metrics of a run. They are derived from its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunMetrics {
    pub phases: Phases,
    /// From the creation to the end; null until the run ends.
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub total: Option<Span>,
    /// From the creation to the start; null until the run starts.
    #[schema(value_type = Option<String>, example = "12ms")]
    pub start_latency: Option<Span>,
    /// How often the state changed.
    pub transitions: u32,
    /// The attempts of the whole run. The attempts of a step are in its results.
    pub attempts: u32,
    /// The exit code of the first result that failed, otherwise of a result of the last step; null until the run ends, and if
    /// that result has none.
    pub exit_code: Option<i32>,
    /// How many constraints were checked. A run that waits is checked several times.
    pub constraints_checked: u32,
    pub constraints_violated: u32,
    /// How many actions were executed, including those that failed.
    pub actions_executed: u32,
    pub actions_failed: u32,
    /// 0: a server sends one heartbeat for all its runs.
    pub heartbeats: u64,
}

/// How long a run was in the states of each phase. The current state does not count until the run leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Phases {
    #[schema(value_type = String, example = "0s")]
    pub pre_run: Span,
    #[schema(value_type = String, example = "12ms")]
    pub pending: Span,
    /// `condition_pending` and `condition_running`.
    #[schema(value_type = String, example = "0s")]
    pub constraints: Span,
    /// `action_pending` and `action_running`.
    #[schema(value_type = String, example = "0s")]
    pub actions: Span,
    #[schema(value_type = String, example = "0s")]
    pub starting: Span,
    #[schema(value_type = String, example = "2.3s")]
    pub running: Span,
    #[schema(value_type = String, example = "0s")]
    pub terminating: Span,
    #[schema(value_type = String, example = "0s")]
    pub retrying: Span,
}

impl RunMetrics {
    /// Returns the metrics of a run. Its record does not have the exit code.
    pub fn of(run: &RunRecord) -> Self {
        let derived = Derived::of(run.created_at, &run.live);
        Self {
            phases: Phases {
                pre_run: Span(derived.pre_run),
                pending: Span(derived.pending),
                constraints: Span(derived.constraints),
                actions: Span(derived.actions),
                starting: Span(derived.starting),
                running: Span(derived.running),
                terminating: Span(derived.terminating),
                retrying: Span(derived.retrying),
            },
            total: derived.total.map(Span),
            start_latency: derived.start_latency.map(Span),
            transitions: derived.transitions,
            attempts: derived.attempts,
            exit_code: None,
            constraints_checked: derived.constraints_checked,
            constraints_violated: derived.constraints_violated,
            actions_executed: derived.actions_executed,
            actions_failed: derived.actions_failed,
            heartbeats: 0,
        }
    }
}
