//! Decides when placed work has waited too long for a node that fits it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::attempts::Over;
use super::progress::{Progress, Turn};
use crate::plan::StepIx;
use crate::span::Span;

/// How often the engine checks for nodes: often enough for the shortest wait, seldom enough to cost nothing.
const LOOKS_PER_WAIT: i32 = 8;
const LONGEST: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub(super) struct FitCheck {
    /// The time of the next check whether nodes fit the pending placed attempts.
    next: Option<Timestamp>,
}

impl Progress {
    /// Returns the time of the next check whether nodes fit the pending placed attempts.
    pub fn next_look(&self) -> Option<Timestamp> {
        self.fit_check.next
    }

    /// Schedules a check whether nodes fit the pending placed attempts.
    pub(super) fn look_soon(&mut self, now: Timestamp) {
        if self.fit_check.next.is_none() {
            self.fit_check.next = Some(now + self.look_pause());
        }
    }

    fn look_pause(&self) -> SignedDuration {
        let definition = &self.plan.definition;
        let waits = definition.steps().map(|task| definition.placement_timeout(task));
        (waits.min().map_or(LONGEST, signed) / LOOKS_PER_WAIT).min(LONGEST)
    }

    /// Returns the attempts that no node has fitted for too long.
    pub(super) fn look_for_nodes(&mut self, turn: &Turn<'_>) -> Vec<Over> {
        if self.fit_check.next.is_none_or(|next| next > turn.now) {
            return Vec::new();
        }
        self.fit_check.next = None;
        let mut fits: HashMap<StepIx, Result<(), String>> = HashMap::new();
        let mut over = Vec::new();
        let mut waits = false;
        let (plan, paused) = (&self.plan, self.paused);
        for (execution, active) in self.attempts.unplaced_mut() {
            waits = true;
            let (at, step) = (active.at, active.at.step);
            let fits = fits.entry(step).or_insert_with(|| if paused { Ok(()) } else { (turn.fits)(step) });
            let Err(why) = fits else {
                active.unfit_since = None;
                continue;
            };
            // A delayed retry does not wait for a node yet.
            let from = active.not_before.map_or(turn.now, |at| at.max(turn.now));
            let since = *active.unfit_since.get_or_insert(from);
            let most = plan.definition.placement_timeout(plan.task(step));
            if turn.now >= since && turn.now.duration_since(since) >= signed(most) {
                let error = format!("no node fitted it for {most}: {why}");
                over.push(Over { at, execution, error });
            }
        }
        if waits {
            self.look_soon(turn.now);
        }
        over
    }
}

fn signed(span: Span) -> SignedDuration {
    SignedDuration::try_from(span.0).unwrap_or(SignedDuration::MAX)
}
