//! Owns leases that no agent has any more. They are ended as lost; the run decides what follows.

use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::{ExecutionId, LeaseToken};
use downbeat_core::work::Parent;
use jiff::SignedDuration;

/// A stray is a lease whose session had ended when it was committed, whose node was deleted, or whose
/// result its agent no longer has.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) of: Parent,
    pub(super) execution: ExecutionId,
    pub(super) token: LeaseToken,
    pub(super) reason: String,
    /// The node was deleted, and its agent may still run the work because it does not know that yet.
    pub(super) may_run: bool,
}

#[derive(Debug, Default)]
pub(super) struct Strays {
    pub(super) found: Vec<Stray>,
    /// Stray leases of work that must never overlap and may still run. Each ends when its agent has stopped
    /// the work because the lease was not renewed.
    resting: Vec<(Timestamp, Stray)>,
    pub(super) lease_ttl: Duration,
}

impl Strays {
    pub(super) fn clear(&mut self) {
        self.found.clear();
        self.resting.clear();
    }

    /// Returns when the next resting lease ends.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.resting.iter().map(|(due, _)| *due).min()
    }

    /// Returns the leases to end now. `overlaps_never` returns whether two attempts at an execution's work must never
    /// overlap.
    pub(super) fn take_due(
        &mut self,
        now: Timestamp,
        overlaps_never: impl Fn(ExecutionId) -> bool,
    ) -> Vec<Stray> {
        let term = SignedDuration::try_from(self.lease_ttl).unwrap_or(SignedDuration::MAX);
        let end = now.checked_add(term).unwrap_or(Timestamp::MAX);
        let rests = |stray: &Stray| stray.may_run && overlaps_never(stray.execution);
        let (rest, mut due): (Vec<_>, Vec<_>) = self.found.drain(..).partition(rests);
        due.extend(self.resting.extract_if(.., |(until, _)| *until <= now).map(|(_, stray)| stray));
        self.resting.extend(rest.into_iter().map(|stray| (end, stray)));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(number: u128, may_run: bool) -> Stray {
        Stray {
            of: Parent::Run("run".into()),
            execution: ExecutionId(uuid::Uuid::from_u128(number)),
            token: LeaseToken(uuid::Uuid::from_u128(number)),
            reason: "the node was deleted".to_owned(),
            may_run,
        }
    }

    #[test]
    fn work_that_must_never_overlap_is_ended_when_its_agent_has_ended_it() {
        let mut strays = Strays { lease_ttl: Duration::from_secs(30), ..Strays::default() };
        strays.found.extend([stray(1, true), stray(2, true), stray(3, false)]);
        // 1 and 3 must never overlap. 3 does not run: its agent has ended.
        let never = |execution: ExecutionId| execution.0.as_u128() != 2;
        let at = |second| Timestamp::from_second(second).unwrap();
        let numbers =
            |due: Vec<Stray>| -> Vec<u128> { due.iter().map(|stray| stray.execution.0.as_u128()).collect() };
        assert_eq!(numbers(strays.take_due(at(100), never)), [2, 3]);
        assert_eq!((strays.found.is_empty(), strays.next_due()), (true, Some(at(130))));
        assert_eq!(numbers(strays.take_due(at(129), never)), [0; 0]);
        assert_eq!(numbers(strays.take_due(at(130), never)), [1]);
        assert_eq!(strays.next_due(), None);
    }
}
