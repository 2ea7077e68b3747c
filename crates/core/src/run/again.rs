//! Decides which executions a retry carries over from the first run, and on which nodes it runs. It does again what did
//! not succeed, and everything that depends on that: only results whose inputs did not change are carried over.

#[cfg(test)]
mod tests;

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
    #[error("run `{run}` is a debug command; send it again with `downbeat debug`")]
    Debug { run: RunId },
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
    if run.id.is_debug() {
        return Err(CannotRetry::Debug { run: id() });
    }
    if !run.live.is_ended() {
        return Err(CannotRetry::NotEnded { run: id(), state: run.state() });
    }
    let partial = run.live.end().is_some_and(|end| end.partial);
    if run.state() == RunState::Completed && !partial && !matches!(scope, RetryScope::From(_)) {
        return Err(CannotRetry::NothingFailed { run: id() });
    }
    let last = last_attempts(run, executions);
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
    first: &RunRecord,
    plan: &Plan,
    executions: &'a [Execution],
    own: &[Execution],
) -> Option<RetryStart<'a>> {
    let (scope, resolved) = (second.resolved.retry?, (*second.resolved).clone());
    let mut carried = carried_over(plan, &last_attempts(first, executions), &resolved, scope);
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
            round: 1,
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

/// Returns whether an instance failed, judged by its last attempt that counts, in a run that ended as `run`. For
/// instances without [`Execution::failed_for_good`]: older releases did not record it.
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

/// Returns the last attempt of each instance that counts, in the last round of the run.
fn last_attempts<'a>(run: &RunRecord, executions: &'a [Execution]) -> LastAttempts<'a> {
    let mut last = LastAttempts::new();
    let of_round = executions.iter().filter(|execution| execution.round == run.live.round);
    for execution in of_round.filter(|execution| !execution.is_withdrawn()) {
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

/// Returns the run's nodes without those that did not fail. An entry without failed nodes keeps its nodes if everything
/// succeeded on them, or if it only runs after failures: it may depend on an entry that is repeated.
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
