//! Compiles a definition into a plan. One shape serves lists, pipelines and graphs: entries that wait for entries
//! (barrier edges), and leaves inside an entry that follow each other on each node (per-node edges).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::expr::Template;
use crate::limits;
use crate::run::{NodeRef, Resolved};
use crate::spec::{Condition, Definition, Delivery, Entry, ForEach, Limits, Placement, Task};

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
    pub entry: u32,
    /// Its place inside its entry; 0 for a leaf of its own.
    pub position: u32,
    /// The leaf's condition inside a branch; a leaf of its own has its condition on the entry.
    pub condition: Option<Condition>,
    /// Whether a lost attempt is sent again.
    pub delivery: Delivery,
    /// What the expressions in its params look at, if there are any.
    pub uses: Option<Uses>,
    /// The same for the keys of its limits.
    pub keys: Option<Uses>,
    /// Its limits, when their keys are written out.
    pub limits: Option<Arc<Limits>>,
}

/// What an entry is walked for, once for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    pub items: Items,
    /// Items that may be under way at once.
    pub max_parallel: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Items {
    Known(Arc<[Value]>),
    /// Known when the entry's turn comes.
    Expected(Uses),
}

/// What the expressions of a step look at.
#[derive(Clone, Debug)]
pub struct Uses {
    pub template: Arc<Template>,
    pub node: bool,
    /// Other steps, by the names that the expressions use.
    pub steps: Vec<(String, u32)>,
    /// Whether it asks for nodes other than its own.
    pub step_nodes: bool,
}

/// The template is what the task's params say.
impl PartialEq for Uses {
    fn eq(&self, other: &Self) -> bool {
        (self.node, &self.steps, self.step_nodes) == (other.node, &other.steps, other.step_nodes)
    }
}

/// A top-level task: one leaf, or a branch that each node walks at its own pace.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanEntry {
    pub name: Option<String>,
    pub condition: Option<Condition>,
    /// Its leaves are `first..first + length`.
    pub first: u32,
    pub length: u32,
    /// Its nodes (an index into `Resolved::sets`), or nothing when it is placed: one instance, not yet bound.
    pub set: Option<u32>,
    /// A placed entry with an instance for each item.
    pub each: Option<Each>,
    /// Entries that end before this one begins.
    pub after: Vec<u32>,
    /// Entries that wait for this one.
    pub before: Vec<u32>,
}

/// One walk of an entry over its nodes. Without a roll-out every entry is walked once. With one, each wave walks every
/// entry but those that answer failures, and these come once, after the last wave.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    pub entry: u32,
    /// The wave that it belongs to, from 0.
    pub wave: Option<u32>,
    /// Its part of the entry's nodes.
    pub nodes: Range<u32>,
    /// Passes that end before this one begins.
    pub after: Vec<u32>,
    /// Passes that wait for this one.
    pub before: Vec<u32>,
}

/// What waits for what, as people are shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    pub from: u32,
    pub to: u32,
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

/// Why a definition cannot be compiled. The checks of the job file find all but the size before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the run has {steps} steps; at most {} are possible", limits::STEPS_PER_RUN)]
    TooManySteps { steps: usize },
    #[error(
        "the run has {instances} step instances (steps × nodes); at most {} are possible",
        limits::INSTANCES_PER_RUN
    )]
    TooManyInstances { instances: usize },
    #[error("`for_each` of `{name}`: {problem}")]
    Items { name: String, problem: String },
    #[error("`{name}` depends on `{dependency}`, and no task has that name")]
    UnknownDependency { name: String, dependency: String },
    #[error("the tasks depend on each other in a circle: {}", cycle.join(" → "))]
    Cycle { cycle: Vec<String> },
    #[error("the definition has {entries} entries and was resolved for {resolved}")]
    NotItsNodes { entries: usize, resolved: usize },
}

impl Plan {
    pub fn compile(definition: Arc<Definition>, resolved: Arc<Resolved>) -> Result<Self, Error> {
        let count = definition.tasks.len();
        if resolved.entries.len() != count {
            return Err(Error::NotItsNodes { entries: count, resolved: resolved.entries.len() });
        }
        let shape = if definition.is_graph() { Shape::Graph } else { Shape::List };
        let mut steps = Vec::new();
        let mut entries = Vec::with_capacity(count);
        let mut instances = 0;
        for (index, (entry, set)) in definition.tasks.iter().zip(&resolved.entries).enumerate() {
            let branch = matches!(entry, Entry::Branch(_));
            let first = steps.len();
            for (position, task) in entry.leaves().iter().enumerate() {
                let number = number(steps.len());
                steps.push(Step {
                    entry: self::number(index),
                    position: self::number(position),
                    condition: task.condition.filter(|_| branch),
                    delivery: delivery(
                        task,
                        set.is_none(),
                        resolved.idempotent.binary_search(&number).is_ok(),
                    ),
                    uses: None,
                    keys: None,
                    limits: None,
                });
            }
            let length = steps.len() - first;
            let each = each(entry, index)?;
            let items = each.as_ref().map_or(1, |each| match &each.items {
                Items::Known(items) => items.len(),
                Items::Expected(_) => 1,
            });
            instances += length * set.map_or(items, |set| resolved.sets[set as usize].len());
            entries.push(PlanEntry {
                name: entry.name().map(str::to_owned),
                condition: entry.condition(),
                first: self::number(first),
                length: self::number(length),
                set: *set,
                each,
                after: match shape {
                    Shape::List => index.checked_sub(1).map(self::number).into_iter().collect(),
                    Shape::Graph => Vec::new(),
                },
                before: Vec::new(),
            });
        }
        if steps.len() > limits::STEPS_PER_RUN {
            return Err(Error::TooManySteps { steps: steps.len() });
        }
        if instances > limits::INSTANCES_PER_RUN {
            return Err(Error::TooManyInstances { instances });
        }
        if shape == Shape::Graph {
            connect(&definition, &mut entries)?;
        }
        for index in 0..entries.len() {
            for after in entries[index].after.clone() {
                entries[after as usize].before.push(number(index));
            }
        }
        note_uses(&definition, &mut steps, &mut entries);
        let passes = if definition.rollout.is_some() {
            in_waves(&entries, &resolved)
        } else {
            once(&entries, &resolved)
        };
        let plan = Self { definition, resolved, shape, steps, entries, passes };
        plan.refuse_cycles()?;
        Ok(plan)
    }

    /// The task of a step.
    pub fn task(&self, step: u32) -> &Task {
        let place = &self.steps[step as usize];
        &self.definition.tasks[place.entry as usize].leaves()[place.position as usize]
    }

    /// The nodes of an entry, as indexes into `resolved.nodes`; nothing when it is placed.
    pub fn nodes_of(&self, entry: u32) -> Option<&[u32]> {
        self.entries[entry as usize].set.map(|set| self.resolved.sets[set as usize].as_slice())
    }

    /// The nodes of a pass, as indexes into `resolved.nodes`; nothing when it is placed.
    pub fn nodes_of_pass(&self, pass: u32) -> Option<&[u32]> {
        let Pass { entry, nodes, .. } = &self.passes[pass as usize];
        self.nodes_of(*entry).map(|all| &all[nodes.start as usize..nodes.end as usize])
    }

    /// Of a roll-out, how many nodes may fail.
    pub fn budget(&self) -> Option<u32> {
        self.definition.rollout.as_ref().map(|rollout| self.resolved.budget(rollout))
    }

    pub fn node(&self, index: u32) -> &NodeRef {
        &self.resolved.nodes[index as usize]
    }

    pub fn is_placed(&self, step: u32) -> bool {
        self.entries[self.steps[step as usize].entry as usize].set.is_none()
    }

    /// Where a placed step may run.
    pub fn placement(&self, step: u32) -> Option<&Placement> {
        self.task(step).placement.as_ref().or(self.definition.placement.as_ref())
    }

    /// How many instances the whole plan has, with one for items that are not known yet.
    pub fn instances(&self) -> usize {
        let items = |entry: &PlanEntry| match entry.each.as_ref().map(|each| &each.items) {
            Some(Items::Known(items)) => items.len(),
            Some(Items::Expected(_)) | None => 1,
        };
        let width = |entry: &PlanEntry| {
            entry.set.map_or_else(|| items(entry), |set| self.resolved.sets[set as usize].len())
        };
        self.entries.iter().map(|entry| entry.length as usize * width(entry)).sum()
    }

    /// All edges between steps, for people.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for entry in &self.entries {
            for after in &entry.after {
                let before = &self.entries[*after as usize];
                edges.push(Edge {
                    from: before.first + before.length - 1,
                    to: entry.first,
                    kind: EdgeKind::Barrier,
                });
            }
            for step in entry.first + 1..entry.first + entry.length {
                let kind = if entry.set.is_some() { EdgeKind::PerNode } else { EdgeKind::Barrier };
                edges.push(Edge { from: step - 1, to: step, kind });
            }
        }
        edges
    }

    /// Kahn's walk; whatever it cannot reach holds a cycle, and following unfinished entries finds it.
    fn refuse_cycles(&self) -> Result<(), Error> {
        let mut missing: Vec<usize> = self.entries.iter().map(|entry| entry.after.len()).collect();
        let mut ready: Vec<u32> =
            (0..number(self.entries.len())).filter(|&e| missing[e as usize] == 0).collect();
        while let Some(entry) = ready.pop() {
            for &next in &self.entries[entry as usize].before {
                missing[next as usize] -= 1;
                if missing[next as usize] == 0 {
                    ready.push(next);
                }
            }
        }
        let Some(start) = missing.iter().position(|&count| count > 0) else { return Ok(()) };
        let mut path: Vec<usize> = vec![start];
        loop {
            let last = path[path.len() - 1];
            let next = self.entries[last]
                .after
                .iter()
                .map(|&entry| entry as usize)
                .find(|&entry| missing[entry] > 0)
                .expect("an entry that was not reached waits for another one");
            if let Some(begin) = path.iter().position(|&seen| seen == next) {
                let name = |index: usize| {
                    self.entries[index].name.clone().unwrap_or_else(|| format!("tasks[{index}]"))
                };
                let mut cycle: Vec<String> = path[begin..].iter().map(|&index| name(index)).collect();
                cycle.reverse();
                cycle.push(cycle[0].clone());
                return Err(Error::Cycle { cycle });
            }
            path.push(next);
        }
    }
}

/// What an entry's `for_each` goes over. The steps that it names are found later.
fn each(entry: &Entry, index: usize) -> Result<Option<Each>, Error> {
    let Some(ForEach { items, max_parallel }) = entry.for_each() else { return Ok(None) };
    let refuse = |problem: String| {
        let name = entry.name().map_or_else(|| format!("tasks[{index}]"), str::to_owned);
        Error::Items { name, problem }
    };
    let template = Template::of_items(items).map_err(|problem| refuse(problem.message))?;
    let items = match (template, items) {
        (Some(template), _) => Items::Expected(Uses::of(Arc::new(template), &HashMap::new())),
        (None, Value::Array(items)) => Items::Known(items.clone().into()),
        (None, _) => return Err(refuse("it is no list".to_owned())),
    };
    Ok(Some(Each { items, max_parallel: *max_parallel }))
}

impl Uses {
    fn of(template: Arc<Template>, by_name: &HashMap<&str, u32>) -> Self {
        let uses = template.uses();
        let found = uses.steps.iter().filter_map(|name| Some((name.clone(), *by_name.get(name.as_str())?)));
        Self { node: uses.node, steps: found.collect(), step_nodes: uses.step_nodes, template }
    }
}

/// Finds the steps that expressions name. What is wrong with an expression was said before, or is when it is used.
fn note_uses(definition: &Definition, steps: &mut [Step], entries: &mut [PlanEntry]) {
    let leaves = || definition.tasks.iter().flat_map(|entry| entry.leaves());
    let by_name = std::cell::LazyCell::new(|| -> HashMap<&str, u32> {
        (0..).zip(leaves()).filter_map(|(step, task)| Some((task.name.as_deref()?, step))).collect()
    });
    for (task, step) in leaves().zip(steps) {
        if let Ok(Some(template)) = Template::of(&task.backend, &task.action, &task.params) {
            step.uses = Some(Uses::of(Arc::new(template), &by_name));
        }
        if definition.limits_of(task).next().is_none() {
            continue;
        }
        match Template::of_keys(definition.limits_of(task).map(|(key, _)| key.as_str())) {
            Ok(Some(template)) => step.keys = Some(Uses::of(Arc::new(template), &by_name)),
            Ok(None) | Err(_) => {
                let limits = definition.limits_of(task).map(|(key, limit)| (key.clone(), *limit));
                step.limits = Some(Arc::new(limits.collect()));
            }
        }
    }
    for each in entries.iter_mut().filter_map(|entry| entry.each.as_mut()) {
        if let Items::Expected(uses) = &mut each.items {
            *uses = Uses::of(Arc::clone(&uses.template), &by_name);
        }
    }
}

/// Every entry once, after the entries that it waits for.
fn once(entries: &[PlanEntry], resolved: &Resolved) -> Vec<Pass> {
    let passes = entries.iter().zip(0..).map(|(entry, index)| Pass {
        entry: index,
        wave: None,
        nodes: 0..entry.set.map_or(1, |set| number(resolved.sets[set as usize].len())),
        after: entry.after.clone(),
        before: entry.before.clone(),
    });
    passes.collect()
}

/// Wave by wave through the list, then what answers failures.
fn in_waves(entries: &[PlanEntry], resolved: &Resolved) -> Vec<Pass> {
    let answers = |entry: &PlanEntry| entry.condition == Some(Condition::OnFailure);
    let all = resolved.waves.last().copied().unwrap_or(0);
    let mut order = Vec::new();
    let mut start = 0;
    for (&end, wave) in resolved.waves.iter().zip(0..) {
        let walked = (0..).zip(entries).filter(|(_, entry)| !answers(entry));
        order.extend(walked.map(|(entry, _)| (entry, Some(wave), start..end)));
        start = end;
    }
    let answering = (0..).zip(entries).filter(|(_, entry)| answers(entry));
    order.extend(answering.map(|(entry, _)| (entry, None, 0..all)));
    let last = order.len().saturating_sub(1);
    let passes = order.into_iter().enumerate().map(|(index, (entry, wave, nodes))| Pass {
        entry,
        wave,
        nodes,
        after: index.checked_sub(1).map(number).into_iter().collect(),
        before: (index < last).then(|| number(index + 1)).into_iter().collect(),
    });
    passes.collect()
}

fn connect(definition: &Definition, entries: &mut [PlanEntry]) -> Result<(), Error> {
    let by_name: HashMap<&str, u32> = definition
        .tasks
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| entry.name().map(|name| (name, number(index))))
        .collect();
    for (index, entry) in definition.tasks.iter().enumerate() {
        for dependency in entry.depends_on() {
            let Some(&after) = by_name.get(dependency.as_str()) else {
                let name = entry.name().map_or_else(|| format!("tasks[{index}]"), str::to_owned);
                return Err(Error::UnknownDependency { name, dependency: dependency.clone() });
            };
            if !entries[index].after.contains(&after) {
                entries[index].after.push(after);
            }
        }
    }
    Ok(())
}

/// What the task says; else placed work is delivered at least once, pinned work only if doing it twice is harmless.
fn delivery(task: &Task, placed: bool, idempotent: bool) -> Delivery {
    match task.delivery {
        Some(delivery) => delivery,
        None if placed || idempotent => Delivery::AtLeastOnce,
        None => Delivery::AtMostOnce,
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("plans are bounded far below 2^32")
}
