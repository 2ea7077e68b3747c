//! Decides which executions a retry carries over from the first run, and on which nodes it runs.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;

use crate::dice::Dice;
use crate::execution::{Execution, Status};
use crate::ids::{ExecutionId, NodeId, RunId};
use crate::plan::{Each, EntryIx, Items, NodeIx, Plan, PlanEntry, Resolved};
use crate::run::{Instance, RunRecord, RunState};
use crate::spec::{Condition, Definition, Entry, Task};
use crate::work::Origin;

/// Which part of the first run the retry repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryScope {
    AllNodes,
    /// Only nodes on which something failed.
    FailedNodes,
    /// Also this entry and all that follow it, however they ended.
    From(EntryIx),
}

/// The start of the second run.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryStart<'a> {
    /// The nodes of the first run, or only those that failed.
    pub resolved: Resolved,
    /// Executions that succeeded and are not repeated.
    pub carried: Vec<&'a Execution>,
}

/// Why a run cannot be retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotRetry {
    #[error("run `{run}` has not ended: it is {state}; wait for its end, or cancel it")]
    NotEnded { run: RunId, state: RunState },
    #[error("run `{run}` completed, and nothing failed in it")]
    NothingFailed { run: RunId },
    #[error("run `{run}` has no failed node; retry it on all nodes")]
    NoFailedNode { run: RunId },
    #[error(
        "{task} did not finish, and none of its nodes failed, so a retry on the failed nodes would leave it out; retry \
         the run on all nodes"
    )]
    LeftOut { task: String },
}

/// Decides how a retry of `run` starts. `plan` is the plan of `run`, and `executions` are all of its executions.
pub fn retry_of<'a>(
    run: &RunRecord,
    plan: &Plan,
    executions: &'a [Execution],
    scope: RetryScope,
) -> Result<RetryStart<'a>, CannotRetry> {
    let id = || run.id.clone();
    if !run.live.is_ended() {
        return Err(CannotRetry::NotEnded { run: id(), state: run.state() });
    }
    let partial = run.live.end().is_some_and(|end| end.partial);
    if run.state() == RunState::Completed && !partial && !matches!(scope, RetryScope::From(_)) {
        return Err(CannotRetry::NothingFailed { run: id() });
    }
    let last = last_attempts(executions);
    let mut resolved = match scope {
        RetryScope::AllNodes | RetryScope::From(_) => (*run.resolved).clone(),
        RetryScope::FailedNodes => {
            let failed = || last.iter().filter(|(_, last)| instance_failed(last, run.state()));
            let nodes: HashSet<NodeId> = failed().filter_map(|(instance, _)| instance.node).collect();
            if failed().next().is_none() {
                return Err(CannotRetry::NoFailedNode { run: id() });
            }
            failed_nodes_only(plan, &nodes, &last)?
        }
    };
    if let Some(rollout) = &run.definition.rollout {
        let nodes = resolved.sets.first().map_or(0, Vec::len);
        resolved.waves = rollout.batch.waves(u32::try_from(nodes).expect("nodes are bounded"));
    }
    Ok(RetryStart { carried: carried_over(plan, &last, &resolved, scope), resolved })
}

/// Returns the executions that the second run does not repeat.
fn carried_over<'a>(
    plan: &Plan,
    last: &LastAttempts<'a>,
    resolved: &Resolved,
    scope: RetryScope,
) -> Vec<&'a Execution> {
    let kept: HashSet<NodeId> = resolved.nodes.iter().map(|node| node.id).collect();
    // An on-failure step may have undone earlier work on its node.
    let ran = |last: &Execution| last.state.status() != Status::Skipped;
    let answered = || last.iter().filter(|(of, last)| plan.runs_on_failure(of.step) && ran(last));
    let undone: HashSet<NodeId> = answered().filter_map(|(of, _)| of.node).collect();
    // Placed steps have no node: an on-failure step may have undone the walk that it was part of.
    let walk = |of: &Instance| (plan.steps[of.step].entry, of.item);
    let undone_walks: HashSet<_> =
        answered().filter(|(of, _)| of.node.is_none()).map(|(of, _)| walk(of)).collect();
    let repeated = match scope {
        RetryScope::From(entry) => entries_from(plan, entry),
        RetryScope::AllNodes | RetryScope::FailedNodes => HashSet::new(),
    };
    let is_carried = |of: &Instance, last: &Execution| {
        is_success(last)
            && !plan.runs_on_failure(of.step)
            && !repeated.contains(&plan.steps[of.step].entry)
            && match of.node {
                Some(node) => kept.contains(&node) && !undone.contains(&node),
                None => !undone_walks.contains(&walk(of)),
            }
    };
    let mut carried: Vec<(Instance, &Execution)> =
        last.iter().filter(|(of, last)| is_carried(of, last)).map(|(of, last)| (*of, *last)).collect();
    loop {
        let changed = entries_with_other_items(plan, last, &carried);
        let before = carried.len();
        carried.retain(|(of, _)| !changed.contains(&plan.steps[of.step].entry));
        if carried.len() == before {
            break;
        }
    }
    carried.sort_unstable_by_key(|(of, execution)| (of.step, execution.id));
    carried.into_iter().map(|(_, execution)| execution).collect()
}

impl RetryStart<'_> {
    /// Returns copies of the carried-over executions that belong to the second run.
    pub fn executions(&self, run: &RunId, now: Timestamp, dice: &mut Dice) -> Vec<Execution> {
        let own = |former: &Execution| Execution {
            id: ExecutionId(dice.uuid_at(now)),
            of: Origin::Step { run: run.clone(), step: former.step(), item: former.item() },
            attempt: 1,
            // The execution that really ran: it has the output.
            reused: Some(former.reused.unwrap_or(former.id)),
            // This copy does not run, so it uses no limits.
            limits: None,
            cache_key: None,
            failed_for_good: None,
            created_at: now,
            ..former.clone()
        };
        self.carried.iter().copied().map(own).collect()
    }
}

/// Returns whether an instance failed, judged by its last attempt that counts, in a run that ended as `run`. For instances without
/// [`Execution::failed_for_good`]: older releases did not record it.
pub fn has_failed(last: Status, attempt: u32, run: RunState) -> bool {
    match last {
        Status::Failed | Status::Lost => true,
        // Cancelling a run does not mean that its nodes failed.
        Status::Cancelled => attempt > 1 || run != RunState::Cancelled,
        Status::Pending | Status::Leased | Status::Running | Status::Succeeded | Status::Skipped => false,
    }
}

fn instance_failed(last: &Execution, run: RunState) -> bool {
    last.failed_for_good.is_some() || has_failed(last.state.status(), last.attempt, run)
}

fn is_success(execution: &Execution) -> bool {
    execution.state.status() == Status::Succeeded
}

type LastAttempts<'a> = HashMap<Instance, &'a Execution>;

/// Returns the last attempt of each instance that counts.
fn last_attempts(executions: &[Execution]) -> LastAttempts<'_> {
    let mut last = LastAttempts::new();
    for execution in executions.iter().filter(|execution| !execution.is_withdrawn()) {
        let newest = last.entry(Instance::of(execution)).or_insert(execution);
        if newest.attempt < execution.attempt {
            *newest = execution;
        }
    }
    last
}

/// Returns the entry with this name, or the one that contains a leaf with this name.
pub fn entry_named(definition: &Definition, name: &str) -> Option<EntryIx> {
    let is_meant = |entry: &Entry| {
        entry.name() == Some(name) || entry.leaves().iter().any(|task| task.name.as_deref() == Some(name))
    };
    definition.tasks.iter().position(is_meant).map(EntryIx::new)
}

/// Returns the steps that only run after failures.
pub fn on_failure_steps(definition: &Definition) -> BTreeSet<u32> {
    let leaves = definition.tasks.iter().flat_map(|entry| {
        let conditions = move |task: &Task| [entry.condition(), task.condition];
        entry.leaves().iter().map(move |task| conditions(task).contains(&Some(Condition::OnFailure)))
    });
    (0..).zip(leaves).filter(|(_, on_failure)| *on_failure).map(|(step, _)| step).collect()
}

/// Returns an entry and all entries that depend on it, directly or indirectly.
fn entries_from(plan: &Plan, entry: EntryIx) -> HashSet<EntryIx> {
    let mut follow = HashSet::from([entry]);
    let mut found = vec![entry];
    while let Some(entry) = found.pop() {
        found.extend(plan.entries[entry].before.iter().filter(|next| follow.insert(**next)));
    }
    follow
}

/// Returns the entries whose items come from repeated tasks: their list may be different.
fn entries_with_other_items(
    plan: &Plan,
    last: &LastAttempts<'_>,
    carried: &[(Instance, &Execution)],
) -> HashSet<EntryIx> {
    let is_other = |entry: &PlanEntry| {
        let Some(Each { items: Items::Expected(template), .. }) = &entry.each else { return false };
        let is_used = |of: &Instance| template.steps.iter().any(|(_, step)| *step == of.step);
        let had = last.keys().filter(|of| is_used(of)).count();
        had != carried.iter().filter(|(of, _)| is_used(of)).count()
    };
    let entries = (0..).map(EntryIx).zip(&plan.entries);
    entries.filter(|(_, entry)| is_other(entry)).map(|(entry, _)| entry).collect()
}

/// Returns the run's nodes without those that did not fail. An entry without failed nodes keeps its nodes if nothing
/// is left to do on them, or if it only runs after failures.
fn failed_nodes_only(
    plan: &Plan,
    failed: &HashSet<NodeId>,
    last: &LastAttempts<'_>,
) -> Result<Resolved, CannotRetry> {
    let resolved = &plan.resolved;
    let has_failed = |node: &NodeIx| failed.contains(&plan.node(*node).id);
    for (index, entry) in (0..).map(EntryIx).zip(&plan.entries) {
        let Some(nodes) = plan.nodes_of(index) else { continue };
        let succeeded = |step, node: &NodeIx| {
            let instance = Instance { step, node: Some(plan.node(*node).id), item: None };
            last.get(&instance).is_some_and(|last| is_success(last))
        };
        let mut wanted = entry.steps().filter(|step| !plan.runs_on_failure(*step));
        let mut done = || wanted.all(|step| nodes.iter().all(|node| succeeded(step, node)));
        if !nodes.iter().any(has_failed) && !entry.runs_on_failure() && !done() {
            let task = entry.name.clone().unwrap_or_else(|| plan.task(entry.first).label());
            return Err(CannotRetry::LeftOut { task });
        }
    }
    let kept = |set: &Vec<NodeIx>| {
        let failed: Vec<NodeIx> = set.iter().copied().filter(has_failed).collect();
        if failed.is_empty() { set.clone() } else { failed }
    };
    let sets: Vec<Vec<NodeIx>> = resolved.sets.iter().map(kept).collect();
    let used: BTreeSet<NodeIx> = sets.iter().flatten().copied().collect();
    let index: HashMap<NodeIx, NodeIx> = used.iter().copied().zip((0..).map(NodeIx)).collect();
    Ok(Resolved {
        nodes: used.iter().map(|node| plan.node(*node).clone()).collect(),
        sets: sets.iter().map(|set| set.iter().map(|node| index[node]).collect()).collect(),
        entries: resolved.entries.clone(),
        idempotent: resolved.idempotent.clone(),
        waves: Vec::new(),
        left_out: resolved.left_out.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::execution::{Lease, Outcome, State, Verdict};
    use crate::ids::{ClusterId, LeaseToken, ServerId, SessionId};
    use crate::plan::{NodeRef, SetIx, StepIx};
    use crate::run::{RunEnd, RunMade, RunStage};

    fn at() -> Timestamp {
        Timestamp::from_second(1_000).unwrap()
    }

    fn retry_of<'a>(
        run: &RunRecord,
        executions: &'a [Execution],
        scope: RetryScope,
    ) -> Result<RetryStart<'a>, CannotRetry> {
        let plan = Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved)).unwrap();
        super::retry_of(run, &plan, executions, scope)
    }

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    fn lease(number: u128) -> Lease {
        let (token, session) = (LeaseToken(Uuid::from_u128(7)), SessionId(Uuid::nil()));
        Lease { token, node: node(number), session, granted_at: at() }
    }

    fn outcome(verdict: Verdict) -> Outcome {
        let outputs = [("version".to_owned(), json!("1.2"))].into();
        Outcome {
            verdict,
            exit_code: Some(0),
            error: None,
            outputs,
            started_at: at(),
            finished_at: at(),
            received_at: None,
        }
    }

    fn state(status: &str, number: u128) -> State {
        let lease = lease(number);
        match status {
            "succeeded" => State::Succeeded { lease, outcome: outcome(Verdict::Succeeded) },
            "failed" => State::Failed { lease: Some(lease), outcome: None, error: None, at: at() },
            "given up" => State::Failed { lease: None, outcome: None, error: None, at: at() },
            "lost" => State::Lost { lease, started_at: None, reason: String::new(), at: at() },
            "skipped" => State::Skipped { reason: String::new(), at: at() },
            "cancelled" => State::Cancelled { lease: None, outcome: None, reason: String::new(), at: at() },
            other => panic!("{other}"),
        }
    }

    /// `(step, node or 0 when placed, attempt, status)`.
    fn executions(list: &[(u32, u128, u32, &str)]) -> Vec<Execution> {
        let make = |(number, &(step, on, attempt, status)): (u128, &(u32, u128, u32, &str))| Execution {
            id: ExecutionId(Uuid::from_u128(100 + number)),
            of: Origin::Step { run: RunId::from("first"), step, item: None },
            pinned: (on > 0).then(|| node(on)),
            attempt,
            params: None,
            reused: None,
            limits: None,
            cache_key: None,
            failed_for_good: None,
            created_at: at(),
            state: state(status, on),
        };
        (0..).zip(list).map(make).collect()
    }

    /// Creates a run with three nodes, which every entry with a target has.
    fn run(definition: serde_json::Value, state: RunState, partial: bool) -> RunRecord {
        let definition: Definition = serde_json::from_value(definition).unwrap();
        let placed = |entry: &Entry| entry.leaves()[0].placement.is_some();
        let entries = definition.tasks.iter().map(|entry| (!placed(entry)).then_some(SetIx(0))).collect();
        let nodes = (1..=3).map(|n| NodeRef { id: node(n), hostname: format!("web-0{n}") }).collect();
        let waves = definition.rollout.as_ref().map(|rollout| rollout.batch.waves(3)).unwrap_or_default();
        let resolved = Resolved {
            nodes,
            sets: vec![NodeIx::first(3).collect()],
            entries,
            idempotent: vec![StepIx(0)],
            waves,
            left_out: Vec::new(),
        };
        let made = RunMade {
            id: RunId::from("first"),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition: Arc::new(definition),
            resolved: Arc::new(resolved),
            params: Default::default(),
            retry_of: None,
            by: "ada".to_owned(),
            idempotency_key: None,
            created_at: at(),
            no_cache: false,
        };
        let mut run = RunRecord::new(made, ServerId(Uuid::nil()));
        let end = RunEnd { partial, error: None };
        run.live.stage = RunStage::of(state, false, Some((at(), end))).unwrap();
        run
    }

    fn task() -> serde_json::Value {
        json!({"backend": "test", "action": "noop"})
    }

    fn two_steps() -> serde_json::Value {
        json!({"target": "all", "tasks": [task(), task()]})
    }

    fn carried(second: &RetryStart<'_>) -> Vec<(u32, u128)> {
        let place = |e: &&Execution| (e.step(), e.pinned.map_or(0, |node| node.0.as_u128()));
        second.carried.iter().map(place).collect()
    }

    fn hostnames<'a>(second: &'a RetryStart<'_>) -> Vec<&'a str> {
        second.resolved.nodes.iter().map(|node| node.hostname.as_str()).collect()
    }

    #[test]
    fn only_what_ended_and_did_not_go_well_is_tried_again() {
        let cases = [
            (RunState::Running, false, Some("has not ended: it is running")),
            (RunState::Terminating, false, Some("has not ended")),
            (RunState::Completed, false, Some("nothing failed in it")),
            (RunState::Completed, true, None),
            (RunState::Failed, false, None),
            (RunState::Failed, true, None),
            (RunState::Cancelled, false, None),
        ];
        for (state, partial, refused) in cases {
            let run = run(two_steps(), state, partial);
            let answer = retry_of(&run, &[], RetryScope::AllNodes);
            match (answer, refused) {
                (Ok(second), None) => assert_eq!(second.resolved, *run.resolved, "{state} {partial}"),
                (Err(why), Some(words)) => assert!(why.to_string().contains(words), "{why}"),
                (answer, _) => panic!("{state} {partial}: {answer:?}"),
            }
        }
    }

    #[test]
    fn the_last_attempt_decides_what_is_taken_over() {
        let run = run(two_steps(), RunState::Failed, false);
        let list = executions(&[
            (0, 1, 1, "failed"),
            (0, 1, 2, "succeeded"),
            (0, 2, 1, "lost"),
            (0, 2, 2, "succeeded"),
            (0, 3, 1, "succeeded"),
            (1, 1, 1, "succeeded"),
            (1, 2, 1, "failed"),
            (1, 3, 1, "skipped"),
        ]);
        let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
        assert_eq!(carried(&second), [(0, 1), (0, 2), (0, 3), (1, 1)]);
        assert_eq!(hostnames(&second), ["web-01", "web-02", "web-03"]);
        let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
        assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 2)], vec!["web-02"]));
        assert_eq!(second.resolved.sets, [[NodeIx(0)]]);
        assert_eq!(second.resolved.entries, [Some(SetIx(0)), Some(SetIx(0))]);
    }

    #[test]
    fn a_node_failed_when_the_last_attempt_of_any_of_its_steps_did() {
        let cases = [
            ("failed", 1, RunState::Failed, true),
            ("given up", 1, RunState::Failed, true),
            ("lost", 1, RunState::Failed, true),
            ("skipped", 1, RunState::Failed, false),
            ("cancelled", 1, RunState::Failed, true),
            ("cancelled", 1, RunState::Cancelled, false),
            ("cancelled", 2, RunState::Cancelled, true),
            ("succeeded", 3, RunState::Failed, false),
        ];
        for (status, attempt, state, expected) in cases {
            let last = &executions(&[(0, 1, attempt, status)])[0];
            assert_eq!(instance_failed(last, state), expected, "{status} {attempt} {state}");
        }
    }

    #[test]
    fn what_answers_failures_is_never_taken_over_and_neither_is_what_it_may_have_undone() {
        let answer = json!({"backend": "test", "action": "noop", "condition": "on_failure"});
        let definition = json!({"target": "all", "tasks": [{"tasks": [task(), answer]}, answer]});
        let run = run(definition, RunState::Failed, false);
        let list = executions(&[
            (0, 1, 1, "succeeded"),
            (2, 1, 1, "succeeded"),
            (0, 2, 1, "succeeded"),
            (1, 2, 1, "lost"),
            (0, 3, 1, "succeeded"),
            (1, 3, 1, "skipped"),
            (2, 3, 1, "skipped"),
        ]);
        assert_eq!(carried(&retry_of(&run, &list, RetryScope::AllNodes).unwrap()), [(0, 3)]);
    }

    #[test]
    fn waves_are_made_of_the_nodes_that_are_left() {
        let rollout = json!({"batch": [1, 2]});
        let definition = json!({"target": "all", "rollout": rollout, "tasks": [task()]});
        let run = run(definition, RunState::Failed, false);
        assert_eq!(run.resolved.waves, [1, 3]);
        let list = executions(&[(0, 1, 1, "succeeded"), (0, 2, 1, "failed"), (0, 3, 1, "lost")]);
        assert_eq!(retry_of(&run, &list, RetryScope::AllNodes).unwrap().resolved.waves, [1, 3]);
        let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
        assert_eq!(
            (second.resolved.waves.as_slice(), hostnames(&second)),
            (&[1, 2][..], vec!["web-02", "web-03"])
        );
    }

    #[test]
    fn a_cancelled_run_without_failures_has_no_failed_nodes() {
        let run = run(two_steps(), RunState::Cancelled, false);
        let list = executions(&[(0, 1, 1, "succeeded"), (0, 2, 1, "cancelled")]);
        assert_eq!(
            retry_of(&run, &list, RetryScope::FailedNodes).unwrap_err(),
            CannotRetry::NoFailedNode { run: RunId::from("first") }
        );
        assert_eq!(carried(&retry_of(&run, &list, RetryScope::AllNodes).unwrap()), [(0, 1)]);
    }

    #[test]
    fn a_placed_step_belongs_to_no_node() {
        let placed = json!({"backend": "test", "action": "noop", "placement": {}});
        let run = run(json!({"target": "all", "tasks": [placed, task(), placed]}), RunState::Failed, false);
        let list = executions(&[(0, 0, 1, "succeeded"), (1, 2, 1, "failed"), (1, 1, 1, "succeeded")]);
        let second = retry_of(&run, &list, RetryScope::FailedNodes).unwrap();
        assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 0)], vec!["web-02"]));
    }

    #[test]
    fn an_entry_elsewhere_stays_whole_when_it_is_done_and_is_never_left_out_silently() {
        let mut run = run(two_steps(), RunState::Failed, false);
        let resolved = Arc::make_mut(&mut Arc::make_mut(&mut run.made).resolved);
        resolved.sets = vec![vec![NodeIx(0), NodeIx(1)], vec![NodeIx(2)]];
        resolved.entries = vec![Some(SetIx(1)), Some(SetIx(0))];
        let done = executions(&[(0, 3, 1, "succeeded"), (1, 1, 1, "failed"), (1, 2, 1, "succeeded")]);
        let second = retry_of(&run, &done, RetryScope::FailedNodes).unwrap();
        assert_eq!((carried(&second), hostnames(&second)), (vec![(0, 3)], vec!["web-01", "web-03"]));
        assert_eq!(second.resolved.sets, [[NodeIx(0)], [NodeIx(1)]]);
        let skipped = executions(&[(0, 3, 1, "failed"), (1, 1, 1, "skipped"), (1, 2, 1, "skipped")]);
        assert_eq!(
            retry_of(&run, &skipped, RetryScope::FailedNodes).unwrap_err(),
            CannotRetry::LeftOut { task: "test noop".to_owned() }
        );
    }

    #[test]
    fn what_is_taken_over_is_born_succeeded_and_says_what_it_was() {
        let run = run(two_steps(), RunState::Failed, false);
        let mut list = executions(&[(0, 1, 3, "succeeded"), (0, 2, 1, "succeeded"), (0, 3, 1, "failed")]);
        let original = ExecutionId(Uuid::from_u128(5));
        list[1].reused = Some(original);
        let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
        let (new, now) = (RunId::from("second"), Timestamp::from_second(2_000).unwrap());
        let carried = second.executions(&new, now, &mut Dice::new(1));
        assert_eq!(carried.len(), 2);
        for (own, former) in carried.iter().zip(&list) {
            assert_eq!((own.run(), own.attempt, own.created_at), (&new, 1, now));
            assert_eq!((&own.state, own.pinned), (&former.state, former.pinned));
            assert_ne!(own.id, former.id);
        }
        assert_eq!((carried[0].reused, carried[1].reused), (Some(list[0].id), Some(original)));
    }
}
