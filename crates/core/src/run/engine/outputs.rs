//! Owns the outputs of steps, and decides which of them are kept, and which the expressions of later steps see.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::passes::Walk;
use super::progress::Progress;
use crate::backend::{Params, params_bytes};
use crate::expr::{Data, Scope};
use crate::ids::ExecutionId;
use crate::limits;
use crate::plan::{EntryIx, ItemIx, NodeIx, Plan, ResolvedTemplate, StepIx};

/// The outputs of a run's instances that expressions refer to.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    /// The outputs of the steps that expressions refer to. Those of other steps are not kept.
    steps: HashMap<StepIx, StepOutputs>,
    /// The size of all kept values.
    bytes: usize,
    /// The number of items of each entry.
    items: HashMap<EntryIx, u32>,
}

/// The outputs of one step, by node or item.
#[derive(Clone, Debug, Default)]
struct StepOutputs {
    values: HashMap<OutputOf, Data>,
    /// The size of the values.
    bytes: usize,
    /// The values were too large to be kept.
    is_dropped: bool,
    /// The outputs on all nodes, by hostname. A cache: built on first use, removed when another node sets outputs.
    by_hostname: Option<Data>,
    /// The outputs for all items. A cache, like `by_hostname`.
    by_item: Option<Data>,
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
        let read = plan.read_steps().into_iter();
        let steps = read.map(|step| (step, StepOutputs::default())).collect();
        Self { steps, bytes: 0, items: HashMap::new() }
    }

    pub(super) fn note_items(&mut self, entry: EntryIx, count: u32) {
        self.items.insert(entry, count);
    }

    fn note(&mut self, step: StepIx, of: OutputOf, outputs: &Params) {
        let Some(known) = self.steps.get_mut(&step).filter(|known| !known.is_dropped) else { return };
        let bytes = params_bytes(outputs);
        known.bytes = known.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        known.values.insert(of, Data::from(outputs));
        (known.by_hostname, known.by_item) = (None, None);
    }

    /// Drops the outputs of the steps with the largest ones, until a server can keep the rest.
    pub(super) fn drop_excess(&mut self) {
        while self.bytes > limits::OUTPUTS_OF_RUN_BYTES {
            let largest = self.steps.iter_mut().max_by_key(|(step, known)| (known.bytes, **step));
            let Some((_, largest)) = largest else { return };
            self.bytes -= largest.bytes;
            *largest = StepOutputs { is_dropped: true, ..StepOutputs::default() };
        }
    }

    /// Returns a step that a template refers to and whose outputs were dropped.
    fn dropped(&self, template: &ResolvedTemplate) -> Option<StepIx> {
        let is_dropped = |step: &StepIx| self.steps.get(step).is_some_and(|known| known.is_dropped);
        template.steps.iter().map(|(_, step)| *step).find(is_dropped)
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
        let known = self.steps.get(&step).and_then(|known| known.values.get(&own));
        known.cloned().unwrap_or_else(|| Data::from(&Params::new()))
    }

    /// Returns each output as a list, in the order of the items.
    fn by_item(&mut self, plan: &Plan, step: StepIx) -> Data {
        let Some(&count) = self.items.get(&plan.steps[step].entry) else {
            // The entry was skipped, or its items were invalid: it has no outputs, which is not an empty list.
            return Data::from(&Params::new());
        };
        let StepOutputs { values, by_item, .. } = self.steps.entry(step).or_default();
        let made = by_item.get_or_insert_with(|| {
            let lists = plan.task(step).outputs.iter().map(|name| {
                let outputs = |item| values.get(&OutputOf::Item(item)).and_then(|data| data.part(name));
                (name.clone(), Data::list(ItemIx::first(count).map(outputs)))
            });
            Data::map(lists)
        });
        made.clone()
    }

    fn by_hostname(&mut self, plan: &Plan, step: StepIx) -> Data {
        let StepOutputs { values, by_hostname, .. } = self.steps.entry(step).or_default();
        let made = by_hostname.get_or_insert_with(|| {
            let nodes = plan.nodes_of(plan.steps[step].entry).unwrap_or_default();
            let outputs = nodes.iter().filter_map(|node| {
                let outputs = values.get(&OutputOf::Node(*node))?.clone();
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
            self.outputs.drop_excess();
        }
    }

    /// Like `note_outputs`, for a recorded attempt. All outputs are kept until all records are read: passes that began
    /// before others set large outputs have their items.
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
        if let Some(step) = self.outputs.dropped(template) {
            let (most, step) = (limits::OUTPUTS_OF_RUN_BYTES / 1024 / 1024, self.step_text(step));
            return Err(format!(
                "the outputs of {step} are not kept: all outputs that expressions of the run refer to exceed {most} MiB"
            ));
        }
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
        let mut run = serde_json::json!({"id": self.run.as_str(), "job": plan.definition.name});
        // Without a schedule it is missing, so that `default` can replace it.
        if let Some(at) = self.scheduled_at {
            run["scheduled_at"] = at.to_string().into();
        }
        Ok(Scope {
            event: None,
            run: Data::from(&run),
            params: Data::from(self.params.as_ref()),
            node: facts,
            steps,
            item: item.map(|(value, index)| (value, index.0)),
        })
    }
}
