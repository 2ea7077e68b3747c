//! Owns the names that a task's expressions may use, and reports used names that cannot exist.

use std::collections::HashMap;

use super::{Branch, Definition, Entry, Task};
use crate::backend::{Element, ParamProblem};
use crate::expr::{Reference, Root, Template, in_path};
use crate::limits;
use crate::nearest::advice;
use crate::shown::shown;

/// The leaf whose expressions are checked: its entry, and its index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExprSite {
    pub(crate) entry: usize,
    pub(crate) leaf: usize,
}

/// The field that contains the expressions: `params` or a limit's key, or `for_each`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Params,
    Items,
}

/// The names of one definition.
#[derive(Debug)]
pub(crate) struct Known<'d> {
    definition: &'d Definition,
    steps: HashMap<&'d str, ExprSite>,
    branches: HashMap<&'d str, &'d [Task]>,
    /// In a graph: for each entry the entries that end before it, computed at the first use. Stored as bits, because
    /// there may be ten thousand entries.
    before: Option<Vec<Option<Vec<u64>>>>,
    by_name: HashMap<&'d str, usize>,
}

impl<'d> Known<'d> {
    pub(crate) fn of(definition: &'d Definition) -> Self {
        let (mut steps, mut branches, mut by_name) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (entry, item) in definition.tasks.iter().enumerate() {
            by_name.extend(item.name().map(|name| (name, entry)));
            if let Entry::Branch(Branch { name: Some(name), tasks, .. }) = item {
                branches.insert(name.as_str(), tasks.as_slice());
            }
            for (leaf, task) in item.leaves().iter().enumerate() {
                steps.extend(task.name.as_deref().map(|name| (name, ExprSite { entry, leaf })));
            }
        }
        let before = definition.is_graph().then(|| vec![None; definition.tasks.len()]);
        Self { definition, steps, branches, before, by_name }
    }

    pub(crate) fn step(&self, name: &str) -> Option<ExprSite> {
        self.steps.get(name).copied()
    }

    /// Reports all names in the expressions of a leaf, or of its entry's `for_each`, that cannot exist.
    pub(crate) fn check(&mut self, at: ExprSite, template: &Template, used: Use) -> Vec<ParamProblem> {
        let mut problems = Vec::new();
        // Caches the result for each name: one name may be used in many params, and finding the nearest name takes
        // time.
        let mut judged: HashMap<&str, Result<(), String>> = HashMap::new();
        template.each(|param, element: Option<&Element>, formula| {
            for reference in &formula.references {
                if problems.len() >= limits::PROBLEMS_LISTED {
                    return;
                }
                let verdict =
                    judged.entry(&reference.written).or_insert_with(|| self.reference(at, reference, used));
                if let Err(message) = verdict {
                    let (param, element) = (param.to_owned(), element.cloned());
                    let problem = ParamProblem { param, element, message: message.clone() };
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
            }
        });
        problems
    }

    fn reference(&mut self, at: ExprSite, reference: &Reference, used: Use) -> Result<(), String> {
        let entry = &self.definition.tasks[at.entry];
        match reference.root {
            Root::Run => Ok(()),
            Root::Event => Err(format!("`{reference}`: only messages have an event")),
            Root::Item | Root::Index if used == Use::Items => {
                Err(format!("`{reference}`: `for_each` creates the items, so it cannot use them"))
            }
            Root::Item | Root::Index if entry.for_each().is_none() => {
                Err(format!("`{reference}`: the task has no `for_each`"))
            }
            Root::Item | Root::Index => Ok(()),
            Root::Node if used == Use::Items => {
                Err(format!("`{reference}`: the node of an item is chosen after `for_each` is evaluated"))
            }
            Root::Node if !self.definition.is_placed(entry) => Ok(()),
            Root::Node if entry.for_each().is_some() => {
                Err(format!("`{reference}` is not known before an item is placed"))
            }
            Root::Node => {
                Err(format!("`{reference}` is not known before the task is placed; give the task a `target`"))
            }
            Root::Params => self.param(reference),
            Root::Steps => self.of_step(at, reference),
            Root::Payload | Root::Trigger => Err(format!(
                "`{reference}` is known only in `params` of `triggers`; let the trigger set a param of the job, and use \
                 that"
            )),
        }
    }

    fn param(&self, reference: &Reference) -> Result<(), String> {
        let name = reference.name();
        if self.definition.params.contains_key(name) {
            return Ok(());
        }
        if self.definition.params.is_empty() {
            let name = shown(name);
            return Err(format!(
                "`{reference}`: the job has no params; declare it: params: {{{name}: DEFAULT}}"
            ));
        }
        let names: Vec<&str> = self.definition.params.keys().map(String::as_str).collect();
        Err(format!("the job has no param `{}`; {}", shown(name), advice(name, &names, "params")))
    }

    fn of_step(&mut self, at: ExprSite, reference: &Reference) -> Result<(), String> {
        let name = reference.name();
        let Some(step) = self.step(name) else { return Err(self.unknown_step(name)) };
        let refused = self.use_of_step(at, step, reference);
        refused.map_or(Ok(()), |why| Err(format!("`{reference}`: {why}")))
    }

    /// Returns why a leaf cannot use a step as the reference does.
    fn use_of_step(&mut self, at: ExprSite, step: ExprSite, reference: &Reference) -> Option<String> {
        let name = shown(reference.name());
        if step == at {
            return Some("a task cannot use its own outputs".to_owned());
        }
        if !self.is_before(step, at) {
            let is_edge = self.before.is_some() && step.entry != at.entry;
            let remedy = if is_edge { "add it to `depends_on`" } else { "move it up" };
            return Some(format!("`{name}` does not come before this task; {remedy}"));
        }
        if reference.is_of_nodes() && step.entry == at.entry {
            return Some(format!("other nodes may not have run `{name}` yet; move it into an earlier entry"));
        }
        if reference.is_of_nodes() && self.definition.is_placed(&self.definition.tasks[step.entry]) {
            let step = in_path(reference.name());
            return Some(format!("`{name}` is placed and runs once; write steps{step}.outputs"));
        }
        let outputs = &self.task(step).outputs;
        let output = reference.output()?;
        if outputs.is_empty() {
            return Some(format!("`{name}` declares no outputs; give it `outputs: [{}]`", shown(output)));
        }
        if outputs.iter().any(|known| known == output) {
            return None;
        }
        let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
        Some(format!("`{name}` has no output `{}`; {}", shown(output), advice(output, &names, "outputs")))
    }

    fn task(&self, place: ExprSite) -> &'d Task {
        &self.definition.tasks[place.entry].leaves()[place.leaf]
    }

    fn unknown_step(&self, name: &str) -> String {
        if let Some(tasks) = self.branches.get(name) {
            let first = tasks.iter().find_map(|task| task.name.as_deref());
            let (name, leaf) = (shown(name), first.map(in_path));
            return match leaf {
                Some(leaf) => {
                    format!("`{name}` is a branch, and its tasks have the outputs; write steps{leaf}")
                }
                None => format!("`{name}` is a branch; give the task inside it a `name`, and refer to that"),
            };
        }
        let mut names: Vec<&str> = self.steps.keys().copied().collect();
        names.sort_unstable();
        if names.is_empty() {
            return format!("no task is named `{}`; add `name` to the task", shown(name));
        }
        format!("no task is named `{}`; {}", shown(name), advice(name, &names, "tasks"))
    }

    fn is_before(&mut self, step: ExprSite, at: ExprSite) -> bool {
        if step.entry == at.entry {
            return step.leaf < at.leaf;
        }
        match self.before {
            None => step.entry < at.entry,
            Some(_) => {
                let bits = self.ancestors(at.entry);
                bits[step.entry / 64] & (1 << (step.entry % 64)) != 0
            }
        }
    }

    /// Returns the entries that end before this one. Does not recurse: a chain may have ten thousand entries.
    fn ancestors(&mut self, entry: usize) -> &[u64] {
        let tasks = &self.definition.tasks;
        let by_name = &self.by_name;
        let before = self.before.get_or_insert_with(|| vec![None; tasks.len()]);
        let mut stack = vec![entry];
        let mut seen = vec![false; tasks.len()];
        while let Some(&next) = stack.last() {
            let above =
                || tasks[next].depends_on().iter().filter_map(|name| by_name.get(name.as_str()).copied());
            if before[next].is_some() {
                stack.pop();
            } else if !std::mem::replace(&mut seen[next], true) {
                stack.extend(above().filter(|above| before[*above].is_none() && !seen[*above]));
            } else {
                let mut bits = vec![0_u64; tasks.len().div_ceil(64)];
                for above in above() {
                    bits[above / 64] |= 1 << (above % 64);
                    for (own, theirs) in bits.iter_mut().zip(before[above].iter().flatten()) {
                        *own |= theirs;
                    }
                }
                before[next] = Some(bits);
                stack.pop();
            }
        }
        before[entry].as_deref().unwrap_or_default()
    }
}
