//! Owns the shape of a compiled plan and the functions that read it. `compile` creates it from a definition.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::index::{EntryIx, NodeIx, PassIx, SetIx, StepIx};
use super::resolved::{NodeRef, Resolved};
use crate::backend::{ParamProblem, Params};
use crate::expr::{Scope, Template};
use crate::span::Span;
use crate::spec::{Condition, Definition, Delivery, Limits, Placement, Task};

/// How the tasks are ordered: as a list, or by `depends_on`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    #[default]
    List,
    Graph,
}

/// A leaf's position in the plan. Its number is its index, depth first from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub entry: EntryIx,
    /// The leaf's position inside its entry; 0 for a leaf outside a branch.
    pub position: u32,
    /// The leaf's condition inside a branch. For a leaf outside a branch, the entry has the condition.
    pub condition: Option<Condition>,
    /// Whether a lost attempt is retried.
    pub delivery: Delivery,
    /// The leaf's params, if they contain expressions.
    pub params: Option<ResolvedTemplate>,
    /// The keys of its limits, if they contain expressions.
    pub keys: Option<ResolvedTemplate>,
    /// Its limits, if their keys contain no expressions.
    pub limits: Option<Arc<Limits>>,
}

/// The items of an entry: the entry runs once for each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    pub items: Items,
    /// The number of items that may run at the same time.
    pub max_parallel: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Items {
    Known(Arc<[Value]>),
    /// The items are evaluated when the entry is due.
    Expected(ResolvedTemplate),
}

/// Expressions whose references are resolved to steps.
#[derive(Clone, Debug)]
pub struct ResolvedTemplate {
    pub template: Arc<Template>,
    pub node: bool,
    /// Other steps, by the names that the expressions use.
    pub steps: Vec<(String, StepIx)>,
    /// Whether the expressions read outputs of other nodes.
    pub step_nodes: bool,
}

impl ResolvedTemplate {
    pub fn render(&self, scope: &Scope) -> Result<Params, ParamProblem> {
        self.template.render(scope)
    }
}

/// Compares only the references: the definition contains the template's text.
impl PartialEq for ResolvedTemplate {
    fn eq(&self, other: &Self) -> bool {
        (self.node, &self.steps, self.step_nodes) == (other.node, &other.steps, other.step_nodes)
    }
}

/// A top-level task: one leaf, or a branch that each node walks at its own pace.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanEntry {
    pub name: Option<String>,
    pub condition: Option<Condition>,
    /// The first of its leaves; the others follow it.
    pub first: StepIx,
    pub length: u32,
    /// The entry's nodes. `None` when it is placed: it has one instance that is not bound to a node yet.
    pub set: Option<SetIx>,
    /// A placed entry with an instance for each item.
    pub each: Option<Each>,
    /// Entries that must end before this one begins.
    pub after: Vec<EntryIx>,
    /// Entries that wait for this one.
    pub before: Vec<EntryIx>,
}

impl PlanEntry {
    pub fn steps(&self) -> impl ExactSizeIterator<Item = StepIx> + Clone + use<> {
        StepIx::within(self.first.0..self.first.0 + self.length)
    }

    /// Returns the leaf at a position inside the entry, or `None` if the position is the end.
    pub fn step(&self, position: u32) -> Option<StepIx> {
        (position < self.length).then(|| StepIx(self.first.0 + position))
    }

    /// Returns whether the entry only runs after failures.
    pub fn runs_on_failure(&self) -> bool {
        self.condition == Some(Condition::OnFailure)
    }
}

/// One round of an entry over its nodes. Without a roll-out every entry has one pass. With one, each wave has a pass for
/// every entry except those that run after failures; these have one pass after the last wave.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    pub entry: EntryIx,
    /// The wave that the pass belongs to, from 0.
    pub wave: Option<u32>,
    /// The pass's part of the entry's nodes.
    pub nodes: Range<u32>,
    /// Passes that must end before this one begins.
    pub after: Vec<PassIx>,
    /// Passes that wait for this one.
    pub before: Vec<PassIx>,
}

/// A dependency between two steps, as it is shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    pub from: StepIx,
    pub to: StepIx,
    pub kind: EdgeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// All instances of the first step end before any instance of the second begins.
    Barrier,
    /// On each node the first step ends before the second begins.
    PerNode,
}

/// A compiled definition. Immutable; shared by the run's actor and the dispatcher.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub definition: Arc<Definition>,
    pub resolved: Arc<Resolved>,
    pub shape: Shape,
    pub steps: Vec<Step>,
    pub entries: Vec<PlanEntry>,
    pub passes: Vec<Pass>,
}

impl Plan {
    pub fn task(&self, step: StepIx) -> &Task {
        let Step { entry, position, .. } = self.steps[step];
        &self.definition.tasks[entry].leaves()[position as usize]
    }

    pub fn entry_of(&self, pass: PassIx) -> &PlanEntry {
        &self.entries[self.passes[pass].entry]
    }

    pub fn entry_of_step(&self, step: StepIx) -> &PlanEntry {
        &self.entries[self.steps[step].entry]
    }

    /// Returns the nodes of an entry, or `None` when it is placed.
    pub fn nodes_of(&self, entry: EntryIx) -> Option<&[NodeIx]> {
        self.entries[entry].set.map(|set| self.resolved.sets[set].as_slice())
    }

    /// Returns the nodes of a pass, or `None` when it is placed.
    pub fn nodes_of_pass(&self, pass: PassIx) -> Option<&[NodeIx]> {
        let Pass { entry, nodes, .. } = &self.passes[pass];
        self.nodes_of(*entry).map(|all| &all[nodes.start as usize..nodes.end as usize])
    }

    /// Returns how many nodes of a roll-out may fail.
    pub fn budget(&self) -> Option<u32> {
        self.definition.rollout.as_ref().map(|rollout| self.resolved.budget(rollout))
    }

    pub fn node(&self, node: NodeIx) -> &NodeRef {
        &self.resolved.nodes[node]
    }

    pub fn is_placed(&self, step: StepIx) -> bool {
        self.entry_of_step(step).set.is_none()
    }

    /// Returns whether a step only runs after failures. Such steps continue after fail-fast, and their failures do not
    /// count against a budget.
    pub fn runs_on_failure(&self, step: StepIx) -> bool {
        self.steps[step].condition == Some(Condition::OnFailure) || self.entry_of_step(step).runs_on_failure()
    }

    /// Returns how long the steps that run after failures may take after the run timed out, if there are any.
    pub fn cleanup_timeout(&self) -> Option<Span> {
        let mut steps = (0..).map(StepIx).zip(&self.steps);
        let has_cleanup = steps.any(|(step, _)| self.runs_on_failure(step));
        has_cleanup.then(|| self.definition.cleanup_timeout())
    }

    /// Returns the nodes on which a placed step may run.
    pub fn placement(&self, step: StepIx) -> Option<&Placement> {
        self.task(step).placement.as_ref().or(self.definition.placement.as_ref())
    }

    /// Returns the steps whose outputs expressions refer to.
    pub fn read_steps(&self) -> HashSet<StepIx> {
        let of_steps = self.steps.iter().flat_map(|step| step.params.iter().chain(&step.keys));
        let of_items = self.entries.iter().filter_map(|entry| match &entry.each.as_ref()?.items {
            Items::Expected(template) => Some(template),
            Items::Known(_) => None,
        });
        of_steps.chain(of_items).flat_map(|template| template.steps.iter().map(|(_, used)| *used)).collect()
    }

    pub fn instances(&self) -> usize {
        count_instances(&self.entries, &self.resolved)
    }

    /// Returns all edges between steps, to show them to users.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for entry in &self.entries {
            for &after in &entry.after {
                let from = self.entries[after].steps().last().expect("an entry has a leaf");
                edges.push(Edge { from, to: entry.first, kind: EdgeKind::Barrier });
            }
            let kind = if entry.set.is_some() { EdgeKind::PerNode } else { EdgeKind::Barrier };
            let leaves = entry.steps().zip(entry.steps().skip(1));
            edges.extend(leaves.map(|(from, to)| Edge { from, to, kind }));
        }
        edges
    }
}

/// Returns the number of instances of all entries. Items that are not known yet count as one.
pub(super) fn count_instances(entries: &[PlanEntry], resolved: &Resolved) -> usize {
    let width = |entry: &PlanEntry| match (entry.set, &entry.each) {
        (Some(set), _) => resolved.sets[set].len(),
        (None, Some(Each { items: Items::Known(items), .. })) => items.len(),
        (None, _) => 1,
    };
    entries.iter().map(|entry| entry.length as usize * width(entry)).sum()
}
