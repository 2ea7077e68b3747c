//! Checks that no lease ends before it expires, so that nobody else gets one for the step.

use downbeat_core::Change;
use jiff::SignedDuration;

use super::attempts::AttemptLog;
use super::evidence::{CLOCK_DOUBT, Evidence};
use super::{Checker, Findings};

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
        let Some(ended) = evidence.committed_at(event) else { continue };
        let Some(lease) = log.attempts.get(execution).and_then(|attempt| attempt.lease) else { continue };
        let last = evidence.last_heard(lease.node, ended).unwrap_or(lease.granted_at);
        let valid = last.max(lease.granted_at) + term;
        if ended < valid {
            findings.add(format!("{execution}: the lease was valid until {valid} but was ended at {ended}"));
        }
    }
    findings
}
