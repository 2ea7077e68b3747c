//! Decides whether the constraints of a run hold, from facts that the server has read.

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use super::life::{Checked, ConstraintKind, Found, shortened};
use super::live::RunLive;
use super::words::RunState;
use crate::ids::RunId;
use crate::span::Span;
use crate::spec::{Definition, HttpHook, IfUnknown, Overlap};

/// The facts about the other runs of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The open ones, in any order.
    pub others: Vec<Other>,
    /// The last one that started and ended, if there is one; or why it cannot be known.
    pub previous: Result<Option<Previous>, String>,
}

/// Another open run of the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub id: RunId,
    pub created_at: Timestamp,
    pub state: RunState,
    /// The run waits until a time because of its constraints, or is paused: it is not next.
    pub is_away: bool,
    pub is_queued: bool,
    pub is_cancelled: bool,
}

impl Other {
    pub fn of(id: &RunId, created_at: Timestamp, live: &RunLive) -> Self {
        let is_delayed = live.life.queued.is_some_and(|queued| queued.until.is_some());
        Self {
            id: id.clone(),
            created_at,
            state: live.state(),
            is_away: live.paused_at.is_some() || is_delayed,
            is_queued: live.life.queued.is_some(),
            is_cancelled: live.cancel_requested_at.is_some(),
        }
    }

    /// Returns whether the run's plan has started and has not ended.
    fn is_active(&self) -> bool {
        is_active(self.state)
    }

    /// Returns whether the run is about to start.
    fn is_next(&self) -> bool {
        let is_checked = matches!(
            self.state,
            RunState::ConditionPending
                | RunState::ConditionRunning
                | RunState::ActionPending
                | RunState::ActionRunning
                | RunState::Retrying
        );
        (is_checked || self.is_queued) && !self.is_away && !self.is_cancelled
    }
}

/// Returns whether a run in this state counts for `max_concurrent_runs`. The store has the same rule.
pub fn is_active(state: RunState) -> bool {
    matches!(state, RunState::Starting | RunState::Running | RunState::Terminating)
}

/// How the previous run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    pub run: RunId,
    pub succeeded: bool,
}

/// The run that is checked.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub id: &'a RunId,
    pub created_at: Timestamp,
    /// The run repeats another one.
    pub is_retry: bool,
}

impl Subject<'_> {
    fn is_older_than(&self, other: &Other) -> bool {
        (self.created_at, self.id) < (other.created_at, &other.id)
    }
}

/// What became of the call of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// The status of the response.
    Status(u16),
    /// There was no response, or no whole one.
    Failed(String),
}

/// Returns the runs that a run has to wait for: those whose plan has started, and older ones that are about to start.
fn ahead<'f>(subject: Subject<'_>, facts: &'f Facts) -> impl Iterator<Item = &'f Other> {
    let id = subject.id.clone();
    let is_older = move |other: &Other| !subject.is_older_than(other);
    facts
        .others
        .iter()
        .filter(move |other| other.id != id)
        .filter(move |other| other.is_active() || (is_older(other) && other.is_next()))
}

/// Checks the constraints that need only facts, in the order in which they are listed.
pub fn check_facts(definition: &Definition, subject: Subject<'_>, facts: &Facts) -> Vec<Checked> {
    let mut results = Vec::new();
    if let Some(most) = definition.max_concurrent_runs() {
        let count = ahead(subject, facts).count();
        let found = if count < most as usize {
            Found::Passed
        } else {
            let first = ahead(subject, facts).min_by_key(|other| (other.created_at, other.id.clone()));
            let first = first.map(|other| other.id.to_string()).unwrap_or_default();
            let message = match count {
                1 => format!("run {first} of the job is active or before it, and at most {most} may be"),
                _ => format!(
                    "{count} runs of the job are active or before it (the oldest is {first}), and at most {most} may be"
                ),
            };
            Found::Violated { message }
        };
        results.push(Checked { constraint: ConstraintKind::MaxConcurrentRuns, found });
    }
    if definition.requires_previous_success() && !subject.is_retry {
        let found = match &facts.previous {
            Ok(None) => Found::Passed,
            Ok(Some(previous)) if previous.succeeded => Found::Passed,
            Ok(Some(previous)) => {
                let message = format!("the previous run {} did not complete", previous.run);
                Found::Violated { message }
            }
            Err(reason) => unknown(definition, None, reason),
        };
        results.push(Checked { constraint: ConstraintKind::RequirePreviousSuccess, found });
    }
    results
}

/// Checks the answer of a hook: 2xx passes, 3xx and 4xx violate the constraint, and nothing else decides it.
pub fn check_hook(
    definition: &Definition,
    constraint: ConstraintKind,
    hook: &HttpHook,
    answer: &HookAnswer,
) -> Checked {
    let found = match answer {
        HookAnswer::Status(200..=299) => Found::Passed,
        HookAnswer::Status(status @ 300..=499) => {
            Found::Violated { message: format!("{constraint} answered with status {status}") }
        }
        HookAnswer::Status(status) => {
            unknown(definition, Some(hook), &format!("{constraint} answered with status {status}"))
        }
        HookAnswer::Failed(reason) => {
            unknown(definition, Some(hook), &format!("{constraint} failed: {reason}"))
        }
    };
    Checked { constraint, found }
}

fn unknown(definition: &Definition, hook: Option<&HttpHook>, reason: &str) -> Found {
    let rule = definition.constraints.as_ref().map(|all| all.if_unknown(hook)).unwrap_or_default();
    Found::Unknown { reason: shortened(reason), skips: rule == IfUnknown::Skip }
}

/// Checks how long the plan of a run took. `is_stopped` is true if the run was stopped because of `max_allowed`.
pub fn check_times(definition: &Definition, took: Duration, is_stopped: bool) -> Vec<Checked> {
    let mut results = Vec::new();
    let whole = Span::from_secs(took.as_secs());
    if let Some(most) = definition.max_expected() {
        let found = if took > most.0 {
            Found::Violated { message: format!("the run took {whole}, and at most {most} is expected") }
        } else {
            Found::Passed
        };
        results.push(Checked { constraint: ConstraintKind::MaxExpected, found });
    }
    if let Some(most) = definition.max_allowed() {
        let found = if is_stopped {
            Found::Violated { message: format!("the run took longer than {most}, which is the maximum") }
        } else {
            Found::Passed
        };
        results.push(Checked { constraint: ConstraintKind::MaxAllowed, found });
    }
    results
}

/// Returns the runs that `kill_old` cancels: the oldest ones, as many as leave room for the run. Younger runs stay.
pub fn to_cancel(definition: &Definition, subject: Subject<'_>, facts: &Facts) -> Vec<RunId> {
    let Some(most) = definition.max_concurrent_runs() else { return Vec::new() };
    let mut older: Vec<&Other> = facts
        .others
        .iter()
        .filter(|other| other.id != *subject.id && !subject.is_older_than(other))
        .filter(|other| other.is_active() || other.is_queued || other.is_next())
        .collect();
    older.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    let excess = (older.len() + 1).saturating_sub(most as usize);
    older.into_iter().take(excess).filter(|other| !other.is_cancelled).map(|other| other.id.clone()).collect()
}

/// What a run does that waits for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Its constraints may hold now.
    Wake,
    Wait,
    /// A newer run waits, and replaces it.
    Replaced(RunId),
}

/// Decides what a run does that waits for another one.
pub fn look(definition: &Definition, subject: Subject<'_>, facts: &Facts) -> Look {
    if definition.overlap == Some(Overlap::QueueLatest) {
        let newer = facts.others.iter().filter(|other| {
            other.id != *subject.id && subject.is_older_than(other) && (other.is_queued || other.is_next())
        });
        let waits = newer.filter(|other| !other.is_cancelled);
        if let Some(newest) = waits.max_by_key(|other| (other.created_at, other.id.clone())) {
            return Look::Replaced(newest.id.clone());
        }
    }
    let holds = |each: &Checked| !matches!(each.found, Found::Violated { .. });
    if check_facts(definition, subject, facts).iter().all(holds) { Look::Wake } else { Look::Wait }
}
