//! Owns what a run's record has about its constraints and actions: what was found, what was done, and what comes next.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::spec::ActionKind;
use crate::words::words;

words! {
    /// A constraint of a run.
    pub enum ConstraintKind {
        MaxConcurrentRuns = "max_concurrent_runs",
        RequirePreviousSuccess = "require_previous_success",
        PreRunHook = "pre_run_hook",
        MaxExpected = "max_expected",
        MaxAllowed = "max_allowed",
        PostRunHook = "post_run_hook",
    }
}

/// What was found about one constraint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub constraint: ConstraintKind,
    #[serde(flatten)]
    pub found: Found,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum Found {
    Passed,
    Violated {
        message: String,
    },
    /// It could not be checked. With `skips` the run is skipped because of it.
    Unknown {
        reason: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skips: bool,
    },
}

impl Found {
    /// Returns why the run must not start, if it must not.
    fn obstacle(&self) -> Option<&str> {
        match self {
            Found::Violated { message } => Some(message),
            Found::Unknown { reason, skips: true } => Some(reason),
            Found::Passed | Found::Unknown { skips: false, .. } => None,
        }
    }
}

/// The constraints that a run violates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub of: Vec<ConstraintKind>,
    pub message: String,
    /// A constraint could not be checked, and its rule is to skip the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips: bool,
}

/// A run that waits because of its constraints: until a time, or until another run of its job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// An end that an action decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The run completes without having started; otherwise it fails.
    pub skipped: bool,
    pub reason: String,
}

/// The constraints and actions of a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Life {
    /// How many constraints were checked, and how many of these checks found a violation.
    pub checked: u32,
    pub violated: u32,
    /// How many actions were executed, and how many of them failed.
    pub executed: u32,
    pub failed: u32,
    /// How often the constraints before the plan were checked.
    #[serde(skip_serializing_if = "is_zero")]
    pub rounds: u32,
    /// How many checks and actions are recorded: of the actions on the last violation before the plan, or of what
    /// follows the plan.
    #[serde(skip_serializing_if = "is_zero")]
    pub done: u32,
    /// The last violation before the plan, or the one after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<Violation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<Queued>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Ending>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Whether constraints are checked before or after the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Before,
    After,
}

impl Phase {
    /// Returns when these constraints are checked. It does not depend on the state of the run: the check and the move to
    /// `terminating` may be in one commit.
    pub(super) fn of(results: &[Checked]) -> Self {
        let is_after = |each: &Checked| match each.constraint {
            ConstraintKind::MaxConcurrentRuns
            | ConstraintKind::RequirePreviousSuccess
            | ConstraintKind::PreRunHook => false,
            ConstraintKind::MaxExpected | ConstraintKind::MaxAllowed | ConstraintKind::PostRunHook => true,
        };
        if results.iter().any(is_after) { Phase::After } else { Phase::Before }
    }
}

impl Life {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Records what was found about constraints.
    pub(super) fn check(&mut self, results: &[Checked], phase: Phase) {
        let violated = results.iter().filter(|each| matches!(each.found, Found::Violated { .. })).count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.checked = self.checked.saturating_add(count(results.len()));
        self.violated = self.violated.saturating_add(count(violated));
        let found = violation(results, phase);
        match phase {
            Phase::Before => {
                self.rounds = self.rounds.saturating_add(1);
                (self.done, self.violation) = (0, found);
            }
            Phase::After => {
                self.done = self.done.saturating_add(1);
                self.violation = match (self.violation.take(), found) {
                    (Some(mut first), Some(second)) => {
                        first.of.extend(second.of);
                        first.message = shortened(&format!("{}; {}", first.message, second.message));
                        Some(first)
                    }
                    (first, second) => first.or(second),
                };
            }
        }
    }

    /// Records an action.
    pub(super) fn act(&mut self, has_failed: bool, queued: Option<Queued>, end: Option<&Ending>) {
        self.executed = self.executed.saturating_add(1);
        self.failed = self.failed.saturating_add(u32::from(has_failed));
        self.done = self.done.saturating_add(1);
        self.queued = queued.or(self.queued);
        self.end = end.cloned().or(self.end.take());
    }

    /// Forgets where the run was among its actions: its plan starts.
    pub(super) fn start_plan(&mut self) {
        (self.done, self.violation, self.queued, self.end) = (0, None, None, None);
    }
}

/// Returns the violation that follows from what was found. After the plan nothing can be skipped any more.
fn violation(results: &[Checked], phase: Phase) -> Option<Violation> {
    let is_violated = |each: &&Checked| matches!(each.found, Found::Violated { .. });
    let obstacles: Vec<&Checked> = results
        .iter()
        .filter(|each| match phase {
            Phase::Before => each.found.obstacle().is_some(),
            Phase::After => is_violated(each),
        })
        .collect();
    if obstacles.is_empty() {
        return None;
    }
    let messages: Vec<&str> = obstacles.iter().filter_map(|each| each.found.obstacle()).collect();
    Some(Violation {
        of: obstacles.iter().map(|each| each.constraint).collect(),
        message: shortened(&messages.join("; ")),
        skips: !obstacles.iter().any(is_violated),
    })
}

/// Returns a text that fits into the record of a run.
pub fn shortened(text: &str) -> String {
    let most = limits::LIFE_TEXT_BYTES;
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// Returns the text of an end that an action decided.
pub(super) fn critical(action: ActionKind, error: &str) -> Ending {
    Ending { skipped: false, reason: format!("the critical action {action} failed: {error}") }
}
