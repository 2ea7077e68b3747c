//! Owns what waits for a node: pinned work per node, placed work by class, retries by their time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::plan::Plan;
use downbeat_core::spec::Placement;

/// Placed work that the same nodes fit. Thousands of tasks of a run share one, so that a node is asked once.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub backend: String,
    pub action: String,
    pub placement: Placement,
    /// Set when the placement counts per run.
    pub run: Option<RunId>,
}

/// What waits, in order of creation (ids are time-ordered).
#[derive(Debug, Default)]
pub(super) struct Queue {
    pinned: HashMap<NodeId, BTreeSet<ExecutionId>>,
    placed: BTreeMap<u32, BTreeSet<ExecutionId>>,
    delayed: BTreeSet<(Timestamp, ExecutionId)>,
    classes: Vec<Arc<Class>>,
    by_text: HashMap<String, u32>,
    length: usize,
}

/// Where in the queue an execution waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pinned(NodeId),
    Placed(u32),
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.length + self.delayed.len()
    }

    /// Where an execution of this step belongs.
    pub(super) fn place(&mut self, plan: &Plan, run: &RunId, step: u32, pinned: Option<NodeId>) -> Place {
        if let Some(node) = pinned {
            return Place::Pinned(node);
        }
        let task = plan.task(step);
        let placement = plan.placement(step).cloned().unwrap_or_default();
        let run = placement.max_per_node.map(|_| run.clone());
        let text = format!(
            "{}\0{}\0{}\0{}",
            task.backend,
            task.action,
            run.as_ref().map_or("", |run| run.as_str()),
            if placement == Placement::default() {
                String::new()
            } else {
                serde_json::to_string(&placement).expect("a placement is plain data")
            }
        );
        let classes = &mut self.classes;
        let class = *self.by_text.entry(text).or_insert_with(|| {
            let (backend, action) = (task.backend.clone(), task.action.clone());
            classes.push(Arc::new(Class { backend, action, placement, run }));
            u32::try_from(classes.len() - 1).expect("classes are bounded by the steps of open runs")
        });
        Place::Placed(class)
    }

    pub(super) fn class(&self, class: u32) -> &Arc<Class> {
        &self.classes[class as usize]
    }

    pub(super) fn push(&mut self, place: Place, execution: ExecutionId) {
        let new = match place {
            Place::Pinned(node) => self.pinned.entry(node).or_default().insert(execution),
            Place::Placed(class) => self.placed.entry(class).or_default().insert(execution),
        };
        self.length += usize::from(new);
    }

    pub(super) fn delay(&mut self, until: Timestamp, execution: ExecutionId) {
        self.delayed.insert((until, execution));
    }

    pub(super) fn remove(&mut self, place: Place, until: Option<Timestamp>, execution: ExecutionId) {
        if let Some(until) = until
            && self.delayed.remove(&(until, execution))
        {
            return;
        }
        let gone = match place {
            Place::Pinned(node) => {
                let Some(set) = self.pinned.get_mut(&node) else { return };
                let gone = set.remove(&execution);
                if set.is_empty() {
                    self.pinned.remove(&node);
                }
                gone
            }
            Place::Placed(class) => {
                let Some(set) = self.placed.get_mut(&class) else { return };
                let gone = set.remove(&execution);
                if set.is_empty() {
                    self.placed.remove(&class);
                }
                gone
            }
        };
        self.length -= usize::from(gone);
    }

    /// Takes the retries whose time has come.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<ExecutionId> {
        let mut due = Vec::new();
        while let Some(&(until, execution)) = self.delayed.first() {
            if until > now {
                break;
            }
            self.delayed.pop_first();
            due.push(execution);
        }
        due
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.delayed.first().map(|(until, _)| *until)
    }

    pub(super) fn first_pinned(&self, node: NodeId) -> Option<ExecutionId> {
        self.pinned.get(&node)?.first().copied()
    }

    /// Nodes that pinned work waits for.
    pub(super) fn pinned_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.pinned.keys().copied()
    }

    /// Classes that wait, the one with the oldest execution first.
    pub(super) fn waiting_classes(&self) -> Vec<u32> {
        let mut classes: Vec<(ExecutionId, u32)> =
            self.placed.iter().filter_map(|(class, set)| Some((*set.first()?, *class))).collect();
        classes.sort_unstable();
        classes.into_iter().map(|(_, class)| class).collect()
    }

    pub(super) fn first_placed(&self, class: u32) -> Option<ExecutionId> {
        self.placed.get(&class)?.first().copied()
    }

    /// Forgets classes when nothing is open: a long-lived server would else keep every placement it ever saw.
    pub(super) fn forget_classes(&mut self) {
        if self.placed.is_empty() && self.delayed.is_empty() && self.classes.len() > 1_024 {
            self.classes.clear();
            self.by_text.clear();
        }
    }
}
