//! Checks by the feed that runs go through their states in order, that no more runs of a job are active than its constraints
//! allow, and that what was found and done about constraints is true: hooks answered in this way, and each word of `overlap`
//! has its effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::run::{Checked, ConstraintKind, Ending, Found, RunState};
use downbeat_core::spec::{Definition, Overlap};

use super::evidence::Evidence;
use super::{Checker, Findings};

/// A run that has not ended.
struct Open {
    cluster: ClusterId,
    /// The name of the stored job.
    job: Option<Arc<str>>,
    definition: Arc<Definition>,
    state: RunState,
    /// What the last check before the plan found.
    found: Vec<Checked>,
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Life);
    let mut open: BTreeMap<RunId, Open> = BTreeMap::new();
    for event in &evidence.events {
        let mut found = Vec::new();
        follow(evidence, &mut open, &event.change, &mut found);
        found.into_iter().for_each(|what| findings.add(format!("event {}: {what}", event.seq)));
    }
    findings
}

fn follow(
    evidence: &Evidence,
    open: &mut BTreeMap<RunId, Open>,
    change: &Change,
    findings: &mut Vec<String>,
) {
    match change {
        Change::RunCreated { run, .. } if !run.id.is_standing() => {
            let of = Open {
                cluster: run.cluster,
                job: run.job.as_deref().map(Arc::from),
                definition: Arc::clone(&run.definition),
                state: run.state(),
                found: Vec::new(),
            };
            open.insert(run.id.clone(), of);
        }
        Change::ClusterDeleted { cluster, .. } => open.retain(|_, run| run.cluster != *cluster),
        Change::RunMoved { run, path, .. } => {
            for state in path {
                moved(open, run, *state, findings);
            }
        }
        Change::RunChecked { run, results, .. } => {
            let Some(of) = open.get_mut(run) else { return };
            if !results.iter().any(|one| is_after(one.constraint)) {
                of.found.clone_from(results);
            }
            results.iter().for_each(|one| answered(evidence, run, one, findings));
        }
        Change::RunActed { run, queued, end, .. } => {
            let Some(of) = open.get(run) else { return };
            if queued.is_some() && of.definition.overlap == Some(Overlap::Skip) {
                findings.push(format!("{run} waits, but its job skips runs that overlap"));
            }
            if let Some(Ending { skipped: true, reason }) = end {
                skipped(of, run, reason, findings);
            }
        }
        _ => {}
    }
}

fn is_after(constraint: ConstraintKind) -> bool {
    use ConstraintKind::{MaxAllowed, MaxExpected, PostRunHook};
    matches!(constraint, MaxAllowed | MaxExpected | PostRunHook)
}

fn moved(open: &mut BTreeMap<RunId, Open>, run: &RunId, to: RunState, findings: &mut Vec<String>) {
    let Some(from) = open.get(run).map(|of| of.state) else { return };
    if !is_allowed(from, to) {
        findings.push(format!("{run} is {from} and becomes {to}"));
    }
    if to == RunState::Starting {
        starts(open, run, findings);
    }
    if to.is_terminal() {
        open.remove(run);
    } else if let Some(of) = open.get_mut(run) {
        of.state = to;
    }
}

/// Returns whether the model has this transition.
fn is_allowed(from: RunState, to: RunState) -> bool {
    use RunState::{
        ActionPending, ActionRunning, Cancelled, Completed, ConditionPending, ConditionRunning, Failed,
        Orphaned, Pending, PreRun, Retrying, Running, Starting, Terminating,
    };
    // Every open run may end like this.
    if matches!(to, Cancelled | Failed | Orphaned) {
        return !matches!(from, Completed | Cancelled | Failed | Orphaned);
    }
    matches!(
        (from, to),
        (PreRun | ActionRunning | Retrying, Pending)
            | (Pending, ConditionPending | Starting | Terminating)
            | (ConditionPending, ConditionRunning)
            | (ConditionRunning, ActionPending | Starting)
            | (ActionPending, ActionRunning)
            | (ActionRunning, Starting | Completed)
            | (Starting, Running | Terminating)
            | (Running, Terminating)
            | (Terminating, Completed | Retrying)
    )
}

/// Checks that a run may start: few enough others are active, and its hook did not refuse it.
fn starts(open: &BTreeMap<RunId, Open>, run: &RunId, findings: &mut Vec<String>) {
    let of = &open[run];
    let constraints = of.definition.constraints.as_ref();
    let most = match of.definition.overlap {
        Some(Overlap::Skip | Overlap::Queue | Overlap::QueueLatest | Overlap::Replace) => Some(1),
        Some(Overlap::Allow) | None => None,
    };
    let most = constraints.and_then(|all| all.max_concurrent_runs).or(most);
    let is_active = |state| matches!(state, RunState::Starting | RunState::Running | RunState::Terminating);
    let is_other = |(id, other): &(&RunId, &Open)| {
        *id != run && other.job.is_some() && (other.cluster, &other.job) == (of.cluster, &of.job)
    };
    let active = open.iter().filter(is_other).filter(|(_, other)| is_active(other.state)).count();
    if most.is_some_and(|most| active >= most as usize) {
        findings.push(format!("{run} starts while {active} runs of its job are active; {most:?} may be"));
    }
    if constraints.is_some_and(|all| all.pre_run_hook.is_some()) {
        let hook = of.found.iter().find(|one| one.constraint == ConstraintKind::PreRunHook);
        let may_start = match hook.map(|one| &one.found) {
            Some(Found::Passed | Found::Unknown { skips: false, .. }) => true,
            Some(Found::Violated { .. } | Found::Unknown { skips: true, .. }) | None => false,
        };
        if !may_start {
            findings.push(format!("{run} starts, but about its hook is known: {hook:?}"));
        }
    }
}

/// Checks that a hook answered as it is recorded.
fn answered(evidence: &Evidence, run: &RunId, checked: &Checked, findings: &mut Vec<String>) {
    if !matches!(checked.constraint, ConstraintKind::PreRunHook | ConstraintKind::PostRunHook) {
        return;
    }
    let expected = match checked.found {
        Found::Passed => 200..300,
        Found::Violated { .. } => 300..500,
        Found::Unknown { .. } => return,
    };
    let is_call = |hook: &str, of: &RunId| of == run && hook == checked.constraint.as_str();
    let mut calls = evidence.truth.hooks.iter().filter(|call| is_call(&call.hook, &call.run));
    if !calls.any(|call| call.status.is_some_and(|status| expected.contains(&status))) {
        findings.push(format!("{run}: {checked:?} is recorded, but the hook never answered like that"));
    }
}

/// Checks that a run was skipped for a reason that its job allows.
fn skipped(of: &Open, run: &RunId, reason: &str, findings: &mut Vec<String>) {
    let is_unknown = of.found.iter().any(|one| matches!(one.found, Found::Unknown { skips: true, .. }));
    let may_skip = match of.definition.overlap {
        Some(Overlap::Queue | Overlap::Replace) => is_unknown,
        Some(Overlap::QueueLatest) => is_unknown || reason.contains("replaced it while it waited"),
        Some(Overlap::Skip | Overlap::Allow) | None => true,
    };
    if !may_skip {
        findings.push(format!("{run} is skipped, but runs of its job wait: {reason}"));
    }
}
