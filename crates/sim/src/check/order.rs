//! Checks the order of attempts by the feed: one attempt at a time, retries and resends only as the rules allow,
//! barriers, dependencies and conditions.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::plan::{Each, EntryIx, Items, PassIx, Plan, Shape, StepIx};
use downbeat_core::run::{RunState, StopCause, Stopped};
use downbeat_core::spec::{Condition, Delivery};
use downbeat_core::{Change, limits};

use super::attempts::{Attempt, AttemptLog, Instance, instance_of};
use super::evidence::Evidence;
use super::{Checker, Findings};

/// Checks that a step never has two open attempts, and that each new attempt has a reason.
pub(super) fn attempts(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Attempts);
    let mut log = AttemptLog::default();
    for event in &evidence.events {
        if let Change::ExecutionsAdded { run, executions, .. } = &event.change {
            let mut before: BTreeMap<Instance, Vec<&Attempt>> = BTreeMap::new();
            for attempt in log.of(run) {
                before.entry(attempt.instance()).or_default().push(attempt);
            }
            for execution in executions {
                let former = before.get(&instance_of(execution)).map_or(&[][..], Vec::as_slice);
                one_after_the_other(&mut findings, execution, former);
                // Other reasons hold for standing tasks; `standing` checks them.
                if run.is_standing() {
                    continue;
                }
                for_a_reason(&mut findings, &evidence.plans[run], execution, former);
            }
        }
        log.apply(event);
        if let Change::RunMoved { run, path, .. } = &event.change
            && path.last().copied().is_some_and(RunState::is_terminal)
        {
            check_complete(&mut findings, &evidence.plans[run], run, &log);
        }
    }
    findings
}

fn one_after_the_other(findings: &mut Findings, execution: &Execution, former: &[&Attempt]) {
    let (id, step) = (execution.id, execution.step());
    if let Some(open) = former.iter().find(|attempt| attempt.is_open()) {
        let number = open.number;
        findings.add(format!(
            "{id}, attempt {} of step {step}, is added while attempt {number} is {}",
            execution.attempt, open.status
        ));
    }
    let last = former.iter().map(|attempt| attempt.number).max().unwrap_or(0);
    if execution.attempt != last + 1 {
        findings.add(format!("{id} is attempt {} of step {step} after {last}", execution.attempt));
    }
}

fn for_a_reason(findings: &mut Findings, plan: &Plan, execution: &Execution, former: &[&Attempt]) {
    let Some(last) = former.last() else { return };
    let (id, step) = (execution.id, StepIx(execution.step()));
    if former.iter().any(|attempt| attempt.is_final) {
        findings.add(format!("{id} is retried although step {step} failed for good"));
    }
    let count = |statuses: &[Status]| {
        u32::try_from(former.iter().filter(|each| statuses.contains(&each.status)).count())
            .unwrap_or(u32::MAX)
    };
    match last.status {
        Status::Failed => {
            let allowed = plan.task(step).retry.map_or(0, |rule| rule.max);
            let failed = count(&[Status::Failed]);
            if failed > allowed {
                findings.add(format!("{id} is retried after {failed} failures; {allowed} are allowed"));
            }
        }
        Status::Lost | Status::Cancelled => {
            let lost = count(&[Status::Lost, Status::Cancelled]);
            if plan.steps[step].delivery == Delivery::AtMostOnce {
                findings.add(format!("{id} is resent, but step {step} runs at most once"));
            } else if lost > limits::RESENDS_AFTER_LOSS {
                findings.add(format!("{id} is resent after {lost} losses"));
            }
        }
        Status::Succeeded | Status::Skipped => {
            findings.add(format!("{id} is retried after an attempt that is {}", last.status));
        }
        // Reported above.
        Status::Pending | Status::Leased | Status::Running => {}
    }
}

/// Checks that a run that ended has nothing open, and a record of every instance.
fn check_complete(findings: &mut Findings, plan: &Plan, run: &RunId, log: &AttemptLog) {
    let (mut instances, mut carried): (BTreeSet<Instance>, BTreeSet<Instance>) = Default::default();
    for attempt in log.of(run) {
        if attempt.is_open() {
            let (step, status) = (attempt.step, attempt.status);
            findings.add(format!("{run} ended while an attempt of step {step} is {status}"));
        }
        instances.insert(attempt.instance());
        if attempt.is_carried {
            carried.insert(attempt.instance());
        }
    }
    for (number, entry) in (0..).map(EntryIx).zip(&plan.entries) {
        let of_entry = |(_, step, _, _): &&Instance| plan.steps[*step].entry == number;
        let recorded: Vec<&Instance> = instances.iter().filter(of_entry).collect();
        let length = entry.length as usize;
        // An entry that is skipped before it starts has no items, except those that were carried over.
        let is_skipped = recorded.iter().any(|(_, _, _, item)| item.is_none());
        let expected = match (&entry.each, plan.nodes_of(number)) {
            (Some(_), _) if is_skipped => length + carried.iter().filter(of_entry).count(),
            (Some(each), _) => length * known(each),
            (_, Some(nodes)) => length * nodes.len(),
            (_, None) => length,
        };
        if recorded.len() != expected {
            let recorded = recorded.len();
            findings.add(format!(
                "{run} ended with records of {recorded} instances of entry {number}; it has {expected}"
            ));
        }
    }
}

/// Returns the number of items. The jobs of the simulation always list them.
fn known(each: &Each) -> usize {
    match &each.items {
        Items::Known(items) => items.len(),
        Items::Expected(_) => unreachable!("the simulation's jobs list their items"),
    }
}

/// Checks that no attempt starts before its dependencies have ended, and only if its condition is met.
pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Order);
    let mut log = AttemptLog::default();
    let mut cleaning_up: BTreeSet<&RunId> = BTreeSet::new();
    for event in &evidence.events {
        if let Change::RunMoved { run, stop: Some(Stopped { cause, .. }), .. } = &event.change {
            match cause {
                StopCause::CleaningUp => cleaning_up.insert(run),
                StopCause::TimedOut | StopCause::Rejected => cleaning_up.remove(run),
            };
        }
        let Change::ExecutionsAdded { run, executions, .. } = &event.change else {
            log.apply(event);
            continue;
        };
        // One by one: an attempt that is added as failed is the reason for later ones in the same change.
        for execution in executions {
            // An attempt that is reused from another run does not start here.
            let starts = execution.state.status() != Status::Skipped && execution.reused.is_none();
            if starts && !run.is_standing() {
                let attempts: Vec<&Attempt> = log.of(run).collect();
                let cleans_up = cleaning_up.contains(run);
                begins(&mut findings, &evidence.plans[run], execution, &attempts, cleans_up);
            }
            log.add(run, execution);
        }
    }
    findings
}

fn begins(
    findings: &mut Findings,
    plan: &Plan,
    execution: &Execution,
    attempts: &[&Attempt],
    cleans_up: bool,
) {
    let number = StepIx(execution.step());
    let step = &plan.steps[number];
    let entry = &plan.entries[step.entry];
    let id = execution.id;
    let own = pass_of(plan, number, execution.pinned);
    let pass = &plan.passes[own];
    let in_pass = |attempt: &Attempt, pass: PassIx| pass_of(plan, attempt.step, attempt.pinned) == pass;
    for &before in &pass.after {
        for open in attempts.iter().filter(|attempt| in_pass(attempt, before) && attempt.is_open()) {
            let (earlier, later) = (open.step, execution.step());
            findings.add(format!("{id} of step {later} starts while step {earlier} is {}", open.status));
        }
    }
    for &after in &pass.before {
        let began = |attempt: &&&Attempt| {
            in_pass(attempt, after) && attempt.status != Status::Skipped && !attempt.is_reused
        };
        if let Some(later) = attempts.iter().find(began) {
            findings.add(format!("{id} of step {} starts after step {}", execution.step(), later.step));
        }
    }
    let on_this_node = |attempt: &&&Attempt| {
        in_pass(attempt, own) && attempt.pinned == execution.pinned && attempt.item == execution.item()
    };
    for leaf in attempts.iter().filter(on_this_node) {
        if leaf.step < number && leaf.is_open() {
            findings.add(format!("{id} starts while leaf {} of its branch is {}", leaf.step, leaf.status));
        }
    }
    let is_first = !attempts.iter().any(|attempt| in_pass(attempt, own));
    if let (Some(wave), Some(budget), true) = (pass.wave, plan.budget(), is_first) {
        let begun =
            |attempt: &&&Attempt| plan.passes[pass_of(plan, attempt.step, attempt.pinned)].wave == pass.wave;
        let failed = failed_nodes(plan, attempts);
        if failed > budget && !attempts.iter().any(|attempt| begun(&attempt)) {
            findings.add(format!(
                "{id} starts wave {wave} after {failed} nodes failed; max_failures is {budget}"
            ));
        }
    }
    if is_first && !met(plan, step.entry, attempts, cleans_up) {
        let condition = entry.condition;
        findings.add(format!("{id} of step {} starts although {condition:?} is not met", execution.step()));
    }
}

fn pass_of(plan: &Plan, step: StepIx, node: Option<NodeId>) -> PassIx {
    let entry = plan.steps[step].entry;
    let has = |pass: PassIx| {
        let nodes = plan.nodes_of_pass(pass);
        nodes.is_none_or(|nodes| nodes.iter().any(|index| Some(plan.node(*index).id) == node))
    };
    let mut passes = (0..).map(PassIx).zip(&plan.passes);
    let own = passes.find(|(pass, of)| of.entry == entry && has(*pass));
    own.expect("every instance belongs to a pass").0
}

/// Returns whether a step only runs after a failure.
fn handles_failures(plan: &Plan, step: StepIx) -> bool {
    let step = &plan.steps[step];
    [step.condition, plan.entries[step.entry].condition].contains(&Some(Condition::OnFailure))
}

/// Returns how many nodes failed for good in a step without a failure handler.
fn failed_nodes(plan: &Plan, attempts: &[&Attempt]) -> u32 {
    let ends = last(attempts.iter().copied().filter(|attempt| !handles_failures(plan, attempt.step)));
    let failed = ends.iter().filter(|(_, status)| is_failed(**status));
    let nodes: BTreeSet<Option<NodeId>> = failed.map(|((_, _, node, _), _)| *node).collect();
    u32::try_from(nodes.len()).expect("nodes are bounded")
}

/// Returns the status of each instance.
fn last<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> BTreeMap<Instance, Status> {
    let mut last = BTreeMap::new();
    for attempt in attempts {
        // A withdrawn retry leaves the failure before it in force.
        let withdrawn = attempt.status == Status::Skipped && attempt.number > 1;
        last.insert(attempt.instance(), if withdrawn { Status::Failed } else { attempt.status });
    }
    last
}

fn is_failed(status: Status) -> bool {
    matches!(status, Status::Failed | Status::Lost | Status::Cancelled)
}

/// The result of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed,
    Skipped,
    /// It would have run if nothing had failed.
    SkippedAfterFailure,
}

impl End {
    fn is_failure(self) -> bool {
        matches!(self, End::Failed | End::SkippedAfterFailure)
    }
}

/// Returns the result of each entry of a graph. Only the results of entries that have ended mean anything.
fn ends(plan: &Plan, attempts: &[&Attempt]) -> BTreeMap<EntryIx, End> {
    let mut ends = BTreeMap::new();
    while ends.len() < plan.entries.len() {
        for (number, entry) in (0..).map(EntryIx).zip(&plan.entries) {
            let before: Option<Vec<End>> =
                entry.after.iter().map(|before| ends.get(before).copied()).collect();
            let Some(before) = before else { continue };
            ends.insert(
                number,
                match end(plan, number, attempts) {
                    End::Skipped if follows_failure(plan, number, &before) => End::SkippedAfterFailure,
                    end => end,
                },
            );
        }
    }
    ends
}

/// Returns whether an entry that was skipped would have run if nothing had failed. `before` are the results of its
/// dependencies.
fn follows_failure(plan: &Plan, number: EntryIx, before: &[End]) -> bool {
    let entry = &plan.entries[number];
    if entry.steps().all(|step| handles_failures(plan, step)) {
        return false;
    }
    let is_due = match entry.condition {
        Some(Condition::Always) => true,
        Some(Condition::OnFailure) => false,
        Some(Condition::OnSuccess) | None => before.iter().all(|end| *end == End::Succeeded),
    };
    is_due || before.iter().any(|end| end.is_failure())
}

fn end(plan: &Plan, entry: EntryIx, attempts: &[&Attempt]) -> End {
    let of_entry = || attempts.iter().copied().filter(|each| plan.steps[each.step].entry == entry);
    let last = last(of_entry());
    let each = plan.entries[entry].each.as_ref();
    let is_skipped = last.values().any(|status| *status == Status::Skipped);
    if last.values().any(|status| is_failed(*status)) {
        End::Failed
    } else if last.is_empty() && each.is_some_and(|each| known(each) == 0) {
        // There was nothing to do.
        End::Succeeded
    } else if of_entry().any(|each| each.status == Status::Succeeded && !(each.is_carried && is_skipped)) {
        // Results of another run make no difference if the rest was skipped.
        End::Succeeded
    } else {
        End::Skipped
    }
}

fn met(plan: &Plan, number: EntryIx, attempts: &[&Attempt], cleans_up: bool) -> bool {
    let entry = &plan.entries[number];
    match plan.shape {
        Shape::Graph => {
            let all = ends(plan, attempts);
            let mut ends = entry.after.iter().map(|before| all[before]);
            match entry.condition {
                Some(Condition::Always) => true,
                Some(Condition::OnFailure) => ends.any(End::is_failure),
                Some(Condition::OnSuccess) | None => ends.all(|end| end == End::Succeeded),
            }
        }
        Shape::List => {
            let any_failed = |first: usize| {
                let mut entries = (0..).map(EntryIx).zip(&plan.entries).take(first);
                entries.any(|(entry, _)| end(plan, entry, attempts) == End::Failed)
            };
            match entry.condition {
                // In a rollout, the earlier waves have run all entries.
                Some(Condition::OnSuccess) if plan.definition.rollout.is_some() => !any_failed(usize::MAX),
                Some(Condition::OnSuccess) => !any_failed(number.get()),
                Some(Condition::OnFailure) => cleans_up || any_failed(number.get()),
                Some(Condition::Always) | None => true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use downbeat_core::execution::{State, Verdict};
    use downbeat_core::plan::resolve;
    use downbeat_core::run::RunMade;
    use downbeat_core::spec::Definition;
    use downbeat_store::conformance::make;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_on_failure_step_does_not_start_for_a_failure_elsewhere() {
        use Status::{Failed, Skipped, Succeeded};
        let task = |name: &str, after: &[&str], condition: &str| {
            let (backend, action) = ("test", "noop");
            json!({"name": name, "backend": backend, "action": action, "depends_on": after, "condition": condition})
        };
        let tasks = json!([
            task("elsewhere", &[], "always"),
            task("handler", &["elsewhere"], "on_failure"),
            task("first", &[], "always"),
            task("middle", &["first"], "on_success"),
            task("unneeded", &["handler"], "on_success"),
            task("last", &["middle"], "on_failure"),
            task("late", &["unneeded"], "on_failure"),
        ]);
        let definition: Definition = serde_json::from_value(json!({"tasks": tasks})).unwrap();
        let resolved = resolve(&definition, &definition.params, &[]).unwrap();
        let plan = Plan::compile(Arc::new(definition), Arc::new(resolved)).unwrap();
        let is_met = |entry: u32, statuses: &[Status]| {
            let attempt = |(step, status): (u32, &Status)| Attempt {
                run: RunId::from("run"),
                step: StepIx(step),
                pinned: None,
                item: None,
                number: 1,
                status: *status,
                lease: None,
                is_reused: false,
                is_carried: false,
                is_final: false,
            };
            let attempts: Vec<Attempt> = (0..).zip(statuses).map(attempt).collect();
            met(&plan, EntryIx(entry), &attempts.iter().collect::<Vec<_>>(), false)
        };
        // `middle` was skipped because its dependency failed, or by fail-fast.
        assert!(is_met(5, &[Succeeded, Skipped, Failed, Skipped, Skipped]));
        assert!(is_met(5, &[Failed, Succeeded, Succeeded, Skipped, Skipped]));
        assert!(!is_met(5, &[Failed, Succeeded, Succeeded, Succeeded, Skipped]));
        // `unneeded` was skipped because `handler` was, whatever else failed.
        assert!(!is_met(6, &[Succeeded, Skipped, Failed, Skipped, Skipped]));
        assert!(is_met(6, &[Failed, Succeeded, Succeeded, Skipped, Skipped]));
    }

    #[tokio::test]
    async fn an_on_failure_step_starts_without_a_failure_only_to_clean_up() {
        let undo = json!({"backend": "test", "action": "noop", "condition": "on_failure"});
        let tasks = json!([{"backend": "test", "action": "noop"}, undo]);
        let definition: Definition = serde_json::from_value(json!({"tasks": tasks})).unwrap();
        let resolved = Arc::new(resolve(&definition, &definition.params, &[]).unwrap());
        let made = RunMade { definition: Arc::new(definition), resolved, ..make::made(1) };
        let placed = |number, step| Execution {
            of: make::origin(1, step, None),
            pinned: None,
            ..make::execution(number, 1, make::pending())
        };
        for (cause, expected) in [(StopCause::CleaningUp, 0), (StopCause::Rejected, 1)] {
            let terminating = Change::RunMoved {
                room: None,
                run: make::run_id(1),
                epoch: 1,
                path: vec![RunState::Terminating],
                stop: Some(Stopped { cause, at: make::at(2) }),
                end: None,
                at: make::at(2),
            };
            let changes = vec![
                make::created_as(make::made_as(made.clone())),
                make::added(1, vec![placed(1, 0)]),
                make::granted(1, 1, make::lease(1, 1)),
                make::finished(1, 1, 1, Verdict::Succeeded),
                terminating,
                make::added(1, vec![placed(2, 1)]),
            ];
            let found = check(&Evidence::of(vec![(0, changes)]).await).found;
            assert_eq!(found.len(), expected, "{cause:?}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_skipped_task_has_only_the_items_that_were_carried_over() {
        let each = json!({"backend": "test", "action": "noop", "for_each": {"items": [0, 1, 2]}});
        let definition: Definition = serde_json::from_value(json!({"tasks": [each]})).unwrap();
        let resolved = Arc::new(resolve(&definition, &definition.params, &[]).unwrap());
        let made = RunMade { definition: Arc::new(definition), resolved, ..make::made(1) };
        let of = |number, item, state| Execution {
            of: make::origin(1, 0, item),
            pinned: None,
            ..make::execution(number, 1, state)
        };
        let succeeded =
            State::Succeeded { lease: Some(make::lease(1, 1)), outcome: make::outcome(Verdict::Succeeded) };
        let carried = |number, item| Execution {
            reused: Some(make::execution_id(9)),
            ..of(number, Some(item), succeeded.clone())
        };
        let skipped = of(5, None, State::Skipped { reason: String::new(), at: make::at(1) });
        for (executions, expected) in [
            (vec![carried(1, 1), skipped.clone()], 0),
            (vec![carried(1, 0), carried(2, 1), carried(3, 2)], 0),
            (vec![carried(1, 0), carried(2, 1)], 1),
        ] {
            let ended = make::moved(1, &[RunState::Terminating, RunState::Failed], 2);
            let created = make::created_as(make::made_as(made.clone()));
            let changes = vec![created, make::added(1, executions), ended];
            let found = attempts(&Evidence::of(vec![(0, changes)]).await).found;
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }
}
