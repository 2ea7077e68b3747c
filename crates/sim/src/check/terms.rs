//! Checks that no lease ends before it expires, so that nobody else gets one for the step.

use downbeat_core::Change;
use jiff::SignedDuration;

use super::attempts::AttemptLog;
use super::evidence::Evidence;
use super::{Checker, Findings};

/// The largest error of a server's estimate of the store's clock: half of the slowest response that it accepts.
const CLOCK_DOUBT: SignedDuration = SignedDuration::from_millis(250);

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Terms);
    if !evidence.is_shared {
        // The server uses its own clock here, which may jump.
        return findings;
    }
    let term = SignedDuration::try_from(evidence.lease_ttl).expect("terms are short") - CLOCK_DOUBT;
    let mut log = AttemptLog::default();
    for event in &evidence.events {
        log.apply(event);
        let Change::ExecutionLost { execution, reason, .. } = &event.change else { continue };
        if !["the lease expired", "the node went offline"].contains(&reason.as_str()) {
            continue;
        }
        let index = usize::try_from(event.seq - 1).expect("sequence numbers are small here");
        let Some(ended) = evidence.truth.commits.get(index).copied() else { continue };
        let Some(lease) = log.attempts.get(execution).and_then(|attempt| attempt.lease) else { continue };
        let renewals = evidence.truth.renewals.iter();
        let last =
            renewals.filter(|one| one.node == lease.node && one.applied <= ended).map(|one| one.at).max();
        let valid = last.unwrap_or(lease.granted_at).max(lease.granted_at) + term;
        if ended < valid {
            findings
                .add(format_args!("{execution}: the lease was valid until {valid} but was ended at {ended}"));
        }
    }
    findings
}
