//! Owns the classes of placed work: executions that the same nodes fit share one, so that a node is asked once for
//! thousands of tasks. A class lives as long as something open is of it.

use std::collections::HashMap;
use std::sync::Arc;

use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::plan::Plan;
use downbeat_core::spec::Placement;

/// Beyond this many, those that nothing is of are dropped before a new one is made.
const UNUSED: usize = 1_024;

/// What the nodes of one class of work must satisfy.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub cluster: ClusterId,
    pub backend: String,
    pub action: String,
    pub placement: Placement,
    /// Set when the placement counts per run, or the run may have nodes that others have not.
    pub run: Option<RunId>,
}

#[derive(Debug)]
struct Slot {
    class: Arc<Class>,
    text: String,
    /// Open executions of it.
    open: usize,
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    slots: Vec<Option<Slot>>,
    by_text: HashMap<String, u32>,
    vacant: Vec<u32>,
}

impl Classes {
    /// The class that an execution of this step is of.
    pub(super) fn of(&mut self, plan: &Plan, cluster: ClusterId, run: &RunId, step: u32) -> u32 {
        let task = plan.task(step);
        let placement = plan.placement(step).cloned().unwrap_or_default();
        let is_own = placement.max_per_node.is_some() || plan.definition.exclusive;
        let run = is_own.then(|| run.clone());
        let rules = if placement == Placement::default() {
            String::new()
        } else {
            serde_json::to_string(&placement).expect("a placement is plain data")
        };
        let counted = run.as_ref().map_or("", |run| run.as_str());
        let text = format!("{cluster}\0{}\0{}\0{counted}\0{rules}", task.backend, task.action);
        if let Some(class) = self.by_text.get(&text) {
            return *class;
        }
        if self.by_text.len() >= UNUSED {
            self.drop_unused();
        }
        let (backend, action) = (task.backend.clone(), task.action.clone());
        let class = Arc::new(Class { cluster, backend, action, placement, run });
        let slot = Slot { class, text: text.clone(), open: 0 };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                u32::try_from(self.slots.len() - 1).expect("classes are bounded by what is open")
            }
        };
        self.by_text.insert(text, index);
        index
    }

    pub(super) fn get(&self, class: u32) -> &Arc<Class> {
        &self.slots[class as usize].as_ref().expect("a class lives while something open is of it").class
    }

    pub(super) fn hold(&mut self, class: u32) {
        if let Some(slot) = &mut self.slots[class as usize] {
            slot.open += 1;
        }
    }

    pub(super) fn let_go(&mut self, class: u32) {
        if let Some(slot) = &mut self.slots[class as usize] {
            slot.open -= 1;
            if slot.open == 0 {
                self.remove(class);
            }
        }
    }

    fn remove(&mut self, class: u32) {
        if let Some(slot) = self.slots[class as usize].take() {
            self.by_text.remove(&slot.text);
            self.vacant.push(class);
        }
    }

    /// Those that a commit was to use that did not happen.
    fn drop_unused(&mut self) {
        for class in 0..self.slots.len() {
            if self.slots[class].as_ref().is_some_and(|slot| slot.open == 0) {
                self.remove(u32::try_from(class).expect("classes are bounded by what is open"));
            }
        }
    }
}
