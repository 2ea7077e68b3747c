//! Checks promises: accepted runs exist and end; acknowledged or stored results exist, are applied once, and come from
//! a real process.

use std::collections::BTreeMap;

use downbeat_core::Change;
use downbeat_core::execution::{Execution, Outcome, State, Verdict};
use downbeat_core::ids::ExecutionId;
use downbeat_core::run::RunState;

use super::evidence::Evidence;
use super::{Checker, Findings};

pub(super) fn ends(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Ends);
    let tables = &evidence.tables;
    for run in evidence.truth.accepted.iter().filter(|run| !evidence.homes.is_deleted_run(run)) {
        if !tables.runs.contains_key(run) {
            findings.add(format!("run {run} was accepted but does not exist"));
        }
    }
    // A standing run never ends.
    for run in tables.runs.values().filter(|run| !run.live.is_ended() && !run.id.is_standing()) {
        let open: Vec<String> = tables
            .executions
            .values()
            .filter(|each| *each.run() == run.id && each.state.status().is_open())
            .map(|each| format!("{} (step {}, {})", each.id, each.step(), each.state.status()))
            .collect();
        let (id, state, owner) = (&run.id, run.state(), run.live.owner);
        findings.add(format!("run {id} of {owner} is {state}; open: {}", open.join(", ")));
    }
    // A step was skipped because the store rejected the run's work: whichever server ends the run has to know it.
    let is_rejected = |execution: &&Execution| match &execution.state {
        State::Skipped { reason, .. } => reason.starts_with("the store cannot hold"),
        _ => false,
    };
    for execution in tables.executions.values().filter(is_rejected) {
        let (id, run) = (execution.id, execution.run());
        if tables.runs.get(run).is_some_and(|run| run.state() == RunState::Completed) {
            findings.add(format!("run {run} has completed, but the store rejected {id}"));
        }
    }
    findings
}

pub(super) fn results(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Results);
    let tables = &evidence.tables;
    let mut applied: BTreeMap<ExecutionId, u32> = BTreeMap::new();
    for event in &evidence.events {
        if let Change::ExecutionFinished { execution, outcome, .. } = &event.change {
            let count = applied.entry(*execution).or_default();
            *count += 1;
            if *count > 1 {
                findings.add(format!("{execution} has {count} applied results"));
            }
            check_origin(&mut findings, evidence, *execution, outcome);
        }
    }
    for receipt in &evidence.truth.receipts {
        let held = receipt.held;
        let stored = tables.executions.get(&held.execution);
        let kept = stored.is_some_and(|execution| {
            let same = execution.state.lease().is_some_and(|lease| lease.token == held.token);
            same && execution.state.outcome().is_some_and(|kept| is_same(kept, &receipt.outcome))
        });
        if !kept {
            let (id, at, received) = (held.execution, receipt.at, receipt.outcome.verdict);
            let state = stored.map(|execution| &execution.state);
            findings.add(format!("{id}: {received:?} was acknowledged at {at}, but the state is {state:?}"));
        }
    }
    for execution in tables.executions.values().filter(|execution| execution.reused.is_none()) {
        let (Some(lease), Some(outcome)) = (execution.state.lease(), execution.state.outcome()) else {
            continue;
        };
        let Some(received_at) = outcome.received_at else {
            findings.add(format!("{}: the time at which its result was received is missing", execution.id));
            continue;
        };
        let (started, finished) = (outcome.started_at, outcome.finished_at);
        let latest = received_at.max(lease.granted_at);
        if !(lease.granted_at <= started && started <= finished && finished <= latest) {
            let (id, granted) = (execution.id, lease.granted_at);
            findings.add(format!("{id}: granted {granted}, ran {started} to {finished}, received {latest}"));
        }
    }
    for held in &evidence.truth.kept {
        if let Some(Execution { id, state: State::Lost { reason, lease, .. }, .. }) =
            tables.executions.get(&held.execution)
            && lease.token == held.token
            && reason == "the agent restarted"
        {
            findings.add(format!("{id} is lost because {reason}, but its result was on the agent's disk"));
        }
    }
    findings
}

/// Returns true if two results are the same, apart from their times: an agent's clock differs from the servers'.
fn is_same(kept: &Outcome, received: &Outcome) -> bool {
    let times = |outcome: &Outcome| (outcome.started_at, outcome.finished_at, outcome.received_at);
    let (started_at, finished_at, received_at) = times(received);
    Outcome { started_at, finished_at, received_at, ..kept.clone() } == *received
}

/// Checks that a result comes from a process of that execution, on the node that had the lease.
fn check_origin(findings: &mut Findings, evidence: &Evidence, execution: ExecutionId, outcome: &Outcome) {
    let lease = evidence.tables.executions.get(&execution).and_then(|each| each.state.lease().copied());
    let host = lease.and_then(|lease| evidence.hosts.get(&lease.node).copied());
    let brought_about = evidence.truth.of(execution).any(|process| {
        let verdict = match outcome.verdict {
            Verdict::Succeeded => process.verdict == Some(Verdict::Succeeded),
            // Work that was stopped early may fail because of its timeout.
            Verdict::Failed => matches!(process.verdict, Some(Verdict::Failed | Verdict::Cancelled)),
            Verdict::Cancelled => process.verdict == Some(Verdict::Cancelled),
        };
        verdict && Some(process.agent) == host
    });
    // Work that is cancelled before it starts has no process.
    let unbegun = outcome.verdict == Verdict::Cancelled && evidence.truth.of(execution).next().is_none();
    if !brought_about && !unbegun {
        let seen: Vec<_> = evidence.truth.of(execution).collect();
        let verdict = outcome.verdict;
        findings.add(format!("{execution} {verdict:?} on {host:?}, but the processes were {seen:?}"));
    }
}
