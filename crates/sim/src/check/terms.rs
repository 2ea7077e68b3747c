//! Checks that no lease ends before it expires, so that nobody else gets one for the step.

use downbeat_core::Change;

use super::attempts::AttemptLog;
use super::evidence::{Evidence, at_least};
use super::{Checker, Findings};

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Terms);
    let term = at_least(evidence.lease_ttl);
    let mut log = AttemptLog::default();
    for event in &evidence.events {
        log.apply(event);
        let Change::ExecutionLost { execution, reason, at, .. } = &event.change else { continue };
        if !["the lease expired", "the node went offline"].contains(&reason.as_str()) {
            continue;
        }
        let Some(ended) = evidence.committed_at(event) else { continue };
        let Some(lease) = log.attempts.get(execution).and_then(|attempt| attempt.lease) else { continue };
        // Heartbeats have a true time; grants only have the servers'.
        let heard = evidence.last_heard(lease.node, ended).map(|heard| (ended, heard));
        for (ended, begun) in heard.into_iter().chain([(*at, lease.granted_at)]) {
            let valid = begun + term;
            if ended < valid {
                findings
                    .add(format!("{execution}: the lease was valid until {valid} but was ended at {ended}"));
            }
        }
    }
    findings
}
