//! Owns the shape of a compiled plan, and what can be asked of it. How a definition becomes one is `compile`'s.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::index::{EntryIx, NodeIx, PassIx, SetIx, StepIx};
use crate::backend::{ParamProblem, Params};
use crate::expr::{Scope, Template};
use crate::run::{NodeRef, Resolved};
use crate::spec::{Condition, Definition, Delivery, Limits, Placement, Task};

/// Whether tasks say what they depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    #[default]
    List,
    Graph,
}

/// A leaf's place in the plan. Its number is its index, depth first from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub entry: EntryIx,
    /// Its place inside its entry; 0 for a leaf of its own.
    pub position: u32,
    /// The leaf's condition inside a branch; a leaf of its own has its condition on the entry.
    pub condition: Option<Condition>,
    /// Whether a lost attempt is sent again.
    pub delivery: Delivery,
    /// Its params, if they hold expressions.
    pub params: Option<ResolvedTemplate>,
    /// The keys of its limits, if they hold expressions.
    pub keys: Option<ResolvedTemplate>,
    /// Its limits, when their keys are written out.
    pub limits: Option<Arc<Limits>>,
}

/// The items of an entry: it is walked once for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    pub items: Items,
    /// Items that may be under way at once.
    pub max_parallel: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Items {
    Known(Arc<[Value]>),
    /// Evaluated when the entry is due.
    Expected(ResolvedTemplate),
}

/// Expressions whose references are resolved to steps.
#[derive(Clone, Debug)]
pub struct ResolvedTemplate {
    pub template: Arc<Template>,
    pub node: bool,
    /// Other steps, by the names that the expressions use.
    pub steps: Vec<(String, StepIx)>,
    /// Whether it asks for nodes other than its own.
    pub step_nodes: bool,
}

impl ResolvedTemplate {
    pub fn render(&self, scope: &Scope) -> Result<Params, ParamProblem> {
        self.template.render(scope)
    }
}

/// The definition has the template's text.
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
    /// Its nodes, or nothing when it is placed: one instance, not yet bound.
    pub set: Option<SetIx>,
    /// A placed entry with an instance for each item.
    pub each: Option<Each>,
    /// Entries that end before this one begins.
    pub after: Vec<EntryIx>,
    /// Entries that wait for this one.
    pub before: Vec<EntryIx>,
}

impl PlanEntry {
    pub fn steps(&self) -> impl ExactSizeIterator<Item = StepIx> + Clone + use<> {
        StepIx::within(self.first.0..self.first.0 + self.length)
    }

    /// Returns the leaf at a position inside the entry, unless the position is its end.
    pub fn step(&self, position: u32) -> Option<StepIx> {
        (position < self.length).then(|| StepIx(self.first.0 + position))
    }

    /// Whether it only runs after failures.
    pub fn answers_failures(&self) -> bool {
        self.condition == Some(Condition::OnFailure)
    }
}

/// One walk of an entry over its nodes. Without a roll-out every entry is walked once. With one, each wave walks every
/// entry but those that answer failures, and these come once, after the last wave.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    pub entry: EntryIx,
    /// The wave that it belongs to, from 0.
    pub wave: Option<u32>,
    /// Its part of the entry's nodes.
    pub nodes: Range<u32>,
    /// Passes that end before this one begins.
    pub after: Vec<PassIx>,
    /// Passes that wait for this one.
    pub before: Vec<PassIx>,
}

/// What waits for what, as people are shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    pub from: StepIx,
    pub to: StepIx,
    pub kind: EdgeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Every instance of the one before any of the other.
    Barrier,
    /// On each node the one before the other.
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
    /// The task of a step.
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

    /// The nodes of an entry; nothing when it is placed.
    pub fn nodes_of(&self, entry: EntryIx) -> Option<&[NodeIx]> {
        self.entries[entry].set.map(|set| self.resolved.sets[set].as_slice())
    }

    /// The nodes of a pass; nothing when it is placed.
    pub fn nodes_of_pass(&self, pass: PassIx) -> Option<&[NodeIx]> {
        let Pass { entry, nodes, .. } = &self.passes[pass];
        self.nodes_of(*entry).map(|all| &all[nodes.start as usize..nodes.end as usize])
    }

    /// Of a roll-out, how many nodes may fail.
    pub fn budget(&self) -> Option<u32> {
        self.definition.rollout.as_ref().map(|rollout| self.resolved.budget(rollout))
    }

    pub fn node(&self, node: NodeIx) -> &NodeRef {
        &self.resolved.nodes[node]
    }

    pub fn is_placed(&self, step: StepIx) -> bool {
        self.entry_of_step(step).set.is_none()
    }

    /// Whether a step only runs after failures. Such steps continue after fail-fast, and their failures do not count
    /// against a budget.
    pub fn answers_failures(&self, step: StepIx) -> bool {
        self.steps[step].condition == Some(Condition::OnFailure)
            || self.entry_of_step(step).answers_failures()
    }

    /// Where a placed step may run.
    pub fn placement(&self, step: StepIx) -> Option<&Placement> {
        self.task(step).placement.as_ref().or(self.definition.placement.as_ref())
    }

    /// How many instances the whole plan has, with one for items that are not known yet.
    pub fn instances(&self) -> usize {
        let items = |entry: &PlanEntry| match entry.each.as_ref().map(|each| &each.items) {
            Some(Items::Known(items)) => items.len(),
            Some(Items::Expected(_)) | None => 1,
        };
        let width =
            |entry: &PlanEntry| entry.set.map_or_else(|| items(entry), |set| self.resolved.sets[set].len());
        self.entries.iter().map(|entry| entry.length as usize * width(entry)).sum()
    }

    /// All edges between steps, for people.
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
