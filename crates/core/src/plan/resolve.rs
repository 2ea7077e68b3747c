//! Resolves the nodes of a definition, and refuses it when one of them cannot run its steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::expressions::Expressions;
use super::index::{NodeIx, SetIx, StepIx};
use super::resolved::{NodeRef, Resolved};
use crate::backend::{ActionSchema, ParamProblem, Params, check_params, lacking_hint};
use crate::expr::Template;
use crate::ids::NodeId;
use crate::limits;
use crate::node::NodeRecord;
use crate::select::Selector;
use crate::shown::shown;
use crate::spec::{Definition, Entry, ExprSite, Task};

/// The reason why a run is refused before anything is dispatched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unfit {
    pub message: String,
    /// The affected nodes, by hostname, each with its reason.
    pub nodes: Vec<(String, String)>,
}

pub(super) type Result<T> = std::result::Result<T, Unfit>;

/// Resolves each entry's target to nodes. Drained nodes accept no new work: they are left out and named. Offline nodes
/// are kept, because a target that silently shrinks would hide which hosts were not changed. `params` are the run's.
pub fn resolve(definition: &Definition, params: &Params, nodes: &[Arc<NodeRecord>]) -> Result<Resolved> {
    let mut sets = Sets { order: by_hostname(nodes), ..Sets::default() };
    let mut entries = Vec::with_capacity(definition.tasks.len());
    let mut instances = 0;
    for (index, entry) in definition.tasks.iter().enumerate() {
        let set = match target(definition, entry) {
            Some(selector) => Some(sets.of(selector, || own_target(definition, index), nodes)?),
            None => None,
        };
        // Counted here too: the sets of thousands of selectors would fill the memory before the plan is compiled.
        instances += entry.leaves().len() * set.map_or(1, |set| sets.members[set.get()].len());
        if instances > limits::INSTANCES_PER_RUN {
            let most = limits::INSTANCES_PER_RUN;
            let message = format!(
                "the run has more than {most} step instances (steps × nodes), the most that is possible{NOTHING_STARTED}"
            );
            return Err(Unfit { message, nodes: Vec::new() });
        }
        entries.push(set);
    }
    fitting(definition, params, nodes, sets, entries)
}

/// Checks the nodes of an earlier run against their current state: a retried run does not resolve its targets again.
pub fn resolve_again(
    definition: &Definition,
    params: &Params,
    former: &Resolved,
    nodes: &[Arc<NodeRecord>],
) -> Result<Resolved> {
    let today: HashMap<NodeId, usize> = nodes.iter().zip(0..).map(|(node, index)| (node.id, index)).collect();
    let mut refused = Vec::new();
    for node in &former.nodes {
        let why = match today.get(&node.id) {
            None => "is gone",
            Some(&index) if nodes[index].draining => "is drained",
            Some(_) => continue,
        };
        refused.push((node.hostname.clone(), why.to_owned()));
    }
    if !refused.is_empty() {
        let count = refused.len();
        let message = format!("{count} of the run's nodes take no work now; nothing was started");
        return Err(Unfit { message, nodes: refused });
    }
    let member = |node: &NodeIx| today[&former.nodes[*node].id];
    let members = former.sets.iter().map(|set| set.iter().map(member).collect()).collect();
    let sets = Sets { order: by_hostname(nodes), members, ..Sets::default() };
    let resolved = fitting(definition, params, nodes, sets, former.entries.clone())?;
    Ok(Resolved {
        waves: former.waves.clone(),
        left_out: former.left_out.clone(),
        retry: former.retry,
        ..resolved
    })
}

/// Refuses steps that the nodes cannot run.
fn fitting(
    definition: &Definition,
    params: &Params,
    nodes: &[Arc<NodeRecord>],
    sets: Sets<'_>,
    entries: Vec<Option<SetIx>>,
) -> Result<Resolved> {
    let members = |entry: usize| entries[entry].map(|set| sets.members[set.get()].as_slice());
    let mut expressions = Expressions::new(definition, params, nodes, &members);
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut known: HashMap<(SetIx, &str, &str), Offer<'_>> = HashMap::new();
    let mut refusals: Vec<Unfit> = Vec::new();
    let mut idempotent = Vec::new();
    let mut step = StepIx(0);
    for (index, entry) in definition.tasks.iter().enumerate() {
        if let Some(each) = entry.for_each()
            && let Ok(Some(template)) = Template::of_items(&each.items)
        {
            refusals.extend(expressions.check_items(index, &template).err());
        }
        for (leaf, task) in entry.leaves().iter().enumerate() {
            let at = ExprSite { entry: index, leaf };
            let keys = definition.limits_of(task).map(|(key, _)| key.as_str());
            if let Ok(Some(template)) = Template::of_keys(keys) {
                refusals.extend(expressions.check_keys(at, task, &template).err());
            }
            let offer = entries[index].map(|set| {
                known.entry((set, &task.backend, &task.action)).or_insert_with(|| {
                    let members = sets.members[set.get()].iter().map(|&index| nodes[index].as_ref());
                    Offer::of(task, members, &mut missing)
                })
            });
            let template = Template::of(&task.backend, &task.action, &task.params)
                .map_err(|problem| refused(task, step, &[problem]));
            let fits = template.and_then(|template| match (&template, &offer) {
                (None, Some(offer)) => offer.refuse_params(task, step),
                (None, None) => Ok(()),
                (Some(template), offer) => {
                    let schemas = offer.as_ref().map_or(&[][..], |offer| &offer.schemas);
                    expressions.check(at, task, step, template, schemas)
                }
            });
            refusals.extend(fits.err().filter(|_| refusals.len() < limits::PROBLEMS_LISTED));
            if offer.is_some_and(|offer| offer.idempotent) {
                idempotent.push(step);
            }
            step.0 += 1;
        }
    }
    if !missing.is_empty() {
        let count = missing.len();
        let nodes = missing.into_iter().map(|(node, what)| (node.to_owned(), what.join(", "))).collect();
        let message = format!("{count} of the target nodes cannot do what the job asks{NOTHING_STARTED}");
        refusals.insert(0, Unfit { message, nodes });
    }
    if let Some(unfit) = all_of(refusals) {
        return Err(unfit);
    }
    let mut resolved = sets.into_resolved(nodes, entries, idempotent);
    if let Some(rollout) = &definition.rollout {
        // All entries have one target: the job file's rules ensure it.
        let nodes = resolved.sets.first().map_or(0, Vec::len);
        resolved.waves = rollout.batch.waves(u32::try_from(nodes).expect("nodes are bounded"));
    }
    Ok(resolved)
}

/// The end of every refusal.
pub(super) const NOTHING_STARTED: &str = "; nothing was started";

/// Joins all refusals into one, so that the user can fix them all at once.
fn all_of(refusals: Vec<Unfit>) -> Option<Unfit> {
    let mut refusals = refusals.into_iter();
    let mut all = refusals.next()?;
    for Unfit { message, nodes } in refusals {
        all.message.truncate(all.message.trim_end_matches(NOTHING_STARTED).len());
        all.message.push_str(&format!("; {message}"));
        for (node, why) in nodes {
            match all.nodes.iter_mut().find(|(known, _)| *known == node) {
                Some((_, known)) => known.push_str(&format!("; {why}")),
                None => all.nodes.push((node, why)),
            }
        }
    }
    Some(all)
}

/// Refuses a step whose params are invalid on every node.
pub(super) fn refused(task: &Task, step: StepIx, problems: &[ParamProblem]) -> Unfit {
    let why = joined(problems);
    let message = format!("step {step} ({}) is refused: {why}{NOTHING_STARTED}", task.label());
    Unfit { message, nodes: Vec::new() }
}

/// Refuses a step whose params are invalid on one node.
pub(super) fn refused_on(task: &Task, step: StepIx, hostname: &str, why: String) -> Unfit {
    let message = format!("step {step} ({}) is refused on {hostname}: {why}{NOTHING_STARTED}", task.label());
    Unfit { message, nodes: vec![(hostname.to_owned(), why)] }
}

/// Refuses a step whose params do not match the schema of its action that `hostname` declares. `declared` is the number of
/// schemas that the step's nodes declare, and of these nodes.
pub(super) fn refused_by(
    task: &Task,
    step: StepIx,
    hostname: &str,
    declared: (usize, usize),
    problems: &[ParamProblem],
) -> Unfit {
    match declared {
        // A single node is named, which is clearer.
        (1, nodes) if nodes > 1 => {
            Unfit { nodes: vec![(hostname.to_owned(), joined(problems))], ..refused(task, step, problems) }
        }
        _ => refused_on(task, step, hostname, joined(problems)),
    }
}

pub(super) fn joined(problems: &[ParamProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns how messages name an entry with its own target; `None` if it has none or is the only entry.
fn own_target(definition: &Definition, index: usize) -> Option<String> {
    let entry = &definition.tasks[index];
    let own = matches!(entry, Entry::Leaf(Task { target: Some(_), .. })) && definition.tasks.len() > 1;
    own.then(|| match entry.name() {
        Some(name) => format!("task `{}`", shown(name)),
        None => format!("tasks[{index}]"),
    })
}

fn target<'a>(definition: &'a Definition, entry: &'a Entry) -> Option<&'a Selector> {
    match entry {
        Entry::Leaf(Task { target: Some(target), .. }) => Some(target),
        Entry::Leaf(Task { placement: Some(_), .. } | Task { approve: Some(_), .. }) => None,
        Entry::Leaf(_) | Entry::Branch(_) => definition.target.as_ref(),
    }
}

/// The schemas that the nodes of a set declare for one action. Collected once, because thousands of steps may use it.
struct Offer<'a> {
    idempotent: bool,
    /// The number of nodes that have the action.
    nodes: usize,
    /// Every distinct schema, with a node that declares it. Nearly always there is only one.
    schemas: Vec<(&'a ActionSchema, &'a str)>,
}

impl<'a> Offer<'a> {
    /// Collects the schemas, and records the nodes that lack the backend or the action.
    fn of(
        task: &Task,
        members: impl Iterator<Item = &'a NodeRecord>,
        missing: &mut BTreeMap<&'a str, Vec<String>>,
    ) -> Self {
        let mut offer = Self { idempotent: true, nodes: 0, schemas: Vec::new() };
        for node in members {
            let description = &node.description;
            let lacking = match description.backend(&task.backend) {
                None => format!("lacks backend `{}`{}", task.backend, lacking_hint(&task.backend)),
                Some(backend) => match backend.action(&task.action) {
                    None => format!("backend `{}` has no action `{}`", task.backend, task.action),
                    Some(action) => {
                        offer.nodes += 1;
                        offer.idempotent &= action.idempotent;
                        if !offer.schemas.iter().any(|(known, _)| *known == action) {
                            offer.schemas.push((action, &description.hostname));
                        }
                        continue;
                    }
                },
            };
            // A missing backend is listed once, even if several of its actions are used.
            let lacks = missing.entry(&description.hostname).or_default();
            if !lacks.contains(&lacking) {
                lacks.push(lacking);
            }
        }
        offer
    }

    fn refuse_params(&self, task: &Task, step: StepIx) -> Result<()> {
        for (action, hostname) in &self.schemas {
            let declared = (self.schemas.len(), self.nodes);
            check_params(action, &task.params)
                .map_err(|problems| refused_by(task, step, hostname, declared, &problems))?;
        }
        Ok(())
    }
}

/// Returns the indexes of the nodes, ordered by hostname.
fn by_hostname(nodes: &[Arc<NodeRecord>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|&a, &b| nodes[a].description.hostname.cmp(&nodes[b].description.hostname));
    order
}

/// Distinct sets of nodes, by selector.
#[derive(Default)]
struct Sets<'a> {
    by_selector: HashMap<&'a str, SetIx>,
    /// Indexes into the given nodes, by hostname.
    order: Vec<usize>,
    /// The same, for each set.
    members: Vec<Vec<usize>>,
    by_members: HashMap<Vec<usize>, SetIx>,
    /// Drained nodes that a selector matches.
    left_out: BTreeSet<usize>,
}

impl<'a> Sets<'a> {
    /// Returns the set of a selector. `whose` names the entry in a refusal, where that helps.
    fn of(
        &mut self,
        selector: &'a Selector,
        whose: impl Fn() -> Option<String>,
        nodes: &[Arc<NodeRecord>],
    ) -> Result<SetIx> {
        if let Some(set) = self.by_selector.get(selector.as_str()) {
            return Ok(*set);
        }
        let matching = self.order.iter().copied().filter(|index| selector.matches(&nodes[*index]));
        let (drained, members): (Vec<usize>, Vec<usize>) = matching.partition(|index| nodes[*index].draining);
        if members.is_empty() {
            let hostname = |index: usize| nodes[index].description.hostname.clone();
            let drained: Vec<(String, String)> =
                drained.into_iter().map(|index| (hostname(index), "is drained".to_owned())).collect();
            let why = match drained.len() {
                0 => selector.why_unmatched(nodes.iter().map(AsRef::as_ref)),
                _ => format!(
                    "the target `{selector}` matches only drained nodes; `downbeat node undrain` lets a node take work \
                     again"
                ),
            };
            let whose = whose().map(|whose| format!("{whose}: ")).unwrap_or_default();
            return Err(Unfit { message: format!("{whose}{why}{NOTHING_STARTED}"), nodes: drained });
        }
        self.left_out.extend(drained);
        let set = *self.by_members.entry(members).or_insert_with_key(|members| {
            self.members.push(members.clone());
            SetIx::new(self.members.len() - 1)
        });
        self.by_selector.insert(selector.as_str(), set);
        Ok(set)
    }

    fn into_resolved(
        self,
        nodes: &[Arc<NodeRecord>],
        entries: Vec<Option<SetIx>>,
        idempotent: Vec<StepIx>,
    ) -> Resolved {
        let mut is_used = vec![false; nodes.len()];
        for index in self.members.iter().flatten() {
            is_used[*index] = true;
        }
        let used: Vec<usize> = self.order.iter().copied().filter(|index| is_used[*index]).collect();
        let place: HashMap<usize, NodeIx> =
            used.iter().enumerate().map(|(at, &index)| (index, NodeIx::new(at))).collect();
        let reference = |index: usize| NodeRef {
            id: nodes[index].id,
            hostname: nodes[index].description.hostname.clone(),
        };
        let mut left_out: Vec<NodeRef> = self.left_out.iter().copied().map(reference).collect();
        left_out.sort_by(|a, b| a.hostname.cmp(&b.hostname));
        Resolved {
            nodes: used.iter().copied().map(reference).collect(),
            sets: self.members.iter().map(|set| set.iter().map(|index| place[index]).collect()).collect(),
            entries,
            idempotent,
            waves: Vec::new(),
            left_out,
            retry: None,
        }
    }
}
