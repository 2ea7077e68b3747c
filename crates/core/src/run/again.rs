//! Decides which executions a retry carries over from the first run, and on which nodes it runs. It does again what did
//! not succeed, and everything that depends on that: only results whose inputs did not change are carried over.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;

use crate::dice::Dice;
use crate::execution::{Execution, Status};
use crate::ids::{ExecutionId, NodeId, RunId};
use crate::plan::{Each, EntryIx, ItemIx, Items, NodeIx, Plan, Resolved, RetryScope, Shape, StepIx};
use crate::run::{Instance, RunRecord, RunState};
use crate::spec::{Condition, Definition, Entry, Task};
use crate::work::Origin;

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
    resolved.retry = Some(scope);
    Ok(RetryStart { carried: carried_over(plan, &last, &resolved, scope), resolved })
}

/// Returns the executions that `second`, a retry whose results were carried over only in part, still has to carry over.
/// `plan` is the plan of the first run, `executions` are those of the first run, and `own` are those of `second`.
pub fn left_to_carry<'a>(
    second: &RunRecord,
    plan: &Plan,
    executions: &'a [Execution],
    own: &[Execution],
) -> Option<RetryStart<'a>> {
    let (scope, resolved) = (second.resolved.retry?, (*second.resolved).clone());
    let mut carried = carried_over(plan, &last_attempts(executions), &resolved, scope);
    let has: HashSet<Instance> = own.iter().map(Instance::of).collect();
    carried.retain(|execution| !has.contains(&Instance::of(execution)));
    Some(RetryStart { resolved, carried })
}

/// Returns the executions that the second run does not repeat.
fn carried_over<'a>(
    plan: &Plan,
    last: &LastAttempts<'a>,
    resolved: &Resolved,
    scope: RetryScope,
) -> Vec<&'a Execution> {
    let repeated = match scope {
        RetryScope::From(entry) => entries_from(plan, entry),
        RetryScope::AllNodes | RetryScope::FailedNodes => HashSet::new(),
    };
    let undone = Undone::of(plan, last);
    let mut redone = Redone::new(plan);
    let mut carried: Vec<&Execution> = Vec::new();
    for (entry, walks) in walks_by_entry(plan, last, resolved) {
        let has_other_items = redone.has_other_items(entry);
        let mut again_here = Walks::default();
        for walk in walks {
            let is_repeated = repeated.contains(&entry) || undone.contains(entry, walk);
            let mut again = has_other_items || redone.precedes(entry, walk);
            for step in plan.entries[entry].steps() {
                let last = last.get(&Instance { step, node: walk.node, item: walk.item });
                if plan.runs_on_failure(step) {
                    // It runs again only after a failure. Until then only its outputs are missing.
                    redone.steps[step.get()].add_if(again || last.is_some_and(|last| has_run(last)), walk);
                    continue;
                }
                again |= is_repeated
                    || !last.is_some_and(|last| is_success(last))
                    || redone.is_read_by(step, walk);
                redone.steps[step.get()].add_if(again, walk);
                carried.extend(last.filter(|_| !again));
            }
            again_here.add_if(again, walk);
        }
        redone.add(entry, again_here);
    }
    carried.sort_unstable_by_key(|execution| (execution.step(), execution.id));
    carried
}

/// A node, an item, or the only sequence through the leaves of a placed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    node: Option<NodeId>,
    item: Option<ItemIx>,
}

/// Returns the entries with their walks in the first run, as far as the second has them. Each entry comes after those
/// that it depends on.
fn walks_by_entry(
    plan: &Plan,
    last: &LastAttempts<'_>,
    resolved: &Resolved,
) -> impl Iterator<Item = (EntryIx, Vec<Walk>)> {
    // With the failed nodes only, a node may stay in one entry and leave another.
    let ids = |set: &Vec<NodeIx>| set.iter().map(|node| resolved.nodes[*node].id).collect();
    let kept: Vec<HashSet<NodeId>> = resolved.sets.iter().map(ids).collect();
    // The records show which items there were, and whether an entry was skipped before it had any.
    let mut recorded: HashMap<EntryIx, HashSet<Walk>> = HashMap::new();
    for of in last.keys() {
        let entry = plan.steps[of.step].entry;
        if plan.entries[entry].each.is_some() {
            recorded.entry(entry).or_default().insert(Walk { node: of.node, item: of.item });
        }
    }
    in_order(plan).into_iter().map(move |entry| {
        let walks = match plan.nodes_of(entry) {
            Some(nodes) => {
                let kept = resolved.entries[entry.get()].map(|set| &kept[set.get()]);
                let is_kept = |node: &NodeId| kept.is_some_and(|kept| kept.contains(node));
                let nodes = nodes.iter().map(|node| plan.node(*node).id).filter(is_kept);
                nodes.map(|node| Walk { node: Some(node), item: None }).collect()
            }
            None if plan.entries[entry].each.is_some() => {
                recorded.remove(&entry).into_iter().flatten().collect()
            }
            None => vec![Walk { node: None, item: None }],
        };
        (entry, walks)
    })
}

/// Returns the entries, each after those that it depends on.
fn in_order(plan: &Plan) -> Vec<EntryIx> {
    let mut missing: Vec<usize> = plan.entries.iter().map(|entry| entry.after.len()).collect();
    let entries = (0..).map(EntryIx).zip(&missing);
    let mut order: Vec<EntryIx> =
        entries.filter(|(_, missing)| **missing == 0).map(|(entry, _)| entry).collect();
    let mut next = 0;
    while let Some(&entry) = order.get(next) {
        next += 1;
        for &after in &plan.entries[entry].before {
            missing[after.get()] -= 1;
            if missing[after.get()] == 0 {
                order.push(after);
            }
        }
    }
    order
}

/// Walks of which an on-failure step may have undone the work.
struct Undone {
    nodes: HashSet<NodeId>,
    /// Placed steps have no node: only the walk that the on-failure step was part of.
    placed: HashSet<(EntryIx, Option<ItemIx>)>,
}

impl Undone {
    fn of(plan: &Plan, last: &LastAttempts<'_>) -> Self {
        let ran = last.iter().filter(|(of, last)| plan.runs_on_failure(of.step) && has_run(last));
        let mut undone = Self { nodes: HashSet::new(), placed: HashSet::new() };
        for (of, _) in ran {
            match of.node {
                Some(node) => undone.nodes.insert(node),
                None => undone.placed.insert((plan.steps[of.step].entry, of.item)),
            };
        }
        undone
    }

    fn contains(&self, entry: EntryIx, walk: Walk) -> bool {
        match walk.node {
            Some(node) => self.nodes.contains(&node),
            None => self.placed.contains(&(entry, walk.item)),
        }
    }
}

/// Some walks of an entry or a step.
#[derive(Clone, Debug, Default)]
struct Walks {
    nodes: HashSet<NodeId>,
    items: HashSet<ItemIx>,
    /// The only walk of a placed entry.
    only: bool,
}

impl Walks {
    fn add_if(&mut self, is_member: bool, walk: Walk) {
        match walk {
            _ if !is_member => {}
            Walk { node: Some(node), .. } => {
                self.nodes.insert(node);
            }
            Walk { item: Some(item), .. } => {
                self.items.insert(item);
            }
            Walk { .. } => self.only = true,
        }
    }

    fn any(&self) -> bool {
        self.any_placed() || !self.nodes.is_empty()
    }

    fn any_placed(&self) -> bool {
        self.only || !self.items.is_empty()
    }
}

/// What the second run does again, as far as it is decided.
struct Redone<'p> {
    plan: &'p Plan,
    /// The nodes of each set of the plan.
    sets: Vec<HashSet<NodeId>>,
    entries: Vec<Walks>,
    /// All entries so far.
    all: Walks,
    /// The instances of each step whose outputs may be different.
    steps: Vec<Walks>,
}

impl<'p> Redone<'p> {
    fn new(plan: &'p Plan) -> Self {
        let ids = |set: &Vec<NodeIx>| set.iter().map(|node| plan.node(*node).id).collect();
        Self {
            plan,
            sets: plan.resolved.sets.iter().map(ids).collect(),
            entries: vec![Walks::default(); plan.entries.len()],
            all: Walks::default(),
            steps: vec![Walks::default(); plan.steps.len()],
        }
    }

    fn add(&mut self, entry: EntryIx, walks: Walks) {
        self.all.nodes.extend(&walks.nodes);
        self.all.items.extend(&walks.items);
        self.all.only |= walks.only;
        self.entries[entry.get()] = walks;
    }

    /// Returns whether a walk depends on something that is done again. In a list, the steps of a node depend on its own
    /// earlier steps and on placed ones; placed steps depend on everything before them. In a graph, a task on a node
    /// depends on the same node, if its dependency has it, and otherwise on the whole dependency.
    fn precedes(&self, entry: EntryIx, walk: Walk) -> bool {
        match (self.plan.shape, walk.node) {
            (Shape::List, None) => self.all.any(),
            (Shape::List, Some(node)) => self.all.any_placed() || self.all.nodes.contains(&node),
            (Shape::Graph, node) => self.plan.entries[entry].after.iter().any(|before| {
                let redone = &self.entries[before.get()];
                let set = self.plan.entries[*before].set.map(|set| &self.sets[set.get()]);
                match node.filter(|node| set.is_some_and(|set| set.contains(node))) {
                    Some(node) => redone.nodes.contains(&node),
                    None => redone.any(),
                }
            }),
        }
    }

    /// Returns whether the items of an entry come from steps that are done again: the list may be different.
    fn has_other_items(&self, entry: EntryIx) -> bool {
        match &self.plan.entries[entry].each {
            Some(Each { items: Items::Expected(template), .. }) => {
                template.steps.iter().any(|(_, used)| self.steps[used.get()].any())
            }
            Some(_) | None => false,
        }
    }

    /// Returns whether an expression of a step reads outputs that may be different.
    fn is_read_by(&self, step: StepIx, walk: Walk) -> bool {
        let own = &self.plan.steps[step];
        let templates = own.params.iter().chain(&own.keys);
        let mut reads = templates
            .flat_map(|template| template.steps.iter().map(|(_, used)| (*used, template.step_nodes)));
        reads.any(|(used, all_nodes)| {
            let (redone, theirs) = (&self.steps[used.get()], self.plan.steps[used].entry);
            match walk {
                Walk { item: Some(item), .. } if theirs == own.entry => redone.items.contains(&item),
                Walk { node: Some(node), .. } if !all_nodes => {
                    redone.any_placed()
                        || redone.nodes.contains(&node)
                        || self.is_single(theirs) && redone.any()
                }
                Walk { .. } => redone.any(),
            }
        })
    }

    fn is_single(&self, entry: EntryIx) -> bool {
        self.plan.nodes_of(entry).is_some_and(|nodes| nodes.len() == 1)
    }
}

impl RetryStart<'_> {
    /// Returns copies of the carried-over executions that belong to the second run.
    pub fn executions(&self, run: &RunId, now: Timestamp, dice: &mut Dice) -> Vec<Execution> {
        let own = |former: &Execution| Execution {
            id: ExecutionId(dice.uuid_at(now)),
            of: Origin::Step { run: run.clone(), step: former.step(), item: former.item() },
            attempt: 1,
            former: None,
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

/// Returns whether an attempt was made: it was not only recorded as skipped.
fn has_run(last: &Execution) -> bool {
    last.state.status() != Status::Skipped
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
        retry: None,
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
    use crate::plan::{NodeRef, SetIx};
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
            former: None,
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
            retry: None,
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
            request_hash: None,
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
    fn all_that_depends_on_what_is_done_again_is_done_again() {
        let with = |mut task: serde_json::Value, more: serde_json::Value| {
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            task
        };
        let placed = || json!({"backend": "test", "action": "noop", "placement": {}});
        let named = |name: &str| with(task(), json!({"name": name, "outputs": ["v"]}));
        let reads = |what: &str| json!({"backend": "test", "action": "echo", "params": {"message": what}});
        let list =
            |tasks: &[serde_json::Value]| json!({"target": "all", "strategy": "continue", "tasks": tasks});
        let all = |step: u32| [1, 2, 3].map(|node| (step, node, 1, "succeeded"));
        let but_two =
            |step: u32| [(step, 1, 1, "succeeded"), (step, 2, 1, "failed"), (step, 3, 1, "succeeded")];
        let always = json!({"depends_on": ["a"], "condition": "always"});
        let graph = |rest: serde_json::Value| {
            let first = with(named("a"), json!({"depends_on": []}));
            json!({"target": "all", "strategy": "continue", "tasks": [first, rest]})
        };
        let cases = [
            // A node's later steps depend on its earlier ones, also when they succeeded.
            (list(&[task(), task()]), [but_two(0), all(1)].concat(), vec![(0, 1), (0, 3), (1, 1), (1, 3)]),
            // Every step depends on earlier placed ones, and placed ones on everything.
            (list(&[placed(), task()]), [vec![(0, 0, 1, "failed")], all(1).to_vec()].concat(), vec![]),
            (
                list(&[task(), placed()]),
                [but_two(0).to_vec(), vec![(1, 0, 1, "succeeded")]].concat(),
                vec![(0, 1), (0, 3)],
            ),
            // Outputs of the same node are the same; those of all nodes are not.
            (
                list(&[named("a"), reads("{{ steps.a.outputs.v }}")]),
                [but_two(0), all(1)].concat(),
                vec![(0, 1), (0, 3), (1, 1), (1, 3)],
            ),
            (
                list(&[named("a"), reads("{{ steps.a.nodes['web-02'].outputs.v }}")]),
                [but_two(0), all(1)].concat(),
                vec![(0, 1), (0, 3)],
            ),
            // In a graph it is the same node, or the whole task.
            (
                graph(with(task(), always.clone())),
                [but_two(0), all(1)].concat(),
                vec![(0, 1), (0, 3), (1, 1), (1, 3)],
            ),
            (
                graph(with(placed(), always.clone())),
                [but_two(0).to_vec(), vec![(1, 0, 1, "succeeded")]].concat(),
                vec![(0, 1), (0, 3)],
            ),
        ];
        for (definition, records, expected) in cases {
            let run = run(definition.clone(), RunState::Failed, true);
            let list = executions(&records);
            let second = retry_of(&run, &list, RetryScope::AllNodes).unwrap();
            assert_eq!(carried(&second), expected, "{definition}");
        }
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
