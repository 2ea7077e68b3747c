//! Random cases: a definition, its nodes, and the schemas of the nodes' backends. References between tasks are only
//! names in the definition, so that a case stays valid when parts of it are removed.

use std::sync::{Arc, LazyLock};

use downbeat_core::Dice;
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::plan::{NodeIx, NodeRef, Resolved, SetIx, StepIx};
use downbeat_core::select::Selector;
use downbeat_core::span::Span;
use downbeat_core::spec::{
    Amount, Batch, Branch, Cache, Condition, Definition, Delivery, Entry, ForEach, Placement, Retry, Rollout,
    Strategy, Task,
};
use serde_json::{Value, json};

/// The maximum number of nodes of a case.
pub(crate) const MOST_NODES: usize = 5;

static NODES: LazyLock<Vec<NodeRef>> = LazyLock::new(|| {
    let node = |index: usize| {
        let hostname = format!("n{index}");
        NodeRef { id: NodeId::derive(ClusterId::DEFAULT, &hostname), hostname }
    };
    (0..MOST_NODES).map(node).collect()
});

pub(crate) fn node_id(node: usize) -> NodeId {
    NODES[node].id
}

pub(crate) fn node_number(id: NodeId) -> usize {
    NODES.iter().position(|node| node.id == id).expect("a node of the case")
}

/// A definition, and the nodes on which it runs.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) definition: Definition,
    pub(crate) nodes: usize,
    /// For each entry the nodes that it targets, or `None` when it is placed.
    pub(crate) targets: Vec<Option<Vec<usize>>>,
    /// For each step, whether its action is declared idempotent.
    pub(crate) idempotent: Vec<bool>,
}

const ITEM: &str = "{{ item }}";
const INDEX: &str = "{{ index }}";

/// The meaning of a value in a definition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Written<'v> {
    Plain(&'v Value),
    Item,
    Index,
    /// The output of the task of this name.
    Output(&'v str),
}

pub(crate) fn read(value: &Value) -> Written<'_> {
    match value.as_str() {
        Some(ITEM) => Written::Item,
        Some(INDEX) => Written::Index,
        Some(text) => {
            let name = text.strip_prefix("{{ steps.").and_then(|rest| rest.strip_suffix(".outputs.v }}"));
            name.map_or(Written::Plain(value), Written::Output)
        }
        None => Written::Plain(value),
    }
}

fn output_of(name: &str) -> Value {
    format!("{{{{ steps.{name}.outputs.v }}}}").into()
}

/// Returns the task whose output is the list of a `for_each`.
pub(crate) fn source(each: &ForEach) -> Option<&str> {
    let values = each.items.as_array().map_or(std::slice::from_ref(&each.items), Vec::as_slice);
    values.iter().find_map(|value| match read(value) {
        Written::Output(name) => Some(name),
        Written::Plain(_) | Written::Item | Written::Index => None,
    })
}

impl Case {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let nodes = 1 + number(dice, MOST_NODES).min(number(dice, MOST_NODES));
        let rollout = (dice.below(4) == 0).then(|| random_rollout(dice));
        let graph = rollout.is_none() && dice.below(2) == 0;
        let fleet = rollout.is_some() || dice.below(3) > 0;
        let mut case = Self {
            definition: Definition {
                target: fleet.then(Selector::all),
                // A roll-out has no strategy: the budget decides.
                strategy: rollout.is_none().then(|| match dice.below(2) {
                    0 => Strategy::Continue,
                    _ => Strategy::FailFast,
                }),
                rollout,
                max_parallel: (dice.below(4) == 0).then(|| 1 + u32::try_from(dice.below(3)).unwrap()),
                placement_timeout: (dice.below(4) == 0).then(|| random_wait(dice)),
                ..Definition::default()
            },
            nodes,
            targets: Vec::new(),
            idempotent: Vec::new(),
        };
        let count = 1 + number(dice, 4);
        let order = match (graph, dice.below(4) == 0) {
            (false, _) => Order::List,
            (true, false) => Order::Forwards,
            (true, true) => Order::Backwards,
        };
        for index in 0..count {
            case.add_entry(index, count, order, dice);
        }
        case.add_items(dice);
        if dice.below(3) == 0 {
            case.add_uses(dice);
        }
        if dice.below(4) == 0 {
            case.change_tasks(|task| task.cache = (dice.below(2) == 0).then(Cache::default));
        }
        case.definition.cleanup_timeout = (dice.below(4) > 0).then(|| random_wait(dice));
        case.definition.retry =
            (dice.below(4) == 0).then(|| Retry::times(1 + u32::try_from(dice.below(2)).unwrap()));
        case
    }

    fn change_tasks(&mut self, mut change: impl FnMut(&mut Task)) {
        for entry in &mut self.definition.tasks {
            match entry {
                Entry::Leaf(task) => change(task),
                Entry::Branch(branch) => branch.tasks.iter_mut().for_each(&mut change),
            }
        }
    }

    /// Returns the entry and leaf of each step.
    pub(crate) fn places(&self) -> Vec<(usize, usize)> {
        let leaves =
            |(entry, tasks): (usize, &Entry)| (0..tasks.leaves().len()).map(move |leaf| (entry, leaf));
        self.definition.tasks.iter().enumerate().flat_map(leaves).collect()
    }

    /// Returns whether the outputs of entry `before` exist when `entry` begins.
    fn comes_after(&self, entry: usize, before: usize) -> bool {
        if !self.definition.is_graph() {
            return before < entry;
        }
        let name = self.definition.tasks[before].name().expect("entries have names");
        self.definition.tasks[entry].depends_on().iter().any(|other| other == name)
    }

    /// Adds items to some placed entries.
    fn add_items(&mut self, dice: &mut Dice) {
        let places = self.places();
        for entry in 0..self.definition.tasks.len() {
            if self.targets[entry].is_some() || dice.below(2) == 0 {
                continue;
            }
            let mut tries = (0..3).map(|_| places[number(dice, places.len())]);
            let found = tries.find(|(before, _)| self.comes_after(entry, *before));
            let items = if let Some((before, leaf)) = found {
                let source = self.task_mut(before, leaf);
                source.outputs = vec!["v".to_owned()];
                let output = output_of(source.name.as_deref().expect("it has one"));
                if dice.below(4) == 0 { json!([5, output]) } else { output }
            } else {
                let items =
                    (0..number(dice, 4)).map(|item| if item == 2 { json!(null) } else { json!(item) });
                items.collect()
            };
            let max_parallel = (dice.below(2) == 0).then(|| 1 + u32::try_from(dice.below(2)).unwrap());
            let each = Some(ForEach { items, max_parallel });
            match &mut self.definition.tasks[entry] {
                Entry::Leaf(task) => task.for_each = each,
                Entry::Branch(branch) => branch.for_each = each,
            }
            for leaf in 0..self.definition.tasks[entry].leaves().len() {
                let params = &mut self.task_mut(entry, leaf).params;
                if dice.below(2) == 0 {
                    params.insert("item".to_owned(), ITEM.into());
                }
                if dice.below(3) == 0 {
                    params.insert("index".to_owned(), INDEX.into());
                }
            }
        }
    }

    /// Adds outputs to some steps, and uses of them to others.
    fn add_uses(&mut self, dice: &mut Dice) {
        let places = self.places();
        for &(entry, leaf) in &places {
            let (before, before_leaf) = places[number(dice, places.len())];
            let earlier = (before == entry && before_leaf < leaf) || self.comes_after(entry, before);
            if dice.below(3) == 0 || !earlier {
                continue;
            }
            let source = self.task_mut(before, before_leaf);
            source.outputs = vec!["v".to_owned()];
            let output = output_of(source.name.as_deref().expect("it has one"));
            self.task_mut(entry, leaf).params.insert("given".to_owned(), output);
        }
    }

    fn task_mut(&mut self, entry: usize, leaf: usize) -> &mut Task {
        match &mut self.definition.tasks[entry] {
            Entry::Leaf(task) => task,
            Entry::Branch(branch) => &mut branch.tasks[leaf],
        }
    }

    /// Returns the output of a step that succeeds, on a node or for an item.
    pub(crate) fn output(step: usize, place: Option<usize>) -> Value {
        (100 * step + place.map_or(0, |place| place + 1)).into()
    }

    fn add_entry(&mut self, index: usize, count: usize, order: Order, dice: &mut Dice) {
        let fleet = self.definition.target.is_some();
        let others = match order {
            Order::List => None,
            Order::Forwards => Some(0..index),
            Order::Backwards => Some(index + 1..count),
        };
        let depends_on: Option<Vec<String>> =
            others.map(|others| others.filter(|_| dice.below(2) == 0).map(name).collect());
        let all: Option<Vec<usize>> = fleet.then(|| (0..self.nodes).collect());
        if dice.below(3) == 0 {
            let leaves = 1 + number(dice, 3);
            let tasks = (0..leaves).map(|leaf| random_task(100 * (index + 1) + leaf, dice)).collect();
            let (name, condition) = (Some(name(index)), random_condition(dice));
            self.definition.tasks.push(Entry::Branch(Branch {
                name,
                condition,
                depends_on,
                for_each: None,
                tasks,
            }));
            self.targets.push(all);
            self.idempotent.extend((0..leaves).map(|_| dice.below(2) == 0));
            return;
        }
        let mut task = Task { depends_on, ..random_task(index, dice) };
        let own = if self.definition.rollout.is_some() { 9 } else { dice.below(10) };
        let targets = match own {
            0 | 1 => {
                task.placement = Some(Placement::default());
                None
            }
            2 => {
                let node = number(dice, self.nodes);
                task.target = Some(Selector::parse(&format!("node:n{node}")).expect("a selector"));
                Some(vec![node])
            }
            _ => all,
        };
        self.definition.tasks.push(Entry::Leaf(task));
        self.targets.push(targets);
        self.idempotent.push(dice.below(2) == 0);
    }

    /// Returns the targets as the server would have resolved them.
    pub(crate) fn resolved(&self) -> Resolved {
        let mut sets: Vec<Vec<NodeIx>> = Vec::new();
        let mut entries = Vec::new();
        for target in &self.targets {
            entries.push(target.as_ref().map(|nodes| {
                let set: Vec<NodeIx> = nodes.iter().map(|node| NodeIx::new(*node)).collect();
                let known = sets.iter().position(|known| *known == set);
                SetIx::new(known.unwrap_or_else(|| {
                    sets.push(set);
                    sets.len() - 1
                }))
            }));
        }
        let count = u32::try_from(self.nodes).unwrap();
        let waves = self.definition.rollout.as_ref().map(|rollout| rollout.batch.waves(count));
        // The nodes of a placed step are not known, so no schema is declared for it.
        let mut idempotent = Vec::new();
        let mut step = StepIx(0);
        for (entry, target) in self.definition.tasks.iter().zip(&self.targets) {
            for _ in entry.leaves() {
                if target.is_some() && self.idempotent[step.get()] {
                    idempotent.push(step);
                }
                step.0 += 1;
            }
        }
        let waves = waves.unwrap_or_default();
        Resolved {
            nodes: NODES[..self.nodes].to_vec(),
            sets,
            entries,
            idempotent,
            waves,
            left_out: Vec::new(),
            retry: None,
        }
    }

    /// Returns smaller cases that are similar to this one.
    pub(crate) fn smaller(&self) -> Vec<Case> {
        let mut found = Vec::new();
        if self.nodes > 1 {
            let mut case = self.clone();
            case.nodes -= 1;
            for nodes in case.targets.iter_mut().flatten() {
                nodes.retain(|node| *node < case.nodes);
            }
            if case.targets.iter().flatten().all(|nodes| !nodes.is_empty()) {
                found.push(case);
            }
        }
        for change in [
            |job: &mut Definition| job.max_parallel = None,
            |job: &mut Definition| job.placement_timeout = None,
            |job: &mut Definition| job.cleanup_timeout = None,
            |job: &mut Definition| job.retry = None,
        ] {
            let mut case = self.clone();
            change(&mut case.definition);
            if case.definition != self.definition {
                found.push(case);
            }
        }
        let mut first = 0;
        for (index, entry) in self.definition.tasks.iter().enumerate() {
            let steps = first..first + entry.leaves().len();
            first = steps.end;
            if self.definition.tasks.len() > 1 {
                found.push(self.without_entry(index, steps.clone()));
            }
            found.extend(self.with_fewer_items(index));
            for leaf in 0..steps.len() {
                found.extend(self.with_less(index, leaf, steps.start + leaf));
            }
        }
        found
    }

    fn without_entry(&self, index: usize, steps: std::ops::Range<usize>) -> Case {
        let mut case = self.clone();
        let gone = case.definition.tasks.remove(index).name().expect("entries have names").to_owned();
        case.targets.remove(index);
        case.idempotent.drain(steps);
        for entry in &mut case.definition.tasks {
            match entry {
                Entry::Leaf(task) => task.depends_on.iter_mut(),
                Entry::Branch(branch) => branch.depends_on.iter_mut(),
            }
            .for_each(|names| names.retain(|name| *name != gone));
        }
        case.forget_who_is_gone();
        case
    }

    /// Removes uses of outputs that no task has any more.
    fn forget_who_is_gone(&mut self) {
        let names: Vec<String> = self
            .definition
            .tasks
            .iter()
            .flat_map(Entry::leaves)
            .filter_map(|task| task.name.clone())
            .collect();
        let is_there = |value: &Value| match read(value) {
            Written::Output(name) => names.iter().any(|other| other == name),
            Written::Plain(_) | Written::Item | Written::Index => true,
        };
        self.change_tasks(|task| task.params.retain(|_, value| is_there(value)));
        for entry in &mut self.definition.tasks {
            if let Some(each) = each_mut(entry)
                && source(each).is_some_and(|name| !names.iter().any(|other| other == name))
            {
                each.items = json!([0, 1]);
            }
        }
    }

    fn with_fewer_items(&self, index: usize) -> Vec<Case> {
        let mut found = Vec::new();
        let mut change = |change: &dyn Fn(&mut ForEach)| {
            let mut case = self.clone();
            if let Some(each) = each_mut(&mut case.definition.tasks[index]) {
                change(each);
            }
            if case.definition != self.definition {
                found.push(case);
            }
        };
        change(&|each| each.max_parallel = None);
        change(&|each| match &mut each.items {
            Value::Array(items) => {
                items.pop();
            }
            items => *items = json!([0, 1]),
        });
        if self.definition.tasks[index].for_each().is_some() {
            let mut case = self.clone();
            match &mut case.definition.tasks[index] {
                Entry::Leaf(task) => task.for_each = None,
                Entry::Branch(branch) => branch.for_each = None,
            }
            for leaf in 0..case.definition.tasks[index].leaves().len() {
                let is_item = |value: &Value| matches!(read(value), Written::Item | Written::Index);
                case.task_mut(index, leaf).params.retain(|_, value| !is_item(value));
            }
            found.push(case);
        }
        found
    }

    /// Returns cases without this leaf, or with a simpler leaf.
    fn with_less(&self, index: usize, leaf: usize, step: usize) -> Vec<Case> {
        let mut found = Vec::new();
        let mut change = |change: &dyn Fn(&mut Task)| {
            let mut case = self.clone();
            change(case.task_mut(index, leaf));
            if case.definition != self.definition {
                found.push(case);
            }
        };
        change(&|task| task.retry = None);
        change(&|task| task.condition = None);
        change(&|task| task.delivery = None);
        change(&|task| task.timeout = None);
        change(&|task| task.cache = None);
        change(&|task| task.placement_timeout = None);
        change(&|task| task.params.clear());
        if let Entry::Branch(branch) = &self.definition.tasks[index]
            && branch.tasks.len() > 1
        {
            let mut case = self.clone();
            let mut branch = branch.clone();
            branch.tasks.remove(leaf);
            case.definition.tasks[index] = Entry::Branch(branch);
            case.idempotent.remove(step);
            case.forget_who_is_gone();
            found.push(case);
        }
        found
    }

    pub(crate) fn shared(&self) -> (Arc<Definition>, Arc<Resolved>) {
        (Arc::new(self.definition.clone()), Arc::new(self.resolved()))
    }
}

fn each_mut(entry: &mut Entry) -> Option<&mut ForEach> {
    match entry {
        Entry::Leaf(task) => task.for_each.as_mut(),
        Entry::Branch(branch) => branch.for_each.as_mut(),
    }
}

/// The entries that an entry may depend on.
#[derive(Clone, Copy)]
enum Order {
    List,
    /// Entries before it in the job file.
    Forwards,
    /// Entries after it in the job file.
    Backwards,
}

fn random_wait(dice: &mut Dice) -> Span {
    Span::from_secs([2, 4, 16][number(dice, 3)])
}

pub(crate) fn number(dice: &mut Dice, below: usize) -> usize {
    usize::try_from(dice.below(below as u64)).expect("small")
}

fn name(index: usize) -> String {
    format!("t{index}")
}

fn random_condition(dice: &mut Dice) -> Option<Condition> {
    match dice.below(8) {
        0 => Some(Condition::Always),
        1 | 2 => Some(Condition::OnSuccess),
        3 | 4 => Some(Condition::OnFailure),
        _ => None,
    }
}

fn random_task(index: usize, dice: &mut Dice) -> Task {
    Task {
        name: Some(name(index)),
        backend: "test".to_owned(),
        approve: None,
        action: "noop".to_owned(),
        params: Default::default(),
        timeout: (dice.below(2) == 0).then(|| Span::from_secs(20)),
        retry: (dice.below(3) == 0).then(|| Retry::times(1 + u32::try_from(dice.below(2)).unwrap())),
        condition: random_condition(dice),
        depends_on: None,
        target: None,
        placement: None,
        for_each: None,
        limits: Default::default(),
        cache: None,
        placement_timeout: (dice.below(8) == 0).then(|| random_wait(dice)),
        delivery: match dice.below(6) {
            0 => Some(Delivery::AtLeastOnce),
            1 => Some(Delivery::AtMostOnce),
            _ => None,
        },
        on_disconnect: None,
        outputs: Vec::new(),
    }
}

fn random_amount(dice: &mut Dice, least: u32) -> Amount {
    if dice.below(2) == 0 {
        return Amount::Count(least + u32::try_from(dice.below(3)).unwrap());
    }
    Amount::Percent([0, 20, 34, 50, 100][number(dice, 5)])
}

fn random_rollout(dice: &mut Dice) -> Rollout {
    let batch = if dice.below(3) > 0 {
        Batch::Alike(random_amount(dice, 1))
    } else {
        Batch::Each((0..1 + dice.below(3)).map(|_| random_amount(dice, 1)).collect())
    };
    Rollout {
        batch,
        pause: Span::from_secs([0, 0, 1, 30][number(dice, 4)]),
        max_failures: random_amount(dice, 0),
    }
}
