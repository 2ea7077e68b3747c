//! Decides what follows when an attempt ends: another attempt, or the instance's end.

use jiff::{SignedDuration, Timestamp};

use super::attempts::{Again, End, Ended};
use super::passes::At;
use super::progress::{Progress, Stop, Turn};
use crate::plan::StepIx;
use crate::run::retry;
use crate::spec::Delivery;
use crate::{debug, limits};

impl Progress {
    /// Follows up the attempts that ended: they are retried, or their walks move on.
    pub(super) fn follow_ends(&mut self, turn: &Turn<'_>) {
        let (mut again, last): (Vec<Ended>, Vec<Ended>) =
            self.attempts.take_ended().into_iter().partition(|ended| self.may_come_again(ended));
        // Final ends come first: one may trigger fail-fast, and then nothing is retried.
        for ended in last {
            self.end_instance(ended, turn);
        }
        again.sort_unstable_by_key(|ended| (ended.at.pass, ended.at.walk));
        self.agenda.add_again(again);
    }

    /// Sends an attempt once more that may come again, or ends its instance.
    pub(super) fn come_again(&mut self, ended: Ended, turn: &mut Turn<'_>) {
        let sent = match ended.end {
            End::Failed => self.try_again(ended, turn),
            _ => self.send_again(ended, turn),
        };
        if let Err(last) = sent {
            self.end_instance(last, turn);
        }
    }

    /// Returns whether the retry or delivery rule allows another attempt.
    pub(super) fn may_come_again(&self, &Ended { at, end, .. }: &Ended) -> bool {
        match end {
            End::Failed => self.has_retries(at),
            End::Lost | End::Cancelled => !self.is_stopped(at.step) && self.has_resends(at),
            End::Succeeded | End::Unsent | End::GivenUp | End::Withdrawn => false,
        }
    }

    /// Ends an instance whose last attempt ended. Its walk moves on.
    fn end_instance(&mut self, ended: Ended, turn: &Turn<'_>) {
        let Ended { at, end, .. } = ended;
        let failed = match end {
            End::Succeeded => false,
            End::Failed | End::Unsent | End::GivenUp => true,
            // An attempt that was cancelled without a request (its agent was drained) counts as lost. One that the run's
            // timeout ended has failed.
            End::Lost | End::Cancelled => self.stopping.is_none_or(Stop::is_timeout),
            // The attempt was a retry: an earlier attempt failed, and so the instance failed.
            End::Withdrawn => self.passes.walk(at.pass, at.walk).attempt > 1,
        };
        if failed {
            self.instance_failed(ended, turn);
        } else if end == End::Withdrawn {
            self.passes.mark_skipped(at.pass);
        } else {
            self.passes.mark_ran(at.pass);
        }
        self.passes.next_leaf(at.pass, at.walk);
        self.agenda.add_walks([(at.pass, at.walk)]);
    }

    /// Returns whether the retry rule allows another attempt after a failure.
    pub(super) fn has_retries(&self, at: At) -> bool {
        let used = self.passes.walk(at.pass, at.walk).retries;
        self.plan.task(at.step).retry.is_some_and(|rule| used < rule.max)
    }

    /// Retries after a failure. Returns the instance's last attempt if no further one is sent.
    fn try_again(&mut self, ended: Ended, turn: &mut Turn<'_>) -> Result<(), Ended> {
        let at = ended.at;
        let Some(rule) = self.plan.task(at.step).retry else { return Err(ended) };
        if !self.has_retries(at) || !self.goes_on(at.step) {
            return Err(ended);
        }
        let walk = self.passes.walk_mut(at.pass, at.walk);
        walk.retries += 1;
        let pause = retry::pause(&rule, walk.retries, turn.dice);
        let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::ZERO);
        let again = Again { former: Some(ended), not_before: Some(turn.now + pause), patience: None };
        self.attempt(at, again, turn)
    }

    /// Returns whether the delivery rule allows another attempt after a loss.
    pub(super) fn has_resends(&self, at: At) -> bool {
        self.plan.steps[at.step].delivery == Delivery::AtLeastOnce
            && self.passes.walk(at.pass, at.walk).losses < limits::RESENDS_AFTER_LOSS
    }

    /// Sends again after a loss. Returns the instance's last attempt if no further one is sent.
    fn send_again(&mut self, ended: Ended, turn: &mut Turn<'_>) -> Result<(), Ended> {
        let at = ended.at;
        if !self.has_resends(at) || !self.goes_on(at.step) {
            return Err(ended);
        }
        self.passes.walk_mut(at.pass, at.walk).losses += 1;
        let patience = self.pinned(at).map(|_| turn.now + self.patience(at.step));
        self.attempt(at, Again { former: Some(ended), not_before: None, patience }, turn)
    }

    /// Returns until when a first attempt waits for its node, offline or not, which only a debug command does; or until
    /// when an approval waits for a person.
    pub(super) fn first_patience(&self, step: StepIx, created_at: Timestamp) -> Option<Timestamp> {
        if let Some(approve) = &self.plan.task(step).approve {
            let most =
                SignedDuration::try_from(approve.timeout_or_default().0).unwrap_or(SignedDuration::MAX);
            return Some(created_at.saturating_add(most).unwrap_or(Timestamp::MAX));
        }
        self.run.is_debug().then(|| debug::starts_before(created_at))
    }

    /// Returns how long a pinned attempt waits for its node after a loss: as long as it would be allowed to run.
    pub(super) fn patience(&self, step: StepIx) -> SignedDuration {
        SignedDuration::try_from(self.plan.task(step).timeout_or_default().0).unwrap_or(SignedDuration::MAX)
    }
}
