//! Checks the work that really ran: only with a lease, never twice, and without forbidden overlaps.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::Timestamp;
use downbeat_core::ids::ExecutionId;
use downbeat_core::plan::StepIx;
use downbeat_core::spec::OnDisconnect;

use super::attempts::{Instance, granted, instance_of};
use super::evidence::Evidence;
use super::{Checker, Findings};
use crate::truth::Process;

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Work);
    with_a_lease(&mut findings, evidence);
    never_twice(&mut findings, evidence);
    never_overlapping(&mut findings, evidence);
    findings
}

/// Returns when each execution was leased, in true time, and to which host.
fn leases(evidence: &Evidence) -> BTreeMap<ExecutionId, (Timestamp, Option<usize>)> {
    let mut leases = BTreeMap::new();
    for event in &evidence.events {
        let Some(at) = evidence.committed_at(event) else { continue };
        for (_, execution, lease) in granted(&event.change) {
            leases.insert(execution, (at, evidence.hosts.get(&lease.node).copied()));
        }
    }
    leases
}

fn with_a_lease(findings: &mut Findings, evidence: &Evidence) {
    let leases = leases(evidence);
    for process in &evidence.truth.processes {
        let id = process.identity;
        match leases.get(&id.execution) {
            None => findings.add(format!("n{} ran {id}, which was never leased", process.agent)),
            Some((at, host)) if *at > process.begun || *host != Some(process.agent) => {
                let (agent, begun) = (process.agent, process.begun);
                findings
                    .add(format!("n{agent} ran {id} at {begun}, but {host:?} has had the lease since {at}"));
            }
            Some(_) => {}
        }
    }
}

fn never_twice(findings: &mut Findings, evidence: &Evidence) {
    let mut seen = BTreeSet::new();
    for process in &evidence.truth.processes {
        let id = process.identity;
        if !seen.insert((id.execution, id.attempt)) {
            let (agent, session) = (process.agent, process.incarnation);
            findings.add(format!("{id} was started twice, the second time by session {session} of n{agent}"));
        }
    }
}

/// Checks that attempts of a task with `on_disconnect: stop` never overlap on any host. Orphans are exempt: only an
/// agent can stop them, and after a crash it may be too late.
fn never_overlapping(findings: &mut Findings, evidence: &Evidence) {
    let mut instances: BTreeMap<Instance, Vec<&Process>> = BTreeMap::new();
    for process in &evidence.truth.processes {
        let Some(execution) = evidence.tables.executions.get(&process.identity.execution) else { continue };
        if execution.run().is_standing() {
            continue;
        }
        let task = evidence.plans[execution.run()].task(StepIx(execution.step()));
        if task.on_disconnect == Some(OnDisconnect::Stop) {
            instances.entry(instance_of(execution)).or_default().push(process);
        }
    }
    for processes in instances.values() {
        for pair in processes.windows(2) {
            if !pair[0].orphaned && pair[0].ended.is_none_or(|ended| ended > pair[1].begun) {
                let (former, next) = (pair[0], pair[1]);
                findings.add(format!(
                    "{} on n{} until {:?} overlaps with {} on n{} from {}, which is not allowed",
                    former.identity, former.agent, former.ended, next.identity, next.agent, next.begun
                ));
            }
        }
    }
}
