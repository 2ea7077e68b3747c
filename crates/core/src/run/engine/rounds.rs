//! Owns the step from one round of a run to the next: a round that failed ends, and the next one begins with nothing done.
//!
//! Between two rounds the run is retrying. Nothing of the former round is open then, and nothing of it matters any more: the
//! progress is that of the next round, which has not begun.

use std::sync::Arc;

use super::progress::{Progress, Stop};
use crate::level;
use crate::run::{RunEnd, RunState};

impl Progress {
    /// Returns whether the run is retried as a whole if this round fails. A run that a person retried is not: it does only a
    /// part again, and the person sees how it ends.
    pub(super) fn has_rounds(&self, common_level: u32) -> bool {
        let retry = self.plan.definition.retry.filter(|_| common_level >= level::ROUNDS);
        retry.is_some_and(|retry| self.round <= retry.max) && self.plan.resolved.retry.is_none()
    }

    /// Replaces the progress by that of the next round. The changes that were just handed out are the last ones of this round.
    pub(super) fn leave_round(&mut self) {
        let next = Self::new(Arc::clone(&self.plan), self.run.clone(), self.epoch, self.state);
        let next = next.with_params(Arc::clone(&self.params)).with_portion(self.portion());
        let scheduled_at = self.scheduled_at;
        *self = Self { scheduled_at, ..next.after_round(self.round, self.paused) };
    }

    /// Sets that this is the progress of the round after `former`, which has not begun.
    #[must_use]
    pub(super) fn after_round(mut self, former: u32, paused: bool) -> Self {
        (self.round, self.paused) = (former.saturating_add(1), paused);
        self
    }

    /// Begins the next round: the run is pending, and [`go_on`](Self::go_on) starts its plan.
    pub fn begin_round(&mut self) {
        self.move_to(&[RunState::Pending]);
        self.passes.begin();
        while let Some(pass) = self.passes.next_due() {
            self.resume.passes.push(pass);
        }
    }

    /// Ends a run that waits for its next round, or is about to.
    pub(super) fn end_between_rounds(&mut self, stop: Stop) {
        let last = match stop {
            Stop::Cancelled => RunState::Cancelled,
            Stop::Rejected | Stop::GivenUp => RunState::Failed,
            // The timeout applies to a round, and only a run that has not started is skipped.
            Stop::CleaningUp { .. } | Stop::TimedOut | Stop::CleanupTimedOut | Stop::Skipped => return,
        };
        self.stopping = Some(stop);
        let error = if last == RunState::Cancelled { "cancelled".to_owned() } else { self.stop_text() };
        self.replace_end(last, RunEnd { partial: false, error: Some(error) });
    }
}
