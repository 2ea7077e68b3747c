//! Random cases: a definition, its nodes, and what the nodes' backends declare.

use std::sync::{Arc, LazyLock};

use downbeat_core::Dice;
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::run::{NodeRef, Resolved};
use downbeat_core::select::Selector;
use downbeat_core::span::Span;
use downbeat_core::spec::{
    Amount, Batch, Branch, Condition, Definition, Delivery, Entry, Placement, Retry, Rollout, Strategy, Task,
};

/// As many nodes as a case may have.
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

/// What is run, and where.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) definition: Definition,
    pub(crate) nodes: usize,
    /// For each entry the nodes that it targets, or nothing when it is placed.
    pub(crate) targets: Vec<Option<Vec<usize>>>,
    /// For each step whether its action is declared idempotent.
    pub(crate) idempotent: Vec<bool>,
    /// For each step the one whose output it uses, if any.
    pub(crate) uses: Vec<Option<usize>>,
}

impl Case {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let nodes = 1 + number(dice, MOST_NODES).min(number(dice, MOST_NODES));
        let rollout = (dice.below(3) == 0).then(|| random_rollout(dice));
        let graph = rollout.is_none() && dice.below(3) == 0;
        let fleet = rollout.is_some() || dice.below(6) > 0;
        let mut case = Self {
            definition: Definition {
                name: None,
                cluster: None,
                target: fleet.then(Selector::all),
                placement: None,
                // A roll-out has no strategy: the budget decides.
                strategy: if rollout.is_none() && dice.below(2) == 0 {
                    Strategy::Continue
                } else {
                    Strategy::FailFast
                },
                rollout,
                exclusive: false,
                priority: 0,
                params: Default::default(),
                timeout: None,
                max_parallel: None,
                limits: Default::default(),
                placement_timeout: None,
                tasks: Vec::new(),
            },
            nodes,
            targets: Vec::new(),
            idempotent: Vec::new(),
            uses: Vec::new(),
        };
        for index in 0..1 + number(dice, 4) {
            case.add_entry(index, graph, dice);
        }
        case.uses = vec![None; case.idempotent.len()];
        if dice.below(3) == 0 {
            case.add_uses(dice);
        }
        case
    }

    /// Lets some steps say something, and some later ones use it.
    fn add_uses(&mut self, dice: &mut Dice) {
        let places: Vec<(usize, usize)> = (0..)
            .zip(&self.definition.tasks)
            .flat_map(|(entry, tasks)| (0..tasks.leaves().len()).map(move |leaf| (entry, leaf)))
            .collect();
        let graph = self.definition.is_graph();
        for (step, &(entry, leaf)) in places.iter().enumerate().skip(1) {
            let used = number(dice, step);
            let (before, before_leaf) = places[used];
            let before_name = self.definition.tasks[before].name().expect("entries have names");
            let depends = self.definition.tasks[entry].depends_on().iter().any(|name| name == before_name);
            if dice.below(2) == 0 || (graph && before != entry && !depends) {
                continue;
            }
            let said = self.task_mut(before, before_leaf);
            said.outputs = vec!["v".to_owned()];
            let expression =
                format!("{{{{ steps.{}.outputs.v }}}}", said.name.as_deref().expect("it has one"));
            self.task_mut(entry, leaf).params = [("given".to_owned(), expression.into())].into();
            self.uses[step] = Some(used);
        }
    }

    fn task_mut(&mut self, entry: usize, leaf: usize) -> &mut Task {
        match &mut self.definition.tasks[entry] {
            Entry::Leaf(task) => task,
            Entry::Branch(branch) => &mut branch.tasks[leaf],
        }
    }

    /// What a step says on a node when it succeeds.
    pub(crate) fn output(step: usize, node: Option<usize>) -> u64 {
        (100 * step + node.map_or(0, |node| node + 1)) as u64
    }

    fn add_entry(&mut self, index: usize, graph: bool, dice: &mut Dice) {
        let fleet = self.definition.target.is_some();
        let after = |dice: &mut Dice| (0..index).filter(|_| dice.below(2) == 0).map(name).collect();
        let depends_on: Option<Vec<String>> = graph.then(|| after(dice));
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
            0 => {
                task.placement = Some(Placement::default());
                None
            }
            1 => {
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

    /// What the targets came to, as the server would have settled it.
    pub(crate) fn resolved(&self) -> Resolved {
        let mut sets: Vec<Vec<u32>> = Vec::new();
        let mut entries = Vec::new();
        for target in &self.targets {
            entries.push(target.as_ref().map(|nodes| {
                let set: Vec<u32> = nodes.iter().map(|node| u32::try_from(*node).unwrap()).collect();
                let known = sets.iter().position(|known| *known == set);
                u32::try_from(known.unwrap_or_else(|| {
                    sets.push(set);
                    sets.len() - 1
                }))
                .unwrap()
            }));
        }
        let count = u32::try_from(self.nodes).unwrap();
        let waves = self.definition.rollout.as_ref().map(|rollout| rollout.batch.waves(count));
        // A placed step's nodes are not known, so nothing is declared for it.
        let mut idempotent = Vec::new();
        let mut step = 0;
        for (entry, target) in self.definition.tasks.iter().zip(&self.targets) {
            for _ in entry.leaves() {
                if target.is_some() && self.idempotent[step] {
                    idempotent.push(u32::try_from(step).unwrap());
                }
                step += 1;
            }
        }
        let waves = waves.unwrap_or_default();
        Resolved { nodes: NODES[..self.nodes].to_vec(), sets, entries, idempotent, waves }
    }

    /// Smaller cases that are like this one.
    pub(crate) fn smaller(&self) -> Vec<Case> {
        let mut found = Vec::new();
        if self.uses.iter().any(Option::is_some) {
            // Who uses what is not kept right when steps go: first without.
            let mut case = self.clone();
            case.uses = vec![None; case.uses.len()];
            for entry in &mut case.definition.tasks {
                match entry {
                    Entry::Leaf(task) => task.params.clear(),
                    Entry::Branch(branch) => branch.tasks.iter_mut().for_each(|task| task.params.clear()),
                }
            }
            return vec![case];
        }
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
        let mut first = 0;
        for (index, entry) in self.definition.tasks.iter().enumerate() {
            let steps = first..first + entry.leaves().len();
            first = steps.end;
            if self.definition.tasks.len() > 1 {
                found.push(self.without_entry(index, steps.clone()));
            }
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
        case.uses.drain(steps.clone());
        case.idempotent.drain(steps);
        for entry in &mut case.definition.tasks {
            match entry {
                Entry::Leaf(task) => task.depends_on.iter_mut(),
                Entry::Branch(branch) => branch.depends_on.iter_mut(),
            }
            .for_each(|names| names.retain(|name| *name != gone));
        }
        case
    }

    /// A leaf less, or less of a leaf.
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
        if let Entry::Branch(branch) = &self.definition.tasks[index]
            && branch.tasks.len() > 1
        {
            let mut case = self.clone();
            let mut branch = branch.clone();
            branch.tasks.remove(leaf);
            case.definition.tasks[index] = Entry::Branch(branch);
            case.idempotent.remove(step);
            case.uses.remove(step);
            found.push(case);
        }
        found
    }

    pub(crate) fn shared(&self) -> (Arc<Definition>, Arc<Resolved>) {
        (Arc::new(self.definition.clone()), Arc::new(self.resolved()))
    }
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
        placement_timeout: None,
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
