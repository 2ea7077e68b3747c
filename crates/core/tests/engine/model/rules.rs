//! The rules of `docs/fleet.md`, each below the sentence that it comes from.

use std::collections::BTreeSet;

use downbeat_core::execution::Status;
use downbeat_core::spec::{Amount, Batch, Condition, Delivery, Entry, Strategy, Task};

use super::case::Case;
use super::tables::{Attempt, Fate, Given, Instance, Part, Stage, Tables, Why};

impl<'a> Tables<'a> {
    /// "`batch` is the size of a wave: a number, or a part of all nodes (rounded down, at least one node). A list gives
    /// the size of one wave after the other; its last entry is repeated until nobody is left."
    pub(super) fn waves(&self) -> Vec<Vec<usize>> {
        let rollout = self.case.definition.rollout.as_ref().expect("a roll-out");
        let mut left: Vec<usize> = (0..self.case.nodes).collect();
        let mut waves: Vec<Vec<usize>> = Vec::new();
        while !left.is_empty() {
            let size = match &rollout.batch {
                Batch::Alike(amount) => self.amount(*amount),
                Batch::Each(sizes) => self.amount(sizes[waves.len().min(sizes.len() - 1)]),
            };
            let rest = left.split_off(size.max(1).min(left.len()));
            waves.push(std::mem::replace(&mut left, rest));
        }
        waves
    }

    pub(super) fn amount(&self, amount: Amount) -> usize {
        match amount {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => self.case.nodes * usize::from(percent) / 100,
        }
    }

    /// "A node counts once, however many of its steps fail. Steps of `on_failure` entries and `on_failure` leaves do not
    /// count." A placed step belongs to no node, and counts for itself.
    pub(super) fn spent(&self) -> usize {
        let counted = || self.failures.iter().filter(|&&i| !self.is_answer(i));
        let nodes: BTreeSet<usize> = counted().filter_map(|&i| self.instances[i].node).collect();
        nodes.len() + counted().filter(|&&i| self.instances[i].node.is_none()).count()
    }

    /// "`max_failures` is the budget: a number of nodes, or a part of all nodes (rounded down)." Without a roll-out
    /// fail-fast strikes with the first failure, and `continue` never.
    pub(super) fn budget(&self) -> usize {
        match (&self.case.definition.rollout, self.case.definition.strategy) {
            (Some(rollout), _) => self.amount(rollout.max_failures),
            (None, Strategy::FailFast) => 0,
            (None, Strategy::Continue) => usize::MAX,
        }
    }

    /// Whether retries or the delivery rule leave an attempt.
    pub(super) fn may_come_again(&self, instance: usize) -> bool {
        let Instance { attempts, step, node, .. } = &self.instances[instance];
        let task = self.task(instance);
        let (last, before) = attempts.split_last().expect("it has an attempt");
        match last.status {
            // "Lost attempts do not count against `retry`." What was never sent is not tried again.
            Status::Failed => {
                let failed = before.iter().filter(|attempt| attempt.status == Status::Failed).count();
                last.sent && failed < task.retry.map_or(0, |retry| retry.max as usize)
            }
            // "A placed step is sent again, up to 3 times. A pinned step is sent again if its action is declared
            // idempotent; otherwise it fails as lost. `delivery` on a task overrides both."
            Status::Lost | Status::Cancelled => {
                let lost = |attempt: &&Attempt| matches!(attempt.status, Status::Lost | Status::Cancelled);
                let at_least_once = match task.delivery {
                    Some(delivery) => delivery == Delivery::AtLeastOnce,
                    None => node.is_none() || self.case.idempotent[*step],
                };
                self.stop.is_none() && at_least_once && before.iter().filter(lost).count() < 3
            }
            _ => false,
        }
    }

    /// After a stop nothing is begun; after fail-fast struck only what answers failures.
    pub(super) fn goes_on(&self, instance: usize) -> bool {
        self.stop.is_none() && (self.struck.is_none() || self.is_answer(instance))
    }

    /// The earlier leaves of the branch on this node.
    pub(super) fn earlier_leaves(&self, instance: usize) -> impl Iterator<Item = &Instance> {
        let this = &self.instances[instance];
        self.instances
            .iter()
            .filter(|other| other.part == this.part && other.node == this.node && other.leaf < this.leaf)
    }

    pub(super) fn leaf_runs(&self, instance: usize) -> Result<(), Why> {
        if self.stop.is_some() {
            return Err(Why::Stopped);
        }
        // "Inside a branch a condition looks at that node's own walk: the earlier leaves of the branch on this node."
        let failed = self.earlier_leaves(instance).any(|earlier| earlier.fate == Some(Fate::Failed));
        match (self.leaf_condition(instance), failed) {
            (Some(Condition::OnFailure), true) => Ok(()),
            (Some(Condition::OnFailure), false) => Err(Why::NothingFailedOnThisNode),
            // Pipeline, `continue`: "only the failed node stops".
            (_, true) => Err(Why::FailedOnThisNode),
            // Pipeline, fail-fast: "other nodes stop after their current leaf".
            (_, false) if !self.goes_on(instance) => Err(Why::Failure),
            (_, false) => Ok(()),
        }
    }

    /// "`pause` is waited between the end of a wave and the beginning of the next." It counts from the end of the last
    /// attempt. Nothing is waited for when nothing more begins.
    pub(super) fn wave_begins(&self) -> Option<i64> {
        let rollout = self.case.definition.rollout.as_ref()?;
        let wave = self.parts[*self.due.first()?].wave?;
        if wave == 0 || self.has_begun(wave) || self.stop.is_some() || self.struck.is_some() {
            return None;
        }
        Some(self.last_end? + i64::try_from(rollout.pause.0.as_millis()).expect("it is bounded"))
    }

    pub(super) fn has_begun(&self, wave: usize) -> bool {
        self.parts.iter().any(|part| part.wave == Some(wave) && part.stage == Stage::Began)
    }

    /// Whether the turn of an entry means that it runs.
    pub(super) fn part_runs(&self, part: usize) -> Result<(), Why> {
        if self.stop.is_some() {
            return Err(Why::Stopped);
        }
        let Part { entry, wave, .. } = self.parts[part];
        let condition = self.case.definition.tasks[entry].condition();
        // fail-fast: "every later step but `on_failure` ones is skipped"; "no further wave starts".
        if let Some(struck) = self.struck
            && condition != Some(Condition::OnFailure)
        {
            let other_wave = wave.is_some() && wave != self.parts[struck].wave;
            return Err(if other_wave { Why::WaveNeverBegan } else { Why::Failure });
        }
        if self.graph { self.graph_condition(part, condition) } else { self.list_condition(entry, condition) }
    }

    pub(super) fn list_condition(&self, entry: usize, condition: Option<Condition>) -> Result<(), Why> {
        match condition {
            // "Fail-fast has not struck; on the nodes still in."
            None | Some(Condition::Always) => Ok(()),
            // "No earlier step failed anywhere"; "skipped as soon as anything failed in the run".
            Some(Condition::OnSuccess) if self.failures.is_empty() => Ok(()),
            Some(Condition::OnSuccess) => Err(Why::Failure),
            // "Answers the failures of entries before it in the list, not of those after it."
            Some(Condition::OnFailure) => {
                let earlier = self.failures.iter().any(|&i| self.instances[i].entry < entry);
                if earlier { Ok(()) } else { Err(Why::NothingFailed) }
            }
        }
    }

    pub(super) fn graph_condition(&self, part: usize, condition: Option<Condition>) -> Result<(), Why> {
        let ends: Vec<Fate> = self.parts[part].after.iter().map(|before| self.end_of(*before)).collect();
        match condition {
            // "All dependencies ended, however."
            Some(Condition::Always) => Ok(()),
            // "All dependencies succeeded"; dependents "are skipped, transitively".
            None | Some(Condition::OnSuccess) => match ends.iter().find(|end| **end != Fate::Succeeded) {
                None => Ok(()),
                Some(Fate::Failed) => Err(Why::DependencyFailed),
                Some(_) => Err(Why::DependencySkipped),
            },
            // "A dependency failed."
            Some(Condition::OnFailure) if ends.contains(&Fate::Failed) => Ok(()),
            Some(Condition::OnFailure) => Err(Why::NoDependencyFailed),
        }
    }

    /// How an entry of a graph ended. What was taken over counts where its turn came.
    pub(super) fn end_of(&self, part: usize) -> Fate {
        let fates = || self.instances.iter().filter(|i| i.part == part).filter_map(|i| i.fate);
        if self.parts[part].stage == Stage::Skipped {
            Fate::Skipped
        } else if fates().any(|fate| fate == Fate::Failed) {
            Fate::Failed
        } else if fates().any(|fate| fate == Fate::Succeeded) {
            Fate::Succeeded
        } else {
            Fate::Skipped
        }
    }

    /// Whether a node takes part in an entry that begins.
    pub(super) fn node_joins(&self, instance: usize) -> Result<(), Why> {
        let Instance { entry, node, .. } = self.instances[instance];
        let Some(node) = node else { return Ok(()) };
        let failures = || self.failures.iter().map(|&i| &self.instances[i]).filter(|i| i.node == Some(node));
        if self.answers(entry) {
            if self.case.definition.rollout.is_some() {
                // "A node is touched when its wave began."
                if !self.is_touched(node) {
                    return Err(Why::NodeUntouched);
                }
                // "When it was spent they run on every node that was touched so far, failed or not. Within the budget
                // they run on the failed nodes only."
                if self.struck.is_none() && !failures().any(|failed| failed.entry < entry) {
                    return Err(Why::NodeNotConcerned);
                }
            }
            // "On every node of the run that is reachable, failed ones too."
            return if self.offline[node] { Err(Why::NodeOffline) } else { Ok(()) };
        }
        // List, `continue`: "the failed node leaves; the others go on".
        if !self.graph && failures().next().is_some() { Err(Why::NodeLeft) } else { Ok(()) }
    }

    pub(crate) fn is_touched(&self, node: usize) -> bool {
        let waves = self.instances.iter().filter(|i| i.node == Some(node)).map(|i| &self.parts[i.part]);
        waves.filter(|part| part.wave.is_some()).any(|part| part.stage == Stage::Began)
    }

    pub(super) fn task(&self, instance: usize) -> &'a Task {
        let Instance { entry, leaf, .. } = self.instances[instance];
        &self.case.definition.tasks[entry].leaves()[leaf]
    }

    /// The condition inside a branch; a leaf of its own has it as an entry.
    pub(super) fn leaf_condition(&self, instance: usize) -> Option<Condition> {
        match &self.case.definition.tasks[self.instances[instance].entry] {
            Entry::Branch(branch) => branch.tasks[self.instances[instance].leaf].condition,
            Entry::Leaf(_) => None,
        }
    }

    pub(super) fn answers(&self, entry: usize) -> bool {
        self.case.definition.tasks[entry].condition() == Some(Condition::OnFailure)
    }

    pub(crate) fn is_answer(&self, instance: usize) -> bool {
        self.answers(self.instances[instance].entry)
            || self.leaf_condition(instance) == Some(Condition::OnFailure)
    }

    pub(super) fn is_offline(&self, instance: usize) -> bool {
        self.instances[instance].node.is_some_and(|node| self.offline[node])
    }

    /// "`steps.NAME.outputs` are those of the same node, or of the only instance that the step has."
    pub(crate) fn given(&self, instance: usize) -> Given {
        let Instance { step, node, .. } = self.instances[instance];
        let Some(used) = self.case.uses[step] else { return Given::NothingUsed };
        let all = || self.instances.iter().filter(|other| other.step == used);
        let only = all().count() == 1;
        match all().find(|other| only || other.node == node) {
            Some(said) if said.fate == Some(Fate::Succeeded) => Given::Value(Case::output(used, said.node)),
            Some(_) | None => Given::Missing,
        }
    }
}
