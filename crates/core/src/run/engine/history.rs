//! Owns the records of a run, by instance and by pass.

use std::collections::{HashMap, HashSet};

use crate::execution::Execution;
use crate::plan::{PassIx, Plan, StepIx};
use crate::run::Instance;

pub(super) struct History<'a> {
    /// Without the executions that were carried over from another run.
    pub attempts: HashMap<Instance, Vec<&'a Execution>>,
    /// Steps with a record.
    steps: HashSet<StepIx>,
    /// Passes with a record.
    passes: Vec<bool>,
    /// Passes that a pass with a record depends on, directly or indirectly.
    later: Vec<bool>,
    /// The run was asked to stop, so its cancelled attempts were cancelled on purpose.
    pub stopped: bool,
}

impl<'a> History<'a> {
    pub(super) fn of(plan: &Plan, executions: &'a [Execution], stopped: bool) -> Self {
        let mut attempts: HashMap<_, Vec<&Execution>> = HashMap::new();
        let mut steps = HashSet::new();
        for execution in executions.iter().filter(|execution| !execution.is_carried()) {
            let instance = Instance::of(execution);
            attempts.entry(instance).or_default().push(execution);
            steps.insert(instance.step);
        }
        for list in attempts.values_mut() {
            list.sort_unstable_by_key(|execution| execution.attempt);
        }
        let mut history = Self { attempts, steps, passes: Vec::new(), later: Vec::new(), stopped };
        let passes = (0..).map(PassIx).zip(&plan.passes);
        history.passes = passes.map(|(pass, _)| history.has(plan, pass)).collect();
        history.later = history.before_recorded(plan);
        history
    }

    /// Looks back over more than one pass: a pass whose instances were all carried over has no record.
    fn before_recorded(&self, plan: &Plan) -> Vec<bool> {
        let mut later = vec![false; plan.passes.len()];
        let recorded = (0..).map(PassIx).zip(&self.passes).filter(|(_, has)| **has);
        let mut found: Vec<PassIx> = recorded.map(|(pass, _)| pass).collect();
        while let Some(pass) = found.pop() {
            for &before in &plan.passes[pass].after {
                if !std::mem::replace(&mut later[before.get()], true) {
                    found.push(before);
                }
            }
        }
        later
    }

    fn has(&self, plan: &Plan, pass: PassIx) -> bool {
        let mut steps = plan.entry_of(pass).steps().filter(|step| self.steps.contains(step));
        let Some(nodes) = plan.nodes_of_pass(pass) else { return steps.next().is_some() };
        let ids = nodes.iter().map(|node| Some(plan.node(*node).id));
        steps.any(|step| {
            ids.clone().any(|node| self.attempts.contains_key(&Instance { step, node, item: None }))
        })
    }

    pub(super) fn is_recorded(&self, pass: PassIx) -> bool {
        self.passes[pass.get()]
    }

    /// Returns whether any later pass has a record, however far it is.
    pub(super) fn has_later(&self, pass: PassIx) -> bool {
        self.later[pass.get()]
    }

    /// Returns whether an entry with `for_each` was skipped or failed before its items were known.
    pub(super) fn has_no_items(&self, plan: &Plan, pass: PassIx) -> bool {
        let step = plan.entry_of(pass).first;
        self.attempts.contains_key(&Instance { step, node: None, item: None })
    }

    /// Returns whether a record exists that follows this instance: then its end was final. Without such a record the
    /// engine decides again, with the same result.
    pub(super) fn went_on(&self, plan: &Plan, pass: PassIx, instance: Instance) -> bool {
        let position = plan.steps[instance.step].position;
        match plan.entry_of(pass).step(position + 1) {
            Some(step) => self.attempts.contains_key(&Instance { step, ..instance }),
            None => self.has_later(pass),
        }
    }
}
