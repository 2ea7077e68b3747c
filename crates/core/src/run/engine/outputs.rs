//! Owns what steps said, and what the expressions of later ones see of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::progress::{Active, Progress, Turn};
use crate::backend::Params;
use crate::expr::{Data, Scope};
use crate::ids::ExecutionId;
use crate::plan::Plan;

/// The outputs of a run's instances, by step and node.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    values: HashMap<(u32, Option<u32>), Data>,
    /// Of a step, those of all its nodes by hostname. Made when somebody asks, forgotten when another node speaks.
    by_hostname: HashMap<u32, Data>,
}

impl Outputs {
    pub(super) fn new() -> Self {
        Self { values: HashMap::new(), by_hostname: HashMap::new() }
    }

    fn note(&mut self, step: u32, node: Option<u32>, outputs: &Params) {
        self.values.insert((step, node), Data::from(outputs));
        self.by_hostname.remove(&step);
    }

    /// As one that runs on `node` sees them: those of its own node, or of the only instance that there is.
    fn seen_from(&self, plan: &Plan, step: u32, node: Option<u32>) -> Data {
        let own = match plan.nodes_of(plan.steps[step as usize].entry) {
            None => None,
            Some(&[only]) => Some(only),
            Some(_) => node,
        };
        self.values.get(&(step, own)).cloned().unwrap_or_else(|| Data::from(&Params::new()))
    }

    fn by_hostname(&mut self, plan: &Plan, step: u32) -> Data {
        let made = self.by_hostname.entry(step).or_insert_with(|| {
            let nodes = plan.nodes_of(plan.steps[step as usize].entry).unwrap_or_default();
            let said = nodes.iter().filter_map(|node| {
                let outputs = self.values.get(&(step, Some(*node)))?.clone();
                Some((plan.node(*node).hostname.clone(), Data::map([("outputs".to_owned(), outputs)])))
            });
            Data::map(said)
        });
        made.clone()
    }
}

impl Progress {
    /// What an attempt that succeeded said.
    pub(super) fn note_outputs(&mut self, execution: ExecutionId, outputs: &Params) {
        if let Some(&Active { pass, step, walk, .. }) = self.active.get(&execution) {
            let node = self.walk(pass, walk).node;
            self.note_outputs_of(step, node, outputs);
        }
    }

    pub(super) fn note_outputs_of(&mut self, step: u32, node: Option<u32>, outputs: &Params) {
        if !self.plan.task(step).outputs.is_empty() {
            self.outputs.note(step, node, outputs);
        }
    }

    /// The params of an attempt, when its task's hold expressions.
    pub(super) fn params_of(
        &mut self,
        pass: u32,
        step: u32,
        walk: u32,
        turn: &Turn<'_>,
    ) -> Result<Option<Arc<Params>>, String> {
        let plan = Arc::clone(&self.plan);
        let Some(uses) = &plan.steps[step as usize].uses else { return Ok(None) };
        let node = self.walk(pass, walk).node;
        let facts = node.filter(|_| uses.node).and_then(|node| (turn.facts)(plan.node(node).id));
        let mut steps = BTreeMap::new();
        for (name, used) in &uses.steps {
            let mut seen = vec![("outputs".to_owned(), self.outputs.seen_from(&plan, *used, node))];
            if uses.step_nodes {
                seen.push(("nodes".to_owned(), self.outputs.by_hostname(&plan, *used)));
            }
            steps.insert(name.clone(), Data::map(seen));
        }
        let job = plan.definition.name.clone();
        let scope = Scope {
            run: Data::from(&serde_json::json!({"id": self.run.as_str(), "job": job})),
            params: Data::from(self.params.as_ref()),
            node: facts.as_ref().map(Data::from),
            steps,
            item: None,
        };
        let params = uses.template.render(&scope);
        params.map(|params| Some(Arc::new(params))).map_err(|problem| format!("param {problem}"))
    }
}
