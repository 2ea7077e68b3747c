//! Checks limits: how much of a run a node holds at once by the records, and how much a host really did at once.

use downbeat_core::Change;
use downbeat_core::execution::{Lease, Status};
use downbeat_core::ids::{ExecutionId, RunId};

use super::evidence::Evidence;
use super::story::Story;
use super::{Checker, Findings};
use crate::truth::Process;

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Limits);
    per_node(&mut findings, evidence);
    on_hosts(&mut findings, evidence);
    findings
}

/// Whenever something with `max_per_node` is leased, its node holds fewer than that of the run.
fn per_node(findings: &mut Findings, evidence: &Evidence) {
    let mut story = Story::default();
    for event in &evidence.events {
        let mut leased: Vec<(&RunId, u32, ExecutionId, Lease)> = Vec::new();
        match &event.change {
            Change::ExecutionLeased { run, execution, lease } => {
                if let Some(attempt) = story.attempts.get(execution) {
                    leased.push((run, attempt.step, *execution, *lease));
                }
            }
            Change::ExecutionsAdded { run, executions, .. } => {
                let born = executions.iter().filter(|each| each.state.status() == Status::Leased);
                let born = born.filter_map(|each| Some((run, each.step, each.id, *each.state.lease()?)));
                leased.extend(born);
            }
            _ => {}
        }
        for (place, (run, step, id, lease)) in leased.iter().enumerate() {
            let plan = &evidence.plans[*run];
            let rule = plan.placement(*step).filter(|_| plan.is_placed(*step));
            let Some(most) = rule.and_then(|rule| rule.max_per_node) else { continue };
            // Others without a limit may come after it; within one commit, additions are told first.
            let counts = |step: u32, other: &Lease| {
                let limited = plan.is_placed(step)
                    && plan.placement(step).is_some_and(|rule| rule.max_per_node.is_some());
                other.node == lease.node && (limited || other.granted_at < lease.granted_at)
            };
            let held = story.of(run).filter(|each| matches!(each.status, Status::Leased | Status::Running));
            let held = held.filter(|each| each.lease.is_some_and(|other| counts(each.step, &other))).count();
            let same_change = leased[..place].iter().filter(|other| counts(other.1, &other.3)).count();
            let holds = 1 + held + same_change;
            if holds > most as usize {
                findings.add(format_args!(
                    "{id} of step {step}: its node holds {holds} of the run, {most} may be"
                ));
            }
        }
        story.tell(event);
    }
}

/// Fleet work runs one at a time on a host, placed work in slots; whatever the agent's lives.
fn on_hosts(findings: &mut Findings, evidence: &Evidence) {
    let executions = &evidence.tables.executions;
    for agent in evidence.hosts.values() {
        let of_host = evidence.truth.processes.iter().filter(|process| process.agent == *agent);
        let (fleet, placed): (Vec<&Process>, Vec<&Process>) = of_host.partition(|process| {
            executions.get(&process.identity.execution).is_some_and(|each| each.pinned.is_some())
        });
        for (what, processes, most) in [("fleet", fleet, 1), ("placed", placed, evidence.slots as usize)] {
            for process in &processes {
                let at = process.begun;
                let running =
                    |other: &&&Process| other.begun <= at && other.ended.is_none_or(|ended| ended > at);
                let count = processes.iter().filter(running).count();
                if count > most {
                    let id = process.identity;
                    findings.add(format_args!(
                        "n{agent} runs {count} {what} at once when {id} begins; {most} may be"
                    ));
                }
            }
        }
    }
}
