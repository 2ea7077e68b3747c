//! Checks that no lease is ended before its term is over: as long as a lease is valid nobody else has one for the step.

use downbeat_core::Change;
use jiff::SignedDuration;

use super::evidence::Evidence;
use super::story::Story;
use super::{Checker, Findings};

/// How much a server's idea of the store's clock may be off: half of the slowest answer that it believes.
const CLOCK_DOUBT: SignedDuration = SignedDuration::from_millis(250);

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Terms);
    if !evidence.is_shared {
        // Its server's own clock counts, and that may jump.
        return findings;
    }
    let term = SignedDuration::try_from(evidence.lease_ttl).expect("terms are short") - CLOCK_DOUBT;
    let mut story = Story::default();
    for event in &evidence.events {
        story.tell(event);
        let Change::ExecutionLost { execution, reason, .. } = &event.change else { continue };
        if !["the lease expired", "the node went offline"].contains(&reason.as_str()) {
            continue;
        }
        let place = usize::try_from(event.seq - 1).expect("sequence numbers are small here");
        let Some(ended) = evidence.truth.commits.get(place).copied() else { continue };
        let Some(lease) = story.attempts.get(execution).and_then(|attempt| attempt.lease) else { continue };
        let renewals = evidence.truth.renewals.iter();
        let last =
            renewals.filter(|one| one.node == lease.node && one.applied <= ended).map(|one| one.at).max();
        let valid = last.unwrap_or(lease.granted_at).max(lease.granted_at) + term;
        if ended < valid {
            findings
                .add(format_args!("{execution}: the lease was valid until {valid} and was ended at {ended}"));
        }
    }
    findings
}
