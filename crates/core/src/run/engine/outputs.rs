//! Owns the outputs of steps, and decides which of them the expressions of later steps see.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::passes::Walk;
use super::progress::Progress;
use crate::backend::{Params, params_bytes};
use crate::expr::{Data, Scope};
use crate::ids::ExecutionId;
use crate::limits;
use crate::plan::{EntryIx, ItemIx, NodeIx, Plan, ResolvedTemplate, StepIx};

/// The outputs of a run's instances that expressions refer to, by step and node or item.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    /// The steps that expressions refer to. The outputs of others are not kept.
    read: HashSet<StepIx>,
    values: HashMap<(StepIx, OutputOf), Data>,
    /// The size of all values so far. It depends only on the records, and so does whether it is too large.
    bytes: usize,
    /// The number of items of each entry.
    items: HashMap<EntryIx, u32>,
    /// A step's outputs on all nodes, by hostname. A cache: built on first use, removed when another node sets outputs.
    by_hostname: HashMap<StepIx, Data>,
    /// A step's outputs for all items. A cache, like `by_hostname`.
    by_item: HashMap<StepIx, Data>,
}

/// The part of a step that set the outputs: a node, an item, or the only instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OutputOf {
    Node(NodeIx),
    Item(ItemIx),
    Only,
}

impl OutputOf {
    pub(super) fn of(node: Option<NodeIx>, item: Option<ItemIx>) -> Self {
        match (node, item) {
            (Some(node), _) => OutputOf::Node(node),
            (None, Some(item)) => OutputOf::Item(item),
            (None, None) => OutputOf::Only,
        }
    }
}

impl Outputs {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            read: plan.read_steps(),
            values: HashMap::new(),
            bytes: 0,
            items: HashMap::new(),
            by_hostname: HashMap::new(),
            by_item: HashMap::new(),
        }
    }

    /// Returns why a template cannot be evaluated: there are more outputs than a server keeps of one run.
    fn check(&self, template: &ResolvedTemplate) -> Result<(), String> {
        if template.steps.is_empty() || self.bytes <= limits::OUTPUTS_OF_RUN_BYTES {
            return Ok(());
        }
        let most = limits::OUTPUTS_OF_RUN_BYTES / 1024 / 1024;
        Err(format!("the outputs that expressions of the run refer to exceed {most} MiB"))
    }

    pub(super) fn note_items(&mut self, entry: EntryIx, count: u32) {
        self.items.insert(entry, count);
    }

    fn note(&mut self, step: StepIx, of: OutputOf, outputs: &Params) {
        if !self.read.contains(&step) {
            return;
        }
        self.by_hostname.remove(&step);
        self.by_item.remove(&step);
        self.bytes = self.bytes.saturating_add(params_bytes(outputs));
        if self.bytes <= limits::OUTPUTS_OF_RUN_BYTES {
            self.values.insert((step, of), Data::from(outputs));
        } else {
            // No expression sees them any more.
            self.values = HashMap::new();
        }
    }

    /// Returns a step's outputs as the instance `of` of `entry` sees them: those of its own node or item, or of the
    /// only instance. For a step of another entry with items, returns the outputs of all items.
    fn seen_from(&mut self, plan: &Plan, step: StepIx, entry: EntryIx, of: OutputOf) -> Data {
        let theirs = plan.steps[step].entry;
        if plan.entries[theirs].each.is_some() && theirs != entry {
            return self.by_item(plan, step);
        }
        let own = match (plan.nodes_of(theirs), of) {
            (None, OutputOf::Item(item)) if theirs == entry => OutputOf::Item(item),
            (None, _) => OutputOf::Only,
            (Some(&[only]), _) => OutputOf::Node(only),
            (Some(_), own) => own,
        };
        self.values.get(&(step, own)).cloned().unwrap_or_else(|| Data::from(&Params::new()))
    }

    /// Returns each output as a list, in the order of the items.
    fn by_item(&mut self, plan: &Plan, step: StepIx) -> Data {
        let Some(&count) = self.items.get(&plan.steps[step].entry) else {
            // The entry was skipped, or its items were invalid: it has no outputs, which is not an empty list.
            return Data::from(&Params::new());
        };
        let made = self.by_item.entry(step).or_insert_with(|| {
            let lists = plan.task(step).outputs.iter().map(|name| {
                let outputs =
                    |item| self.values.get(&(step, OutputOf::Item(item))).and_then(|data| data.part(name));
                (name.clone(), Data::list(ItemIx::first(count).map(outputs)))
            });
            Data::map(lists)
        });
        made.clone()
    }

    fn by_hostname(&mut self, plan: &Plan, step: StepIx) -> Data {
        let made = self.by_hostname.entry(step).or_insert_with(|| {
            let nodes = plan.nodes_of(plan.steps[step].entry).unwrap_or_default();
            let outputs = nodes.iter().filter_map(|node| {
                let outputs = self.values.get(&(step, OutputOf::Node(*node)))?.clone();
                Some((plan.node(*node).hostname.clone(), Data::map([("outputs".to_owned(), outputs)])))
            });
            Data::map(outputs)
        });
        made.clone()
    }
}

impl Progress {
    /// Records the outputs of an attempt that succeeded.
    pub(super) fn note_outputs(&mut self, execution: ExecutionId, outputs: &Params) {
        if let Some(at) = self.attempts.get(execution).map(|active| active.at) {
            let Walk { node, item, .. } = *self.passes.walk(at.pass, at.walk);
            self.note_outputs_of(at.step, OutputOf::of(node, item), outputs);
        }
    }

    pub(super) fn note_outputs_of(&mut self, step: StepIx, of: OutputOf, outputs: &Params) {
        self.outputs.note(step, of, outputs);
    }

    /// Returns the values that expressions of an entry may use, on a node or for an item.
    pub(super) fn scope_of(
        &mut self,
        template: &ResolvedTemplate,
        entry: EntryIx,
        node: Option<NodeIx>,
        item: Option<(Data, ItemIx)>,
        facts: Option<Data>,
    ) -> Result<Scope, String> {
        self.outputs.check(template)?;
        let plan = Arc::clone(&self.plan);
        let of = OutputOf::of(node, item.as_ref().map(|(_, index)| *index));
        let mut steps = BTreeMap::new();
        for (name, used) in &template.steps {
            let mut seen = vec![("outputs".to_owned(), self.outputs.seen_from(&plan, *used, entry, of))];
            if template.step_nodes {
                seen.push(("nodes".to_owned(), self.outputs.by_hostname(&plan, *used)));
            }
            steps.insert(name.clone(), Data::map(seen));
        }
        Ok(Scope {
            run: Data::from(&serde_json::json!({"id": self.run.as_str(), "job": plan.definition.name})),
            params: Data::from(self.params.as_ref()),
            node: facts,
            steps,
            item: item.map(|(value, index)| (value, index.0)),
        })
    }
}
