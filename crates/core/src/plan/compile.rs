//! Compiles a definition into a plan. One shape serves lists, pipelines and graphs: entries that wait for entries
//! (barrier edges), and leaves inside an entry that follow each other on each node (per-node edges).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::compiled::{Each, Items, Pass, Plan, PlanEntry, ResolvedTemplate, Shape, Step, count_instances};
use super::index::{EntryIx, PassIx, StepIx};
use super::resolved::Resolved;
use crate::expr::Template;
use crate::limits;
use crate::spec::{Definition, Delivery, Entry, ForEach, Task, cycles};

/// The reason why a definition cannot be compiled. The checks of the job file find every reason except the size
/// earlier.
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
        for (index, (entry, set)) in definition.tasks.iter().zip(&resolved.entries).enumerate() {
            let branch = matches!(entry, Entry::Branch(_));
            let first = steps.len();
            for (position, task) in entry.leaves().iter().enumerate() {
                let number = StepIx::new(steps.len());
                let idempotent = resolved.idempotent.binary_search(&number).is_ok();
                steps.push(Step {
                    entry: EntryIx::new(index),
                    position: self::number(position),
                    condition: task.condition.filter(|_| branch),
                    delivery: delivery(task, set.is_none(), idempotent),
                    params: None,
                    keys: None,
                    limits: None,
                });
            }
            entries.push(PlanEntry {
                name: entry.name().map(str::to_owned),
                condition: entry.condition(),
                first: StepIx::new(first),
                length: self::number(steps.len() - first),
                set: *set,
                each: each(entry, index)?,
                after: match shape {
                    Shape::List => index.checked_sub(1).map(EntryIx::new).into_iter().collect(),
                    Shape::Graph => Vec::new(),
                },
                before: Vec::new(),
            });
        }
        if steps.len() > limits::STEPS_PER_RUN {
            return Err(Error::TooManySteps { steps: steps.len() });
        }
        let instances = count_instances(&entries, &resolved);
        if instances > limits::INSTANCES_PER_RUN {
            return Err(Error::TooManyInstances { instances });
        }
        if shape == Shape::Graph {
            connect(&definition, &mut entries)?;
        }
        for index in EntryIx::first(number(entries.len())) {
            for after in entries[index].after.clone() {
                entries[after].before.push(index);
            }
        }
        resolve_templates(&definition, &mut steps, &mut entries);
        let passes = match definition.rollout {
            Some(_) => in_waves(&entries, &resolved),
            None => once(&entries, &resolved),
        };
        let plan = Self { definition, resolved, shape, steps, entries, passes };
        if shape == Shape::Graph {
            plan.refuse_cycles()?;
        }
        Ok(plan)
    }

    fn refuse_cycles(&self) -> Result<(), Error> {
        let waits = |entry: &PlanEntry| entry.after.iter().map(|after| (after.get(), ())).collect();
        let found = cycles(&self.entries.iter().map(waits).collect::<Vec<_>>());
        let Some(cycle) = found.first() else { return Ok(()) };
        // In the order of execution, back to the first.
        let names = cycle.iter().chain(&cycle[..1]).rev();
        let name = |&(index, ()): &(usize, ())| self.definition.tasks[index].name_or(index);
        Err(Error::Cycle { cycle: names.map(name).collect() })
    }
}

/// Returns the items of an entry's `for_each`. The steps that they refer to are resolved later.
fn each(entry: &Entry, index: usize) -> Result<Option<Each>, Error> {
    let Some(ForEach { items, max_parallel }) = entry.for_each() else { return Ok(None) };
    let refuse = |problem: String| Error::Items { name: entry.name_or(index), problem };
    let template = Template::of_items(items).map_err(|problem| refuse(problem.message))?;
    let items = match (template, items) {
        (Some(template), _) => Items::Expected(ResolvedTemplate::of(Arc::new(template), &HashMap::new())),
        (None, Value::Array(items)) => Items::Known(items.clone().into()),
        (None, _) => return Err(refuse("expected a list".to_owned())),
    };
    Ok(Some(Each { items, max_parallel: *max_parallel }))
}

impl ResolvedTemplate {
    fn of(template: Arc<Template>, by_name: &HashMap<&str, StepIx>) -> Self {
        let found = template.references();
        let steps = found.steps.iter().filter_map(|name| Some((name.clone(), *by_name.get(name.as_str())?)));
        Self { node: found.node, steps: steps.collect(), step_nodes: found.step_nodes, template }
    }
}

/// Resolves the steps that expressions refer to. Skips invalid expressions: the parser has reported them, or evaluation
/// will.
fn resolve_templates(definition: &Definition, steps: &mut [Step], entries: &mut [PlanEntry]) {
    let by_name = std::cell::LazyCell::new(|| -> HashMap<&str, StepIx> {
        let steps = (0..).map(StepIx).zip(definition.steps());
        steps.filter_map(|(step, task)| Some((task.name.as_deref()?, step))).collect()
    });
    for (task, step) in definition.steps().zip(steps) {
        if let Ok(Some(template)) = Template::of(&task.backend, &task.action, &task.params) {
            step.params = Some(ResolvedTemplate::of(Arc::new(template), &by_name));
        }
        if definition.limits_of(task).next().is_none() {
            continue;
        }
        match Template::of_keys(definition.limits_of(task).map(|(key, _)| key.as_str())) {
            Ok(Some(template)) => step.keys = Some(ResolvedTemplate::of(Arc::new(template), &by_name)),
            Ok(None) | Err(_) => {
                let limits = definition.limits_of(task).map(|(key, limit)| (key.clone(), *limit));
                step.limits = Some(Arc::new(limits.collect()));
            }
        }
    }
    for each in entries.iter_mut().filter_map(|entry| entry.each.as_mut()) {
        if let Items::Expected(resolved) = &mut each.items {
            *resolved = ResolvedTemplate::of(Arc::clone(&resolved.template), &by_name);
        }
    }
}

/// Returns one pass for each entry, after the passes of the entries that it waits for.
fn once(entries: &[PlanEntry], resolved: &Resolved) -> Vec<Pass> {
    // Each entry has one pass, with its own index.
    let passes_of = |entries: &[EntryIx]| entries.iter().map(|entry| PassIx(entry.0)).collect();
    let passes = entries.iter().zip((0..).map(EntryIx)).map(|(entry, index)| Pass {
        entry: index,
        wave: None,
        nodes: 0..entry.set.map_or(1, |set| number(resolved.sets[set].len())),
        after: passes_of(&entry.after),
        before: passes_of(&entry.before),
    });
    passes.collect()
}

/// Returns one pass for each wave and entry of the list, then one for each entry that runs after failures.
fn in_waves(entries: &[PlanEntry], resolved: &Resolved) -> Vec<Pass> {
    let all = resolved.waves.last().copied().unwrap_or(0);
    let (answering, walked): (Vec<_>, Vec<_>) =
        (0..).map(EntryIx).zip(entries).partition(|(_, entry)| entry.runs_on_failure());
    let mut order = Vec::new();
    let mut start = 0;
    for (&end, wave) in resolved.waves.iter().zip(0..) {
        order.extend(walked.iter().map(|(entry, _)| (*entry, Some(wave), start..end)));
        start = end;
    }
    order.extend(answering.iter().map(|(entry, _)| (*entry, None, 0..all)));
    let last = order.len().saturating_sub(1);
    let passes = order.into_iter().enumerate().map(|(index, (entry, wave, nodes))| Pass {
        entry,
        wave,
        nodes,
        after: index.checked_sub(1).map(PassIx::new).into_iter().collect(),
        before: (index < last).then(|| PassIx::new(index + 1)).into_iter().collect(),
    });
    passes.collect()
}

fn connect(definition: &Definition, entries: &mut [PlanEntry]) -> Result<(), Error> {
    let tasks = definition.tasks.iter().zip((0..).map(EntryIx));
    let by_name: HashMap<&str, EntryIx> =
        tasks.filter_map(|(entry, index)| Some((entry.name()?, index))).collect();
    for (index, entry) in definition.tasks.iter().enumerate() {
        for dependency in entry.depends_on() {
            let Some(&after) = by_name.get(dependency.as_str()) else {
                let (name, dependency) = (entry.name_or(index), dependency.clone());
                return Err(Error::UnknownDependency { name, dependency });
            };
            if !entries[index].after.contains(&after) {
                entries[index].after.push(after);
            }
        }
    }
    Ok(())
}

/// Returns the task's own delivery. By default placed or idempotent work is delivered at least once, and other work at
/// most once.
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
