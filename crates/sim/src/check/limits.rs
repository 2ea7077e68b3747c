//! Checks limits: attempts of a run per node, open attempts per run and leased attempts per key (by the records), and
//! the work that really ran at once on each host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use downbeat_core::execution::{Lease, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, RunId};
use downbeat_core::plan::{EntryIx, StepIx};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::{Change, Event, Timestamp};

use super::attempts::{AttemptLog, granted};
use super::evidence::Evidence;
use super::{Checker, Findings};
use crate::truth::Process;

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Limits);
    per_node(&mut findings, evidence);
    named(&mut findings, &evidence.events);
    open_at_once(&mut findings, evidence);
    on_hosts(&mut findings, evidence);
    findings
}

/// Checks that an attempt with `max_per_node` is only leased while its node has fewer attempts of the run.
fn per_node(findings: &mut Findings, evidence: &Evidence) {
    let mut log = AttemptLog::default();
    // The number of the commit in which each lease was granted.
    let mut commits: BTreeMap<LeaseToken, Option<u64>> = BTreeMap::new();
    for event in &evidence.events {
        let commit = evidence.commit_of(event).map(|commit| commit.number);
        commits.extend(granted(&event.change).into_iter().map(|(_, _, lease)| (lease.token, commit)));
        let step_of = |id| evidence.tables.executions.get(&id).map(|each| StepIx(each.step()));
        let leased = granted(&event.change).into_iter();
        let leased: Vec<(&RunId, StepIx, ExecutionId, Lease)> =
            leased.filter_map(|(run, id, lease)| Some((run, step_of(id)?, id, lease))).collect();
        for (index, (run, step, id, lease)) in leased.iter().enumerate() {
            // Standing tasks have no limits.
            if run.is_standing() {
                continue;
            }
            let plan = &evidence.plans[*run];
            let limit_of = |step: StepIx| {
                plan.placement(step).filter(|_| plan.is_placed(step)).and_then(|rule| rule.max_per_node)
            };
            let Some(most) = limit_of(*step) else { continue };
            // Attempts without a limit may follow it. Within one commit additions come first, whatever was decided
            // first: there, those with a higher limit may follow it too.
            let counts = |step: StepIx, other: &Lease| {
                let limit = limit_of(step);
                let follows = if commits.get(&other.token) == Some(&commit) {
                    limit.is_none_or(|limit| limit > most)
                } else {
                    limit.is_none() && other.granted_at >= lease.granted_at
                };
                other.node == lease.node && !follows
            };
            let held = log.of(run).filter(|each| matches!(each.status, Status::Leased | Status::Running));
            let held = held.filter(|each| each.lease.is_some_and(|other| counts(each.step, &other))).count();
            let same_change = leased[..index].iter().filter(|other| counts(other.1, &other.3)).count();
            let holds = 1 + held + same_change;
            if holds > most as usize {
                findings.add(format!(
                    "{id} of step {step}: its node has {holds} attempts of the run; the limit is {most}"
                ));
            }
        }
        log.apply(event);
    }
}

/// An attempt that was leased and counts against its limits until it ends.
struct Given {
    cluster: ClusterId,
    limits: Arc<Limits>,
    at: Timestamp,
    is_over: bool,
}

/// Checks that an attempt with limits is only leased while each of its keys has a free slot.
fn named(findings: &mut Findings, events: &[Event]) {
    let mut homes: BTreeMap<&RunId, ClusterId> = BTreeMap::new();
    let mut known: BTreeMap<ExecutionId, &Arc<Limits>> = BTreeMap::new();
    let mut given: BTreeMap<ExecutionId, Given> = BTreeMap::new();
    // The time of a lease is set before its commit: a later commit may have an earlier time. Time does not go back.
    let mut latest = Timestamp::MIN;
    for event in events {
        match &event.change {
            Change::RunCreated { run, .. } => {
                homes.insert(&run.id, run.cluster);
            }
            Change::ExecutionsAdded { executions, .. } => {
                known.extend(executions.iter().filter_map(|each| Some((each.id, each.limits.as_ref()?))));
            }
            Change::ExecutionFinished { execution, .. } | Change::ExecutionLost { execution, .. } => {
                given.entry(*execution).and_modify(|given| given.is_over = true);
            }
            _ => {}
        }
        for (run, id, Lease { granted_at: at, .. }) in granted(&event.change) {
            let (Some(limits), Some(&cluster)) = (known.get(&id), homes.get(run)) else { continue };
            latest = latest.max(at);
            for (key, limit) in limits.iter() {
                let own = given.values().filter(|each| each.cluster == cluster);
                let count = own.filter(|each| counts(each, key, *limit, latest));
                let (count, most) = (count.count(), limit.most());
                if count >= most as usize {
                    findings.add(format!("{id} is leased while {count} have `{key}`; the limit is {most}"));
                }
            }
            given.insert(id, Given { cluster, limits: Arc::clone(limits), at, is_over: false });
        }
    }
}

/// Returns true if a leased attempt counts against a limit. Each kind of limit counts only its own attempts, and a rate
/// only counts those within its period.
fn counts(given: &Given, key: &str, limit: Limit, at: Timestamp) -> bool {
    match (given.limits.get(key), limit) {
        (Some(Limit::AtOnce(_)), Limit::AtOnce(_)) => !given.is_over,
        (Some(Limit::Rate(_, own)), Limit::Rate(_, per)) => given.at + own.0.min(per.0) > at,
        _ => false,
    }
}

/// Checks that a run never exceeds its job's limit of open attempts, nor a task its limit of open items.
fn open_at_once(findings: &mut Findings, evidence: &Evidence) {
    let mut log = AttemptLog::default();
    for event in &evidence.events {
        log.apply(event);
        let Change::ExecutionsAdded { run, .. } = &event.change else { continue };
        if run.is_standing() {
            continue;
        }
        let plan = &evidence.plans[run];
        let open = || log.of(run).filter(|attempt| attempt.is_open());
        if let Some(most) = plan.definition.max_parallel
            && open().count() > most as usize
        {
            findings.add(format!("{} of {run} are open at once; the limit is {most}", open().count()));
        }
        for (number, entry) in (0..).map(EntryIx).zip(&plan.entries) {
            let Some(most) = entry.each.as_ref().and_then(|each| each.max_parallel) else { continue };
            let of_entry = open().filter(|attempt| plan.steps[attempt.step].entry == number);
            let items: BTreeSet<Option<u32>> = of_entry.map(|attempt| attempt.item).collect();
            if items.len() > most as usize {
                let items = items.len();
                findings
                    .add(format!("{items} items of entry {number} of {run} are open; the limit is {most}"));
            }
        }
    }
}

/// Checks that a host runs one fleet attempt at a time and at most `slots` placed ones, across restarts of its agent.
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
                    findings.add(format!(
                        "n{agent} runs {count} {what} at once when {id} starts; the limit is {most}"
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::change::About;
    use downbeat_core::execution::Execution;
    use downbeat_core::ids::ServerId;
    use downbeat_core::plan::resolve;
    use downbeat_core::run::RunMade;
    use downbeat_core::spec::Definition;
    use downbeat_core::work::Parent;
    use downbeat_store::conformance::make::{
        added, at, created, created_as, execution, execution_id, finished, granted, lease, made, made_as,
        origin, pending, run_id,
    };
    use serde_json::json;

    use super::*;

    fn found(limit: &str, changes: &[(u32, i64)], ended: Option<u32>) -> usize {
        let limits = || Some(Arc::new(Limits::from([("key".to_owned(), limit.parse().unwrap())])));
        let limited = |number| Execution { limits: limits(), ..execution(number, 1, pending()) };
        let mut all = vec![created(1), added(1, (1..=3).map(limited).collect())];
        for &(number, second) in changes {
            let lease = Lease { granted_at: at(second), ..lease(number, 1) };
            all.push(Change::ExecutionLeased {
                of: Parent::Run(run_id(1)),
                execution: execution_id(number),
                lease,
            });
            if ended == Some(number) {
                all.push(finished(1, number, number, downbeat_core::execution::Verdict::Succeeded));
            }
        }
        let events: Vec<Event> = (1..)
            .zip(all)
            .map(|(seq, change)| Event {
                seq,
                server: ServerId(Default::default()),
                about: About::default(),
                change,
            })
            .collect();
        let mut findings = Findings::of(Checker::Limits);
        named(&mut findings, &events);
        findings.found.len()
    }

    #[test]
    fn one_too_many_is_found() {
        for (limit, given, ended, expected) in [
            ("2", &[(1, 0), (2, 0)][..], None, 0),
            ("2", &[(1, 0), (2, 0), (3, 9)], None, 1),
            ("2", &[(1, 0), (2, 0), (3, 9)], Some(1), 0),
            ("1/1m", &[(1, 0), (2, 60)], None, 0),
            ("1/1m", &[(1, 0), (2, 59)], Some(1), 1),
            ("2/1m", &[(1, 0), (2, 30), (3, 60)], None, 0),
            ("2/1m", &[(1, 0), (2, 60), (3, 59)], None, 0),
        ] {
            assert_eq!(found(limit, given, ended), expected, "{limit} {given:?} {ended:?}");
        }
    }

    #[tokio::test]
    async fn the_order_of_leases_is_open_only_within_one_commit() {
        let task = |most: u32| {
            let placement = json!({"max_per_node": most});
            json!({"backend": "test", "action": "noop", "depends_on": [], "placement": placement})
        };
        let definition: Definition = serde_json::from_value(json!({"tasks": [task(2), task(1)]})).unwrap();
        let resolved = Arc::new(resolve(&definition, &definition.params, &[]).unwrap());
        let made = RunMade { definition: Arc::new(definition), resolved, ..made(1) };
        let placed = |number, step| Execution {
            of: origin(1, step, None),
            pinned: None,
            ..execution(number, 1, pending())
        };
        let before = || vec![created_as(made_as(made.clone())), added(1, vec![placed(1, 0), placed(2, 1)])];
        let (first, second) = (granted(1, 1, lease(1, 1)), granted(1, 2, lease(2, 1)));
        let count = async |commits: Vec<(i64, Vec<Change>)>| {
            let mut findings = Findings::of(Checker::Limits);
            per_node(&mut findings, &Evidence::of(commits).await);
            findings.found.len()
        };
        let together = vec![(0, before()), (1, vec![first.clone(), second.clone()])];
        assert_eq!(count(together).await, 0);
        // Two commits may have the same time.
        let apart = vec![(0, before()), (1, vec![first]), (1, vec![second])];
        assert_eq!(count(apart).await, 1);
    }
}
