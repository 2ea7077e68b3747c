//! Owns the records of a run, by instance and by pass.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::progress::Stop;
use crate::execution::{Execution, State};
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
    /// The run was asked to stop, so its cancelled attempts were cancelled on purpose, and have not failed.
    pub stopped: bool,
    /// The first pass of a wave that had not begun when the run timed out.
    unreached: Option<PassIx>,
}

impl<'a> History<'a> {
    pub(super) fn of(plan: &Plan, executions: &[&'a Execution], stop: Option<Stop>) -> Self {
        let mut attempts: HashMap<_, Vec<&Execution>> = HashMap::new();
        let mut steps = HashSet::new();
        for &execution in executions.iter().filter(|execution| !execution.is_carried()) {
            let instance = Instance::of(execution);
            attempts.entry(instance).or_default().push(execution);
            steps.insert(instance.step);
        }
        for list in attempts.values_mut() {
            list.sort_unstable_by_key(|execution| execution.attempt);
        }
        let stopped = stop.is_some_and(|stop| !stop.is_timeout());
        let (passes, later) = (Vec::new(), Vec::new());
        let mut history = Self { attempts, steps, passes, later, stopped, unreached: None };
        let passes = (0..).map(PassIx).zip(&plan.passes);
        history.passes = passes.map(|(pass, _)| history.has(plan, pass)).collect();
        history.later = history.before_recorded(plan);
        if let Some(Stop::CleaningUp { since }) = stop {
            history.unreached = Some(history.unreached_at(plan, since));
        }
        history
    }

    /// Waves begin one after the other, and a wave that begins leaves attempts, or records from before the timeout.
    fn unreached_at(&self, plan: &Plan, since: Timestamp) -> PassIx {
        let began = |execution: &&Execution| {
            execution.created_at < since || !matches!(execution.state, State::Skipped { .. })
        };
        let has_begun = |pass: PassIx| {
            let nodes = plan.nodes_of_pass(pass).unwrap_or_default();
            let instances = plan.entry_of(pass).steps().flat_map(|step| {
                nodes.iter().map(move |node| Instance { step, node: Some(plan.node(*node).id), item: None })
            });
            let mut attempts = instances.filter_map(|instance| self.attempts.get(&instance)).flatten();
            attempts.any(began)
        };
        let waves = (0..).map(PassIx).zip(&plan.passes).filter(|(_, pass)| pass.wave.is_some());
        let last = waves.map(|(pass, _)| pass).filter(|pass| has_begun(*pass)).last();
        last.map_or(PassIx(0), |pass| PassIx(pass.0 + 1))
    }

    /// Returns whether a pass that may begin did so before the run timed out.
    pub(super) fn is_reached(&self, plan: &Plan, pass: PassIx) -> bool {
        plan.passes[pass].wave.is_none() || self.unreached.is_none_or(|first| pass < first)
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
